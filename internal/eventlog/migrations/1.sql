-- The log. Times are microseconds since 1970 in UTC, stamps nanoseconds.
-- sum is a CRC-32C over the other columns of a row, as far as they do not follow
-- from the log itself: a damaged row is an error, never another answer.

-- One row: what the log as a whole has come to.
CREATE TABLE log (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    commits    INTEGER NOT NULL, -- the number of transactions
    last_event INTEGER NOT NULL, -- the id of the last event of all sets, 0: none
    sum        INTEGER NOT NULL  -- of last_event
) STRICT;
INSERT INTO log (id, commits, last_event, sum) VALUES (1, 0, 0, 3804491685);

-- Epochs that began because events had been lost; the first one has no row. No
-- Seq after after_seq and up to upto_seq is there.
CREATE TABLE epoch (
    n         INTEGER PRIMARY KEY,
    started   INTEGER NOT NULL,
    after_seq INTEGER NOT NULL,
    upto_seq  INTEGER NOT NULL,
    reason    TEXT    NOT NULL,
    sum       INTEGER NOT NULL
) STRICT;

CREATE TABLE sets (
    id             INTEGER PRIMARY KEY,
    name           TEXT    NOT NULL UNIQUE,
    title          TEXT    NOT NULL,
    description    TEXT    NOT NULL,
    content        INTEGER NOT NULL,
    created        INTEGER NOT NULL,
    feed           TEXT    NOT NULL,
    complete       TEXT    NOT NULL,
    segment_events INTEGER NOT NULL,
    segment_hours  INTEGER NOT NULL,
    no_robots      INTEGER NOT NULL,           -- 1: robots.txt does not name it
    no_feeds       INTEGER NOT NULL,           -- 1: it is not published as feeds
    history        INTEGER NOT NULL,           -- 1: earlier versions are served
    dumps          INTEGER NOT NULL,           -- 1: its contents are published in packages too
    keep_lists     INTEGER NOT NULL,           -- how many earlier Resource Lists are kept,
    keep_lists_for INTEGER NOT NULL,           -- and for how many microseconds
    sum            INTEGER NOT NULL,           -- of the columns above
    last_seq       INTEGER NOT NULL DEFAULT 0, -- of the last event that is, or was, in a segment
    last_observed  INTEGER NOT NULL,           -- of that event, else created, if that is later
    clock          INTEGER NOT NULL,           -- the largest Observed given out
    live           INTEGER NOT NULL DEFAULT 0,
    events         INTEGER NOT NULL DEFAULT 0,
    records        INTEGER NOT NULL DEFAULT 0, -- the largest ordinal in record
    partial        INTEGER NOT NULL,           -- 1: a Source has not been walked whole yet
    base_seq       INTEGER NOT NULL DEFAULT 0, -- events up to it are of an earlier epoch
    base_n         INTEGER NOT NULL DEFAULT 0  -- the segments have the numbers after it
) STRICT;

-- rank is the order of the Sources in the configuration: the first that has a record
-- is its authority.
CREATE TABLE source (
    id      INTEGER PRIMARY KEY,
    set_id  INTEGER NOT NULL REFERENCES sets (id),
    name    TEXT    NOT NULL,           -- in the configuration, '' when it has none there
    kind    TEXT    NOT NULL,
    url     TEXT    NOT NULL,
    rank    INTEGER NOT NULL,
    status  INTEGER NOT NULL,           -- 0: configured, 1: not any more, 2: forgotten
    sum     INTEGER NOT NULL,           -- of the columns above
    version INTEGER NOT NULL DEFAULT 0, -- of the cursor, compared and swapped
    cursor  BLOB,                       -- NULL when no walk is under way
    mark    INTEGER,
    memory  BLOB,
    gap     TEXT    NOT NULL DEFAULT '',
    progress_sum INTEGER NOT NULL,      -- of version to gap
    dropped INTEGER NOT NULL DEFAULT 0, -- bad inputs that made room for newer ones, and were not taken in
    UNIQUE (set_id, url)
) STRICT;

