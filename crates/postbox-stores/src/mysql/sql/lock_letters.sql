-- As lock.sql, for dead events that letters.sql found.
-- … sequences  ? lease microseconds  ? table  ? ? relay (null: many may work)
SELECT {{content}}, attempts, UTC_TIMESTAMP(6), dead_at, last_error
FROM {{table}} FORCE INDEX (PRIMARY)
WHERE sequence IN (<in>)
  AND dead_at IS NOT NULL AND dlq_at IS NULL AND published_at IS NULL
  AND (locked_at IS NULL OR locked_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND)
  AND {{may_work}}
FOR UPDATE SKIP LOCKED
