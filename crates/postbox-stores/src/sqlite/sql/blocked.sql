-- Aggregates with events that wait behind a dead one, among the first that wait.
CASE WHEN NOT EXISTS (SELECT 1 FROM {{table}} {{by_dead}} WHERE dead_at IS NOT NULL) THEN 0 ELSE (
    SELECT count(*) FROM (
        SELECT DISTINCT p.tenant_id, p.aggregate_type, p.aggregate_id
        FROM (
            SELECT sequence, tenant_id, aggregate_type, aggregate_id FROM {{table}} {{by_pending}}
            WHERE published_at IS NULL AND dead_at IS NULL LIMIT ?2
        ) AS p
        WHERE EXISTS (
            SELECT 1 FROM {{table}} AS d {{by_dead_aggregate}}
            WHERE d.dead_at IS NOT NULL AND +d.published_at IS NULL AND d.aggregate_id = p.aggregate_id
              AND d.aggregate_type IS p.aggregate_type AND d.tenant_id = p.tenant_id AND d.sequence < p.sequence
        )
    )
) END
