-- Published per second, of late: over ten seconds, or over the time that as many as the bound took. Unknown where nothing is
-- kept that was published. $1 the bound
(SELECT CASE WHEN count(*) > 0 OR EXISTS (SELECT 1 FROM {{table}} WHERE published_at IS NOT NULL)
             THEN (count(*) / CASE WHEN count(*) < $1 THEN 10 ELSE greatest(extract(epoch FROM now() - min(published_at)), 0.001) END)::float8 END
        FROM (SELECT published_at FROM {{table}} WHERE published_at > now() - interval '10 seconds'
              ORDER BY published_at DESC LIMIT $1) AS recent)
