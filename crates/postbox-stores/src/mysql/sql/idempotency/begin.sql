-- Begins a call; a key that is there already is an error, which tells who was not the first.
-- ? principal  ? route  ? key  ? fingerprint  ? token  ? lease microseconds
INSERT INTO {{idempotency}} (principal, route, idempotency_key, fingerprint, token, lease_until)
VALUES (?, ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
