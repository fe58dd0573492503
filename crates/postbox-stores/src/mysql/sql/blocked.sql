-- Aggregates with events that wait behind a dead one, among the first that wait.
IF(NOT EXISTS (SELECT 1 FROM {{table}} AS x {{by_pending}} WHERE x.published_at IS NULL AND x.dead_at IS NOT NULL), 0, (
    SELECT COUNT(*) FROM (
        SELECT DISTINCT p.tenant_id, p.aggregate_type, p.aggregate_id
        FROM (
            SELECT sequence, tenant_id, aggregate_type, aggregate_id FROM {{table}} {{by_pending}}
            WHERE published_at IS NULL AND dead_at IS NULL AND aggregate_id IS NOT NULL LIMIT 10000
        ) AS p
        WHERE EXISTS (
            SELECT 1 FROM {{table}} AS d {{by_aggregate}}
            WHERE d.aggregate_id = p.aggregate_id AND d.published_at IS NULL AND d.dead_at IS NOT NULL
              AND d.aggregate_type <=> p.aggregate_type AND d.tenant_id = p.tenant_id AND d.sequence < p.sequence
        )
    ) AS blocked
))
