-- The common case of settle.sql: everything of one claim arrived.
-- ?1 now  ?2 sequences, a JSON array  ?3 token  ?4 attempts
UPDATE {{table}}
SET published_at = ?1, locked_at = NULL, locked_by = NULL, last_error = NULL
WHERE sequence IN (SELECT value FROM json_each(?2)) AND locked_by = ?3 AND attempts = ?4 AND +published_at IS NULL
