-- How long the oldest transaction is open that holds a snapshot in this database: what `doctor` names (hazard 15). It reads the list of sessions
-- and no table.
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0)::float8
FROM (
    SELECT xact_start AS since FROM pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
      AND datname = current_database() AND backend_type = 'client backend'
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
) AS held
