-- As sweep.sql, for what was moved. ?1 published before  ?2 rows
DELETE FROM {{history}}
WHERE sequence IN (
    SELECT sequence FROM {{history}} {{by_history}} WHERE published_at < ?1 ORDER BY published_at, sequence LIMIT ?2
)
