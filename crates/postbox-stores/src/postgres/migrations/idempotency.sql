-- Calls by their idempotency keys. No column that changes is in an index, and a page has room for the answer: finishing a
-- call writes no index.
CREATE TABLE IF NOT EXISTS {{idempotency}} (
    principal       TEXT COLLATE "C" NOT NULL,
    route           TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL,
    fingerprint     BYTEA            NOT NULL,
    state           TEXT             NOT NULL DEFAULT 'running',
    token           UUID             NOT NULL,
    lease_until     TIMESTAMPTZ      NOT NULL,
    created_at      TIMESTAMPTZ      NOT NULL DEFAULT clock_timestamp(),
    finished_at     TIMESTAMPTZ,
    status          INT,
    headers         BYTEA,
    body            BYTEA,
    CONSTRAINT {{idempotency_name}}_pkey PRIMARY KEY (principal, route, idempotency_key),
    CONSTRAINT {{idempotency_name}}_state CHECK (state IN ('running', 'done'))
) WITH (fillfactor = 50)
