-- As extend.sql, for a table without tokens: the new time is the new fence.
WITH free AS MATERIALIZED (
    SELECT t.id
    FROM {{table}} t
    JOIN unnest($1::uuid[], $2::timestamptz[], $3::int[]) AS s (id, since, attempts) ON t.id = ANY (ARRAY[s.id])
    WHERE t.attempts = s.attempts AND t.locked_at = s.since AND (t.published_at IS NULL) IS TRUE
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE {{table}} t
SET locked_at = clock_timestamp()
FROM free f
WHERE t.id = ANY (ARRAY[f.id])
RETURNING t.id, t.locked_at
