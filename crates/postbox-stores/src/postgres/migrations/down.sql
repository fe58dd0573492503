DO $postbox$
BEGIN
    LOCK TABLE {{table}} IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT 1 FROM {{table}} WHERE published_at IS NULL) THEN
        RAISE EXCEPTION 'OUTBOX_NOT_EMPTY: the table still holds events that were not published'
            USING HINT = 'Let the relay deliver them, or delete them on purpose.';
    END IF;
    DROP VIEW IF EXISTS {{status_view}};
    DROP TABLE {{table}};{{others}}
    DELETE FROM {{relay}} WHERE tbl = {{key}};
END
$postbox$
