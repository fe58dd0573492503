-- The strands of the rows that have waited longest, behind a key. A hint where to look: whether something of a strand can go is for the
-- read to say, which looks at it from its head on.
-- $1 (null: the start), $2 read on behind this key  $3 rows
SELECT max(t.available_at), (array_agg(t.sequence))[count(*)], array_agg(t.strand)
FROM (
    SELECT t.available_at, t.sequence, {{t_strand}} AS strand
    FROM {{table}} t
    WHERE t.published_at IS NULL AND t.dead_at IS NULL AND t.available_at <= now()
      AND (t.available_at, t.sequence) > (coalesce($1, '-infinity'::timestamptz), $2)
    ORDER BY t.available_at, t.sequence
    LIMIT $3
) AS t
HAVING count(*) > 0
