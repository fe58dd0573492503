-- Writes any number of events; a repeated event_id writes nothing.
INSERT INTO {{table}} (
    event_id, tenant_id, topic, payload, created_at, available_at, aggregate_type, aggregate_id, headers, occurred_at,
    schema_id, schema_version, routing_key, metadata, traceparent, tracestate, payload_raw, content_type,
    locked_by, locked_at, attempts
)
VALUES {{rows}}
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id, sequence
