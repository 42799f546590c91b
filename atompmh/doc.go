// Package atompmh reads and writes the Atom Feed Protocol for Metadata Harvesting
// 1.0 (Atom-PMH, draft 2012-11-23). It builds on RFC 4287 (Atom), RFC 5005 (archived
// and complete feeds) and RFC 6721 (tombstones).
//
// # Harvesting
//
// A feed is a chain: the subscription document has the newest entries, and each
// document links to the archive document before it. A [Walk] reads the chain from
// its newest document as far back as is needed:
//
//	walk := atompmh.Walk{URL: "https://example.org/feed.atom", State: state}
//	for doc, err := range walk.Documents(ctx) {
//		if err != nil {
//			return err
//		}
//		for entry, bad := range doc.Entries() {
//			if bad != nil {
//				continue // entry is nil; bad says why this one cannot be taken
//			}
//			// entry.Record() was changed or deleted, see Entry.Kind
//		}
//	}
//	state = walk.Result().State // to be stored
//	// walk.Result().Gap: an archive document is missing
//
// [Walk.Documents] yields the newest document first; a document has its entries in any
// order. Of several entries of one record the one with the latest Updated counts; where
// a deletion has the same Updated as an active entry, the draft does not say which of
// them counts. The links of [Entry.Alternates] lead to the record itself. A record that
// no entry names counts as deleted only where [Document.Complete] reports true.
//
// Keep [Result].State, and the next Walk reads only documents in which something is
// new. It reads them whole, so some entries of the previous walk come again; applying
// them again in the same way gives the same result. Keep [Document.State] after each
// document, and an interrupted walk continues from there.
//
// A missing archive document is no error. Then [Result].Gap names it, and the next
// Walk reads everything newer again, until the document is back or Walk.Accepted has
// its URL.
//
// # Reading and writing one document
//
// [NewReader] reads a document and [NewWriter] writes one, entry by entry, in memory
// that does not grow with it. A Reader takes what it can: a place where a document
// breaks a rule is reported as a [Problem], an entry that cannot be taken is an
// [EntryError], and only a [DocumentError] ends the reading. A Writer refuses to break
// a rule with a [RuleError]. [Rules] lists the rules.
//
// The package stores nothing, and makes requests only with the *http.Client that a
// Walk has.
package atompmh

// The namespaces that matter. Prefixes never do.
const (
	// Namespace is that of Atom (RFC 4287 1.2).
	Namespace = "http://www.w3.org/2005/Atom"
	// HistoryNamespace is that of fh:archive and fh:complete (RFC 5005 1).
	HistoryNamespace = "http://purl.org/syndication/history/1.0"
	// TombstonesNamespace is that of at:deleted-entry (RFC 6721 2).
	TombstonesNamespace = "http://purl.org/atompub/tombstones/1.0"
	// PublishingNamespace is that of app:edited (RFC 5023 1.1).
	PublishingNamespace = "http://www.w3.org/2007/app"
	// LinkExtensionsNamespace is that of the attributes of Atom Link
	// Extensions, such as le:md5; they are kept in Link.Other.
	LinkExtensionsNamespace = "http://purl.org/atompub/link-extensions/1.0"
)

// The terms that bridges exchange beyond Atom-PMH, in a namespace of our own.
const (
	// CarriedNamespace is that of the attributes. It is a name and no address, and it
	// never changes. On a link of relation via, modified, hash and length are those of the
	// original: a time of RFC 3339, hashes as ResourceSync writes them ("sha-256:" and
	// hex), a number of bytes. On an alternate link hash is that of the representation, or
	// of its bytes in the content coding encoding, as length is then; profile narrows its
	// media type, and pri is its priority among the links of its relation, as in
	// ResourceSync. On atom:entry, and on a link that leads to a record, id is the
	// bridge's identifier of the record. On atom:entry, modified is when the record was
	// last modified, where no link of relation via states that; changefreq is a sitemap's
	// hint.
	CarriedNamespace = "urn:x-bridge:terms:1"
	// RelFurtherAlternate is the relation of the second and every further
	// alternate link of one media type and language, of which RFC 4287 (4.1.2)
	// allows only one.
	RelFurtherAlternate = CarriedNamespace + ":alternate"
)
