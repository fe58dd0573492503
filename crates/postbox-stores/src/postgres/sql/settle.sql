-- Writes what became of claimed rows. The fence: a row that another relay has claimed since has another token.
-- $1 ids, in order  $2 tokens  $3 attempts  $4 verdicts (0 delivered, 1 retry, 2 release, 3 dead)
-- $5 microseconds to wait (null: as it is)  $6 last_error  $7 failures for attempts_log (null: none)
-- $8 sinks that have confirmed, to be added (null: none)
UPDATE {{table}} t
SET published_at = CASE WHEN s.verdict = 0 THEN now() END,
    dead_at = CASE WHEN s.verdict = 3 THEN now() END,
    attempts = CASE WHEN s.verdict = 2 THEN greatest(t.attempts - 1, 0) ELSE t.attempts END,
    available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE now() + s.wait * interval '1 microsecond' END,
    locked_at = NULL,
    locked_by = NULL,
    last_error = CASE s.verdict WHEN 0 THEN NULL WHEN 2 THEN coalesce(s.error, t.last_error) ELSE s.error END,
    {{noted}}
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::bigint[], $6::text[], $7::text[], $8::text[])
     AS s (id, token, attempts, verdict, wait, error, failure, done)
WHERE t.id = ANY (ARRAY[s.id]) AND t.locked_by = s.token AND t.attempts = s.attempts AND (t.published_at IS NULL) IS TRUE
RETURNING t.id
