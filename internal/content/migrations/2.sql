-- Where the packs are, if contents are moved to a bucket: one row. packed is the id up to
-- which each content is in a pack; identity also stands in the bucket, whose packs belong
-- to one store alone. removed is the highest id of a content that was removed: no id is used
-- again.
CREATE TABLE bucket (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    address  TEXT    NOT NULL,
    identity TEXT    NOT NULL,
    packed   INTEGER NOT NULL,
    removed  INTEGER NOT NULL
) STRICT;

INSERT INTO bucket (id, address, identity, packed, removed) VALUES (1, '', '', 0, 0);

-- A row is made before its object is. first and last are the ids of the contents that
-- were put into it, held is their bytes, live those of them that are still there; kept is
-- 1 while they are also here. unneeded is the Unix time at which nothing of it was live.
CREATE TABLE pack (
    id       INTEGER PRIMARY KEY,
    key      TEXT    NOT NULL UNIQUE,
    length   INTEGER NOT NULL,
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    held     INTEGER NOT NULL,
    live     INTEGER NOT NULL CHECK (live >= 0),
    kept     INTEGER NOT NULL,
    unneeded INTEGER
) STRICT;

CREATE INDEX pack_kept ON pack (id) WHERE kept = 1;

-- Where in a pack a content begins.
CREATE TABLE place (
    content INTEGER PRIMARY KEY,
    pack    INTEGER NOT NULL REFERENCES pack (id),
    at      INTEGER NOT NULL
) STRICT;
