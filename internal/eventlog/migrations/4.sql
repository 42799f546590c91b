-- When a Source is asked next, and how its harvests have fared, with more than before:
-- what the table had is not taken over, so each Source is asked once more.
DROP TABLE schedule;
CREATE TABLE schedule (
    source        INTEGER PRIMARY KEY,
    next          INTEGER NOT NULL, -- 0: no harvest is planned
    failures      INTEGER NOT NULL, -- harvests in a row
    report        BLOB,             -- of the last harvest
    last_success  INTEGER NOT NULL, -- 0: never
    failing_since INTEGER NOT NULL, -- 0: the last harvest has not failed
    error_at      INTEGER NOT NULL, -- the newest error, 0: there was none
    error         TEXT    NOT NULL,
    error_kind    TEXT    NOT NULL,
    error_rule    TEXT    NOT NULL,
    harvests      INTEGER NOT NULL, -- the number of the newest row of harvest, 0: none
    quiet         INTEGER NOT NULL, -- harvests since that have found nothing new,
    quiet_first   INTEGER NOT NULL, -- and when the first
    quiet_last    INTEGER NOT NULL, -- and the last of them ended
    sum           INTEGER NOT NULL
) STRICT;

-- The harvests of a Source that have found something new, have failed, or ended
-- otherwise than the one before. The others are counted by the row after them.
CREATE TABLE harvest (
    source      INTEGER NOT NULL,
    n           INTEGER NOT NULL, -- from 1; older ones are removed
    started     INTEGER NOT NULL,
    ended       INTEGER NOT NULL,
    result      INTEGER NOT NULL,
    documents   INTEGER NOT NULL,
    entries     INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    contents    INTEGER NOT NULL,
    created     INTEGER NOT NULL,
    updated     INTEGER NOT NULL,
    deleted     INTEGER NOT NULL,
    pending     INTEGER NOT NULL,
    held        INTEGER NOT NULL,
    quarantined INTEGER NOT NULL,
    problems    BLOB,             -- the broken rules, as JSON
    error       TEXT    NOT NULL, -- '' if result is not failed
    error_kind  TEXT    NOT NULL,
    error_rule  TEXT    NOT NULL,
    quiet       INTEGER NOT NULL, -- harvests after the row before that have found nothing new,
    quiet_first INTEGER NOT NULL, -- and when the first
    quiet_last  INTEGER NOT NULL, -- and the last of them ended
    sum         INTEGER NOT NULL,
    PRIMARY KEY (source, n)
) STRICT, WITHOUT ROWID;

-- What these rows add up to, a day in UTC: the rows that were removed count too.
CREATE TABLE harvest_day (
    source   INTEGER NOT NULL,
    day      INTEGER NOT NULL, -- since 1970
    harvests INTEGER NOT NULL,
    failed   INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    updated  INTEGER NOT NULL,
    deleted  INTEGER NOT NULL,
    sum      INTEGER NOT NULL,
    PRIMARY KEY (source, day)
) STRICT, WITHOUT ROWID;
