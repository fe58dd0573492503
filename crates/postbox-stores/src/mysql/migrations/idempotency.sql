-- Calls by their idempotency keys. Names and keys are bytes: text would take 'a' and 'a ' for the same. No column that changes
-- is in an index.
CREATE TABLE IF NOT EXISTS {{idempotency}} (
    principal       VARBINARY(256) NOT NULL,
    route           VARBINARY(512) NOT NULL,
    idempotency_key VARBINARY(255) NOT NULL,
    fingerprint     BINARY(32)     NOT NULL,
    state           VARCHAR(7)     NOT NULL DEFAULT 'running',
    token           BINARY(16)     NOT NULL,
    lease_until     DATETIME(6)    NOT NULL,
    created_at      DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    finished_at     DATETIME(6),
    status          INT,
    headers         LONGBLOB,
    body            LONGBLOB,
    PRIMARY KEY (principal, route, idempotency_key),
    CONSTRAINT {{idempotency_name}}_state CHECK (state IN ('running', 'done'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
