CREATE VIEW IF NOT EXISTS {{status_view}} AS
SELECT {{event_id_text}} AS event_id, sequence, {{tenant_id_text}} AS tenant_id, topic, aggregate_type, aggregate_id,
       CASE WHEN published_at IS NOT NULL THEN 'SENT'
            WHEN dead_at IS NOT NULL THEN 'DEAD'
            WHEN locked_at IS NOT NULL THEN 'PUBLISHING'
            WHEN attempts > 0 THEN 'FAILED'
            ELSE 'NEW' END AS status,
       attempts, {{created_at_text}} AS created_at, {{available_at_text}} AS available_at,
       {{published_at_text}} AS published_at, {{dead_at_text}} AS dead_at, {{dlq_at_text}} AS dlq_at,
       {{locked_at_text}} AS locked_at, locked_by, last_error
FROM {{table}}
UNION ALL
SELECT {{event_id_text}}, sequence, {{tenant_id_text}}, topic, aggregate_type, aggregate_id, 'SENT', attempts,
       {{created_at_text}}, {{available_at_text}}, {{published_at_text}}, {{dead_at_text}}, {{dlq_at_text}},
       {{locked_at_text}}, locked_by, last_error
FROM {{history}}
