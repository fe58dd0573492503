CREATE TABLE IF NOT EXISTS {{relay}} (
    tbl           TEXT        NOT NULL PRIMARY KEY,
    strategy      TEXT,
    holder        TEXT,
    session       BOOLEAN     NOT NULL DEFAULT false,
    epoch         BIGINT      NOT NULL DEFAULT 0,
    expires_at    TIMESTAMPTZ,
    paused_at     TIMESTAMPTZ,
    paused_by     TEXT,
    paused_reason TEXT
)
