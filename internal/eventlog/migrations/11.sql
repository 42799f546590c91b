-- The checksums of the Source's pages in table seen, added up. Without it a page that is lost
-- would go unnoticed, and its records would count as absent. NULL: no page is stored, or the walk
-- began before this column was there and has stored none since.
ALTER TABLE source ADD COLUMN seen_sum INTEGER;
