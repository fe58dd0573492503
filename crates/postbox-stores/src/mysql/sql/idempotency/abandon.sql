-- ? principal  ? route  ? key  ? token
DELETE FROM {{idempotency}}
WHERE principal = ? AND route = ? AND idempotency_key = ? AND token = ? AND state = 'running'
