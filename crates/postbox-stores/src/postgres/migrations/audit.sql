CREATE TABLE IF NOT EXISTS {{audit}} (
    id     BIGSERIAL   NOT NULL PRIMARY KEY,
    at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    who    TEXT        NOT NULL,
    action TEXT        NOT NULL,
    tbl    TEXT        NOT NULL,
    what   JSONB       NOT NULL DEFAULT '{}',
    events BIGINT      NOT NULL
)
