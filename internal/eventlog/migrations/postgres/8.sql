-- The log. Times are microseconds since 1970 in UTC, stamps nanoseconds.
-- sum is a CRC-32C over the other columns of a row, as far as they do not follow
-- from the log itself: a damaged row is an error, never another answer.

-- One row: what the log as a whole has come to.
CREATE TABLE log (
    id         BIGINT PRIMARY KEY CHECK (id = 1),
    commits    BIGINT NOT NULL, -- the number of transactions
    last_event BIGINT NOT NULL, -- the id of the last event of all sets, 0: none
    sum        BIGINT NOT NULL  -- of last_event
);
INSERT INTO log (id, commits, last_event, sum) VALUES (1, 0, 0, 3804491685);

-- Epochs that began because events had been lost; the first one has no row. No
-- Seq after after_seq and up to upto_seq is there.
CREATE TABLE epoch (
    n         BIGINT PRIMARY KEY,
    started   BIGINT NOT NULL,
    after_seq BIGINT NOT NULL,
    upto_seq  BIGINT NOT NULL,
    reason    TEXT COLLATE "C"    NOT NULL,
    sum       BIGINT NOT NULL
);

CREATE TABLE sets (
    id             BIGINT PRIMARY KEY,
    name           TEXT COLLATE "C"    NOT NULL UNIQUE,
    title          TEXT COLLATE "C"    NOT NULL,
    description    TEXT COLLATE "C"    NOT NULL,
    content        BIGINT NOT NULL,
    created        BIGINT NOT NULL,
    feed           TEXT COLLATE "C"    NOT NULL,
    complete       TEXT COLLATE "C"    NOT NULL,
    segment_events BIGINT NOT NULL,
    segment_hours  BIGINT NOT NULL,
    no_robots      BIGINT NOT NULL,           -- 1: robots.txt does not name it
    no_feeds       BIGINT NOT NULL,           -- 1: it is not published as feeds
    history        BIGINT NOT NULL,           -- 1: earlier versions are served
    dumps          BIGINT NOT NULL,           -- 1: its contents are published in packages too
    keep_lists     BIGINT NOT NULL,           -- how many earlier Resource Lists are kept,
    keep_lists_for BIGINT NOT NULL,           -- and for how many microseconds
    sum            BIGINT NOT NULL,           -- of the columns above
    last_seq       BIGINT NOT NULL DEFAULT 0, -- of the last event that is, or was, in a segment
    last_observed  BIGINT NOT NULL,           -- of that event, else created, if that is later
    clock          BIGINT NOT NULL,           -- the largest Observed given out
    live           BIGINT NOT NULL DEFAULT 0,
    events         BIGINT NOT NULL DEFAULT 0,
    records        BIGINT NOT NULL DEFAULT 0, -- the largest ordinal in record
    partial        BIGINT NOT NULL,           -- 1: a Source has not been walked whole yet
    base_seq       BIGINT NOT NULL DEFAULT 0, -- events up to it are of an earlier epoch
    base_n         BIGINT NOT NULL DEFAULT 0, -- the segments have the numbers after it
    named          TEXT COLLATE "C"    NOT NULL DEFAULT '' -- in identifiers, in place of the set's name: that which it had first; '': its name
);

-- rank is the order of the Sources in the configuration: the first that has a record
-- is its authority.
CREATE TABLE source (
    id      BIGINT PRIMARY KEY,
    set_id  BIGINT NOT NULL,
    name    TEXT COLLATE "C"    NOT NULL,           -- in the configuration, '' when it has none there
    kind    TEXT COLLATE "C"    NOT NULL,
    url     TEXT COLLATE "C"    NOT NULL,
    rank    BIGINT NOT NULL,
    status  BIGINT NOT NULL,           -- 0: configured, 1: not any more, 2: forgotten
    sum     BIGINT NOT NULL,           -- of the columns above
    version BIGINT NOT NULL DEFAULT 0, -- of the cursor, compared and swapped
    cursor  BYTEA,                       -- NULL when no walk is under way
    mark    BIGINT,
    memory  BYTEA,
    gap     TEXT COLLATE "C"    NOT NULL DEFAULT '',
    progress_sum BIGINT NOT NULL,      -- of version to gap
    dropped BIGINT NOT NULL DEFAULT 0, -- bad inputs that made room for newer ones, and were not taken in
    UNIQUE (set_id, url)
);

