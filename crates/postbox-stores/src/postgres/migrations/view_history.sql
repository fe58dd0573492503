CREATE OR REPLACE VIEW {{status_view}} AS
SELECT event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id,
       CASE WHEN published_at IS NOT NULL THEN 'SENT'
            WHEN dead_at IS NOT NULL THEN 'DEAD'
            WHEN locked_at IS NOT NULL THEN 'PUBLISHING'
            -- What an owner has in flight is not locked: it is in the owner's row, which is read once.
            WHEN width_bucket(sequence, (SELECT w.win || '{}' FROM {{relay}} w WHERE w.tbl = {{view_key}} AND w.expires_at > now())) % 2 = 1
             AND available_at <= (SELECT w.win_to FROM {{relay}} w WHERE w.tbl = {{view_key}}) THEN 'PUBLISHING'
            WHEN attempts > 0 THEN 'FAILED'
            ELSE 'NEW' END AS status,
       attempts, created_at, available_at, published_at, dead_at, dlq_at, locked_at, locked_by, last_error
FROM {{table}}
UNION ALL
SELECT event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id, 'SENT',
       attempts, created_at, available_at, published_at, dead_at, dlq_at, locked_at, locked_by, last_error
FROM {{history}}
