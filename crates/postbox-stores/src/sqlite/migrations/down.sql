-- Stops here while unpublished events exist (with the sqlite3 shell: `sqlite3 -bail`).
CREATE TEMP TABLE postbox_guard (unpublished INTEGER, CONSTRAINT OUTBOX_NOT_EMPTY CHECK (unpublished = 0))
