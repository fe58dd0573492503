-- Dead events that have not gone to the dead-letter route. Whether they can be had is for lease_letters.sql to see.
-- ?1 now  ?2 leases from before this have run out  ?3 rows
SELECT sequence, locked_at IS NOT NULL, octet_length(payload) + coalesce(octet_length(payload_raw), 0)
FROM {{table}} {{by_letters}}
WHERE dead_at IS NOT NULL AND dlq_at IS NULL AND published_at IS NULL
  AND available_at <= ?1
  AND (locked_at IS NULL OR locked_at < ?2)
  AND {{tenants}}
ORDER BY available_at, sequence
LIMIT ?3
