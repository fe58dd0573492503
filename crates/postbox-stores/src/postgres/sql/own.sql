-- Reads waiting rows of a table that the relay owns, and writes nothing: what is in flight is in the owner's row.
-- Rows that were not wanted are named too (no payload), so that the relay knows how far it has read. Payloads that are larger
-- than their share are left for a second read, so that what comes fits into memory whatever rows there are.
-- The first column is null for rows that can go. Else: 1 the table is not this relay's, 2 it is paused, 3 nothing waits,
-- 4 a row whose lease ran out, 5 one that has used up its attempts.
-- $1 relay  $2 table  $3 (null: the start), $4 read on behind this key  $5 lease seconds  $6 topics  $7 rows
-- $8 bytes that are one row's share  $9 max attempts  $10 bounds of what this relay has already (null: it lies before)
WITH gate AS MATERIALIZED (
    SELECT r.paused_at IS NOT NULL AS paused, coalesce(r.holder = $1 AND r.expires_at > clock_timestamp(), false) AS mine
    FROM {{relay}} r
    WHERE r.tbl = $2
)
SELECT CASE WHEN c.id IS NULL THEN CASE WHEN NOT g.mine THEN 1 WHEN g.paused THEN 2 ELSE 3 END
            WHEN c.bytes IS NULL THEN CASE WHEN c.suspect THEN 4 ELSE 5 END END, c.place, c.bytes,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, least(c.attempts, 2147483646) + 1, now(), c.created_at, c.available_at,
       CASE WHEN c.bytes <= $8 THEN c.payload::text END, CASE WHEN c.bytes <= $8 THEN c.payload_raw END, {{facts}}
FROM gate g
LEFT JOIN LATERAL (
    SELECT *, tidsend(ctid) AS place, locked_at IS NOT NULL AS suspect,
           -- The text of a compressed value is the only way to its size; others are about as long as they are stored.
           CASE WHEN locked_at IS NOT NULL OR attempts >= $9 THEN NULL
                WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                ELSE octet_length(payload::text) END + coalesce(octet_length(payload_raw), 0)::bigint AS bytes
    FROM {{table}}
    WHERE published_at IS NULL AND dead_at IS NULL
      AND available_at <= now()
      AND (available_at, sequence) > (coalesce($3, '-infinity'::timestamptz), $4)
      AND {{unlocked}}
      AND {{topics}}
      AND ($10::bigint[] IS NULL OR width_bucket(sequence, $10) % 2 = 0)
      AND g.mine AND NOT g.paused
    ORDER BY available_at, sequence
    LIMIT $7
) AS c ON true
