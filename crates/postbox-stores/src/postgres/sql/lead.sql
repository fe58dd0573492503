-- Makes a relay the active one, if no other is. Whoever holds the session lock may take over at once from a relay
-- that held it, since that one's session is gone; a relay without a session lock is waited for.
-- $1 table  $2 relay  $3 whether it holds the session lock  $4 seconds
UPDATE {{relay}} r
SET holder = $2, session = $3, epoch = r.epoch + 1, strategy = 'lease',
    expires_at = clock_timestamp() + make_interval(secs => $4)
WHERE r.tbl = $1
  AND (r.holder IS NULL OR r.holder = $2 OR r.expires_at < clock_timestamp() OR ($3 AND r.session))
RETURNING r.epoch
