-- ?1 principal  ?2 route  ?3 key  ?4 token  ?5 now  ?6 lease
UPDATE {{idempotency}} SET lease_until = ?5 + ?6
WHERE principal = ?1 AND route = ?2 AND idempotency_key = ?3 AND token = ?4 AND state = 'running'
