-- How many aggregates wait behind a dead event: as far as dead events are counted. $1 the bound
(SELECT count(*) FROM (
    SELECT d.strand, min(d.sequence) AS sequence
    FROM (SELECT {{d_strand}} AS strand, d.sequence FROM {{table}} d WHERE d.dead_at IS NOT NULL
          ORDER BY {{d_strand}}, d.sequence LIMIT $1) AS d
    GROUP BY d.strand
) AS first
WHERE EXISTS (SELECT 1 FROM {{table}} p WHERE p.published_at IS NULL AND p.dead_at IS NULL
              AND {{p_strand}} = first.strand AND p.sequence > first.sequence))
