CREATE OR REPLACE FUNCTION {{ordered}}() RETURNS trigger LANGUAGE plpgsql AS $postbox$
BEGIN
    -- What comes back from the history keeps its place.
    IF current_setting('postbox.keep_sequence', true) = 'on' THEN
        RETURN NEW;
    END IF;
    -- The default was drawn before this: only a number that is drawn under the lock follows the order of commits.
    PERFORM pg_advisory_xact_lock({{new_lock}});
    NEW.sequence := nextval(coalesce(
        to_regclass(TG_ARGV[0]),
        pg_get_serial_sequence(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), 'sequence')::regclass
    ));
    RETURN NEW;
END
$postbox$
