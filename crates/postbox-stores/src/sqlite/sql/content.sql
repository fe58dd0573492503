-- What rows carry: nothing that a lease changes. A settle changes sinks_done: where relays share the table, it is read under the lease.
-- ?1 sequences, a JSON array
SELECT sequence, event_id, tenant_id, topic, created_at, available_at, payload, payload_raw, content_type, headers,
       aggregate_type, aggregate_id, occurred_at, schema_id, schema_version, routing_key, metadata, traceparent,
       tracestate, sinks_done
FROM {{table}}
WHERE sequence IN (SELECT value FROM json_each(?1))
