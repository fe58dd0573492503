-- As settle_delivered.sql, where delivered rows do not stay: they leave the table, and may arrive in its history.
-- Rows are found by their key alone: no index can serve the last condition as it is written.
WITH gone AS (
    DELETE FROM {{table}} t
    USING unnest($1::uuid[], $2::text[], $3::int[]) AS s (id, token, attempts)
    WHERE t.id = ANY (ARRAY[s.id]) AND t.locked_by = s.token AND t.attempts = s.attempts AND (t.published_at IS NULL) IS TRUE
    RETURNING {{gone}}
)
{{arrive}}
