-- The columns of the table without its defaults and checks: rows arrive as they were. A sequence is used once.
CREATE TABLE IF NOT EXISTS {{history}} (
    sequence       BIGINT       NOT NULL,
    id             BINARY(16)   NOT NULL,
    tenant_id      BINARY(16)   NOT NULL,
    topic          VARCHAR(255) NOT NULL,
    event_id       BINARY(16)   NOT NULL,
    created_at     DATETIME(6)  NOT NULL,
    published_at   DATETIME(6),
    attempts       INT          NOT NULL,
    available_at   DATETIME(6)  NOT NULL,
    locked_at      DATETIME(6),
    last_error     TEXT,
    {{extension}}
    payload        LONGTEXT     NOT NULL,
    payload_raw    LONGBLOB,
    PRIMARY KEY (sequence)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
