-- A cleaner, which leaves rows alone that others hold, needs to lock them, and for that the right to change something.
GRANT SELECT, DELETE, UPDATE (processed_at) ON {{inbox}} TO {{role}};
