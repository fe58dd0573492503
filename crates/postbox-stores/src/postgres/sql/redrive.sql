-- Replays events that have been dead for long enough: one page of the dead, oldest first, with its line in the audit log.
-- What cannot be decoded will not be by trying again. What is on its way to the dead-letter route is left for the next time.
-- $1 relay (null: many may work)  $2 table  $3 seconds dead  $4 at most so often  $5 lease seconds
-- $6 (null: the start), $7 read on behind this key  $8 rows  $9 who
WITH gate AS MATERIALIZED (
    SELECT r.paused_at IS NULL
           AND ({{mine}}) AS open
    FROM {{relay}} r
    WHERE r.tbl = $2
), looked AS MATERIALIZED (
    SELECT id, dead_at, sequence
    FROM {{table}}
    WHERE dead_at IS NOT NULL AND published_at IS NULL
      AND dead_at <= now() - make_interval(secs => $3)
      AND (dead_at, sequence) > (coalesce($6, '-infinity'::timestamptz), $7)
      AND (SELECT open FROM gate)
      AND {{tenants}}
    ORDER BY dead_at, sequence
    LIMIT $8
), chosen AS MATERIALIZED (
    SELECT t.id
    FROM {{table}} t JOIN looked l ON t.id = ANY (ARRAY[l.id])
    WHERE (t.dead_at IS NOT NULL AND t.published_at IS NULL) IS TRUE AND coalesce(t.redrives, 0) < $4
      AND coalesce(t.last_error, '') NOT LIKE 'OUTBOX\_UNDECODABLE%'
      AND (t.locked_at IS NULL OR t.locked_at < now() - make_interval(secs => $5))
    ORDER BY t.id
    FOR UPDATE OF t SKIP LOCKED
), revived AS (
    UPDATE {{table}} t
    -- As every replay does it: what an owner may still settle is left for a lease.
    SET locked_at = CASE WHEN {{unsettled}} THEN to_timestamp(0) END, locked_by = CASE WHEN {{unsettled}} THEN 'replayed' END,
        attempts = 0, available_at = now(), last_error = NULL, dead_at = NULL, dlq_at = NULL, redrives = coalesce(t.redrives, 0) + 1
    FROM chosen c
    WHERE t.id = ANY (ARRAY[c.id])
    RETURNING 1
), written AS (
    INSERT INTO {{audit}} (who, action, tbl, what, events)
    SELECT $9, 'redrive', $2, jsonb_build_object('dead_for_seconds', $3::float8, 'at_most', $4::int), count(*)
    FROM revived
    HAVING count(*) > 0
)
SELECT (SELECT count(*) FROM revived), count(*),
       greatest((array_agg(dead_at ORDER BY dead_at DESC, sequence DESC))[1], '0001-01-01 00:00:00+00'),
       (array_agg(sequence ORDER BY dead_at DESC, sequence DESC))[1]
FROM looked
