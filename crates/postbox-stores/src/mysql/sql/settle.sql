-- Writes what became of claimed rows, which held.sql has locked.
-- The server's own character set may be one that does not have every letter.
-- ? a JSON array of [sequence, token, attempts, verdict, microseconds to wait, last_error, failure, sinks that have
-- confirmed, to be added (null: none)], verdicts 0 delivered, 1 retry, 2 release, 3 dead
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    sequence BIGINT PATH '$[0]', token VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', attempts INT PATH '$[2]', verdict INT PATH '$[3]',
    wait BIGINT PATH '$[4]', error TEXT CHARACTER SET utf8mb4 PATH '$[5]', failure TEXT CHARACTER SET utf8mb4 PATH '$[6]',
    done TEXT CHARACTER SET utf8mb4 PATH '$[7]'
)) AS s
STRAIGHT_JOIN {{table}} AS t FORCE INDEX (PRIMARY) ON t.sequence = s.sequence
SET t.published_at = CASE WHEN s.verdict = 0 THEN UTC_TIMESTAMP(6) END,
    t.dead_at = CASE WHEN s.verdict = 3 THEN UTC_TIMESTAMP(6) END,
    t.attempts = CASE WHEN s.verdict = 2 THEN GREATEST(t.attempts - 1, 0) ELSE t.attempts END,
    t.available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE UTC_TIMESTAMP(6) + INTERVAL s.wait MICROSECOND END,
    t.locked_at = NULL,
    t.locked_by = NULL,
    t.last_error = CASE s.verdict WHEN 0 THEN NULL WHEN 2 THEN COALESCE(s.error, t.last_error) ELSE s.error END,
    t.sinks_done = CASE WHEN s.done IS NULL THEN t.sinks_done ELSE (
        SELECT CONCAT('[', GROUP_CONCAT(DISTINCT JSON_QUOTE(n.name) ORDER BY n.name), ']')
        FROM JSON_TABLE(
            JSON_MERGE_PRESERVE(IF(JSON_VALID(t.sinks_done), t.sinks_done, '[]'), s.done),
            '$[*]' COLUMNS (name VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')
        ) AS n
    ) END,
    t.attempts_log = CASE WHEN s.failure IS NULL THEN t.attempts_log ELSE {{log}} END
WHERE t.locked_by = s.token AND t.attempts = s.attempts AND t.published_at IS NULL
