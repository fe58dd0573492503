CREATE TABLE IF NOT EXISTS {{relay}} (
    tbl           TEXT    NOT NULL PRIMARY KEY,
    strategy      TEXT,
    holder        TEXT,
    session       INTEGER NOT NULL DEFAULT 0,
    epoch         INTEGER NOT NULL DEFAULT 0,
    expires_at    INTEGER,
    paused_at     INTEGER,
    paused_by     TEXT,
    paused_reason TEXT
) STRICT
