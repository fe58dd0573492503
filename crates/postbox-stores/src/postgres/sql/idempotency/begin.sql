-- Begins a call that nobody has begun. $1 principal  $2 route  $3 key  $4 fingerprint  $5 token  $6 seconds
INSERT INTO {{idempotency}} (principal, route, idempotency_key, fingerprint, token, lease_until)
VALUES ($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6))
ON CONFLICT (principal, route, idempotency_key) DO NOTHING
