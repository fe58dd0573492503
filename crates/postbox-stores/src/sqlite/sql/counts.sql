-- What the table holds: bounded work whatever its size. ?1 now  ?2 the bound  ?3 the bound of the estimate
WITH waiting AS MATERIALIZED (
    SELECT created_at, available_at, attempts, locked_at, last_error IS NULL AND attempts = 0 AS untried,
           last_error IS NULL AND attempts = 0 AND available_at > ?1 AS scheduled
    FROM {{table}} {{by_pending}}
    WHERE published_at IS NULL AND dead_at IS NULL
    ORDER BY available_at, sequence
    LIMIT ?2
)
SELECT count(*) FILTER (WHERE NOT scheduled),
       count(*) FILTER (WHERE locked_at IS NOT NULL),
       count(*) FILTER (WHERE scheduled),
       (SELECT count(*) FROM (
           SELECT 1 FROM {{table}} {{by_dead}} WHERE dead_at IS NOT NULL AND published_at IS NULL LIMIT ?2
       )),
       -- What backs off, or is put off since its destination is down, has its wait in available_at; it has been due since it was
       -- written.
       -- A time that somebody made up can make this more than an integer holds: then it is the largest.
       CAST(coalesce(max(?1 - CASE WHEN untried THEN max(created_at, available_at) ELSE created_at END)
           FILTER (WHERE NOT scheduled), 0) AS INTEGER),
       count(*) >= ?2,
       CASE WHEN count(*) < ?2 THEN 0 ELSE (
           SELECT count(*) FROM (
               SELECT 1 FROM {{table}} {{by_pending}} WHERE published_at IS NULL AND dead_at IS NULL LIMIT ?3
           )
       ) END,
       -- Published per second, of late: over ten seconds, or over the time that as many as the bound took.
       (SELECT count(*) / CASE WHEN count(*) < ?2 THEN 10.0 ELSE max((?1 - min(published_at)) / 1e6, 0.001) END
        FROM (SELECT published_at FROM {{table}} {{by_published}} WHERE published_at > ?1 - 10000000 ORDER BY published_at DESC LIMIT ?2)),
       {{blocked}}
FROM waiting
