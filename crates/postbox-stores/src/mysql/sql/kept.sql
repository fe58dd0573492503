-- Whether the dead row `t` may block an aggregate: one of it waits.
(t.aggregate_id IS NOT NULL AND EXISTS (
    SELECT 1 FROM {{table}} AS p {{by_aggregate}}
    WHERE p.aggregate_id = t.aggregate_id AND p.published_at IS NULL AND p.dead_at IS NULL
      AND p.aggregate_type <=> t.aggregate_type AND p.tenant_id = t.tenant_id
))
