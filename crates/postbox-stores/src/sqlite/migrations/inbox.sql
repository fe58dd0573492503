CREATE TABLE IF NOT EXISTS {{inbox}} (
    consumer     TEXT    NOT NULL,
    message_id   TEXT    NOT NULL,
    processed_at INTEGER NOT NULL DEFAULT ({{now}}),
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID
