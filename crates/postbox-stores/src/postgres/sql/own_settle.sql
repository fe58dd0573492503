-- As settle.sql, for rows that the relay owns. The fence is the owner's row: it is locked until this commits, and who has
-- taken over has changed it. A key lock: it keeps out a take-over, which locks the whole row, but not the owner's own journal. Attempts are written now; what goes back keeps those it had.
-- $1 ids, in order  $2 attempts  $3 verdicts (0 delivered, 1 retry, 2 release, 3 dead)  $4 microseconds to wait (null: as it
-- is)  $5 last_error  $6 failures for attempts_log (null: none)  $7 table  $8 relay  $9 epoch
-- $10 sinks that have confirmed, to be added (null: none)
WITH owner AS MATERIALIZED (
    SELECT 1 FROM {{relay}} r WHERE r.tbl = $7 AND r.holder = $8 AND r.epoch = $9 FOR KEY SHARE
)
UPDATE {{table}} t
SET published_at = CASE WHEN s.verdict = 0 THEN now() END,
    dead_at = CASE WHEN s.verdict = 3 THEN now() END,
    attempts = CASE WHEN s.verdict = 2 THEN t.attempts ELSE s.attempts END,
    available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE now() + s.wait * interval '1 microsecond' END,
    last_error = CASE s.verdict WHEN 0 THEN NULL WHEN 2 THEN coalesce(s.error, t.last_error) ELSE s.error END,
    {{noted}}
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bigint[], $5::text[], $6::text[], $10::text[])
     AS s (id, attempts, verdict, wait, error, failure, done)
WHERE t.id = ANY (ARRAY[s.id]) AND t.attempts = s.attempts - 1 AND coalesce(t.published_at, t.dead_at, t.locked_at) IS NULL
  AND EXISTS (SELECT 1 FROM owner)
RETURNING t.id
