-- As pick.sql, some rows of each of these tenants, each row behind the place of its tenant.
-- ?1 now  ?2 tenants, a JSON array  ?3 rows of each  ?4 leases from before this have run out  ?5 topics, a JSON array
-- ?6 what to leave out of a tenant, a JSON array
SELECT group_concat(
    r.key || ' ' || t.sequence || ' ' || t.available_at || ' ' || t.attempts || ' ' || (t.locked_at IS NOT NULL) || ' '
        || (octet_length(t.payload) + coalesce(octet_length(t.payload_raw), 0)), ';'
)
FROM json_each(?2) AS r
CROSS JOIN {{table}} t ON t.sequence IN (
    SELECT sequence FROM (
        SELECT sequence FROM {{table}} {{by_tenants_waiting}}
        WHERE tenant_id = unhex(r.value) AND published_at IS NULL AND dead_at IS NULL
          AND available_at <= ?1
          AND locked_at IS NULL
          AND {{topics}}
          AND {{crowding}}
        ORDER BY available_at, sequence
        LIMIT ?3
    )
    UNION ALL
    -- Those whose lease ran out take nobody's share. Such rows are old: to look at what is in front is enough.
    SELECT sequence FROM (
        SELECT sequence, locked_at, topic, sinks_done FROM {{table}} {{by_tenants_waiting}}
        WHERE tenant_id = unhex(r.value) AND published_at IS NULL AND dead_at IS NULL AND available_at <= ?1
        ORDER BY available_at, sequence
        LIMIT 10 + 2 * ?3
    )
    WHERE locked_at < ?4 AND {{topics}}
)