-- The sets that were made for the sets of resources of a Source, where the configuration
-- wants one for each.
CREATE TABLE derived_set (
    template TEXT COLLATE "C"    NOT NULL, -- the configured set
    url      TEXT COLLATE "C"    NOT NULL, -- the Capability List, or what stands for it
    name     TEXT COLLATE "C"    NOT NULL UNIQUE,
    sum      BIGINT NOT NULL,
    PRIMARY KEY (template, url)
);

-- The host names that an operator typed, and whether their addresses were public
-- when they were first connected to.
CREATE TABLE host (
    name   TEXT COLLATE "C" PRIMARY KEY,
    public BIGINT NOT NULL,
    sum    BIGINT NOT NULL
);

-- What a Source's document said of itself, for the events that came from it.
CREATE TABLE document (
    id      BIGINT PRIMARY KEY,
    source  BIGINT NOT NULL,
    url     TEXT COLLATE "C"    NOT NULL,
    feed_id TEXT COLLATE "C"    NOT NULL,
    title   TEXT COLLATE "C"    NOT NULL,
    updated BIGINT,
    feed    BYTEA,             -- what else the feed says of itself
    sum     BIGINT NOT NULL
);

-- Each record with its state, and what the Source that is its authority last said.
-- seq and digest follow from the log; source_state is harvest state, with its own
-- sum. id = set << 32 | ordinal.
CREATE TABLE record (
    id           BIGINT PRIMARY KEY,
    identifier   TEXT COLLATE "C" NOT NULL,
    seq          BIGINT NOT NULL, -- of its last event, 0: none
    digest       BIGINT,          -- NULL when the record is not live
    source_state BYTEA              -- NULL when no Source has said anything that applies
);

-- key = 64 bits of SHA-256 of the identifier, not unique: the identifier
-- decides. A table of its own and no index, so that it is written in its order
-- and the records in theirs: a third less work for each new record.
CREATE TABLE record_key (
    key    BIGINT NOT NULL,
    record BIGINT NOT NULL,
    PRIMARY KEY (key, record)
);

-- id = set << 40 | seq: the events of a set stand together, in their order. One
-- number and no pair, because an index of whole rows is deeper than a table.
CREATE TABLE event (
    id       BIGINT PRIMARY KEY,
    record   BIGINT NOT NULL, -- 0: a rejected submission, which is of no record
    kind     BIGINT NOT NULL,
    observed BIGINT NOT NULL,
    body     BYTEA    NOT NULL
);

CREATE TABLE segment (
    set_id   BIGINT NOT NULL,
    n        BIGINT NOT NULL,
    from_at  BIGINT NOT NULL,
    until_at BIGINT NOT NULL DEFAULT 0, -- 0: open
    start    BIGINT NOT NULL DEFAULT 0, -- Observed of the first event
    first    BIGINT NOT NULL DEFAULT 0,
    last     BIGINT NOT NULL DEFAULT 0,
    events   BIGINT NOT NULL DEFAULT 0,
    entries  BIGINT NOT NULL DEFAULT 0,
    weight   BIGINT NOT NULL DEFAULT 0, -- bounds of the bytes of its Change List
    feed_weight BIGINT NOT NULL DEFAULT 0, -- and of its archive document
    PRIMARY KEY (set_id, n)
);

-- What the other Sources of the same set last said of a record.
CREATE TABLE presence (
    record       BIGINT NOT NULL,
    source       BIGINT NOT NULL,
    source_state BYTEA    NOT NULL, -- its sum covers suppressed too
    suppressed   BYTEA,             -- the observation, which is not in the log
    PRIMARY KEY (record, source)
);
CREATE INDEX presence_source ON presence (source);

-- Which records a Source has, by what it last said: a bitmap over their ordinals, and
-- its sum.
CREATE TABLE source_records (
    source BIGINT NOT NULL,
    page   BIGINT NOT NULL,
    bits   BYTEA    NOT NULL,
    PRIMARY KEY (source, page)
);

-- Which live record of a set in mode reference is listed under a URI, and how many
-- others share that. key = 64 bits of a hash of set and URI.
CREATE TABLE loc (
    key    BIGINT PRIMARY KEY,
    owner  BIGINT NOT NULL,
    others BIGINT NOT NULL
);

