-- Rows that lock.sql has locked and that have used up their attempts die. ? last_error  … sequences
UPDATE {{table}} FORCE INDEX (PRIMARY)
SET locked_at = NULL, locked_by = NULL, dead_at = UTC_TIMESTAMP(6), last_error = ?
WHERE sequence IN (<in>)
