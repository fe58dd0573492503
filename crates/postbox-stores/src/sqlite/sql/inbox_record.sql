-- Records messages; one that is known writes nothing. ?1 consumer  ?2 messages, as JSON  ?3 now
INSERT INTO {{inbox}} (consumer, message_id, processed_at)
SELECT ?1, value, ?3 FROM json_each(?2) WHERE true
ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING message_id
