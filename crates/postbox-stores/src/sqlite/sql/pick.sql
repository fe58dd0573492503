-- Finds rows to claim, without a lock. Whether they can be had is for lease.sql to see. One row of text, "sequence
-- available_at attempts suspect bytes;…", since each row of an answer costs more than to find it.
-- ?1 now  ?2, ?3 read on behind this key  ?4 leases from before this have run out  ?5 topics, a JSON array  ?6 rows
SELECT group_concat(
    sequence || ' ' || available_at || ' ' || attempts || ' ' || (locked_at IS NOT NULL) || ' ' || bytes, ';'
)
FROM (
    SELECT sequence, available_at, attempts, locked_at,
           octet_length(payload) + coalesce(octet_length(payload_raw), 0) AS bytes
    FROM {{table}} {{by_pending}}
    WHERE published_at IS NULL AND dead_at IS NULL
      AND available_at <= ?1
      AND (available_at, sequence) > (?2, ?3)
      AND {{unlocked}}
      AND {{topics}}
      AND {{tenants}}
    ORDER BY available_at, sequence
    LIMIT ?6
)
