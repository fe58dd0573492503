-- Aggregates with events that wait behind a dead one, among the first that wait, each with the first such.
SELECT w.tenant_id, w.aggregate_type, w.aggregate_id, w.waiting, d.event_id, d.sequence, d.topic, d.dead_at, d.last_error
FROM (
    SELECT p.tenant_id, p.aggregate_type, p.aggregate_id, LEAST(COUNT(*), 1000) AS waiting, MIN(p.dead) AS dead
    FROM (
        SELECT q.tenant_id, q.aggregate_type, q.aggregate_id, (
                   SELECT MIN(d.sequence) FROM {{table}} AS d {{by_aggregate}}
                   WHERE d.aggregate_id = q.aggregate_id AND d.published_at IS NULL AND d.dead_at IS NOT NULL
                     AND d.aggregate_type <=> q.aggregate_type AND d.tenant_id = q.tenant_id AND d.sequence < q.sequence
               ) AS dead
        FROM (
            SELECT sequence, tenant_id, aggregate_type, aggregate_id FROM {{table}} {{by_pending}}
            WHERE published_at IS NULL AND dead_at IS NULL AND aggregate_id IS NOT NULL LIMIT 10000
        ) AS q
    ) AS p
    WHERE p.dead IS NOT NULL
    GROUP BY p.tenant_id, p.aggregate_type, p.aggregate_id
) AS w
JOIN {{table}} AS d ON d.sequence = w.dead
ORDER BY w.dead LIMIT ?
