-- The common case of settle.sql: everything arrived.
UPDATE {{table}} t
SET published_at = now(), locked_at = NULL, locked_by = NULL, last_error = NULL
FROM unnest($1::uuid[], $2::text[], $3::int[]) AS s (id, token, attempts)
WHERE t.id = ANY (ARRAY[s.id]) AND t.locked_by = s.token AND t.attempts = s.attempts AND (t.published_at IS NULL) IS TRUE
RETURNING t.id
