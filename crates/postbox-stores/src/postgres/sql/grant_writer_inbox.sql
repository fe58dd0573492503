-- Records what arrives. ON CONFLICT and the answer read what they compare; nothing can be changed or forgotten.
GRANT INSERT (consumer, message_id), SELECT (consumer, message_id) ON {{inbox}} TO {{role}};
