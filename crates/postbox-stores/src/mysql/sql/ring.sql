-- Tenants that have something waiting, from one on, each with whether something of it is due. ? the first  ? how many
WITH RECURSIVE ring (tenant_id, looked) AS (
    (SELECT tenant_id, 1 FROM {{table}} {{by_tenants_waiting}}
     WHERE published_at IS NULL AND dead_at IS NULL AND tenant_id >= ? ORDER BY tenant_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.tenant_id FROM {{table}} AS s {{by_tenants_waiting}}
            WHERE s.published_at IS NULL AND s.dead_at IS NULL AND s.tenant_id > r.tenant_id ORDER BY s.tenant_id LIMIT 1),
           r.looked + 1
    FROM ring AS r WHERE r.looked < ? AND r.tenant_id IS NOT NULL
)
SELECT r.tenant_id,
       (SELECT f.available_at <= UTC_TIMESTAMP(6) FROM {{table}} AS f {{by_tenants_waiting}}
        WHERE f.published_at IS NULL AND f.dead_at IS NULL AND f.tenant_id = r.tenant_id ORDER BY f.available_at LIMIT 1)
FROM ring AS r WHERE r.tenant_id IS NOT NULL