-- Those others.
CREATE TABLE loc_other (
    key    BIGINT NOT NULL,
    record BIGINT NOT NULL,
    PRIMARY KEY (key, record)
);

-- Which live records of a set link to an identifier, as described by or
-- describing it, whether or not the set has such a record.
CREATE TABLE link (
    key    BIGINT NOT NULL,
    record BIGINT NOT NULL,
    PRIMARY KEY (key, record)
);

-- What the walk under way has come across: two bitmaps over the ordinals of
-- records, seen and present, and their sum. The upper bits of page are the part of
-- the Source (its set of resources), and whether it said nothing new.
CREATE TABLE seen (
    source BIGINT NOT NULL,
    page   BIGINT NOT NULL,
    bits   BYTEA    NOT NULL,
    PRIMARY KEY (source, page)
);

-- The stamp of what was seen and nothing else keeps: it was bad or not selected.
CREATE TABLE seen_order (
    source BIGINT NOT NULL,
    record BIGINT NOT NULL,
    stamp  BIGINT, -- NULL: unknown
    sum    BIGINT NOT NULL,
    PRIMARY KEY (source, record)
);

-- Observations of the walk under way that are earlier than what is stored.
CREATE TABLE regressed (
    source      BIGINT NOT NULL,
    record      BIGINT NOT NULL,
    stamp       BIGINT,
    future      BIGINT NOT NULL, -- the stored stamp lay in the future when it was stored
    observation BYTEA    NOT NULL,
    sum         BIGINT NOT NULL,
    PRIMARY KEY (source, record)
);

-- Observations whose content could not be fetched yet.
CREATE TABLE pending (
    source      BIGINT NOT NULL,
    record      BIGINT NOT NULL,
    partial     BIGINT NOT NULL, -- 1: logged without some of its representations
    since       BIGINT NOT NULL,
    tries       BIGINT NOT NULL, -- after the first
    asked       BIGINT NOT NULL, -- when it was last asked for, 0 never
    next        BIGINT NOT NULL,
    reason      TEXT COLLATE "C"    NOT NULL,
    observation BYTEA    NOT NULL,
    sum         BIGINT NOT NULL,
    PRIMARY KEY (source, record)
);
CREATE INDEX pending_due ON pending (source, next);

-- Deletions by absence that the guard keeps back.
CREATE TABLE held_deletion (
    source BIGINT NOT NULL,
    record BIGINT NOT NULL,
    since  BIGINT NOT NULL,
    person BIGINT NOT NULL, -- 1: only a person may release it
    sum    BIGINT NOT NULL,
    PRIMARY KEY (source, record)
);

CREATE TABLE quarantine (
    id         BIGINT PRIMARY KEY,
    source     BIGINT NOT NULL,
    digest     BYTEA    NOT NULL, -- SHA-256 of the input
    url        TEXT COLLATE "C"    NOT NULL,
    line       BIGINT NOT NULL,
    col        BIGINT NOT NULL,
    identifier TEXT COLLATE "C"    NOT NULL,
    rule       TEXT COLLATE "C"    NOT NULL,
    reason     TEXT COLLATE "C"    NOT NULL,
    input      BYTEA    NOT NULL,
    first      BIGINT NOT NULL,
    last       BIGINT NOT NULL,
    times      BIGINT NOT NULL,
    replayed   BIGINT NOT NULL,
    sum        BIGINT NOT NULL,
    UNIQUE (source, digest)
);
-- What package submission/store keeps, in the database of the log, so that it commits
-- together with the events that it goes with. sum is a CRC-32C over all other columns.

