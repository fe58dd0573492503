{{usage}};
GRANT SELECT (id, tenant_id, topic, event_id, sequence, created_at, published_at, attempts, available_at, locked_at,
    last_error, aggregate_type, aggregate_id, headers, occurred_at, schema_id, schema_version, routing_key, traceparent,
    tracestate, locked_by, dead_at, dlq_at, content_type, attempts_log, sinks_done, redrives) ON {{table}} TO {{role}};
GRANT SELECT ON {{status_view}}, {{relay}}, {{audit}} TO {{role}};
