-- What is known of a call; the answer only to one that is the same. $1 principal  $2 route  $3 key  $4 fingerprint
SELECT fingerprint = $4, state, token, extract(epoch FROM lease_until - clock_timestamp())::float8,
       status, CASE WHEN fingerprint = $4 THEN headers END, CASE WHEN fingerprint = $4 THEN body END
FROM {{idempotency}}
WHERE principal = $1 AND route = $2 AND idempotency_key = $3
