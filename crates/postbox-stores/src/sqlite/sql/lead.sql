-- Makes a relay the active one, if no other is. Whoever holds the lock file may take over at once from a relay that
-- held it, since that one's process is gone; a relay without the lock file is waited for.
-- ?1 table  ?2 relay  ?3 whether it holds the lock file  ?4 now  ?5 until when
UPDATE {{relay}}
SET holder = ?2, session = ?3, epoch = epoch + 1, strategy = 'lease', expires_at = ?5
WHERE tbl = ?1 AND {{takeable}}
RETURNING epoch
