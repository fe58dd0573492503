-- Leases waiting rows to a relay. One statement, one snapshot: whether the relay may work, which rows, their lease.
-- Times that no client can hold (infinity, the year 10000) are brought into range: they must hurt nobody else.
-- Which rows: picked.sql, or picked_by_tenant.sql, which takes more parameters.
-- $1 relay (null: many may work)  $2 table  $3 (null: the start), $4 read on behind this key  $5 lease seconds  $6 topics
-- $7 rows  $8 bytes  $9 max attempts  $10 token  $11 last_error of exhausted rows
WITH {{recursive}}gate AS MATERIALIZED (
    SELECT r.paused_at IS NOT NULL AS paused,
           {{mine}} AS mine
    FROM {{relay}} r
    WHERE r.tbl = $2
), {{picked}}), budget AS MATERIALIZED (
    SELECT id, available_at, sequence, suspect,
           row_number() OVER by_key = 1
           OR sum(CASE WHEN {{wanted}} THEN bytes ELSE 0 END) OVER by_key - bytes < $8 AS fits
    FROM picked
    WINDOW by_key AS (ORDER BY {{by_key}})
), claimed AS (
    UPDATE {{table}} t
    SET attempts = CASE WHEN t.attempts >= $9 THEN t.attempts ELSE t.attempts + 1 END,
        locked_at = CASE WHEN t.attempts >= $9 THEN NULL ELSE clock_timestamp() END,
        locked_by = CASE WHEN t.attempts >= $9 THEN NULL ELSE $10 END,
        dead_at = CASE WHEN t.attempts >= $9 THEN now() END,
        last_error = CASE WHEN t.attempts >= $9 THEN $11 ELSE t.last_error END
    FROM budget b
    WHERE t.id = ANY (ARRAY[b.id]) AND b.fits AND {{wanted}}
    RETURNING t.*
), summary AS (
    SELECT (SELECT paused FROM gate) AS paused, (SELECT mine FROM gate) AS mine,
           {{counted}} AS picked, coalesce(bool_and(fits), true) AS all_fit,
           -- By itself, without a sequence: when it was that nothing was found.
           CASE WHEN count(*) = 0 THEN now()
                ELSE greatest((array_agg(available_at ORDER BY available_at DESC, sequence DESC) FILTER (WHERE fits))[1], '0001-01-01 00:00:00+00')
           END AS last_at,
           (array_agg(sequence ORDER BY available_at DESC, sequence DESC) FILTER (WHERE fits))[1] AS last_sequence,
           greatest((array_agg(available_at ORDER BY available_at, sequence) FILTER (WHERE suspect))[1], '0001-01-01 00:00:00+00') AS suspect_at,
           (array_agg(sequence ORDER BY available_at, sequence) FILTER (WHERE suspect))[1] AS suspect_sequence
    FROM budget
)
SELECT s.paused, s.mine, s.picked, s.all_fit, s.last_at, s.last_sequence, s.suspect_at, s.suspect_sequence,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, c.attempts, c.locked_at, c.created_at, c.available_at,
       c.payload::text, c.payload_raw, {{facts}}{{ring}}
FROM summary s LEFT JOIN claimed c ON true
