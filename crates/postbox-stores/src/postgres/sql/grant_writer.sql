{{usage}};
-- ON CONFLICT and the answer to a duplicate read these two; nothing else of the table is readable.
GRANT INSERT (id, event_id, tenant_id, topic, payload, available_at, aggregate_type, aggregate_id, headers, occurred_at,
    schema_id, schema_version, routing_key, metadata, traceparent, tracestate, payload_raw, content_type)
    ON {{table}} TO {{role}};
GRANT SELECT (event_id, sequence) ON {{table}} TO {{role}};
GRANT USAGE ON SEQUENCE {{sequence}} TO {{role}};
