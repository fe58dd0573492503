-- What the table holds: bounded work whatever its size. $1 the bound
WITH waiting AS MATERIALIZED (
    SELECT greatest(least(created_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00') AS created_at, greatest(least(available_at, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00') AS due_at, {{in_flight}} AS in_flight, last_error IS NULL AND attempts = 0 AS untried,
           last_error IS NULL AND attempts = 0 AND available_at > now() AS scheduled
    FROM {{table}}
    WHERE published_at IS NULL AND {{alive}}
    -- By the column as it is: what is given a name above is no order of the index.
    ORDER BY available_at, sequence
    LIMIT $1
)
SELECT count(*) FILTER (WHERE NOT scheduled),
       count(*) FILTER (WHERE in_flight),
       count(*) FILTER (WHERE scheduled),
       (SELECT count(*) FROM (SELECT 1 FROM {{table}} WHERE {{dead}} LIMIT $1) AS dead),
       -- What backs off, or is put off since its destination is down, has its wait in available_at; it has been due since it was
       -- written.
       coalesce(extract(epoch FROM max(now() - CASE WHEN untried THEN greatest(created_at, due_at) ELSE created_at END)
           FILTER (WHERE NOT scheduled)), 0)::float8,
       count(*) >= $1,
       greatest((SELECT reltuples FROM pg_class WHERE oid = to_regclass($2)), 0)::bigint,
       {{rate}},
       {{blocked}}
FROM waiting
