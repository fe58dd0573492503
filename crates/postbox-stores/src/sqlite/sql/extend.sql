-- Renews leases. Only `locked_at` changes: the fence stays the claim's own.
-- ?1 now  ?2 a JSON array of [sequence, token, attempts]
UPDATE {{table}} AS t
SET locked_at = ?1
FROM (SELECT value ->> 0 AS sequence, value ->> 1 AS token, value ->> 2 AS attempts FROM json_each(?2)) AS s
WHERE t.sequence = s.sequence AND t.locked_by = s.token AND t.attempts = s.attempts AND +t.published_at IS NULL
RETURNING sequence
