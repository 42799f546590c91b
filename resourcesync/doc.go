// Package resourcesync reads and writes the documents of the ResourceSync
// Framework Specification 1.1 (ANSI/NISO Z39.99-2017). It also reads documents of older
// versions, and plain sitemaps.
//
// # Following a Source
//
// A [Walk] is a Destination (clause 5). It finds the lists of a Source from any URL of
// the Source, reads those that are needed, and yields them, newest first:
//
//	walk := resourcesync.Walk{URL: "https://example.org/", State: state}
//	for list, err := range walk.Documents(ctx) {
//		if err != nil {
//			return err
//		}
//		for entry, bad := range list.Entries() {
//			if bad != nil {
//				continue // entry is nil; bad says why this one cannot be taken
//			}
//			// a resource is at entry.Loc, or was deleted: see Metadata.Change
//		}
//	}
//	state = walk.Result().State // to be stored
//	// walk.Result().Gap: a list is missing
//
// The first walk reads Change Lists and Resource Lists. Of several entries of one resource the
// first list that has it counts, and in a Change List the last entry. (In one that begins with
// its newest change, see [Dialect.NewestFirst], it is the first.) A resource that no list names
// is deleted only if [Result].Complete is true.
//
// Keep [Result].State, and the next Walk reads only lists in which something is new,
// usually Change Lists. It reads them whole, so some entries of the previous walk come
// again; applying them again in the same way gives the same result. Keep [List.State]
// after each list, and an interrupted walk continues from there.
//
// A missing list is no error. Then [Result].Gap names it, and the next Walk tries again. See
// [Walk] for more; [Walk.Discover] returns what an address leads to.
//
// # Reading and writing one document
//
// All documents of the framework are of one model (clause 6.1): a head with a
// capability, a few times and links, and entries. So there is one type for all,
// [Document]. [NewReader] reads a document and [NewWriter] writes one, entry by entry
// ([Writer.Entry]), in memory that does not grow with it. A short document is written at once with
// [Document.WriteTo].
//
// A Reader reads what it can: it reports a place where a document breaks a rule as a
// [Problem], returns an [EntryError] for an entry that cannot be read, and stops only at
// a [DocumentError]. A Writer returns a [RuleError] instead of writing an unusable
// document (see [Writer] for what it checks), and [ErrFull] when the next entry needs
// another document. [Rules] lists the rules.
//
// A [DumpReader] reads a package of a dump (clauses 11 and 13): a ZIP file with a
// manifest and the bytes of the resources. A [DumpWriter] writes one.
package resourcesync

// Namespaces of the documents (clause 4).
const (
	SitemapNamespace = "http://www.sitemaps.org/schemas/sitemap/0.9"
	Namespace        = "http://www.openarchives.org/rs/terms/"
	// BetaNamespace was used instead of Namespace in the drafts of 2012 and early 2013.
	BetaNamespace = "http://www.openarchives.org/rs/"
	// CarriedNamespace is the bridge's own, for attributes of an entry's rs:md and rs:ln that
	// one bridge writes for another (clause 7 allows attributes in other namespaces): "id", the
	// identifier of the record where it is not its loc (on a link: of the record that the link
	// leads to); "title", its title; "modified", when it was last modified according to its
	// Source, where no link of relation via states that; "hreflang", the language of a
	// representation; and "details", see Metadata.Details. The namespace is a name, not an
	// address, and never changes.
	CarriedNamespace = "urn:x-bridge:terms:1"
)

// The limits of one document (clause 7). The 50 MB there are taken as 50,000,000 bytes.
const (
	MaxEntries       = 50_000
	MaxBytes   int64 = 50_000_000
)
