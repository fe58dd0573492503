-- Writes what became of claimed rows. The fence: a row that another relay has claimed since has another token.
-- ?1 now  ?2 a JSON array of [sequence, token, attempts, verdict, microseconds to wait, last_error, failure,
-- sinks that have confirmed, to be added (null: none)],
-- verdicts 0 delivered, 1 retry, 2 release, 3 dead
UPDATE {{table}} AS t
SET published_at = CASE WHEN s.verdict = 0 THEN ?1 END,
    dead_at = CASE WHEN s.verdict = 3 THEN ?1 END,
    attempts = CASE WHEN s.verdict = 2 THEN max(t.attempts - 1, 0) ELSE t.attempts END,
    available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE ?1 + s.wait END,
    locked_at = NULL,
    locked_by = NULL,
    last_error = CASE s.verdict WHEN 0 THEN NULL WHEN 2 THEN coalesce(s.error, t.last_error) ELSE s.error END,
    sinks_done = CASE WHEN s.done IS NULL THEN t.sinks_done ELSE (
        SELECT json_group_array(name)
        FROM (SELECT value AS name FROM json_each(s.done)
              UNION SELECT value FROM json_each(CASE WHEN json_valid(t.sinks_done) THEN t.sinks_done ELSE '[]' END))
    ) END,
    attempts_log = CASE WHEN s.failure IS NULL THEN t.attempts_log ELSE (
        SELECT json_insert(CASE WHEN json_array_length(log) >= 10 THEN json_remove(log, '$[0]') ELSE log END,
                           '$[#]', json(s.failure))
        FROM (SELECT CASE WHEN json_valid(t.attempts_log) THEN
                         CASE WHEN json_type(t.attempts_log) = 'array' THEN t.attempts_log ELSE '[]' END
                     ELSE '[]' END AS log)
    ) END
FROM (
    SELECT value ->> 0 AS sequence, value ->> 1 AS token, value ->> 2 AS attempts, value ->> 3 AS verdict,
           value ->> 4 AS wait, value ->> 5 AS error, value ->> 6 AS failure, value ->> 7 AS done
    FROM json_each(?2)
) AS s
WHERE t.sequence = s.sequence AND t.locked_by = s.token AND t.attempts = s.attempts AND +t.published_at IS NULL
RETURNING sequence
