-- Reads waiting rows of a table that the relay owns, and writes nothing: what is in flight is in postbox_window. Payloads that
-- are larger than their share are left for a second read, so that what comes fits into memory whatever rows there are.
-- ? ? bytes that are one row's share  ? ? ? read on behind this key: time, time, sequence  ? lease microseconds  … topics
-- … what this relay has already  ? rows
SELECT {{small_content}}, attempts, UTC_TIMESTAMP(6), locked_at IS NOT NULL, {{bytes}}
FROM {{table}} {{by_pending}}
WHERE published_at IS NULL AND dead_at IS NULL
  AND available_at <= UTC_TIMESTAMP(6)
  -- (available_at, sequence) > (…) would not be a range.
  AND available_at >= ? AND (available_at > ? OR sequence > ?)
  AND {{unlocked}}
  AND {{tenants}}
  AND <topics>
  AND <beyond>
ORDER BY available_at, sequence
LIMIT ?
