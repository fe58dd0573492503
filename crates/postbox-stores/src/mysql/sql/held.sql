-- Which leases are still what they were; their rows are locked in the order of the list (hazard 18).
-- ? a JSON array of [sequence, token, attempts, …]
SELECT t.sequence
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    sequence BIGINT PATH '$[0]', token VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', attempts INT PATH '$[2]'
)) AS s
STRAIGHT_JOIN {{table}} AS t FORCE INDEX (PRIMARY) ON t.sequence = s.sequence
WHERE t.locked_by = s.token AND t.attempts = s.attempts AND t.published_at IS NULL
FOR UPDATE
