-- Deletes what is past its retention. $1 lock  $2 seconds  $3 seconds for dead rows (null: kept)  $4 rows
-- $5 whether dead rows are kept that have not gone to the dead-letter route
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1) AS free
), published AS MATERIALIZED (
    SELECT id FROM {{table}}
    WHERE published_at < now() - make_interval(secs => $2) AND (SELECT free FROM gate)
    ORDER BY published_at, sequence LIMIT $4 FOR UPDATE SKIP LOCKED
), buried AS MATERIALIZED (
    SELECT id FROM {{table}} t
    WHERE {{dead}} AND {{dead_since}} < now() - make_interval(secs => $3) AND NOT ($5 AND {{letter}})
      AND (SELECT free FROM gate) AND {{holds_nobody}}
    ORDER BY {{dead_since}}, sequence LIMIT $4 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {{table}} WHERE id IN (SELECT id FROM published UNION ALL SELECT id FROM buried) RETURNING 1
)
SELECT (SELECT free FROM gate), (SELECT count(*) FROM gone)
