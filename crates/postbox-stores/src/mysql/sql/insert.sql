-- Writes any number of events; a repeated event_id writes nothing. MariaDB tells at once which rows there are now; MySQL
-- takes that for a comment, and is asked.
INSERT INTO {{table}} (
    id, event_id, tenant_id, topic, payload, available_at, aggregate_type, aggregate_id, headers, occurred_at, schema_id,
    schema_version, routing_key, metadata, traceparent, tracestate, payload_raw, content_type, locked_by, locked_at, attempts
)
VALUES {{rows}}
ON DUPLICATE KEY UPDATE sequence = {{table}}.sequence
/*M! RETURNING event_id, sequence, id */
