-- Renews leases. Only `locked_at` changes: the fence stays the claim's own. What somebody else has locked is left out: it must not
-- keep the others from being renewed.
WITH free AS MATERIALIZED (
    SELECT t.id
    FROM {{table}} t
    JOIN unnest($1::uuid[], $2::text[], $3::int[]) AS s (id, token, attempts) ON t.id = ANY (ARRAY[s.id])
    WHERE t.locked_by = s.token AND t.attempts = s.attempts AND (t.published_at IS NULL) IS TRUE
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE {{table}} t
SET locked_at = clock_timestamp()
FROM free f
WHERE t.id = ANY (ARRAY[f.id])
RETURNING t.id
