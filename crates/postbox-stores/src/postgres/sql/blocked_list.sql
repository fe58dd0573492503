-- Aggregates that wait behind a dead event, each with the first of those, as far as dead events are counted. $1 rows
-- $2 how many that wait are counted
SELECT dead.tenant_id, dead.aggregate_type, dead.aggregate_id,
       (SELECT count(*) FROM (
            SELECT 1 FROM {{table}} p WHERE p.published_at IS NULL AND p.dead_at IS NULL
              AND {{p_strand}} = first.strand AND p.sequence > first.sequence LIMIT $2) AS waiting),
       dead.event_id, dead.sequence, dead.topic, {{time(dead.dead_at)}}, dead.last_error
FROM (
    SELECT d.strand, min(d.sequence) AS sequence
    FROM (SELECT {{d_strand}} AS strand, d.sequence FROM {{table}} d WHERE d.dead_at IS NOT NULL
          ORDER BY {{d_strand}}, d.sequence LIMIT 10000) AS d
    GROUP BY d.strand
) AS first
CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.aggregate_type, d.aggregate_id, d.event_id, d.sequence, d.topic, d.dead_at, d.last_error
    FROM {{table}} d WHERE d.dead_at IS NOT NULL AND {{d_strand}} = first.strand AND d.sequence = first.sequence
) AS dead
WHERE EXISTS (SELECT 1 FROM {{table}} p WHERE p.published_at IS NULL AND p.dead_at IS NULL
              AND {{p_strand}} = first.strand AND p.sequence > first.sequence)
ORDER BY dead.sequence LIMIT $1
