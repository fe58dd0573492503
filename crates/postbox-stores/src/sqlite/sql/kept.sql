-- Whether the dead row `t` may block an aggregate: one of it waits, or too many wait to tell.
(t.aggregate_id IS NOT NULL AND (
    (SELECT count(*) FROM (
        SELECT 1 FROM {{table}} {{by_pending}} WHERE published_at IS NULL AND dead_at IS NULL LIMIT 10001
    )) > 10000
    OR hex(t.tenant_id) || '/' || coalesce(hex(t.aggregate_type), '') || '/' || hex(t.aggregate_id) IN (
        SELECT hex(p.tenant_id) || '/' || coalesce(hex(p.aggregate_type), '') || '/' || hex(p.aggregate_id)
        FROM (
            SELECT tenant_id, aggregate_type, aggregate_id FROM {{table}} {{by_pending}}
            WHERE published_at IS NULL AND dead_at IS NULL LIMIT 10000
        ) AS p
        WHERE p.aggregate_id IS NOT NULL
    )
))
