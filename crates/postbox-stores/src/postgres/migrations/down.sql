DO $postbox$
BEGIN
    LOCK TABLE {{table}} IN ACCESS EXCLUSIVE MODE;
    -- What an index answers: nobody waits while a large table is read.
    IF (SELECT true FROM {{table}} WHERE published_at IS NULL AND dead_at IS NULL ORDER BY available_at, sequence LIMIT 1)
        OR (SELECT true FROM {{table}} WHERE published_at IS NULL AND dead_at IS NOT NULL ORDER BY dead_at, sequence LIMIT 1) THEN
        RAISE EXCEPTION 'OUTBOX_NOT_EMPTY: the table still holds events that were not published'
            USING HINT = 'Let the relay deliver them, or delete them on purpose.';
    END IF;
    DROP VIEW IF EXISTS {{status_view}};
    DROP TABLE {{table}};{{others}}
    DELETE FROM {{relay}} WHERE tbl = {{key}};
END
$postbox$
