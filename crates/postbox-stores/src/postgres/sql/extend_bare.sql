-- As extend.sql, for a table without tokens: the new time is the new fence.
UPDATE {{table}} t
SET locked_at = clock_timestamp()
FROM unnest($1::uuid[], $2::timestamptz[], $3::int[]) AS s (id, since, attempts)
WHERE t.id = ANY (ARRAY[s.id]) AND t.attempts = s.attempts AND t.locked_at = s.since AND (t.published_at IS NULL) IS TRUE
RETURNING t.id, t.locked_at
