-- Locks rows that were found, if nobody has taken them since and the relay may still work, and reads what they carry.
-- … sequences  ? lease microseconds  ? table  ? ? relay (null: many may work)  ? rows
SELECT {{content}}, attempts, UTC_TIMESTAMP(6)
FROM {{table}} FORCE INDEX (PRIMARY)
WHERE sequence IN (<in>)
  AND published_at IS NULL AND dead_at IS NULL AND available_at <= UTC_TIMESTAMP(6)
  AND {{unlocked}}
  AND {{may_work}}
LIMIT ?
FOR UPDATE SKIP LOCKED
