-- What the active relay of a table has in flight, where it owns the table: exactly these sequences, as ranges from the first
-- to before the second number of each pair, and until when the last of them has been available. A table of its own: settles
-- share a lock on the relay's row, and the journal must not wait for them.
CREATE TABLE IF NOT EXISTS {{window}} (
    tbl    VARCHAR(64) NOT NULL PRIMARY KEY,
    epoch  BIGINT      NOT NULL,
    win    LONGTEXT,
    win_to DATETIME(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
