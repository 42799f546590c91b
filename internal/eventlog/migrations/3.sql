-- The Sources that an operator has paused.
CREATE TABLE pause (
    source INTEGER PRIMARY KEY REFERENCES source (id),
    since  INTEGER NOT NULL,
    until  INTEGER NOT NULL, -- 0: until it is resumed
    reason TEXT    NOT NULL,
    sum    INTEGER NOT NULL
) STRICT;
