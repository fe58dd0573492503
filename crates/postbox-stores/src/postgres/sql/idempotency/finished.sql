-- Whether it was this ticket that finished the call: the reply to it was lost. $1 principal  $2 route  $3 key  $4 token
SELECT EXISTS (
    SELECT 1 FROM {{idempotency}}
    WHERE principal = $1 AND route = $2 AND idempotency_key = $3 AND token = $4 AND state = 'done'
)
