-- As settle.sql, for rows that the relay owns and that own_held.sql has locked: attempts are written now, and what goes back keeps
-- those it had. The parameter is that of settle.sql.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    sequence BIGINT PATH '$[0]', attempts INT PATH '$[2]', verdict INT PATH '$[3]',
    wait BIGINT PATH '$[4]', error TEXT CHARACTER SET utf8mb4 PATH '$[5]', failure TEXT CHARACTER SET utf8mb4 PATH '$[6]',
    done TEXT CHARACTER SET utf8mb4 PATH '$[7]'
)) AS s
STRAIGHT_JOIN {{table}} AS t FORCE INDEX (PRIMARY) ON t.sequence = s.sequence
SET t.published_at = CASE WHEN s.verdict = 0 THEN UTC_TIMESTAMP(6) END,
    t.dead_at = CASE WHEN s.verdict = 3 THEN UTC_TIMESTAMP(6) END,
    t.attempts = CASE WHEN s.verdict = 2 THEN t.attempts ELSE s.attempts END,
    t.available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE UTC_TIMESTAMP(6) + INTERVAL s.wait MICROSECOND END,
    t.last_error = CASE s.verdict WHEN 0 THEN NULL WHEN 2 THEN COALESCE(s.error, t.last_error) ELSE s.error END,
    t.sinks_done = CASE WHEN s.done IS NULL THEN t.sinks_done ELSE (
        SELECT CONCAT('[', GROUP_CONCAT(DISTINCT JSON_QUOTE(n.name) ORDER BY n.name), ']')
        FROM JSON_TABLE(
            JSON_MERGE_PRESERVE(IF(JSON_VALID(t.sinks_done), t.sinks_done, '[]'), s.done),
            '$[*]' COLUMNS (name VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')
        ) AS n
    ) END,
    t.attempts_log = CASE WHEN s.failure IS NULL THEN t.attempts_log ELSE {{log}} END
WHERE GREATEST(t.attempts, 0) = s.attempts - 1 AND t.published_at IS NULL AND t.dead_at IS NULL AND t.locked_at IS NULL
