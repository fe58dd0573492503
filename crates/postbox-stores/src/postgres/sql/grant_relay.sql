{{usage}};
GRANT SELECT, DELETE ON {{table}} TO {{role}};
GRANT UPDATE (published_at, attempts, available_at, locked_at, locked_by, last_error, dead_at, dlq_at, attempts_log,
    sinks_done, redrives) ON {{table}} TO {{role}};
GRANT SELECT, UPDATE ON {{relay}} TO {{role}};
GRANT SELECT, INSERT ON {{audit}} TO {{role}};
GRANT USAGE ON SEQUENCE {{audit_sequence}} TO {{role}};
