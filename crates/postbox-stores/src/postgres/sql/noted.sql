sinks_done = CASE WHEN s.done IS NULL THEN t.sinks_done
                      ELSE ARRAY(SELECT DISTINCT unnest(t.sinks_done || string_to_array(s.done, E'\x1f')) ORDER BY 1) END,
    attempts_log = CASE WHEN s.failure IS NULL THEN t.attempts_log ELSE (
        SELECT jsonb_agg(entry ORDER BY place)
        FROM (
            SELECT entry, place
            FROM jsonb_array_elements(
                CASE WHEN jsonb_typeof(t.attempts_log) = 'array' THEN t.attempts_log ELSE '[]' END
                || jsonb_build_array(jsonb_build_object('at', now()) || s.failure::jsonb)
            ) WITH ORDINALITY AS log (entry, place)
            ORDER BY place DESC
            LIMIT 10
        ) AS latest
    ) END
