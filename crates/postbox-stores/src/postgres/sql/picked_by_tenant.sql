-- Some of each tenant that has something waiting, one tenant after another by the index that begins with them.
-- $3 the first tenant to look at  $4 how many  $12 tenants to leave out  $13 topics of others to leave out
ring AS (
    {{ring_of}}
), eligible AS MATERIALIZED (
    SELECT tenant_id FROM ring WHERE due AND tenant_id <> ALL ($12)
), share AS MATERIALIZED (
    SELECT ($7 + greatest(count(*), 1) - 1) / greatest(count(*), 1) AS rows FROM eligible
), locked AS MATERIALIZED (
    SELECT c.*
    FROM eligible e
    CROSS JOIN LATERAL (
        SELECT id, tenant_id, available_at, sequence, locked_at IS NOT NULL AS suspect,
               CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                    ELSE octet_length(payload::text) END + coalesce(octet_length(payload_raw), 0) AS bytes
        FROM {{table}} t
        WHERE t.tenant_id = e.tenant_id AND published_at IS NULL AND dead_at IS NULL
          AND available_at <= now()
          AND {{unlocked}}
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
), picked AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY available_at, sequence) AS turn FROM locked
