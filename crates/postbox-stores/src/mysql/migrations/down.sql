-- Stops here while unpublished events exist. With a key, since some servers make no table without (sql_require_primary_key).
CREATE TEMPORARY TABLE postbox_guard (unpublished BIGINT PRIMARY KEY, CONSTRAINT OUTBOX_NOT_EMPTY CHECK (unpublished = 0))
