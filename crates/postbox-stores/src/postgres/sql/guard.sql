-- Which of these rows are not there as this transaction sees it, and whether its commit will survive a crash; an error in a
-- transaction that has failed before. A sub-select per row, not a join: it goes by the index whatever the planner thinks of
-- the table's size.
SELECT coalesce(array_agg(w.event_id) FILTER (
           WHERE (SELECT true FROM {{table}} t WHERE t.event_id = w.event_id AND t.sequence = w.sequence) IS NULL
       ), '{}'),
       current_setting('synchronous_commit') <> 'off'
FROM unnest($1::uuid[], $2::bigint[]) AS w (event_id, sequence)
