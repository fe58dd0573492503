-- What the current user may not do, of what a relay ($2: which also cleans) and a process with a hot path ($3) need.
-- $1 table  $2, $3 whether these are wanted
SELECT need.role, need.privilege || coalesce(' (' || need.col || ')', '') || ' ON ' || need.tbl
FROM (VALUES
    (1, 'relay', 'SELECT', NULL, $1, true),
    (2, 'relay', 'UPDATE', 'locked_at', $1, true),
    (3, 'relay', 'UPDATE', 'attempts', $1, true),
    (4, 'relay', 'UPDATE', 'available_at', $1, true),
    (5, 'relay', 'UPDATE', 'published_at', $1, true),
    (6, 'relay', 'UPDATE', 'last_error', $1, true),
    (7, 'relay', 'DELETE', NULL, $1, $2),
    (8, 'handler', 'INSERT', 'locked_by', $1, $3),
    (9, 'handler', 'INSERT', 'locked_at', $1, $3),
    (10, 'handler', 'INSERT', 'attempts', $1, $3),
    (11, 'handler', 'SELECT', 'id', $1, $3)
    {{full}}
) AS need (place, role, privilege, col, tbl, wanted)
WHERE need.wanted
  AND NOT CASE WHEN need.col IS NULL THEN has_table_privilege(need.tbl, need.privilege)
               ELSE has_column_privilege(need.tbl, need.col, need.privilege) END
ORDER BY need.place
