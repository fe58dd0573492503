-- The first that wait, by time.
picked AS MATERIALIZED (
    SELECT id, available_at, sequence, locked_at IS NOT NULL AS suspect,
           -- The text of a compressed value is the only way to its size; others are about as long as they are stored.
           CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                ELSE octet_length(payload::text) END + coalesce(octet_length(payload_raw), 0) AS bytes
    FROM {{table}}
    WHERE published_at IS NULL AND dead_at IS NULL
      AND available_at <= now()
      AND (available_at, sequence) > (coalesce($3, '-infinity'::timestamptz), $4)
      AND {{unlocked}}
      AND {{topics}}
      AND {{tenants}}
      AND (SELECT mine AND NOT paused FROM gate)
    ORDER BY available_at, sequence
    LIMIT $7
    FOR UPDATE SKIP LOCKED
