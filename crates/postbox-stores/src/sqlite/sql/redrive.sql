-- Replays dead events that were found to be due for it. What cannot be decoded will not be by trying again.
-- ?1 now  ?2 sequences, a JSON array  ?3 leases from before this have run out  ?4 at most so often  ?5 dead since
-- ?6 table  ?7 relay (null: many may work)
UPDATE {{table}} NOT INDEXED
SET attempts = 0, available_at = ?1, locked_at = NULL, locked_by = NULL, last_error = NULL, dead_at = NULL, dlq_at = NULL,
    redrives = coalesce(redrives, 0) + 1
WHERE sequence IN (SELECT value FROM json_each(?2))
  AND +dead_at <= ?5 AND +published_at IS NULL
  AND coalesce(redrives, 0) < ?4
  AND (last_error IS NULL OR substr(last_error, 1, 18) <> 'OUTBOX_UNDECODABLE')
  AND (locked_at IS NULL OR locked_at < ?3)
  AND {{may_work}}
