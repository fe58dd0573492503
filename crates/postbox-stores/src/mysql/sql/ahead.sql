-- Reads on behind a sequence: everything that is not published, also what cannot be claimed now, since it holds back what is
-- behind it, and what is dead, since it may block. Lock: 0 none, 1 run out, 2 held.
-- ? lease microseconds  ? behind this sequence  ? rows
SELECT sequence, available_at, attempts,
       CASE WHEN locked_at IS NULL THEN 0 WHEN locked_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND THEN 1 ELSE 2 END,
       LENGTH(payload) + COALESCE(LENGTH(payload_raw), 0), dead_at IS NOT NULL, topic, tenant_id, aggregate_type, aggregate_id,
       sinks_done
FROM {{table}} {{by_sequence}}
WHERE published_at IS NULL AND sequence > ?
ORDER BY sequence
LIMIT ?
