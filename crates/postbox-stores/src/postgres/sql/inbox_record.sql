-- Records messages; one that is known writes nothing. $1 consumer  $2 messages
-- Whoever holds one of them is waited for. All lock them in the same order (hazard 18).
INSERT INTO {{inbox}} (consumer, message_id)
SELECT $1, m.id FROM unnest($2::text[]) AS m (id) ORDER BY m.id COLLATE "C"
ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING message_id
