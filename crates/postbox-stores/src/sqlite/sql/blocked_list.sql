-- Aggregates with events that wait behind a dead one, among the first that wait, each with the first such. ?1 rows
SELECT w.tenant_id, w.aggregate_type, w.aggregate_id, w.waiting, d.event_id, d.sequence, d.topic, d.dead_at, d.last_error
FROM (
    SELECT p.tenant_id, p.aggregate_type, p.aggregate_id, min(count(*), 1000) AS waiting, min(p.dead) AS dead
    FROM (
        SELECT q.tenant_id, q.aggregate_type, q.aggregate_id, (
                   SELECT min(d.sequence) FROM {{table}} AS d {{by_dead_aggregate}}
                   WHERE d.dead_at IS NOT NULL AND +d.published_at IS NULL AND d.aggregate_id = q.aggregate_id
                     AND d.aggregate_type IS q.aggregate_type AND d.tenant_id = q.tenant_id AND d.sequence < q.sequence
               ) AS dead
        FROM (
            SELECT sequence, tenant_id, aggregate_type, aggregate_id FROM {{table}} {{by_pending}}
            WHERE published_at IS NULL AND dead_at IS NULL LIMIT 10000
        ) AS q
    ) AS p
    WHERE p.dead IS NOT NULL
    GROUP BY p.tenant_id, p.aggregate_type, p.aggregate_id
) AS w
JOIN {{table}} AS d ON d.sequence = w.dead
ORDER BY w.dead LIMIT ?1
