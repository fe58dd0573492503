-- What is known of a call; the answer only to one that is the same. ?1 principal  ?2 route  ?3 key  ?4 fingerprint  ?5 now
SELECT fingerprint = ?4, state, token, lease_until - ?5,
       status, CASE WHEN fingerprint = ?4 THEN headers END, CASE WHEN fingerprint = ?4 THEN body END
FROM {{idempotency}}
WHERE principal = ?1 AND route = ?2 AND idempotency_key = ?3
