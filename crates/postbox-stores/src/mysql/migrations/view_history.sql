UNION ALL
SELECT {{event_id_text}}, sequence, {{tenant_id_text}}, topic, aggregate_type, aggregate_id, 'SENT', attempts, created_at,
       available_at, published_at, dead_at, dlq_at, locked_at, locked_by, last_error
FROM {{history}}
