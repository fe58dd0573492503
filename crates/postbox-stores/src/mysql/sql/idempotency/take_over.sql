-- Takes a call over whose lease has run out, from the one who was seen to have it.
-- ? our token  ? lease microseconds  ? principal  ? route  ? key  ? its token
UPDATE {{idempotency}} SET token = ?, lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE principal = ? AND route = ? AND idempotency_key = ?
  AND token = ? AND state = 'running' AND lease_until <= UTC_TIMESTAMP(6)
