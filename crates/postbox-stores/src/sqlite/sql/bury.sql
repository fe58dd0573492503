-- Rows that pick.sql found and that have used up their attempts die. The same parameters as lease.sql, but ?5 last_error
UPDATE {{table}}
SET locked_at = NULL, locked_by = NULL, dead_at = ?1, last_error = ?5
WHERE sequence IN (SELECT value FROM json_each(?2))
  AND +published_at IS NULL AND +dead_at IS NULL AND +available_at <= ?1
  AND attempts >= ?4
  AND {{unlocked}}
  AND {{may_work}}
RETURNING sequence, event_id, topic
