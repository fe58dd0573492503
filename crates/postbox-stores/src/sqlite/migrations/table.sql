-- Payloads stand last: what follows a long value in a row is only reached by reading through all of it.
CREATE TABLE IF NOT EXISTS {{table}} (
    sequence       INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id             BLOB    NOT NULL DEFAULT (randomblob(16)),
    tenant_id      BLOB    NOT NULL,
    topic          TEXT    NOT NULL,
    event_id       BLOB    NOT NULL,
    created_at     INTEGER NOT NULL DEFAULT ({{now}}),
    published_at   INTEGER,
    attempts       INTEGER NOT NULL DEFAULT 0,
    available_at   INTEGER NOT NULL DEFAULT ({{now}}),
    locked_at      INTEGER,
    last_error     TEXT,
    {{extension}}
    payload        TEXT    NOT NULL,
    payload_raw    BLOB,
    CONSTRAINT {{name}}_event_id_is_a_uuid CHECK (length(event_id) = 16),
    CONSTRAINT {{name}}_tenant_id_is_a_uuid CHECK (length(tenant_id) = 16),
    CONSTRAINT {{name}}_payload_is_json CHECK (json_valid(payload)),
    CONSTRAINT {{name}}_attempts_nonnegative CHECK (attempts >= 0)
) STRICT
