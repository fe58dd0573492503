-- The common case of own_settle.sql: everything arrived.
WITH owner AS MATERIALIZED (
    SELECT 1 FROM {{relay}} r WHERE r.tbl = $3 AND r.holder = $4 AND r.epoch = $5 FOR KEY SHARE
)
UPDATE {{table}} t
SET published_at = now(), attempts = s.attempts, last_error = NULL
FROM unnest($1::uuid[], $2::int[]) AS s (id, attempts)
WHERE t.id = s.id AND t.attempts = s.attempts - 1 AND coalesce(t.published_at, t.dead_at, t.locked_at) IS NULL
  AND EXISTS (SELECT 1 FROM owner)
RETURNING t.id
