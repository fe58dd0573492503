-- Records a message; one that is known writes nothing. $1 consumer  $2 message
INSERT INTO {{inbox}} (consumer, message_id) VALUES ($1, $2)
ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING message_id
