GRANT SELECT (route, state, lease_until, created_at, finished_at, status) ON {{idempotency}} TO {{role}};
