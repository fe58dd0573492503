UNION ALL
SELECT {{event_id_text}}, sequence, {{tenant_id_text}}, topic, aggregate_type, aggregate_id, 'SENT', attempts,
       {{created_at_text}}, {{available_at_text}}, {{published_at_text}}, {{dead_at_text}}, {{dlq_at_text}},
       {{locked_at_text}}, locked_by, last_error
FROM {{history}}
