-- ? lease microseconds  ? principal  ? route  ? key  ? token
UPDATE {{idempotency}} SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE principal = ? AND route = ? AND idempotency_key = ? AND token = ? AND state = 'running'
