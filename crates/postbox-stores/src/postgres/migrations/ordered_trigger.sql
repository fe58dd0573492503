DO $postbox$
DECLARE
    own TEXT := pg_get_serial_sequence('{{table}}', 'sequence');
BEGIN
    IF own IS NULL THEN
        RAISE EXCEPTION 'OUTBOX_TABLE_MISMATCH: the column sequence has no sequence of its own'
            USING HINT = 'ALTER SEQUENCE … OWNED BY the column.';
    END IF;
    EXECUTE format('CREATE OR REPLACE TRIGGER postbox_ordered BEFORE INSERT ON {{table}} FOR EACH ROW
        WHEN (NEW.aggregate_id IS NOT NULL) EXECUTE FUNCTION {{ordered}}(%L)', own);
END
$postbox$
