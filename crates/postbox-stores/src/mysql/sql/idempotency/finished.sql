-- Whether it was this ticket that finished the call: the reply to it was lost. ? principal  ? route  ? key  ? token
SELECT EXISTS (
    SELECT 1 FROM {{idempotency}}
    WHERE principal = ? AND route = ? AND idempotency_key = ? AND token = ? AND state = 'done'
)
