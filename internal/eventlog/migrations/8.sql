-- The newest keys of records and of URIs. Those that have been here longest move to the
-- large tables, a stretch of neighbouring keys with each transaction: a new key in
-- a large table costs a page of its own, many neighbours share one. A key is in one of the
-- two tables.
CREATE TABLE recent_key (
    key    INTEGER NOT NULL,
    record INTEGER NOT NULL,
    PRIMARY KEY (key, record)
) STRICT, WITHOUT ROWID;

CREATE TABLE recent_loc (
    key    INTEGER PRIMARY KEY,
    owner  INTEGER NOT NULL,
    others INTEGER NOT NULL
) STRICT;

CREATE VIEW any_key (key, record) AS
    SELECT key, record FROM recent_key UNION ALL SELECT key, record FROM record_key;

CREATE VIEW any_loc (key, owner, others) AS
    SELECT key, owner, others FROM recent_loc UNION ALL SELECT key, owner, others FROM loc;