-- The sets that were made for the sets of resources of a Source, where the configuration
-- wants one for each.
CREATE TABLE derived_set (
    template TEXT    NOT NULL, -- the configured set
    url      TEXT    NOT NULL, -- the Capability List, or what stands for it
    name     TEXT    NOT NULL UNIQUE,
    sum      INTEGER NOT NULL,
    PRIMARY KEY (template, url)
) STRICT, WITHOUT ROWID;

-- The host names that an operator typed, and whether their addresses were public
-- when they were first connected to.
CREATE TABLE host (
    name   TEXT PRIMARY KEY,
    public INTEGER NOT NULL,
    sum    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- When a Source is asked next, and how its harvests have fared. Apart from the
-- Source, because a harvest that finds nothing new writes nothing else.
CREATE TABLE schedule (
    source   INTEGER PRIMARY KEY,
    next     INTEGER NOT NULL, -- 0: no harvest is planned
    failures INTEGER NOT NULL, -- harvests in a row
    report   BLOB,             -- of the last harvest
    sum      INTEGER NOT NULL
) STRICT;

-- What a Source's document said of itself, for the events that came from it.
CREATE TABLE document (
    id      INTEGER PRIMARY KEY,
    source  INTEGER NOT NULL REFERENCES source (id),
    url     TEXT    NOT NULL,
    feed_id TEXT    NOT NULL,
    title   TEXT    NOT NULL,
    updated INTEGER,
    feed    BLOB,             -- what else the feed says of itself
    sum     INTEGER NOT NULL
) STRICT;

-- Each record with its state, and what the Source that is its authority last said.
-- seq and digest follow from the log; source_state is harvest state, with its own
-- sum. id = set << 32 | ordinal.
CREATE TABLE record (
    id           INTEGER PRIMARY KEY,
    identifier   TEXT NOT NULL,
    seq          INTEGER NOT NULL, -- of its last event, 0: none
    digest       INTEGER,          -- NULL when the record is not live
    source_state BLOB              -- NULL when no Source has said anything that applies
) STRICT;

-- key = 64 bits of SHA-256 of the identifier, not unique: the identifier
-- decides. A table of its own and no index, so that it is written in its order
-- and the records in theirs: a third less work for each new record.
CREATE TABLE record_key (
    key    INTEGER NOT NULL,
    record INTEGER NOT NULL,
    PRIMARY KEY (key, record)
) STRICT, WITHOUT ROWID;

-- id = set << 40 | seq: the events of a set stand together, in their order. One
-- number and no pair, because an index of whole rows is deeper than a table.
CREATE TABLE event (
    id       INTEGER PRIMARY KEY,
    record   INTEGER NOT NULL, -- 0: a rejected submission, which is of no record
    kind     INTEGER NOT NULL,
    observed INTEGER NOT NULL,
    body     BLOB    NOT NULL
) STRICT;

CREATE TABLE segment (
    set_id   INTEGER NOT NULL REFERENCES sets (id),
    n        INTEGER NOT NULL,
    from_at  INTEGER NOT NULL,
    until_at INTEGER NOT NULL DEFAULT 0, -- 0: open
    start    INTEGER NOT NULL DEFAULT 0, -- Observed of the first event
    first    INTEGER NOT NULL DEFAULT 0,
    last     INTEGER NOT NULL DEFAULT 0,
    events   INTEGER NOT NULL DEFAULT 0,
    entries  INTEGER NOT NULL DEFAULT 0,
    weight   INTEGER NOT NULL DEFAULT 0, -- bounds of the bytes of its Change List
    feed_weight INTEGER NOT NULL DEFAULT 0, -- and of its archive document
    PRIMARY KEY (set_id, n)
) STRICT, WITHOUT ROWID;

-- What the other Sources of the same set last said of a record.
CREATE TABLE presence (
    record       INTEGER NOT NULL,
    source       INTEGER NOT NULL,
    source_state BLOB    NOT NULL, -- its sum covers suppressed too
    suppressed   BLOB,             -- the observation, which is not in the log
    PRIMARY KEY (record, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX presence_source ON presence (source);

-- Which records a Source has, by what it last said: a bitmap over their ordinals, and
-- its sum.
CREATE TABLE source_records (
    source INTEGER NOT NULL,
    page   INTEGER NOT NULL,
    bits   BLOB    NOT NULL,
    PRIMARY KEY (source, page)
) STRICT, WITHOUT ROWID;

-- Which live record of a set in mode reference is listed under a URI, and how many
-- others share that. key = 64 bits of a hash of set and URI.
CREATE TABLE loc (
    key    INTEGER PRIMARY KEY,
    owner  INTEGER NOT NULL,
    others INTEGER NOT NULL
) STRICT;

-- Those others.
CREATE TABLE loc_other (
    key    INTEGER NOT NULL,
    record INTEGER NOT NULL,
    PRIMARY KEY (key, record)
) STRICT, WITHOUT ROWID;

-- Which live records of a set link to an identifier, as described by or
-- describing it, whether or not the set has such a record.
CREATE TABLE link (
    key    INTEGER NOT NULL,
    record INTEGER NOT NULL,
    PRIMARY KEY (key, record)
) STRICT, WITHOUT ROWID;

-- What the walk under way has come across: two bitmaps over the ordinals of
-- records, seen and present, and their sum. The upper bits of page are the part of
-- the Source (its set of resources), and whether it said nothing new.
CREATE TABLE seen (
    source INTEGER NOT NULL,
    page   INTEGER NOT NULL,
    bits   BLOB    NOT NULL,
    PRIMARY KEY (source, page)
) STRICT, WITHOUT ROWID;

-- The stamp of what was seen and nothing else keeps: it was bad or not selected.
CREATE TABLE seen_order (
    source INTEGER NOT NULL,
    record INTEGER NOT NULL,
    stamp  INTEGER, -- NULL: unknown
    sum    INTEGER NOT NULL,
    PRIMARY KEY (source, record)
) STRICT, WITHOUT ROWID;

-- Observations of the walk under way that are earlier than what is stored.
CREATE TABLE regressed (
    source      INTEGER NOT NULL,
    record      INTEGER NOT NULL,
    stamp       INTEGER,
    future      INTEGER NOT NULL, -- the stored stamp lay in the future when it was stored
    observation BLOB    NOT NULL,
    sum         INTEGER NOT NULL,
    PRIMARY KEY (source, record)
) STRICT, WITHOUT ROWID;

-- Observations whose content could not be fetched yet.
CREATE TABLE pending (
    source      INTEGER NOT NULL,
    record      INTEGER NOT NULL,
    partial     INTEGER NOT NULL, -- 1: logged without some of its representations
    since       INTEGER NOT NULL,
    tries       INTEGER NOT NULL, -- after the first
    asked       INTEGER NOT NULL, -- when it was last asked for, 0 never
    next        INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    observation BLOB    NOT NULL,
    sum         INTEGER NOT NULL,
    PRIMARY KEY (source, record)
) STRICT, WITHOUT ROWID;
CREATE INDEX pending_due ON pending (source, next);

-- Deletions by absence that the guard keeps back.
CREATE TABLE held_deletion (
    source INTEGER NOT NULL,
    record INTEGER NOT NULL,
    since  INTEGER NOT NULL,
    person INTEGER NOT NULL, -- 1: only a person may release it
    sum    INTEGER NOT NULL,
    PRIMARY KEY (source, record)
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (
    id         INTEGER PRIMARY KEY,
    source     INTEGER NOT NULL,
    digest     BLOB    NOT NULL, -- SHA-256 of the input
    url        TEXT    NOT NULL,
    line       INTEGER NOT NULL,
    col        INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    rule       TEXT    NOT NULL,
    reason     TEXT    NOT NULL,
    input      BLOB    NOT NULL,
    first      INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    times      INTEGER NOT NULL,
    replayed   INTEGER NOT NULL,
    sum        INTEGER NOT NULL,
    UNIQUE (source, digest)
) STRICT;
