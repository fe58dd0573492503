-- What the table holds: bounded work whatever its size.
WITH waiting AS (
    SELECT created_at, available_at, locked_at IS NOT NULL OR {{in_flight}} AS locked, last_error IS NULL AND attempts = 0 AS untried,
           last_error IS NULL AND attempts = 0 AND available_at > UTC_TIMESTAMP(6) AS scheduled
    FROM {{table}} {{by_pending}}
    WHERE published_at IS NULL AND dead_at IS NULL
    ORDER BY available_at, sequence
    LIMIT 10000
)
SELECT COUNT(CASE WHEN NOT scheduled THEN 1 END),
       COUNT(CASE WHEN locked THEN 1 END),
       COUNT(CASE WHEN scheduled THEN 1 END),
       (SELECT COUNT(*) FROM (
           SELECT 1 FROM {{table}} {{by_pending}} WHERE published_at IS NULL AND dead_at IS NOT NULL LIMIT 10000
       ) AS dead),
       -- What backs off, or is put off since its destination is down, has its wait in available_at; it has been due since it was
       -- written.
       COALESCE(MAX(CASE WHEN NOT scheduled THEN TIMESTAMPDIFF(MICROSECOND,
           IF(untried, GREATEST(created_at, available_at), created_at), UTC_TIMESTAMP(6)) END), 0),
       COUNT(*) >= 10000,
       IF(COUNT(*) < 10000, 0, (
           SELECT COUNT(*) FROM (
               SELECT 1 FROM {{table}} {{by_pending}} WHERE published_at IS NULL AND dead_at IS NULL LIMIT 100000
           ) AS more
       )),
       {{blocked}}
FROM waiting
