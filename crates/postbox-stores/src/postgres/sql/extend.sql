-- Renews leases. Only `locked_at` changes: the fence stays the claim's own.
UPDATE {{table}} t
SET locked_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::int[]) AS s (id, token, attempts)
WHERE t.id = ANY (ARRAY[s.id]) AND t.locked_by = s.token AND t.attempts = s.attempts AND (t.published_at IS NULL) IS TRUE
RETURNING t.id
