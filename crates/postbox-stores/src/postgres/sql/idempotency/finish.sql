-- $1 principal  $2 route  $3 key  $4 token  $5 status  $6 headers  $7 body
UPDATE {{idempotency}}
SET state = 'done', finished_at = clock_timestamp(), status = $5, headers = $6, body = $7
WHERE principal = $1 AND route = $2 AND idempotency_key = $3 AND token = $4 AND state = 'running'
