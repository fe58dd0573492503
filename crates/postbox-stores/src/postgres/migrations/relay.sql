CREATE TABLE IF NOT EXISTS {{relay}} (
    tbl           TEXT        NOT NULL PRIMARY KEY,
    strategy      TEXT,
    holder        TEXT,
    session       BOOLEAN     NOT NULL DEFAULT false,
    epoch         BIGINT      NOT NULL DEFAULT 0,
    expires_at    TIMESTAMPTZ,
    paused_at     TIMESTAMPTZ,
    paused_by     TEXT,
    paused_reason TEXT,
    -- What the active relay has in flight, where its rows are not locked: exactly these sequences, and between which times
    -- they are available. The bounds of ranges, in order: from the first to before the second, from the third to before the
    -- fourth; so width_bucket(sequence, win) is odd for what is in them.
    win           BIGINT[],
    win_from      TIMESTAMPTZ,
    win_to        TIMESTAMPTZ,
    -- A relay that shares the table by leases, and until when that counts.
    shared_by     TEXT,
    shared_until  TIMESTAMPTZ
);
-- Written for every batch: not worth to be compressed.
ALTER TABLE {{relay}} ALTER COLUMN win SET STORAGE EXTERNAL
