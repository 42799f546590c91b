-- What identifiers that are made of the id of a set's feed have in its place: the id that the
-- feed had in the first epoch. '' is its id.
ALTER TABLE sets ADD COLUMN first_feed TEXT NOT NULL DEFAULT '';

-- Few of the observations that wait are of records that are there in part, and their number is
-- asked for with each look at a Source.
CREATE INDEX pending_partial ON pending (source) WHERE partial <> 0;
