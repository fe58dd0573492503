-- Forgets what an operator chose. $1 consumer  $2 messages (null: any)  $3 since  $4 until  $5 rows
WITH chosen AS MATERIALIZED (
    SELECT consumer, message_id FROM {{inbox}} WHERE {{chosen}}
    ORDER BY processed_at LIMIT $5 FOR UPDATE SKIP LOCKED
)
DELETE FROM {{inbox}} WHERE (consumer, message_id) IN (SELECT consumer, message_id FROM chosen)
