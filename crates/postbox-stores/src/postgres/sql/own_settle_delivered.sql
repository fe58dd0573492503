-- The common case of own_settle.sql: everything arrived, at the same attempt. Rows are looked
-- for where they were read; what has moved since is settled by own_settle.sql.
-- $1 ids, in order  $2 attempts  $3 table  $4 relay  $5 epoch  $6 places
WITH owner AS MATERIALIZED (
    SELECT 1 FROM {{relay}} r WHERE r.tbl = $3 AND r.holder = $4 AND r.epoch = $5 FOR KEY SHARE
)
UPDATE {{table}} t
SET published_at = now(), attempts = $2::int, last_error = NULL
FROM unnest($1::uuid[], {{places}}) AS s (id, place)
WHERE t.ctid = s.place AND t.id IS NOT DISTINCT FROM s.id AND t.attempts = $2::int - 1 AND coalesce(t.published_at, t.dead_at, t.locked_at) IS NULL
  AND EXISTS (SELECT 1 FROM owner)
