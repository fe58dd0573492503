-- As sweep.sql, with what was moved, which has no key: rows are found by their place, of which each partition has its own. Not
-- more than one batch of published rows, wherever they are. The parameters are those of sweep.sql.
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1) AS free
), published AS MATERIALIZED (
    SELECT id FROM {{table}}
    WHERE published_at < now() - make_interval(secs => $2) AND (SELECT free FROM gate)
    ORDER BY published_at, sequence LIMIT $4 FOR UPDATE SKIP LOCKED
), moved AS MATERIALIZED (
    SELECT tableoid AS part, ctid AS place FROM {{history}}
    WHERE published_at < now() - make_interval(secs => $2) AND (SELECT free FROM gate)
    ORDER BY published_at, sequence LIMIT greatest($4 - (SELECT count(*) FROM published), 0) FOR UPDATE SKIP LOCKED
), buried AS MATERIALIZED (
    SELECT id FROM {{table}} t
    WHERE {{dead}} AND {{dead_since}} < now() - make_interval(secs => $3) AND NOT ($5 AND {{letter}})
      AND (SELECT free FROM gate) AND {{holds_nobody}}
    ORDER BY {{dead_since}}, sequence LIMIT $4 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {{table}} WHERE id IN (SELECT id FROM published UNION ALL SELECT id FROM buried) RETURNING 1
), gone_from_history AS (
    DELETE FROM {{history}}
    WHERE ctid = ANY (ARRAY(SELECT place FROM moved)) AND (tableoid, ctid) IN (SELECT part, place FROM moved)
    RETURNING 1
)
SELECT (SELECT free FROM gate), (SELECT count(*) FROM gone) + (SELECT count(*) FROM gone_from_history)
