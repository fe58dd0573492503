-- Forgets calls that were begun long ago; never one that runs. ? retention microseconds  ? rows
DELETE FROM {{idempotency}}
WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AND (state = 'done' OR lease_until < UTC_TIMESTAMP(6))
ORDER BY created_at LIMIT ?
