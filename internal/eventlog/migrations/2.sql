-- What package submission/store keeps, in the database of the log, so that it commits
-- together with the events that it goes with. sum is a CRC-32C over all other columns.

-- Ingest requests that were received, or that a target sends, and what became of
-- them. subject is 64 bits of a hash of what it is a version of: the record that a
-- target sends, or the source element of a request.
CREATE TABLE submission (
    id                INTEGER PRIMARY KEY,
    source            INTEGER NOT NULL,
    seq               INTEGER NOT NULL, -- of the event that is submitted; 0 of a received one
    request           BLOB,             -- SHA-256 of a received request
    subject           INTEGER NOT NULL, -- 0: none
    created           INTEGER NOT NULL,
    token             TEXT    NOT NULL,
    version           INTEGER NOT NULL, -- compared and swapped
    state             INTEGER NOT NULL,
    due               INTEGER NOT NULL, -- 0: never
    changed           INTEGER NOT NULL,
    import_pending    INTEGER NOT NULL, -- 1: accepted, and not imported into another set yet
    source_xml        BLOB,
    source_identifier TEXT    NOT NULL,
    record            TEXT    NOT NULL,
    content           BLOB,             -- SHA-256 of the record's bytes
    length            INTEGER NOT NULL,
    type              TEXT    NOT NULL,
    title             TEXT    NOT NULL,
    recipient         TEXT    NOT NULL,
    assigned          TEXT    NOT NULL,
    reason            TEXT    NOT NULL,
    deadline          INTEGER NOT NULL, -- 0: never
    tries             INTEGER NOT NULL,
    late              INTEGER NOT NULL, -- 1: the ultimate disposition came after the deadline
    conflicts         INTEGER NOT NULL,
    sum               INTEGER NOT NULL
) STRICT;
CREATE INDEX submission_state ON submission (source, state);
CREATE INDEX submission_due ON submission (source, state, due) WHERE due > 0;
CREATE UNIQUE INDEX submission_token ON submission (token) WHERE token <> '';
CREATE INDEX submission_request ON submission (request) WHERE request IS NOT NULL;
CREATE INDEX submission_subject ON submission (subject) WHERE subject <> 0;
CREATE INDEX submission_import ON submission (source) WHERE import_pending;

-- Dispositions that are to be delivered to notification recipients.
CREATE TABLE outgoing_notification (
    id          INTEGER PRIMARY KEY,
    source      INTEGER NOT NULL,
    submission  INTEGER NOT NULL,
    created     INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    due         INTEGER NOT NULL, -- 0: never
    recipient   TEXT    NOT NULL,
    disposition BLOB,
    message     TEXT    NOT NULL,
    tries       INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    sum         INTEGER NOT NULL
) STRICT;
CREATE INDEX outgoing_due ON outgoing_notification (due) WHERE due > 0;
CREATE INDEX outgoing_state ON outgoing_notification (source, state);

-- Dispositions that were received, each once; of anonymous ones that belong to nothing
-- the newest of each Source.
CREATE TABLE incoming_notification (
    id                INTEGER PRIMARY KEY,
    source            INTEGER NOT NULL,
    digest            BLOB    NOT NULL,
    submission        INTEGER NOT NULL, -- 0: it is not known which
    verdict           INTEGER NOT NULL,
    first             INTEGER NOT NULL,
    last              INTEGER NOT NULL,
    times             INTEGER NOT NULL,
    anonymous         INTEGER NOT NULL, -- 1: it may be removed in favour of newer ones
    outcome           INTEGER NOT NULL,
    source_identifier TEXT    NOT NULL,
    assigned          TEXT    NOT NULL,
    reason            TEXT    NOT NULL,
    source_xml        BLOB,
    sum               INTEGER NOT NULL,
    UNIQUE (source, digest)
) STRICT;
CREATE INDEX incoming_anonymous ON incoming_notification (source) WHERE anonymous = 1;
CREATE INDEX incoming_verdict ON incoming_notification (source, verdict);
CREATE INDEX incoming_submission ON incoming_notification (submission) WHERE submission <> 0;

-- Rejections of anonymous requests, which are no events: the newest of each Source.
CREATE TABLE rejection (
    id                INTEGER PRIMARY KEY,
    source            INTEGER NOT NULL,
    at                INTEGER NOT NULL,
    record            TEXT    NOT NULL,
    source_identifier TEXT    NOT NULL,
    reason            TEXT    NOT NULL,
    title             TEXT    NOT NULL,
    sum               INTEGER NOT NULL
) STRICT;
CREATE INDEX rejection_source ON rejection (source);

-- What an ingest server has replied in the last day to requests that have no row of
-- their own. request is the SHA-256 of the whole request.
CREATE TABLE reply (
    id          INTEGER PRIMARY KEY,
    source      INTEGER NOT NULL,
    request     BLOB    NOT NULL,
    at          INTEGER NOT NULL,
    disposition BLOB    NOT NULL,
    sum         INTEGER NOT NULL,
    UNIQUE (source, request)
) STRICT;
CREATE INDEX reply_at ON reply (at);

-- How many rows there are, so that nobody has to count a million. what: 1 submissions,
-- 2 outgoing, 3 incoming notifications, each by its state or verdict; 4 what an ingest
-- server has decided at once, without a row; 5 submissions that were contradicted; 6
-- those under review; 7 anonymous rows that have made room for newer ones.
CREATE TABLE submission_count (
    source INTEGER NOT NULL,
    what   INTEGER NOT NULL,
    state  INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (source, what, state)
) STRICT, WITHOUT ROWID;
