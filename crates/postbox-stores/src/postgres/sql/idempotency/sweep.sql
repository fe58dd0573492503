-- Forgets calls that were begun long ago; never one that runs. $1 lock  $2 seconds  $3 rows
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1) AS free
), old AS MATERIALIZED (
    SELECT principal, route, idempotency_key FROM {{idempotency}}
    WHERE created_at < now() - make_interval(secs => $2) AND (SELECT free FROM gate)
      AND (state = 'done' OR lease_until < now())
    ORDER BY created_at LIMIT $3 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {{idempotency}} i USING old
    WHERE (i.principal, i.route, i.idempotency_key) = (old.principal, old.route, old.idempotency_key)
    RETURNING 1
)
SELECT (SELECT free FROM gate), (SELECT count(*) FROM gone)
