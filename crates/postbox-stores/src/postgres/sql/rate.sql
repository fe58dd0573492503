-- Published per second, of late: over ten seconds, or over the time that as many as the bound took. $1 the bound
(SELECT (count(*) / CASE WHEN count(*) < $1 THEN 10 ELSE greatest(extract(epoch FROM now() - min(published_at)), 0.001) END)::float8
        FROM (SELECT published_at FROM {{table}} WHERE published_at > now() - interval '10 seconds'
              ORDER BY published_at DESC LIMIT $1) AS recent)
