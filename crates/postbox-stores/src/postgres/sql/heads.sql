    SELECT {{next}}, (f.can AND f.sequence < f.stop)::int::bigint AS enough, 1::bigint AS looked
    FROM (
        SELECT {{head}}
        FROM {{table}} t
        WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} >= $3
          AND (SELECT mine AND NOT paused FROM gate)
        ORDER BY {{t_strand}}, t.sequence
        LIMIT 1
    ) f
    UNION ALL
    SELECT {{next}}, h.enough + (f.can AND f.sequence < f.stop)::int, h.looked + 1
    FROM heads h
    CROSS JOIN LATERAL (
        SELECT {{head}}
        FROM {{table}} t
        WHERE t.published_at IS NULL AND t.dead_at IS NULL AND {{t_strand}} > h.strand
        ORDER BY {{t_strand}}, t.sequence
        LIMIT 1
    ) f
