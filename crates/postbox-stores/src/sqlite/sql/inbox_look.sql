-- Those of the messages that are recorded. ?1 consumer  ?2 messages, as JSON
SELECT message_id FROM {{inbox}} WHERE consumer = ?1 AND message_id IN (SELECT value FROM json_each(?2))
