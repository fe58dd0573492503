-- As own_ordered.sql, where no topic is left out, for strands that are known to wait: of each its first rows.
-- $1 relay  $2 table  $3 strands  $4 bytes that are one row's share  $5 lease seconds  $6 how many rows of each strand  $7 max attempts
WITH gate AS MATERIALIZED (
    SELECT r.paused_at IS NOT NULL AS paused, coalesce(r.holder = $1 AND r.expires_at > clock_timestamp(), false) AS mine
    FROM {{relay}} r
    WHERE r.tbl = $2
)
SELECT g.paused, g.mine, c.state, c.place, c.bytes,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, least(c.attempts, 2147483646) + 1, now(), c.created_at, c.available_at,
       CASE WHEN c.bytes <= $4 THEN c.payload::text END, CASE WHEN c.bytes <= $4 THEN c.payload_raw END, {{facts}}, c.strand
FROM gate g
LEFT JOIN LATERAL (
    SELECT *, {{bytes}} AS bytes
    FROM (
        SELECT t.*, s.strand,
               CASE WHEN t.sequence >= {{stop}} OR t.available_at > now() THEN 3
                    WHEN t.locked_at IS NULL THEN (t.attempts >= $7)::int
                    WHEN {{expired}} THEN 2 ELSE 3 END AS state
        FROM unnest($3::bigint[], $6::bigint[]) AS s (strand, rows)
        CROSS JOIN LATERAL (
            SELECT t.*, tidsend(t.ctid) AS place
            FROM {{table}} t
            WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} = s.strand
              AND g.mine AND NOT g.paused
            ORDER BY t.sequence
            LIMIT s.rows
        ) AS t
    ) AS t
) AS c ON true
