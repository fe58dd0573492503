-- Replays dead events that were found to be due for it. What cannot be decoded will not be by trying again.
-- As every replay does it: what an owner may still settle is left for a lease, told by when it was available, so first.
-- … sequences  ? microseconds dead  ? at most so often  ? lease microseconds  ? table  ? ? relay (null: many may work)
UPDATE {{table}} FORCE INDEX (PRIMARY)
SET locked_at = CASE WHEN {{unsettled}} THEN '1970-01-01 00:00:01' END, locked_by = CASE WHEN {{unsettled}} THEN 'replayed' END,
    attempts = 0, available_at = UTC_TIMESTAMP(6), last_error = NULL, dead_at = NULL, dlq_at = NULL, redrives = COALESCE(redrives, 0) + 1
WHERE sequence IN (<in>)
  AND dead_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AND published_at IS NULL
  AND COALESCE(redrives, 0) < ?
  AND (last_error IS NULL OR LEFT(last_error, 18) <> 'OUTBOX_UNDECODABLE')
  AND (locked_at IS NULL OR locked_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND)
  AND {{may_work}}
