-- Leases rows that pick.sql found and nobody has taken since, if the relay may still work. Touches no column that an
-- index has: the exhausted are for bury.sql.
-- ?1 now  ?2 sequences, a JSON array  ?3 leases from before this have run out  ?4 max attempts  ?5 token  ?6 table
-- ?7 relay (null: many may work)  ?8 attempts (null: any)
UPDATE {{table}}
-- From zero at least: one row whose attempts somebody made negative must not have the check refuse the whole batch.
SET attempts = max(attempts, 0) + 1, locked_at = ?1, locked_by = ?5
WHERE sequence IN (SELECT value FROM json_each(?2))
  -- The signs keep the planner from every index: rows are found by their key.
  AND +published_at IS NULL AND +dead_at IS NULL AND +available_at <= ?1
  AND attempts < ?4 AND (?8 IS NULL OR attempts = ?8)
  AND {{unlocked}}
  AND {{may_work}}
