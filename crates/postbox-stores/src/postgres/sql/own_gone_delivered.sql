-- As own_settle_delivered.sql, where delivered rows do not stay: they leave the table, and may arrive in its history.
WITH owner AS MATERIALIZED (
    SELECT 1 FROM {{relay}} r WHERE r.tbl = $3 AND r.holder = $4 AND r.epoch = $5 FOR KEY SHARE
){{gone}}
    DELETE FROM {{table}} t
    USING unnest($1::uuid[], {{places}}) AS s (id, place)
    WHERE t.ctid = s.place AND t.id IS NOT DISTINCT FROM s.id AND t.attempts = $2::int - 1 AND coalesce(t.published_at, t.dead_at, t.locked_at) IS NULL
      AND EXISTS (SELECT 1 FROM owner)
{{arrive}}
