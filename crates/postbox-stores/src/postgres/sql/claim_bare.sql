-- As claim.sql, for a table with the twelve standard columns alone: dead is `attempts >= max` without a live lock,
-- there is no token, and nobody can pause it.
-- $1, $2, $10, $11 are not used but keep their places.
WITH unused AS (
    SELECT $1::text, $2::text, $10::text, $11::text
), picked AS MATERIALIZED (
    SELECT id, available_at, sequence, locked_at IS NOT NULL AS suspect,
           CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                ELSE octet_length(payload::text) END AS bytes
    FROM {{table}}
    WHERE published_at IS NULL
      AND attempts < $9
      AND available_at <= now()
      AND (available_at, sequence) > (coalesce($3, '-infinity'::timestamptz), $4)
      AND {{unlocked}}
      AND {{topics}}
    ORDER BY available_at, sequence
    LIMIT $7
    FOR UPDATE SKIP LOCKED
), budget AS MATERIALIZED (
    SELECT id, available_at, sequence, suspect,
           row_number() OVER by_key = 1
           OR sum(CASE WHEN {{wanted}} THEN bytes ELSE 0 END) OVER by_key - bytes < $8 AS fits
    FROM picked
    WINDOW by_key AS (ORDER BY available_at, sequence)
), claimed AS (
    UPDATE {{table}} t
    SET attempts = t.attempts + 1, locked_at = clock_timestamp()
    FROM budget b
    WHERE t.id = ANY (ARRAY[b.id]) AND b.fits AND {{wanted}}
    RETURNING t.*
), summary AS (
    SELECT false AS paused, true AS mine,
           count(*) AS picked, coalesce(bool_and(fits), true) AS all_fit,
           -- By itself, without a sequence: when it was that nothing was found.
           CASE WHEN count(*) = 0 THEN now()
                ELSE greatest((array_agg(available_at ORDER BY available_at DESC, sequence DESC) FILTER (WHERE fits))[1], '0001-01-01 00:00:00+00')
           END AS last_at,
           (array_agg(sequence ORDER BY available_at DESC, sequence DESC) FILTER (WHERE fits))[1] AS last_sequence,
           greatest((array_agg(available_at ORDER BY available_at, sequence) FILTER (WHERE suspect))[1], '0001-01-01 00:00:00+00') AS suspect_at,
           (array_agg(sequence ORDER BY available_at, sequence) FILTER (WHERE suspect))[1] AS suspect_sequence
    FROM budget
)
SELECT s.paused, s.mine, s.picked, s.all_fit, s.last_at, s.last_sequence, s.suspect_at, s.suspect_sequence,
       c.id, c.event_id, c.tenant_id, c.topic, c.sequence, c.attempts, c.locked_at, c.created_at, c.available_at,
       c.payload::text, NULL::bytea,
       CASE WHEN num_nonnulls({{traceparent}}, {{tracestate}}) > 0
       THEN ROW(NULL::text, NULL::text, NULL::text, NULL::text, NULL::timestamptz, NULL::text,
            NULL::int, NULL::text, NULL::text, {{traceparent}}, {{tracestate}}, NULL::text) END AS facts
FROM summary s LEFT JOIN claimed c ON true
