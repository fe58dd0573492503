-- Leases dead events that letters.sql found. Nothing of them changes but the lease: dead they stay. One whose lease ran out
-- may have killed its relay: it is put off first, the longer the longer it is dead.
-- ?1 now  ?2 sequences, a JSON array  ?3 leases from before this have run out  ?4 the shortest time to put one off
-- ?5 token  ?6 table  ?7 relay (null: many may work)
UPDATE {{table}} NOT INDEXED
SET available_at = CASE WHEN locked_at IS NULL THEN available_at ELSE ?1 + min(max(?1 - dead_at, ?4), 60 * ?4) END,
    locked_at = ?1, locked_by = ?5
WHERE sequence IN (SELECT value FROM json_each(?2))
  AND +dead_at IS NOT NULL AND +dlq_at IS NULL AND +published_at IS NULL
  AND (locked_at IS NULL OR locked_at < ?3)
  AND {{may_work}}
