CREATE OR REPLACE VIEW {{status_view}} AS
SELECT {{event_id_text}} AS event_id, sequence, {{tenant_id_text}} AS tenant_id, topic, aggregate_type, aggregate_id,
       CASE WHEN published_at IS NOT NULL THEN 'SENT'
            WHEN dead_at IS NOT NULL THEN 'DEAD'
            WHEN locked_at IS NOT NULL OR {{in_flight}} THEN 'PUBLISHING'
            WHEN attempts > 0 THEN 'FAILED'
            ELSE 'NEW' END AS status,
       attempts, created_at, available_at, published_at, dead_at, dlq_at, locked_at, locked_by, last_error
FROM {{table}}
UNION ALL
SELECT {{event_id_text}}, sequence, {{tenant_id_text}}, topic, aggregate_type, aggregate_id, 'SENT', attempts, created_at,
       available_at, published_at, dead_at, dlq_at, locked_at, locked_by, last_error
FROM {{history}}
