-- As settle.sql, where delivered rows do not stay: they leave the table, and may arrive in its history; the others are changed
-- in place. One statement, so that all of it happens or nothing. The parameters are those of settle.sql.
-- Rows are found by their key alone: no index can serve the last condition as it is written.
WITH s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::bigint[], $6::text[], $7::text[], $8::text[])
         AS s (id, token, attempts, verdict, wait, error, failure, done)
), gone AS (
    DELETE FROM {{table}} t
    USING s
    WHERE s.verdict = 0 AND t.id = ANY (ARRAY[s.id]) AND t.locked_by = s.token AND t.attempts = s.attempts AND (t.published_at IS NULL) IS TRUE
    RETURNING {{gone}}
), sent AS (
    {{arrive}}
), rest AS (
    UPDATE {{table}} t
    SET dead_at = CASE WHEN s.verdict = 3 THEN now() END,
    attempts = CASE WHEN s.verdict = 2 THEN greatest(t.attempts - 1, 0) ELSE t.attempts END,
    available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE now() + s.wait * interval '1 microsecond' END,
    locked_at = NULL,
    locked_by = NULL,
    last_error = CASE WHEN s.verdict = 2 THEN coalesce(s.error, t.last_error) ELSE s.error END,
    {{noted}}
    FROM s
    WHERE s.verdict <> 0 AND t.id = ANY (ARRAY[s.id]) AND t.locked_by = s.token AND t.attempts = s.attempts AND (t.published_at IS NULL) IS TRUE
    RETURNING t.id
)
SELECT id FROM sent UNION ALL SELECT id FROM rest
