-- Settles bring rows here. A cleaner, which leaves rows alone that others hold, needs to lock them, and for that the right to
-- change something; a replay puts rows back as they were, with their ids and sequences.
GRANT SELECT, INSERT, DELETE, UPDATE (locked_at) ON {{history}} TO {{role}};
GRANT INSERT ON {{table}} TO {{role}};
