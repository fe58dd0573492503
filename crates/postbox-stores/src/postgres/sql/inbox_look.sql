-- Those of the messages that this transaction has recorded; none where it has ended before its time: a SELECT on its own has no id.
-- $1 consumer  $2 messages
SELECT message_id FROM {{inbox}}
WHERE consumer = $1 AND message_id = ANY ($2::text[]) AND pg_current_xact_id_if_assigned() IS NOT NULL
