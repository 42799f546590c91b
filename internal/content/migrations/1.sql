-- Small contents stand in their row; of a large one bytes is NULL and the
-- content is in chunks. The columns that a lookup needs stand before the bytes,
-- so that SQLite need not follow a row's overflow pages to read them.
CREATE TABLE content (
    id     INTEGER PRIMARY KEY,
    sum    BLOB    NOT NULL UNIQUE CHECK (length(sum) = 32),
    length INTEGER NOT NULL CHECK (length >= 0),
    bytes  BLOB
) STRICT;

-- seal = SHA-256 of the content's sum, its length, n and the bytes: a chunk can
-- be checked alone, and is refused in any other place than its own.
CREATE TABLE chunk (
    id      INTEGER PRIMARY KEY,
    content INTEGER NOT NULL REFERENCES content (id),
    n       INTEGER NOT NULL CHECK (n >= 0),
    seal    BLOB    NOT NULL CHECK (length(seal) = 32),
    bytes   BLOB    NOT NULL,
    UNIQUE (content, n)
) STRICT;

-- One row: counting would read the whole file.
CREATE TABLE total (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    count  INTEGER NOT NULL,
    length INTEGER NOT NULL
) STRICT;

INSERT INTO total (id, count, length) VALUES (1, 0, 0);
