-- As settle.sql, for a table with the twelve standard columns alone. The fence: the lock's own time, as this relay set
-- it last; attempts alone would match again after a release and another's claim. Dead is `attempts >= max`.
-- $1 ids, in order  $2 locked at  $3 attempts  $4 verdicts  $5 microseconds to wait  $6 last_error  $7 max attempts
UPDATE {{table}} t
SET published_at = CASE WHEN s.verdict = 0 THEN now() END,
    attempts = CASE s.verdict WHEN 2 THEN greatest(t.attempts - 1, 0) WHEN 3 THEN greatest(t.attempts, $7::int) ELSE t.attempts END,
    available_at = CASE WHEN s.verdict = 3 THEN now() WHEN s.wait IS NULL THEN t.available_at
                        ELSE now() + s.wait * interval '1 microsecond' END,
    locked_at = NULL,
    last_error = CASE s.verdict WHEN 0 THEN NULL WHEN 2 THEN coalesce(s.error, t.last_error) ELSE s.error END
FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[], $5::bigint[], $6::text[])
     AS s (id, since, attempts, verdict, wait, error)
WHERE t.id = ANY (ARRAY[s.id]) AND t.attempts = s.attempts AND t.locked_at = s.since AND (t.published_at IS NULL) IS TRUE
RETURNING t.id
