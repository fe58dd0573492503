-- As claim_ordered.sql, for a table that the relay owns: it writes nothing, since what is in flight is in the owner's row. There
-- is no cursor by sequence that a late commit could be behind: each read starts at the heads of strands.
-- $1 relay  $2 table  $3 the first strand  $4 heads that are enough  $5 lease seconds  $6 topics  $7 rows  $8 bytes
-- $9 max attempts  $10 strands that this relay has in flight  $11 heads to look at  $12 longest run
WITH RECURSIVE gate AS MATERIALIZED (
    SELECT r.paused_at IS NOT NULL AS paused, coalesce(r.holder = $1 AND r.expires_at > clock_timestamp(), false) AS mine
    FROM {{relay}} r
    WHERE r.tbl = $2
), heads AS (
    SELECT {{next}}, (f.can AND f.sequence < f.stop)::int::bigint AS enough, 1::bigint AS looked
    FROM (
        SELECT {{head}}
        FROM {{table}} t
        WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} >= $3
          AND (SELECT mine AND NOT paused FROM gate)
        ORDER BY {{t_strand}}, t.sequence
        LIMIT 1
    ) f
    UNION ALL
    SELECT {{next}}, h.enough + (f.can AND f.sequence < f.stop)::int, h.looked + 1
    FROM heads h
    CROSS JOIN LATERAL (
        SELECT {{head}}
        FROM {{table}} t
        WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} > h.strand
        ORDER BY {{t_strand}}, t.sequence
        LIMIT 1
    ) f
    WHERE h.enough < $4 AND h.looked < $11
), run AS MATERIALIZED (
    SELECT h.strand, r.*
    FROM heads h
    CROSS JOIN LATERAL (
        SELECT e.*
        FROM (
            SELECT t.*, row_number() OVER by_sequence AS place,
                   bool_and(t.sequence = h.sequence OR (h.fresh AND {{follows}} AND t.sequence < h.stop)) OVER by_sequence AS goes,
                   NOT h.fresh AS exhausted,
                   CASE WHEN pg_column_compression(t.payload) IS NULL THEN pg_column_size(t.payload)
                        ELSE octet_length(t.payload::text) END + coalesce(octet_length(t.payload_raw), 0) AS bytes
            FROM {{table}} t
            WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} = h.strand AND t.sequence >= h.sequence
            WINDOW by_sequence AS (ORDER BY t.sequence)
            ORDER BY t.sequence
            LIMIT greatest($12, ($7 + (SELECT greatest(max(enough), 1) FROM heads) - 1) / (SELECT greatest(max(enough), 1) FROM heads))
        ) e
        WHERE e.goes
        ORDER BY e.place
    ) r
    WHERE h.free
    LIMIT $7
), budget AS MATERIALIZED (
    SELECT *, row_number() OVER by_key = 1
              OR sum(CASE WHEN exhausted THEN 0 ELSE bytes END) OVER by_key - bytes < $8 AS fits
    FROM run
    WINDOW by_key AS (ORDER BY strand, place)
), summary AS (
    SELECT (SELECT paused FROM gate) AS paused, (SELECT mine FROM gate) AS mine,
           (SELECT count(*) FROM run) AS picked,
           (SELECT min(strand) FROM budget WHERE NOT fits) AS too_large,
           (SELECT max(looked) FROM heads) AS looked, (SELECT max(strand) FROM heads) AS last_head,
           (SELECT min(strand) FROM heads WHERE suspect) AS suspect, (SELECT max(enough) FROM heads) AS enough,
           (SELECT coalesce(array_agg(id), '{}') FROM run WHERE exhausted) AS exhausted,
           (SELECT max(strand) FROM run) AS last_strand
)
SELECT s.paused, s.mine, s.picked, s.too_large, s.looked, s.last_head, s.suspect, s.enough,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, c.attempts + 1, now(),
       greatest(least(c.created_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00'),
       extract(epoch FROM clock_timestamp() - greatest(greatest(least(c.created_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00'), greatest(least(c.available_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00')))::float8,
       c.payload::text, c.payload_raw, c.content_type, c.headers::text, c.aggregate_type, c.aggregate_id,
       CASE WHEN c.occurred_at IS NOT NULL THEN greatest(least(c.occurred_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00') END, c.schema_id, c.schema_version, c.routing_key, c.metadata::text, c.traceparent, c.tracestate,
       c.strand, s.last_strand,
       greatest(c.available_at, '0001-01-01 00:00:00+00'), s.exhausted, c.sinks_done
FROM summary s LEFT JOIN budget c ON c.fits AND NOT c.exhausted
ORDER BY c.strand, c.sequence
