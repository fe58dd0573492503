-- What the table holds: bounded work whatever its size. ?1 now  ?2 the bound  ?3 the bound of the estimate
WITH waiting AS MATERIALIZED (
    SELECT created_at, available_at, attempts, locked_at, attempts = 0 AND available_at > ?1 AS scheduled
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
       -- What backs off has its wait in available_at; it has been due since it was written.
       coalesce(max(?1 - CASE WHEN attempts = 0 THEN max(created_at, available_at) ELSE created_at END)
           FILTER (WHERE NOT scheduled), 0),
       count(*) >= ?2,
       CASE WHEN count(*) < ?2 THEN 0 ELSE (
           SELECT count(*) FROM (
               SELECT 1 FROM {{table}} {{by_pending}} WHERE published_at IS NULL AND dead_at IS NULL LIMIT ?3
           )
       ) END
FROM waiting
