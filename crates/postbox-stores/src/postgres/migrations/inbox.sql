-- Sorted by bytes, so that everybody who records several messages can lock them in the same order.
CREATE TABLE IF NOT EXISTS {{inbox}} (
    consumer     TEXT        COLLATE "C" NOT NULL,
    message_id   TEXT        COLLATE "C" NOT NULL,
    processed_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT {{inbox_name}}_pkey PRIMARY KEY (consumer, message_id)
)
