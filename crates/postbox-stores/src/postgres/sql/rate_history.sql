-- As rate.sql, with what was moved. $1 the bound
(SELECT CASE WHEN count(*) > 0 OR EXISTS (SELECT 1 FROM {{table}} WHERE published_at IS NOT NULL)
                  OR EXISTS (SELECT 1 FROM {{history}})
             THEN (count(*) / CASE WHEN count(*) < $1 THEN 10 ELSE greatest(extract(epoch FROM now() - min(published_at)), 0.001) END)::float8 END
        FROM (SELECT published_at FROM (
                  (SELECT published_at FROM {{table}} WHERE published_at > now() - interval '10 seconds'
                   ORDER BY published_at DESC LIMIT $1)
                  UNION ALL
                  (SELECT published_at FROM {{history}} WHERE published_at > now() - interval '10 seconds'
                   ORDER BY published_at DESC LIMIT $1)) AS both_tables
              ORDER BY published_at DESC LIMIT $1) AS recent)
