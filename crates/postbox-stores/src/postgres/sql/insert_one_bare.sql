-- As insert_one.sql, for a table with the twelve standard columns alone.
INSERT INTO {{table}} (event_id, tenant_id, topic, payload, available_at)
VALUES ($1, $2, $3, $4::text::jsonb, coalesce($5::timestamptz, now() + $6::bigint * interval '1 microsecond'))
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id, sequence{{ring}}
