-- As own_settle_delivered.sql, where delivered rows do not stay: they leave the table, and may arrive in its history.
WITH owner AS MATERIALIZED (
    SELECT 1 FROM {{relay}} r WHERE r.tbl = $3 AND r.holder = $4 AND r.epoch = $5 FOR KEY SHARE
), gone AS (
    DELETE FROM {{table}} t
    USING unnest($1::uuid[], $2::int[]) AS s (id, attempts)
    WHERE t.id = s.id AND t.attempts = s.attempts - 1 AND t.published_at IS NULL AND t.dead_at IS NULL AND t.locked_at IS NULL
      AND EXISTS (SELECT 1 FROM owner)
    RETURNING {{gone}}
)
{{arrive}}
