-- Writes any number of events; a repeated event_id writes nothing, not even a row version.
{{locks}}INSERT INTO {{table}} (
    event_id, tenant_id, topic, payload, available_at, aggregate_type, aggregate_id, headers, occurred_at, schema_id,
    schema_version, routing_key, metadata, traceparent, tracestate, payload_raw, content_type, id{{birth_columns}}
)
SELECT event_id, tenant_id, topic, payload::jsonb, coalesce(available_at, now() + delay * interval '1 microsecond'),
       aggregate_type, aggregate_id, headers::jsonb, occurred_at, schema_id,
       schema_version, routing_key, metadata::jsonb, traceparent, tracestate, payload_raw, content_type, id{{birth}}
FROM unnest(
    $1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[], $6::bigint[], $7::text[], $8::text[], $9::text[],
    $10::timestamptz[], $11::text[], $12::int[], $13::text[], $14::text[], $15::text[], $16::text[], $17::bytea[], $18::text[], $19::uuid[]{{birth_argument}}
) AS e (
    event_id, tenant_id, topic, payload, available_at, delay, aggregate_type, aggregate_id, headers,
    occurred_at, schema_id, schema_version, routing_key, metadata, traceparent, tracestate, payload_raw, content_type, id{{birth_name}}
)
{{after_locks}}ON CONFLICT (event_id) DO NOTHING
RETURNING event_id, sequence{{birth_row}}{{ring}}
