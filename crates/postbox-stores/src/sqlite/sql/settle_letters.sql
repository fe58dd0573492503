-- What became of dead events on their way to the dead-letter route. The fence: a replay takes the token away.
-- ?1 now  ?2 a JSON array of [sequence, token, microseconds to wait (null: it arrived)]
UPDATE {{table}} AS t NOT INDEXED
SET dlq_at = CASE WHEN s.wait IS NULL THEN ?1 END,
    available_at = CASE WHEN s.wait IS NULL THEN t.available_at ELSE ?1 + s.wait END,
    locked_at = NULL,
    locked_by = NULL
FROM (SELECT value ->> 0 AS sequence, value ->> 1 AS token, value ->> 2 AS wait FROM json_each(?2)) AS s
WHERE t.sequence = s.sequence AND t.locked_by = s.token
  AND +t.dead_at IS NOT NULL AND +t.dlq_at IS NULL AND +t.published_at IS NULL
RETURNING sequence
