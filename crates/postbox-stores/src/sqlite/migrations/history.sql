-- The columns of the table without its defaults and checks: rows arrive as they were. A sequence is used once.
CREATE TABLE IF NOT EXISTS {{history}} (
    sequence       INTEGER NOT NULL PRIMARY KEY,
    id             BLOB    NOT NULL,
    tenant_id      BLOB    NOT NULL,
    topic          TEXT    NOT NULL,
    event_id       BLOB    NOT NULL,
    created_at     INTEGER NOT NULL,
    published_at   INTEGER,
    attempts       INTEGER NOT NULL,
    available_at   INTEGER NOT NULL,
    locked_at      INTEGER,
    last_error     TEXT,
    {{extension}}
    payload        TEXT    NOT NULL,
    payload_raw    BLOB
) STRICT