-- Ingest requests that were received, or that a target sends, and what became of
-- them. subject is 64 bits of a hash of what it is a version of: the record that a
-- target sends, or the source element of a request.
CREATE TABLE submission (
    id                BIGINT PRIMARY KEY,
    source            BIGINT NOT NULL,
    seq               BIGINT NOT NULL, -- of the event that is submitted; 0 of a received one
    request           BYTEA,             -- SHA-256 of a received request
    subject           BIGINT NOT NULL, -- 0: none
    created           BIGINT NOT NULL,
    token             TEXT COLLATE "C"    NOT NULL,
    version           BIGINT NOT NULL, -- compared and swapped
    state             BIGINT NOT NULL,
    due               BIGINT NOT NULL, -- 0: never
    changed           BIGINT NOT NULL,
    import_pending    BIGINT NOT NULL, -- 1: accepted, and not imported into another set yet
    source_xml        BYTEA,
    source_identifier TEXT COLLATE "C"    NOT NULL,
    record            TEXT COLLATE "C"    NOT NULL,
    content           BYTEA,             -- SHA-256 of the record's bytes
    length            BIGINT NOT NULL,
    type              TEXT COLLATE "C"    NOT NULL,
    title             TEXT COLLATE "C"    NOT NULL,
    recipient         TEXT COLLATE "C"    NOT NULL,
    assigned          TEXT COLLATE "C"    NOT NULL,
    reason            TEXT COLLATE "C"    NOT NULL,
    deadline          BIGINT NOT NULL, -- 0: never
    tries             BIGINT NOT NULL,
    late              BIGINT NOT NULL, -- 1: the ultimate disposition came after the deadline
    conflicts         BIGINT NOT NULL,
    sum               BIGINT NOT NULL
);
CREATE INDEX submission_state ON submission (source, state);
CREATE INDEX submission_due ON submission (source, state, due) WHERE due > 0;
CREATE UNIQUE INDEX submission_token ON submission (token) WHERE token <> '';
CREATE INDEX submission_request ON submission (request) WHERE request IS NOT NULL;
CREATE INDEX submission_subject ON submission (subject) WHERE subject <> 0;
CREATE INDEX submission_import ON submission (source) WHERE import_pending <> 0;

-- Dispositions that are to be delivered to notification recipients.
CREATE TABLE outgoing_notification (
    id          BIGINT PRIMARY KEY,
    source      BIGINT NOT NULL,
    submission  BIGINT NOT NULL,
    created     BIGINT NOT NULL,
    state       BIGINT NOT NULL,
    due         BIGINT NOT NULL, -- 0: never
    recipient   TEXT COLLATE "C"    NOT NULL,
    disposition BYTEA,
    message     TEXT COLLATE "C"    NOT NULL,
    tries       BIGINT NOT NULL,
    reason      TEXT COLLATE "C"    NOT NULL,
    sum         BIGINT NOT NULL
);
CREATE INDEX outgoing_due ON outgoing_notification (due) WHERE due > 0;
CREATE INDEX outgoing_state ON outgoing_notification (source, state);

-- Dispositions that were received, each once; of anonymous ones that belong to nothing
-- the newest of each Source.
CREATE TABLE incoming_notification (
    id                BIGINT PRIMARY KEY,
    source            BIGINT NOT NULL,
    digest            BYTEA    NOT NULL,
    submission        BIGINT NOT NULL, -- 0: it is not known which
    verdict           BIGINT NOT NULL,
    first             BIGINT NOT NULL,
    last              BIGINT NOT NULL,
    times             BIGINT NOT NULL,
    anonymous         BIGINT NOT NULL, -- 1: it may be removed in favour of newer ones
    outcome           BIGINT NOT NULL,
    source_identifier TEXT COLLATE "C"    NOT NULL,
    assigned          TEXT COLLATE "C"    NOT NULL,
    reason            TEXT COLLATE "C"    NOT NULL,
    source_xml        BYTEA,
    sum               BIGINT NOT NULL,
    UNIQUE (source, digest)
);
CREATE INDEX incoming_anonymous ON incoming_notification (source) WHERE anonymous = 1;
CREATE INDEX incoming_verdict ON incoming_notification (source, verdict);
CREATE INDEX incoming_submission ON incoming_notification (submission) WHERE submission <> 0;

-- Rejections of anonymous requests, which are no events: the newest of each Source.
CREATE TABLE rejection (
    id                BIGINT PRIMARY KEY,
    source            BIGINT NOT NULL,
    at                BIGINT NOT NULL,
    record            TEXT COLLATE "C"    NOT NULL,
    source_identifier TEXT COLLATE "C"    NOT NULL,
    reason            TEXT COLLATE "C"    NOT NULL,
    title             TEXT COLLATE "C"    NOT NULL,
    sum               BIGINT NOT NULL
);
CREATE INDEX rejection_source ON rejection (source);

