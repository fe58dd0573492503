-- Which letters are still this relay's: a replay takes the token away. ? a JSON array of [sequence, token, …]
SELECT t.sequence
FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence BIGINT PATH '$[0]', token VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) AS s
STRAIGHT_JOIN {{table}} AS t FORCE INDEX (PRIMARY) ON t.sequence = s.sequence
WHERE t.locked_by = s.token AND t.dead_at IS NOT NULL AND t.dlq_at IS NULL AND t.published_at IS NULL
FOR UPDATE
