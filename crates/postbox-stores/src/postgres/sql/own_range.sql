-- As own_ordered.sql, without looking for heads: all rows of one strand after the other. The quicker way where strands are short and
-- most of what waits can go.
-- $1 relay  $2 table  $3 the first strand  $4 bytes that are one row's share  $5 lease seconds  $6 topics  $7 rows  $8 max attempts
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
        SELECT *, tidsend(t.ctid) AS place, {{t_strand}} AS strand,
               -- 0 can go, 1 has used up its attempts, 2 has a lease that ran out, 3 has to wait
               CASE WHEN t.sequence >= {{stop}} THEN 3 WHEN {{free}} THEN (t.attempts >= $8)::int WHEN {{late}} THEN 2 ELSE 3 END AS state
        FROM {{table}} t
        WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} >= $3
          AND g.mine AND NOT g.paused
        ORDER BY {{t_strand}}, t.sequence
        LIMIT $7
    ) AS t
) AS c ON true
