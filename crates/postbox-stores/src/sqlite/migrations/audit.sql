CREATE TABLE IF NOT EXISTS {{audit}} (
    id     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL DEFAULT ({{now}}),
    who    TEXT    NOT NULL,
    action TEXT    NOT NULL,
    tbl    TEXT    NOT NULL,
    what   TEXT    NOT NULL DEFAULT '{}',
    events INTEGER NOT NULL
) STRICT
