-- Renews leases. Only `locked_at` changes: the fence stays the claim's own. ? a JSON array of [sequence, token, attempts]
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    sequence BIGINT PATH '$[0]', token VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', attempts INT PATH '$[2]'
)) AS s
STRAIGHT_JOIN {{table}} AS t FORCE INDEX (PRIMARY) ON t.sequence = s.sequence
SET t.locked_at = UTC_TIMESTAMP(6)
WHERE t.locked_by = s.token AND t.attempts = s.attempts AND t.published_at IS NULL
