-- Leases dead events that lock_letters.sql has locked. Nothing of them changes but the lease: dead they stay. One whose lease
-- ran out may have killed its relay: it is put off first, the longer the longer it is dead.
-- ? ? the shortest time to put one off, and the longest  ? token  … sequences
UPDATE {{table}} FORCE INDEX (PRIMARY)
SET available_at = IF(locked_at IS NULL, available_at, UTC_TIMESTAMP(6)
        + INTERVAL LEAST(GREATEST(TIMESTAMPDIFF(MICROSECOND, dead_at, UTC_TIMESTAMP(6)), ?), ?) MICROSECOND),
    locked_at = UTC_TIMESTAMP(6), locked_by = ?
WHERE sequence IN (<in>)
