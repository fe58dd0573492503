-- Takes a call over whose lease has run out, from the one who was seen to have it.
-- $1 principal  $2 route  $3 key  $4 its token  $5 ours  $6 seconds
UPDATE {{idempotency}} SET token = $5, lease_until = clock_timestamp() + make_interval(secs => $6)
WHERE principal = $1 AND route = $2 AND idempotency_key = $3
  AND token = $4 AND state = 'running' AND lease_until <= clock_timestamp()
