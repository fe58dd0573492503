-- Forgets what was recorded long ago. $1 lock  $2 seconds  $3 rows
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1) AS free
), old AS MATERIALIZED (
    SELECT consumer, message_id FROM {{inbox}}
    WHERE processed_at < now() - make_interval(secs => $2) AND (SELECT free FROM gate)
    ORDER BY processed_at LIMIT $3 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {{inbox}} WHERE (consumer, message_id) IN (SELECT consumer, message_id FROM old) RETURNING 1
)
SELECT (SELECT free FROM gate), (SELECT count(*) FROM gone)
