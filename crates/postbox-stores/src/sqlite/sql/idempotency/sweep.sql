-- Forgets calls that were begun long ago; never one that runs. ?1 begun before  ?2 now  ?3 rows
DELETE FROM {{idempotency}}
WHERE rowid IN (
    SELECT rowid FROM {{idempotency}}
    WHERE created_at < ?1 AND (state = 'done' OR lease_until < ?2)
    ORDER BY created_at LIMIT ?3
)
