-- Dead events that have not gone to the dead-letter route. Whether they can be had is for lock_letters.sql to see.
-- ? lease microseconds  ? rows
SELECT sequence, locked_at IS NOT NULL, LENGTH(payload) + COALESCE(LENGTH(payload_raw), 0)
FROM {{table}} {{by_pending}}
WHERE published_at IS NULL AND dead_at IS NOT NULL AND dlq_at IS NULL
  AND available_at <= UTC_TIMESTAMP(6)
  AND (locked_at IS NULL OR locked_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND)
  AND {{tenants}}
ORDER BY available_at, sequence
LIMIT ?
