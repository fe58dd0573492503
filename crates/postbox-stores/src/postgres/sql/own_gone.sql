-- As own_settle.sql, where delivered rows do not stay: they leave the table, and may arrive in its history; the others are
-- changed in place. The fence and the parameters are those of own_settle.sql.
-- The three times are asked for in one word, so that no planner takes the index of what is pending for a way to the rows: on a
-- table that was empty when it was last counted, that would read all that waits for each of them.
WITH owner AS MATERIALIZED (
    SELECT 1 FROM {{relay}} r WHERE r.tbl = $7 AND r.holder = $8 AND r.epoch = $9 FOR KEY SHARE
), s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bigint[], $5::text[], $6::text[], $10::text[])
         AS s (id, attempts, verdict, wait, error, failure, done)
), gone AS (
    DELETE FROM {{table}} t
    USING s
    WHERE s.verdict = 0 AND t.id = ANY (ARRAY[s.id]) AND t.attempts = s.attempts - 1 AND coalesce(t.published_at, t.dead_at, t.locked_at) IS NULL
      AND EXISTS (SELECT 1 FROM owner)
    RETURNING {{gone}}
), sent AS (
    {{arrive}}
), rest AS (
    UPDATE {{table}} t
    SET dead_at = CASE WHEN s.verdict = 3 THEN now() END,
    attempts = CASE WHEN s.verdict = 2 THEN t.attempts ELSE s.attempts END,
    available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE now() + s.wait * interval '1 microsecond' END,
    last_error = CASE WHEN s.verdict = 2 THEN coalesce(s.error, t.last_error) ELSE s.error END,
    {{noted}}
    FROM s
    WHERE s.verdict <> 0 AND t.id = ANY (ARRAY[s.id]) AND t.attempts = s.attempts - 1 AND coalesce(t.published_at, t.dead_at, t.locked_at) IS NULL
      AND EXISTS (SELECT 1 FROM owner)
    RETURNING t.id
)
SELECT id FROM sent UNION ALL SELECT id FROM rest
