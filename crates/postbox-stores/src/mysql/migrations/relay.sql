CREATE TABLE IF NOT EXISTS {{relay}} (
    tbl           VARCHAR(64) NOT NULL PRIMARY KEY,
    strategy      VARCHAR(16),
    holder        VARCHAR(255),
    session       BOOLEAN     NOT NULL DEFAULT FALSE,
    epoch         BIGINT      NOT NULL DEFAULT 0,
    expires_at    DATETIME(6),
    shared_by     VARCHAR(255),
    shared_until  DATETIME(6),
    paused_at     DATETIME(6),
    paused_by     TEXT,
    paused_reason TEXT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
