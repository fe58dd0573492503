-- The common case of settle.sql: everything of one claim arrived. … sequences  ? token  ? attempts
UPDATE {{table}} FORCE INDEX (PRIMARY)
SET published_at = UTC_TIMESTAMP(6), locked_at = NULL, locked_by = NULL, last_error = NULL
WHERE sequence IN (<in>) AND locked_by = ? AND attempts = ? AND published_at IS NULL
