-- Ids are bytes: text would take 'a' and 'a ' for the same. `recorded_by` tells a batch which of its messages were new.
CREATE TABLE IF NOT EXISTS {{inbox}} (
    consumer     VARBINARY(127)  NOT NULL,
    message_id   VARBINARY(1024) NOT NULL,
    processed_at DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    recorded_by  BINARY(16),
    PRIMARY KEY (consumer, message_id)
) ENGINE = InnoDB
