-- Whatever columns the table has, in their order. No key and no default: rows arrive as they were.
CREATE TABLE IF NOT EXISTS {{history}} (LIKE {{table}})