-- What an ingest server has replied in the last day to requests that have no row of
-- their own. request is the SHA-256 of the whole request.
CREATE TABLE reply (
    id          BIGINT PRIMARY KEY,
    source      BIGINT NOT NULL,
    request     BYTEA    NOT NULL,
    at          BIGINT NOT NULL,
    disposition BYTEA    NOT NULL,
    sum         BIGINT NOT NULL,
    UNIQUE (source, request)
);
CREATE INDEX reply_at ON reply (at);

-- How many rows there are, so that nobody has to count a million. what: 1 submissions,
-- 2 outgoing, 3 incoming notifications, each by its state or verdict; 4 what an ingest
-- server has decided at once, without a row; 5 submissions that were contradicted; 6
-- those under review; 7 anonymous rows that have made room for newer ones.
CREATE TABLE submission_count (
    source BIGINT NOT NULL,
    what   BIGINT NOT NULL,
    state  BIGINT NOT NULL,
    n      BIGINT NOT NULL,
    PRIMARY KEY (source, what, state)
);
-- The Sources that an operator has paused.
CREATE TABLE pause (
    source BIGINT PRIMARY KEY,
    since  BIGINT NOT NULL,
    until  BIGINT NOT NULL, -- 0: until it is resumed
    reason TEXT COLLATE "C"    NOT NULL,
    sum    BIGINT NOT NULL
);
-- When a Source is asked next, and how its harvests have fared. Apart from the Source,
-- because a harvest that finds nothing new writes nothing else.
CREATE TABLE schedule (
    source        BIGINT PRIMARY KEY,
    next          BIGINT NOT NULL, -- 0: no harvest is planned
    failures      BIGINT NOT NULL, -- harvests in a row
    report        BYTEA,             -- of the last harvest
    last_success  BIGINT NOT NULL, -- 0: never
    failing_since BIGINT NOT NULL, -- 0: the last harvest has not failed
    error_at      BIGINT NOT NULL, -- the newest error, 0: there was none
    error         TEXT COLLATE "C"    NOT NULL,
    error_kind    TEXT COLLATE "C"    NOT NULL,
    error_rule    TEXT COLLATE "C"    NOT NULL,
    harvests      BIGINT NOT NULL, -- the number of the newest row of harvest, 0: none
    quiet         BIGINT NOT NULL, -- harvests since that have found nothing new,
    quiet_first   BIGINT NOT NULL, -- and when the first
    quiet_last    BIGINT NOT NULL, -- and the last of them ended
    sum           BIGINT NOT NULL
);

-- The harvests of a Source that have found something new, have failed, or ended
-- otherwise than the one before. The others are counted by the row after them.
CREATE TABLE harvest (
    source      BIGINT NOT NULL,
    n           BIGINT NOT NULL, -- from 1; older ones are removed
    started     BIGINT NOT NULL,
    ended       BIGINT NOT NULL,
    result      BIGINT NOT NULL,
    documents   BIGINT NOT NULL,
    entries     BIGINT NOT NULL,
    bytes       BIGINT NOT NULL,
    contents    BIGINT NOT NULL,
    created     BIGINT NOT NULL,
    updated     BIGINT NOT NULL,
    deleted     BIGINT NOT NULL,
    pending     BIGINT NOT NULL,
    held        BIGINT NOT NULL,
    quarantined BIGINT NOT NULL,
    problems    BYTEA,             -- the broken rules, as JSON
    error       TEXT COLLATE "C"    NOT NULL, -- '' if result is not failed
    error_kind  TEXT COLLATE "C"    NOT NULL,
    error_rule  TEXT COLLATE "C"    NOT NULL,
    quiet       BIGINT NOT NULL, -- harvests after the row before that have found nothing new,
    quiet_first BIGINT NOT NULL, -- and when the first
    quiet_last  BIGINT NOT NULL, -- and the last of them ended
    sum         BIGINT NOT NULL,
    PRIMARY KEY (source, n)
);

