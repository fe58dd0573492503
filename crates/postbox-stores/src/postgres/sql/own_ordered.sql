-- Reads rows along the strands of a table that the relay owns, and writes nothing: what is in flight is in the owner's row. There is no
-- cursor by sequence that a late commit could be behind: each read starts at the heads of strands. What cannot go is named, and
-- is for the relay to stop at.
-- $1 relay  $2 table  $3 the first strand  $4 bytes that are one row's share  $5 lease seconds  $6 topics  $7 rows  $8 max attempts
-- $9 strands that this relay has in flight  $10 heads that are enough  $11 heads to look at  $12 longest run
WITH RECURSIVE gate AS MATERIALIZED (
    SELECT r.paused_at IS NOT NULL AS paused, coalesce(r.holder = $1 AND r.expires_at > clock_timestamp(), false) AS mine
    FROM {{relay}} r
    WHERE r.tbl = $2
), heads AS (
{{heads}}
    WHERE h.enough < $10 AND h.looked < $11
)
SELECT g.paused, g.mine, c.state, c.place, c.bytes,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, least(c.attempts, 2147483646) + 1, now(), c.created_at, c.available_at,
       CASE WHEN c.bytes <= $4 THEN c.payload::text END, CASE WHEN c.bytes <= $4 THEN c.payload_raw END, {{facts}},
       c.strand, s.looked, s.last_head, s.suspect, s.enough
FROM gate g
CROSS JOIN (
    SELECT max(looked) AS looked, max(strand) AS last_head, min(strand) FILTER (WHERE suspect) AS suspect, max(enough) AS enough
    FROM heads
) AS s
LEFT JOIN LATERAL (
    SELECT *, {{bytes}} AS bytes
    FROM (
        SELECT t.*, h.strand,
               CASE WHEN t.sequence >= h.stop THEN 3 WHEN {{free}} THEN (t.attempts >= $8)::int WHEN {{late}} THEN 2 ELSE 3 END AS state
        FROM heads h
        CROSS JOIN LATERAL (
            SELECT t.*, tidsend(t.ctid) AS place
            FROM {{table}} t
            WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} = h.strand AND t.sequence >= h.sequence
            ORDER BY t.sequence
            LIMIT greatest($12, ($7 + (SELECT greatest(max(enough), 1) FROM heads) - 1) / (SELECT greatest(max(enough), 1) FROM heads))
        ) t
        WHERE h.free
        LIMIT $7
    ) AS t
) AS c ON true
