{{usage}};
-- For a process that handles what it writes, beside what writers and relays need: rows that are born leased.
GRANT INSERT (locked_by, locked_at, attempts) ON {{table}} TO {{role}};
GRANT SELECT (id) ON {{table}} TO {{role}};
