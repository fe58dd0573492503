-- Payloads stand last. Text is compared byte by byte. There is no type JSON: MariaDB's check of it ends at a depth of 32.
CREATE TABLE IF NOT EXISTS {{table}} (
    sequence       BIGINT       NOT NULL AUTO_INCREMENT,
    id             BINARY(16)   NOT NULL DEFAULT (UNHEX(REPLACE(UUID(), '-', ''))),
    tenant_id      BINARY(16)   NOT NULL,
    topic          VARCHAR(255) NOT NULL,
    event_id       BINARY(16)   NOT NULL,
    created_at     DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    published_at   DATETIME(6),
    attempts       INT          NOT NULL DEFAULT 0,
    available_at   DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    locked_at      DATETIME(6),
    last_error     TEXT,
    {{extension}}
    payload        LONGTEXT     NOT NULL,
    payload_raw    LONGBLOB,
    CONSTRAINT {{name}}_pkey PRIMARY KEY (sequence),
    CONSTRAINT {{name}}_event_id_key UNIQUE (event_id),
    CONSTRAINT {{name}}_attempts_nonnegative CHECK (attempts >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