-- What these rows add up to, a day in UTC: the rows that were removed count too.
CREATE TABLE harvest_day (
    source   BIGINT NOT NULL,
    day      BIGINT NOT NULL, -- since 1970
    harvests BIGINT NOT NULL,
    failed   BIGINT NOT NULL,
    created  BIGINT NOT NULL,
    updated  BIGINT NOT NULL,
    deleted  BIGINT NOT NULL,
    sum      BIGINT NOT NULL,
    PRIMARY KEY (source, day)
);
-- What hubs (WebSub) were told of our documents.
CREATE TABLE hub_topic (
    hub   TEXT COLLATE "C"    NOT NULL,
    topic TEXT COLLATE "C"    NOT NULL,
    tag   TEXT COLLATE "C"    NOT NULL, -- the entity tag of the document that the hub was last told of
    told  BIGINT NOT NULL, -- when; 0 never
    since BIGINT NOT NULL, -- since when telling it fails, 0 it does not
    error TEXT COLLATE "C"    NOT NULL,
    sum   BIGINT NOT NULL,
    PRIMARY KEY (hub, topic)
);

-- Our subscriptions to Sources at their hubs. A row without a hub says when the Source is
-- asked which hubs it has.
CREATE TABLE subscription (
    token    TEXT COLLATE "C"    NOT NULL PRIMARY KEY, -- the last part of the callback
    source   BIGINT NOT NULL,             -- which may be gone
    base     TEXT COLLATE "C"    NOT NULL,             -- our base URL, which the callback begins with
    hub      TEXT COLLATE "C"    NOT NULL,
    topic    TEXT COLLATE "C"    NOT NULL,
    secret   TEXT COLLATE "C"    NOT NULL,
    unwanted BIGINT NOT NULL, -- 1: it is being ended
    asked    BIGINT NOT NULL, -- when the hub was last asked
    until    BIGINT NOT NULL, -- end of the lease; 0: the hub has not confirmed
    due      BIGINT NOT NULL, -- when there is something to do
    failures BIGINT NOT NULL, -- in a row
    error    TEXT COLLATE "C"    NOT NULL,
    pushed   BIGINT NOT NULL, -- when the last push came that counted
    sum      BIGINT NOT NULL
);
-- The names that sets had before. What is at their addresses has moved to the set.
CREATE TABLE former_name (
    name   TEXT COLLATE "C" PRIMARY KEY,
    set_id BIGINT NOT NULL,
    since  BIGINT NOT NULL,
    sum    BIGINT NOT NULL
);

-- Of a Source with 10,000 bad inputs those that wait are counted, and their rules found,
-- without reading them.
CREATE INDEX quarantine_waiting ON quarantine (source, replayed, rule);
-- Sets that were removed. Their numbers, and those of their Sources, are never given out
-- again, nor are the Seqs of their events.
CREATE TABLE removed_set (
    id        BIGINT PRIMARY KEY,
    name      TEXT COLLATE "C"    NOT NULL,
    feed      TEXT COLLATE "C"    NOT NULL,
    removed   BIGINT NOT NULL,
    mirror    BIGINT NOT NULL,
    records   BIGINT NOT NULL,
    events    BIGINT NOT NULL,
    first_seq BIGINT NOT NULL, -- all of its events were from here,
    last_seq  BIGINT NOT NULL, -- to here; 0: it had none
    observed  BIGINT NOT NULL, -- of the last one
    hash      TEXT COLLATE "C"    NOT NULL, -- of that one, as the file head has it
    source    BIGINT NOT NULL, -- the largest number of a Source when it was removed
    under_way BIGINT NOT NULL, -- 1: some of its rows are still there
    sum       BIGINT NOT NULL
);

-- Contents that removed sets have named, and maybe nothing else does.
CREATE TABLE removed_content (
    sha256 BYTEA PRIMARY KEY
);
-- The newest keys of records and of URIs. Those that have been here longest move to the
-- large tables, a stretch of neighbouring keys with each transaction: a new key in
-- a large table costs a page of its own, many neighbours share one. A key is in one of the
-- two tables.
CREATE TABLE recent_key (
    key    BIGINT NOT NULL,
    record BIGINT NOT NULL,
    PRIMARY KEY (key, record)
);

CREATE TABLE recent_loc (
    key    BIGINT PRIMARY KEY,
    owner  BIGINT NOT NULL,
    others BIGINT NOT NULL
);

CREATE VIEW any_key (key, record) AS
    SELECT key, record FROM recent_key UNION ALL SELECT key, record FROM record_key;

CREATE VIEW any_loc (key, owner, others) AS
    SELECT key, owner, others FROM recent_loc UNION ALL SELECT key, owner, others FROM loc;
