-- What became of dead events on their way to the dead-letter route. The fence: a replay takes the token away.
-- $1 ids, in order  $2 tokens  $3 microseconds to wait (null: it arrived)
UPDATE {{table}} t
SET dlq_at = CASE WHEN s.wait IS NULL THEN now() END,
    available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE now() + s.wait * interval '1 microsecond' END,
    locked_at = NULL,
    locked_by = NULL
FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS s (id, token, wait)
WHERE t.id = ANY (ARRAY[s.id]) AND t.locked_by = s.token AND (t.dead_at IS NOT NULL AND t.dlq_at IS NULL AND t.published_at IS NULL) IS TRUE
RETURNING t.id
