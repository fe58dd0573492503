-- Which rows of an owner are as they were when it read them; they are locked in the order of the list (hazard 18).
-- ? a JSON array of [sequence, token, attempts, …], attempts with the one that was made
SELECT t.sequence
FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence BIGINT PATH '$[0]', attempts INT PATH '$[2]')) AS s
STRAIGHT_JOIN {{table}} AS t FORCE INDEX (PRIMARY) ON t.sequence = s.sequence
WHERE GREATEST(t.attempts, 0) = s.attempts - 1 AND t.published_at IS NULL AND t.dead_at IS NULL AND t.locked_at IS NULL
FOR UPDATE
