-- ?1 principal  ?2 route  ?3 key  ?4 token
DELETE FROM {{idempotency}}
WHERE principal = ?1 AND route = ?2 AND idempotency_key = ?3 AND token = ?4 AND state = 'running'
