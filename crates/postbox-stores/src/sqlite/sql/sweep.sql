-- Deletes what is past its retention. ?1 published before  ?2 dead before (null: kept)  ?3 rows
DELETE FROM {{table}}
WHERE sequence IN (
    SELECT sequence FROM (
        SELECT sequence FROM {{table}} {{by_published}} WHERE published_at < ?1 ORDER BY published_at, sequence LIMIT ?3
    )
    UNION ALL
    SELECT sequence FROM (
        SELECT sequence FROM {{table}} AS t {{by_dead}} WHERE dead_at < ?2 AND published_at IS NULL AND NOT {{kept}}
        ORDER BY dead_at, sequence LIMIT ?3
    )
    LIMIT ?3
)
