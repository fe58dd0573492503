-- Makes a relay the active one, if no other is. Whoever holds the session lock may take over at once from a relay
-- that held it, since that one's session is gone; a relay without a session lock is waited for. What the last one had in
-- flight may have killed it: those rows are charged, and look like leases that ran out long ago, so that they are claimed
-- one by one. A relay that comes back to its own place finds it as it was. (The window with nothing added is no longer a value that
-- has to be fetched for each row.)
-- $1 table  $2 relay  $3 whether it holds the session lock  $4 seconds  $5 strategy; nobody owns what others share
WITH place AS MATERIALIZED (
    SELECT r.tbl, r.holder IS NOT DISTINCT FROM $2 AS own, r.win || '{}' AS win, r.win_from, r.win_to
    FROM {{relay}} r
    WHERE r.tbl = $1
      AND (r.holder IS NULL OR r.holder = $2 OR r.expires_at < clock_timestamp() OR ($3 AND r.session))
      AND ($5 <> 'owner' OR r.shared_until IS NULL OR r.shared_until < clock_timestamp())
    FOR UPDATE
), in_flight AS MATERIALIZED (
    SELECT t.id
    FROM {{table}} t, place p
    WHERE NOT p.own AND width_bucket(t.sequence, p.win) % 2 = 1
      -- Implied; only these find the rows in the index.
      AND t.available_at <= p.win_to AND (p.win_from IS NULL OR t.available_at >= p.win_from)
      AND t.sequence >= p.win[1] AND t.sequence < p.win[array_upper(p.win, 1)]
      AND t.published_at IS NULL AND t.dead_at IS NULL AND t.locked_at IS NULL
    -- What somebody has locked keeps nobody from taking over: it waits like any other, and its last owner settles it no more.
    FOR UPDATE OF t SKIP LOCKED
), left_behind AS (
    UPDATE {{table}} t
    SET locked_at = to_timestamp(0), locked_by = 'left behind', attempts = least(t.attempts, 2147483646) + 1
    FROM in_flight f
    WHERE t.id = ANY (ARRAY[f.id])
    RETURNING 1
)
UPDATE {{relay}} r
SET holder = $2, session = $3, strategy = $5,
    epoch = CASE WHEN p.own THEN r.epoch ELSE r.epoch + 1 END,
    win = CASE WHEN p.own THEN r.win END,
    expires_at = clock_timestamp() + make_interval(secs => $4)
FROM place p
WHERE r.tbl = p.tbl
RETURNING r.epoch, (SELECT count(*) FROM left_behind)
