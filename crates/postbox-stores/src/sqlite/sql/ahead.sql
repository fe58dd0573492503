-- Reads on behind a sequence: everything that is not published, also what cannot be claimed now, since it holds back what is behind
-- it, and what is dead, since it may block. One row of text, "sequence available_at attempts lock bytes dead topic aggregate done;…":
-- each row of an answer costs more than to find it. Lock: 0 none, 1 run out, 2 held. Topic, aggregate and the sinks that are done are in hex.
-- ?1 behind this sequence  ?2 leases from before this have run out  ?3 rows
SELECT group_concat(
    sequence || ' ' || available_at || ' ' || attempts || ' ' || lock || ' ' || bytes || ' ' || dead || ' ' || topic || ' ' || aggregate || ' ' || done, ';'
)
FROM (
    SELECT sequence, available_at, attempts, dead_at IS NOT NULL AS dead,
           CASE WHEN locked_at IS NULL THEN 0 WHEN locked_at < ?2 THEN 1 ELSE 2 END AS lock,
           octet_length(payload) + coalesce(octet_length(payload_raw), 0) AS bytes,
           hex(topic) AS topic, coalesce(hex(sinks_done), '-') AS done,
           CASE WHEN aggregate_id IS NULL THEN '-'
                ELSE hex(tenant_id) || iif(aggregate_type IS NULL, '', '/' || hex(aggregate_type)) || '/' || hex(aggregate_id)
           END AS aggregate
    FROM {{table}} {{by_sequence}}
    WHERE published_at IS NULL AND sequence > ?1
    ORDER BY sequence
    LIMIT ?3
)
