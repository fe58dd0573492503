-- Leases rows that pick.sql found and nobody has taken since, if the relay may still work. Exhausted ones die.
-- ?1 now  ?2 sequences, a JSON array  ?3 leases from before this have run out  ?4 max attempts  ?5 token
-- ?6 last_error of exhausted rows  ?7 table  ?8 relay (null: many may work)
UPDATE {{table}}
-- From zero at least: one row whose attempts somebody made negative must not have the check refuse the whole batch.
SET attempts = CASE WHEN attempts >= ?4 THEN attempts ELSE max(attempts, 0) + 1 END,
    locked_at = CASE WHEN attempts >= ?4 THEN NULL ELSE ?1 END,
    locked_by = CASE WHEN attempts >= ?4 THEN NULL ELSE ?5 END,
    dead_at = CASE WHEN attempts >= ?4 THEN ?1 END,
    last_error = CASE WHEN attempts >= ?4 THEN ?6 ELSE last_error END
WHERE sequence IN (SELECT value FROM json_each(?2))
  AND published_at IS NULL AND dead_at IS NULL
  -- The sign keeps the planner from the index: rows are found by their key.
  AND +available_at <= ?1
  AND {{unlocked}}
  AND EXISTS (SELECT 1 FROM {{relay}} r
              WHERE r.tbl = ?7 AND r.paused_at IS NULL AND (?8 IS NULL OR (r.holder = ?8 AND r.expires_at > ?1)))
RETURNING sequence, event_id, tenant_id, topic, attempts, locked_at, created_at, available_at, payload, payload_raw,
          content_type, headers, aggregate_type, aggregate_id, occurred_at, schema_id, schema_version, routing_key,
          metadata, traceparent, tracestate
