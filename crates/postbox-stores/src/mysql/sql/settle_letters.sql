-- What became of dead events on their way to the dead-letter route, which held_letters.sql has locked.
-- ? a JSON array of [sequence, token, microseconds to wait (null: it arrived)]
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    sequence BIGINT PATH '$[0]', token VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', wait BIGINT PATH '$[2]'
)) AS s
STRAIGHT_JOIN {{table}} AS t FORCE INDEX (PRIMARY) ON t.sequence = s.sequence
SET t.dlq_at = IF(s.wait IS NULL, UTC_TIMESTAMP(6), NULL),
    t.available_at = IF(s.wait IS NULL, t.available_at, UTC_TIMESTAMP(6) + INTERVAL s.wait MICROSECOND),
    t.locked_at = NULL,
    t.locked_by = NULL
WHERE t.locked_by = s.token AND t.dead_at IS NOT NULL AND t.dlq_at IS NULL AND t.published_at IS NULL
