-- ? status  ? headers  ? body  ? principal  ? route  ? key  ? token
UPDATE {{idempotency}} SET state = 'done', finished_at = UTC_TIMESTAMP(6), status = ?, headers = ?, body = ?
WHERE principal = ? AND route = ? AND idempotency_key = ? AND token = ? AND state = 'running'
