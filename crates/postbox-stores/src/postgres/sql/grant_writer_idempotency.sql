-- Services begin, finish and forget calls.
GRANT SELECT, INSERT, DELETE, UPDATE (state, token, lease_until, finished_at, status, headers, body) ON {{idempotency}} TO {{role}};
