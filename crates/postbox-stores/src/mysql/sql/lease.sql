-- Leases rows that lock.sql has locked. Touches no column that an index has. ? token  … sequences
UPDATE {{table}} FORCE INDEX (PRIMARY)
-- From zero at least: one row whose attempts somebody made negative must not have the check refuse the whole batch.
SET attempts = GREATEST(attempts, 0) + 1, locked_at = UTC_TIMESTAMP(6), locked_by = ?
WHERE sequence IN (<in>)
