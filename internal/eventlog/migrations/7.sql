-- Sets that were removed. Their numbers, and those of their Sources, are never given out
-- again, nor are the Seqs of their events.
CREATE TABLE removed_set (
    id        INTEGER PRIMARY KEY,
    name      TEXT    NOT NULL,
    feed      TEXT    NOT NULL,
    removed   INTEGER NOT NULL,
    mirror    INTEGER NOT NULL,
    records   INTEGER NOT NULL,
    events    INTEGER NOT NULL,
    first_seq INTEGER NOT NULL, -- all of its events were from here,
    last_seq  INTEGER NOT NULL, -- to here; 0: it had none
    observed  INTEGER NOT NULL, -- of the last one
    hash      TEXT    NOT NULL, -- of that one, as the file head has it
    source    INTEGER NOT NULL, -- the largest number of a Source when it was removed
    under_way INTEGER NOT NULL, -- 1: some of its rows are still there
    sum       INTEGER NOT NULL
) STRICT;

-- Contents that removed sets have named, and maybe nothing else does.
CREATE TABLE removed_content (
    sha256 BLOB PRIMARY KEY
) STRICT, WITHOUT ROWID;
