-- Stops here while unpublished events exist.
CREATE TEMPORARY TABLE postbox_guard (unpublished BIGINT, CONSTRAINT OUTBOX_NOT_EMPTY CHECK (unpublished = 0))
