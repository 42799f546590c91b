-- What identifiers that are made of a set's name have in its place: the name that the set
-- had first. '' is its name.
ALTER TABLE sets ADD COLUMN named TEXT NOT NULL DEFAULT '';

-- The names that sets had before. What is at their addresses has moved to the set.
CREATE TABLE former_name (
    name   TEXT PRIMARY KEY,
    set_id INTEGER NOT NULL REFERENCES sets (id),
    since  INTEGER NOT NULL,
    sum    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Of a Source with 10,000 bad inputs those that wait are counted, and their rules found,
-- without reading them.
CREATE INDEX quarantine_waiting ON quarantine (source, replayed, rule);
