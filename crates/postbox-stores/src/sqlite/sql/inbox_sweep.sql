-- Forgets what was recorded long ago. ?1 before  ?2 rows
DELETE FROM {{inbox}}
WHERE (consumer, message_id) IN (
    SELECT consumer, message_id FROM {{inbox}} WHERE processed_at < ?1 ORDER BY processed_at LIMIT ?2
)
