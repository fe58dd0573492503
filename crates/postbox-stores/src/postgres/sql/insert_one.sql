-- As insert.sql, for one event: most transactions write just one, and nothing has to be taken apart.
INSERT INTO {{table}} (
    event_id, tenant_id, topic, payload, available_at, aggregate_type, aggregate_id, headers, occurred_at, schema_id,
    schema_version, routing_key, metadata, traceparent, tracestate, payload_raw, content_type, id{{birth_columns}}
)
VALUES ($1, $2, $3, $4::text::jsonb, coalesce($5::timestamptz, now() + $6::bigint * interval '1 microsecond'), $7, $8, $9::text::jsonb, $10, $11,
        $12, $13, $14::text::jsonb, $15, $16, $17, $18, $19{{birth}})
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id, sequence{{birth_row}}{{ring}}
