-- Reads waiting rows of a table that the relay owns, and writes nothing: what is in flight is in the owner's row.
-- Times that no client can hold (infinity, the year 10000) are brought into range: they must hurt nobody else.
-- Rows that were not wanted are named too (no payload), so that the relay knows how far it has read.
-- $1 relay  $2 table  $3 (null: the start), $4 read on behind this key  $5 lease seconds  $6 topics  $7 rows  $8 bytes
-- $9 max attempts  $10 sequences that this relay has already
WITH gate AS MATERIALIZED (
    SELECT r.paused_at IS NOT NULL AS paused, coalesce(r.holder = $1 AND r.expires_at > clock_timestamp(), false) AS mine
    FROM {{relay}} r
    WHERE r.tbl = $2
)
SELECT g.paused, g.mine, greatest(c.available_at, '0001-01-01 00:00:00+00'), c.suspect, c.exhausted, c.fits, NULL, NULL,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, c.attempts + 1, now(),
       greatest(least(c.created_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00'), 0::float8,
       CASE WHEN c.wanted THEN c.payload::text END, CASE WHEN c.wanted THEN c.payload_raw END, c.content_type, c.headers::text, c.aggregate_type, c.aggregate_id,
       CASE WHEN c.occurred_at IS NOT NULL THEN greatest(least(c.occurred_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00') END, c.schema_id, c.schema_version, c.routing_key, c.metadata::text, c.traceparent, c.tracestate, c.sinks_done
FROM gate g
LEFT JOIN LATERAL (
    SELECT *, fits AND NOT suspect AND NOT exhausted AS wanted
    FROM (
        SELECT *, coalesce(sum(bytes) OVER before, 0) = 0 OR sum(bytes) OVER before < $8 AS fits
        FROM (
            SELECT *, locked_at IS NOT NULL AS suspect, attempts >= $9 AS exhausted,
                   CASE WHEN locked_at IS NOT NULL OR attempts >= $9 THEN 0
                        WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                        ELSE octet_length(payload::text) END + coalesce(octet_length(payload_raw), 0) AS bytes
            FROM {{table}}
            WHERE published_at IS NULL AND dead_at IS NULL
              AND available_at <= now()
              AND (available_at, sequence) > (coalesce($3, '-infinity'::timestamptz), $4)
              AND {{unlocked}}
              AND {{topics}}
              AND NOT sequence <@ (SELECT $10::text::int8multirange)
        ) AS t
        WINDOW before AS (ORDER BY available_at, sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ) AS t
    WHERE g.mine AND NOT g.paused
    ORDER BY available_at, sequence
    LIMIT $7
) AS c ON true
