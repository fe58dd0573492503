-- Some of each tenant that has something waiting, one tenant after another by the index that begins with them.
-- $3 the first tenant to look at  $4 how many  $12 tenants to leave out  $13 topics of others to leave out
ring AS (
    {{ring_of}}
), eligible AS MATERIALIZED (
    SELECT tenant_id FROM ring WHERE due AND tenant_id <> ALL ($12)
), share AS MATERIALIZED (
    -- Rounded down: what the first ones had more, the last ones would lack. There are no more tenants than rows.
    SELECT greatest($7 / greatest(count(*), 1), 1) AS rows FROM eligible
), locked AS MATERIALIZED (
    SELECT c.*
    FROM eligible e
    CROSS JOIN LATERAL (
        SELECT id, tenant_id, available_at, sequence, false AS suspect,
               CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                    ELSE octet_length(payload::text) END + coalesce(octet_length(payload_raw), 0) AS bytes
        FROM {{table}} t
        WHERE t.tenant_id = e.tenant_id AND published_at IS NULL AND dead_at IS NULL
          AND available_at <= now()
          AND locked_at IS NULL
          AND {{topics}}
          AND (cardinality($13::text[]) = 0 OR NOT EXISTS (
              SELECT 1 FROM unnest($13::text[]) AS crowding (entry)
              WHERE split_part(entry, E'\x1f', 1) = t.tenant_id::text AND split_part(entry, E'\x1f', 2) = topic
                AND coalesce((string_to_array(entry, E'\x1f'))[3:] <@ coalesce(sinks_done, '{}'), true)))
        -- With the tenant in front, no other index can be of use.
        ORDER BY t.tenant_id, available_at, sequence
        LIMIT (SELECT rows FROM share)
        FOR UPDATE SKIP LOCKED
    ) c
    LIMIT $7
), late AS MATERIALIZED (
    -- Rows whose lease ran out take nobody's share. They are old: to look at what is in front is enough.
    SELECT s.*
    FROM eligible e
    CROSS JOIN LATERAL (
        SELECT f.id, f.tenant_id, f.available_at, f.sequence, true AS suspect, 0 AS bytes
        FROM (
            SELECT id, tenant_id, available_at, sequence, locked_at, topic, sinks_done
            FROM {{table}} t
            WHERE t.tenant_id = e.tenant_id AND published_at IS NULL AND dead_at IS NULL AND available_at <= now()
            ORDER BY t.tenant_id, available_at, sequence
            LIMIT 10 + 2 * (SELECT rows FROM share)
        ) f
        WHERE f.{{expired}} AND {{topics}}
        LIMIT 1
    ) s
), picked AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY available_at, sequence) AS turn FROM locked
    UNION ALL
    SELECT *, NULL FROM late
