-- As insert.sql, for a table with the twelve standard columns alone.
INSERT INTO {{table}} (event_id, tenant_id, topic, payload, available_at)
SELECT event_id, tenant_id, topic, payload::jsonb, coalesce(available_at, now() + delay * interval '1 microsecond')
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[], $6::bigint[])
     AS e (event_id, tenant_id, topic, payload, available_at, delay)
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id, sequence{{ring}}
