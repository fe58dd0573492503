-- Finds rows to claim, without a lock. Whether they can be had is for lock.sql to see: a statement that locks what it finds
-- locks all that it looks at, and 5,000 rows in flight cost the claim of 100 rows 10,200 locks.
-- ? ? ? read on behind this key: time, time, sequence  ? lease microseconds  … topics  ? rows
SELECT sequence, available_at, attempts, locked_at IS NOT NULL, LENGTH(payload) + COALESCE(LENGTH(payload_raw), 0)
FROM {{table}} {{by_pending}}
WHERE published_at IS NULL AND dead_at IS NULL
  AND available_at <= UTC_TIMESTAMP(6)
  -- (available_at, sequence) > (…) would not be a range.
  AND available_at >= ? AND (available_at > ? OR sequence > ?)
  AND {{unlocked}}
  AND {{tenants}}
  AND <topics>
ORDER BY available_at, sequence
LIMIT ?
