-- As own_settle_delivered.sql, where delivered rows do not stay: they leave the table, and may arrive in its history.
-- The three times are asked for in one word, so that no planner takes the index of what is pending for a way to the rows: on a
-- table that was empty when it was last counted, that would read all that waits for each of them.
WITH owner AS MATERIALIZED (
    SELECT 1 FROM {{relay}} r WHERE r.tbl = $3 AND r.holder = $4 AND r.epoch = $5 FOR KEY SHARE
), gone AS (
    DELETE FROM {{table}} t
    USING unnest($1::uuid[], $2::int[]) AS s (id, attempts)
    WHERE t.id = s.id AND t.attempts = s.attempts - 1 AND coalesce(t.published_at, t.dead_at, t.locked_at) IS NULL
      AND EXISTS (SELECT 1 FROM owner)
    RETURNING {{gone}}
)
{{arrive}}
