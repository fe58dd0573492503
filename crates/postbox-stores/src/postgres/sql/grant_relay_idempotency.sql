-- A cleaner, which leaves rows alone that others hold, needs to lock them, and for that the right to change something.
GRANT SELECT (principal, route, idempotency_key, state, lease_until, created_at), DELETE, UPDATE (lease_until)
    ON {{idempotency}} TO {{role}};
