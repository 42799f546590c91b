-- What hubs (WebSub) were told of our documents.
CREATE TABLE hub_topic (
    hub   TEXT    NOT NULL,
    topic TEXT    NOT NULL,
    tag   TEXT    NOT NULL, -- the entity tag of the document that the hub was last told of
    told  INTEGER NOT NULL, -- when; 0 never
    since INTEGER NOT NULL, -- since when telling it fails, 0 it does not
    error TEXT    NOT NULL,
    sum   INTEGER NOT NULL,
    PRIMARY KEY (hub, topic)
) STRICT, WITHOUT ROWID;

-- Our subscriptions to Sources at their hubs. A row without a hub says when the Source is
-- asked which hubs it has.
CREATE TABLE subscription (
    token    TEXT    NOT NULL PRIMARY KEY, -- the last part of the callback
    source   INTEGER NOT NULL,             -- which may be gone
    base     TEXT    NOT NULL,             -- our base URL, which the callback begins with
    hub      TEXT    NOT NULL,
    topic    TEXT    NOT NULL,
    secret   TEXT    NOT NULL,
    unwanted INTEGER NOT NULL, -- 1: it is being ended
    asked    INTEGER NOT NULL, -- when the hub was last asked
    until    INTEGER NOT NULL, -- end of the lease; 0: the hub has not confirmed
    due      INTEGER NOT NULL, -- when there is something to do
    failures INTEGER NOT NULL, -- in a row
    error    TEXT    NOT NULL,
    pushed   INTEGER NOT NULL, -- when the last push came that counted
    sum      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
