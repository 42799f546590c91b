package atompmh

import "github.com/pmh-bridge/bridge/internal/strictxml"

// What travels between two bridges beyond Atom-PMH, in a namespace of our own.
const (
	// CarriedNamespace is that of the attributes. It is a name and no address,
	// and it never changes. On a link of relation via, modified, hash and length
	// are those of the original: a time of RFC 3339, hashes in the manner of
	// ResourceSync ("sha-256:" and hex), bytes. On an alternate link hash is that
	// of the representation. On atom:entry, and on a link that leads to a record,
	// id is what the bridge calls the record; on atom:entry, modified is when the
	// record was last modified, where no link of relation via says so.
	CarriedNamespace = "urn:x-bridge:terms:1"
	// RelFurtherAlternate is the relation of the second and every further
	// alternate link of one media type and language, of which RFC 4287 (4.1.2)
	// allows only one.
	RelFurtherAlternate = CarriedNamespace + ":alternate"
)

// CanBeID reports whether an identifier can stand as atom:id byte for byte: it is
// an absolute IRI (RFC 4287 4.2.6), and XML can hold it.
func CanBeID(id string) bool { return strictxml.IsIRI(id) && strictxml.Holds(id) }

// Record returns the identifier of the entry's record: the one that it carries,
// else its atom:id.
func (e *Entry) Record() string {
	if e.CarriedID != "" {
		return e.CarriedID
	}
	return e.ID
}

// Untitled tells that the title only repeats atom:id. RFC 4287 demands one of
// every entry, and that is what a record without a title has there.
func (e *Entry) Untitled() bool { return e.Title == collapse(e.ID) }
