-- Calls by their idempotency keys. Their answers stand last: what follows a long value is only reached by reading through it.
CREATE TABLE IF NOT EXISTS {{idempotency}} (
    principal       TEXT    NOT NULL,
    route           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    fingerprint     BLOB    NOT NULL,
    state           TEXT    NOT NULL DEFAULT 'running',
    token           BLOB    NOT NULL,
    lease_until     INTEGER NOT NULL,
    created_at      INTEGER NOT NULL DEFAULT ({{now}}),
    finished_at     INTEGER,
    status          INTEGER,
    headers         BLOB,
    body            BLOB,
    CONSTRAINT {{idempotency_name}}_pkey PRIMARY KEY (principal, route, idempotency_key),
    CONSTRAINT {{idempotency_name}}_state CHECK (state IN ('running', 'done'))
) STRICT
