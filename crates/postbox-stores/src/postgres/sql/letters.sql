-- Leases dead events that have not gone to the dead-letter route. Nothing of them changes but the lease: dead they stay.
-- One whose lease ran out may have killed its relay: it is leased alone, and put off first, the longer the longer it is dead.
-- $1 relay (null: many may work)  $2 table  $3 lease seconds  $4 rows  $5 bytes  $6 token
WITH gate AS MATERIALIZED (
    SELECT r.paused_at IS NULL
           AND ({{mine}}) AS open
    FROM {{relay}} r
    WHERE r.tbl = $2
), picked AS MATERIALIZED (
    SELECT id, available_at, sequence, locked_at IS NOT NULL AS suspect,
           greatest(least(dead_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00') AS died,
           CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                ELSE octet_length(payload::text) END + coalesce(octet_length(payload_raw), 0) AS bytes
    FROM {{table}}
    WHERE dead_at IS NOT NULL AND dlq_at IS NULL AND published_at IS NULL
      AND available_at <= now()
      AND {{tenants}}
      AND (locked_at IS NULL OR locked_at < now() - make_interval(secs => $3))
      AND (SELECT open FROM gate)
    ORDER BY available_at, sequence
    LIMIT $4
    FOR UPDATE SKIP LOCKED
), budget AS MATERIALIZED (
    SELECT id, died, suspect, row_number() OVER by_key AS place, first_value(suspect) OVER by_key AS alone,
           row_number() OVER by_key = 1 OR sum(bytes) OVER by_key - bytes < $5 AS fits
    FROM picked
    WINDOW by_key AS (ORDER BY available_at, sequence)
), leased AS (
    UPDATE {{table}} t
    SET locked_at = clock_timestamp(), locked_by = $6,
        available_at = CASE WHEN b.suspect
            THEN now() + least(greatest(now() - b.died, interval '1 minute'), interval '1 hour') ELSE t.available_at END
    FROM budget b
    WHERE t.id = ANY (ARRAY[b.id]) AND CASE WHEN b.alone THEN b.place = 1 ELSE NOT b.suspect AND b.fits END
    RETURNING t.*, b.died
)
SELECT c.died, c.last_error, NULL::int, NULL::int, NULL::int, NULL::int, NULL::int, NULL::int,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, c.attempts, c.locked_at, c.created_at, c.available_at,
       c.payload::text, c.payload_raw, {{facts}}
FROM leased c
