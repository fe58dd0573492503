CREATE OR REPLACE FUNCTION {{wake}}() RETURNS trigger LANGUAGE plpgsql AS $postbox$
BEGIN
    -- Only while a relay sleeps: it has this lock alone then.
    IF NOT pg_try_advisory_xact_lock_shared({{wake_lock}}, TG_RELID::int) THEN
        PERFORM pg_notify('postbox_' || TG_RELID, '');
    END IF;
    RETURN NULL;
END
$postbox$
