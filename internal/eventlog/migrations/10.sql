-- What identifiers that are made of the id of a set's feed have in its place: the id that the
-- feed had in the first epoch. '' is its id.
ALTER TABLE sets ADD COLUMN first_feed TEXT NOT NULL DEFAULT '';
