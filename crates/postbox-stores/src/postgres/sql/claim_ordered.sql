-- As claim.sql, in order: the head of each strand behind a place is looked at, and from those that can go a run of events is
-- leased, without a gap. One statement, one snapshot: who sees an event sees all that committed before it.
-- $1 relay (null: many may work)  $2 table  $3 the first strand  $4 heads that are enough  $5 lease seconds  $6 topics
-- $7 rows  $8 bytes  $9 max attempts  $10 token  $11 last_error of exhausted rows  $12 heads to look at  $13 longest run
WITH RECURSIVE gate AS MATERIALIZED (
    SELECT r.paused_at IS NOT NULL AS paused,
           {{mine}} AS mine
    FROM {{relay}} r
    WHERE r.tbl = $2
), heads AS (
{{heads}}
    WHERE h.enough < $4 AND h.looked < $12
), run AS MATERIALIZED (
    -- What follows a head goes with it as far as it can go now. An event that has used up its attempts goes alone.
    SELECT h.strand, r.id, r.place, r.bytes
    FROM heads h
    CROSS JOIN LATERAL (
        SELECT e.id, e.place, e.bytes
        FROM (
            SELECT t.id, row_number() OVER by_sequence AS place,
                   bool_and(t.sequence = h.sequence OR (h.fresh AND {{follows}} AND t.sequence < h.stop)) OVER by_sequence AS goes,
                   CASE WHEN pg_column_compression(t.payload) IS NULL THEN pg_column_size(t.payload)
                        ELSE octet_length(t.payload::text) END + coalesce(octet_length(t.payload_raw), 0) AS bytes
            FROM {{table}} t
            WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} = h.strand AND t.sequence >= h.sequence
            WINDOW by_sequence AS (ORDER BY t.sequence)
            ORDER BY t.sequence
            LIMIT greatest($13, ($7 + (SELECT greatest(max(enough), 1) FROM heads) - 1) / (SELECT greatest(max(enough), 1) FROM heads))
        ) e
        WHERE e.goes
        ORDER BY e.place
    ) r
    WHERE h.free
    LIMIT $7
), locked AS MATERIALIZED (
    SELECT r.strand, r.place, r.bytes, t.id
    FROM run r
    JOIN {{table}} t ON t.id = ANY (ARRAY[r.id])
    -- Said in a way that no partial index can serve: rows are found by their ids, whatever the statistics say.
    WHERE coalesce(t.published_at, t.dead_at) IS NULL AND t.available_at <= now() AND {{unlocked}}
    FOR UPDATE OF t SKIP LOCKED
), whole AS MATERIALIZED (
    -- Behind one that another has, or has changed meanwhile, the others of its strand stay.
    SELECT *, row_number() OVER (PARTITION BY strand ORDER BY place) = place AS held FROM locked
), budget AS MATERIALIZED (
    SELECT *, row_number() OVER by_key = 1 OR sum(bytes) OVER by_key - bytes < $8 AS fits
    FROM whole
    WHERE held
    WINDOW by_key AS (ORDER BY strand, place)
), claimed AS (
    UPDATE {{table}} t
    SET attempts = CASE WHEN t.attempts >= $9 THEN t.attempts ELSE t.attempts + 1 END,
        locked_at = CASE WHEN t.attempts >= $9 THEN NULL ELSE clock_timestamp() END,
        locked_by = CASE WHEN t.attempts >= $9 THEN NULL ELSE $10 END,
        dead_at = CASE WHEN t.attempts >= $9 THEN now() END,
        last_error = CASE WHEN t.attempts >= $9 THEN $11 ELSE t.last_error END
    FROM budget b
    WHERE t.id = ANY (ARRAY[b.id]) AND b.fits
    RETURNING t.*, b.strand AS strand
), summary AS (
    SELECT (SELECT paused FROM gate) AS paused, (SELECT mine FROM gate) AS mine,
           (SELECT count(*) FROM run) AS picked,
           -- The first strand of which something had to stay for its size.
           (SELECT min(strand) FROM budget WHERE NOT fits) AS too_large,
           (SELECT max(looked) FROM heads) AS looked, (SELECT max(strand) FROM heads) AS last_head,
           (SELECT min(strand) FROM heads WHERE suspect) AS suspect, (SELECT max(enough) FROM heads) AS enough
)
SELECT s.paused, s.mine, s.picked, s.too_large, s.looked, s.last_head, s.suspect, s.enough,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, c.attempts, c.locked_at, c.created_at, c.available_at,
       c.payload::text, c.payload_raw, {{facts}},
       c.strand, (SELECT max(strand) FROM run)
FROM summary s LEFT JOIN claimed c ON true
ORDER BY c.strand, c.sequence
