-- Contents, or where they are. Small ones stand in their row; of a large one bytes is NULL
-- and the content is in chunks.
CREATE TABLE content (
    id     BIGINT PRIMARY KEY,
    sum    BYTEA  NOT NULL UNIQUE CHECK (length(sum) = 32),
    length BIGINT NOT NULL CHECK (length >= 0),
    bytes  BYTEA
);

-- seal = SHA-256 of the content's sum, its length, n and the bytes: a chunk can
-- be checked alone, and is refused in any other place than its own.
CREATE TABLE chunk (
    id      BIGINT PRIMARY KEY,
    content BIGINT NOT NULL,
    n       BIGINT NOT NULL CHECK (n >= 0),
    seal    BYTEA  NOT NULL CHECK (length(seal) = 32),
    bytes   BYTEA  NOT NULL,
    UNIQUE (content, n)
);

-- Bytes are here until they are in the bucket, so they are not compressed. Those of a few
-- kilobytes stay in their row: to read them elsewhere took twice as long.
ALTER TABLE content SET (toast_tuple_target = 8160);
ALTER TABLE content ALTER COLUMN bytes SET STORAGE EXTERNAL;
ALTER TABLE chunk ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- One row: counting would read all rows.
CREATE TABLE total (
    id     BIGINT PRIMARY KEY CHECK (id = 1),
    count  BIGINT NOT NULL,
    length BIGINT NOT NULL
);

INSERT INTO total (id, count, length) VALUES (1, 0, 0);

-- Where the packs are, if contents are moved to a bucket: one row. packed is the id up to
-- which each content is in a pack; identity also stands in the bucket, whose packs belong
-- to one store alone. removed is the highest id of a content that was removed: no id is used
-- again.
CREATE TABLE bucket (
    id       BIGINT PRIMARY KEY CHECK (id = 1),
    address  TEXT COLLATE "C" NOT NULL,
    identity TEXT COLLATE "C" NOT NULL,
    packed   BIGINT NOT NULL,
    removed  BIGINT NOT NULL
);

INSERT INTO bucket (id, address, identity, packed, removed) VALUES (1, '', '', 0, 0);

-- A row is made before its object is. first and last are the ids of the contents that
-- were put into it, held is their bytes, live those of them that are still there; kept is
-- 1 while they are also here. unneeded is the Unix time at which nothing of it was live.
CREATE TABLE pack (
    id       BIGINT PRIMARY KEY,
    key      TEXT COLLATE "C" NOT NULL UNIQUE,
    length   BIGINT NOT NULL,
    first    BIGINT NOT NULL,
    last     BIGINT NOT NULL,
    held     BIGINT NOT NULL,
    live     BIGINT NOT NULL CHECK (live >= 0),
    kept     BIGINT NOT NULL,
    unneeded BIGINT
);

CREATE INDEX pack_kept ON pack (id) WHERE kept = 1;

-- Where in a pack a content begins.
CREATE TABLE place (
    content BIGINT PRIMARY KEY,
    pack    BIGINT NOT NULL,
    at      BIGINT NOT NULL
);
