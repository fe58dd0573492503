CREATE TABLE IF NOT EXISTS {{table}} (
    id           UUID        NOT NULL DEFAULT gen_random_uuid(),
    tenant_id    UUID        NOT NULL,
    topic        TEXT        NOT NULL,
    payload      JSONB       NOT NULL,
    event_id     UUID        NOT NULL,
    sequence     BIGSERIAL   NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    published_at TIMESTAMPTZ,
    attempts     INT         NOT NULL DEFAULT 0,
    available_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    locked_at    TIMESTAMPTZ,
    last_error   TEXT,
    CONSTRAINT {{name}}_pkey PRIMARY KEY (id),
    CONSTRAINT {{name}}_event_id_key UNIQUE (event_id),
    CONSTRAINT {{name}}_attempts_nonnegative CHECK (attempts >= 0)
)
