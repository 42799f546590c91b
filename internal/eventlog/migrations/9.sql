-- The kind that the Source of the document had when it got another one. '' is the kind that
-- the Source has.
ALTER TABLE document ADD COLUMN kind TEXT NOT NULL DEFAULT '';
