-- Which of these rows, `[[event id in hex, sequence], …]`, are not there as this transaction sees it.
SELECT unhex(w.value ->> 0)
FROM json_each(?1) AS w
WHERE NOT EXISTS (SELECT 1 FROM {{table}} AS t WHERE t.sequence = w.value ->> 1 AND t.event_id = unhex(w.value ->> 0))
