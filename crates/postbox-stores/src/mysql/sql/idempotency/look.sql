-- What is known of a call; the answer only to one that is the same. ? ? ? fingerprint  ? principal  ? route  ? key
SELECT fingerprint = ?, state = 'done', token, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until),
       status, IF(fingerprint = ?, headers, NULL), IF(fingerprint = ?, body, NULL)
FROM {{idempotency}}
WHERE principal = ? AND route = ? AND idempotency_key = ?
