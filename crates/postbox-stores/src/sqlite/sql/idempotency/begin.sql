-- Begins a call that nobody has begun. ?1 principal  ?2 route  ?3 key  ?4 fingerprint  ?5 token  ?6 now  ?7 lease
INSERT INTO {{idempotency}} (principal, route, idempotency_key, fingerprint, token, created_at, lease_until)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6 + ?7)
ON CONFLICT (principal, route, idempotency_key) DO NOTHING
