package resourcesync

import (
	"cmp"
	"encoding/xml"
	"strconv"
	"strings"
)

// Capability is the nature of a document (clause 7, capability).
type Capability string

// The capabilities that clause 7 defines, and those of the archives of earlier
// documents, which the Archives specification adds.
const (
	Description          Capability = "description"
	CapabilityList       Capability = "capabilitylist"
	ResourceList         Capability = "resourcelist"
	ChangeList           Capability = "changelist"
	ResourceDump         Capability = "resourcedump"
	ChangeDump           Capability = "changedump"
	ResourceDumpManifest Capability = "resourcedump-manifest"
	ChangeDumpManifest   Capability = "changedump-manifest"
	ResourceListArchive  Capability = "resourcelist-archive"
	ChangeListArchive    Capability = "changelist-archive"
	ResourceDumpArchive  Capability = "resourcedump-archive"
	ChangeDumpArchive    Capability = "changedump-archive"
	// ChangeNotification is a document with changes that is pushed to subscribers of the
	// channel at its address (the Change Notification specification).
	ChangeNotification Capability = "change-notification"
)

// changes reports whether documents of the capability cover an interval (from,
// until) and not a moment (at, completed): Appendix A.
func (c Capability) changes() bool {
	return c == ChangeList || c == ChangeDump || c == ChangeDumpManifest || c == ChangeNotification
}

// state reports whether documents of the capability show the state at one moment.
func (c Capability) state() bool {
	return c == ResourceList || c == ResourceDump || c == ResourceDumpManifest
}

// archive reports whether documents of the capability list earlier documents.
func (c Capability) archive() bool {
	switch c {
	case ResourceListArchive, ChangeListArchive, ResourceDumpArchive, ChangeDumpArchive:
		return true
	}
	return false
}

// lists reports whether entries of the capability's documents are documents of the
// framework themselves.
func (c Capability) lists() bool { return c == Description || c == CapabilityList }

// manifest reports whether documents of the capability describe what is in a
// package (clauses 11.2 and 13.2).
func (c Capability) manifest() bool { return c == ResourceDumpManifest || c == ChangeDumpManifest }

// known reports whether it is one of the capabilities above.
func (c Capability) known() bool {
	return c.lists() || c.state() || c.changes() || c.archive()
}

// Relation types of the framework's own navigation (clauses 6.2 and 7), and of
// related resources (clause 14).
const (
	RelUp          = "up"
	RelIndex       = "index"
	RelDescribedBy = "describedby"
	RelDescribes   = "describes"
	RelAlternate   = "alternate"
	RelCanonical   = "canonical"
	RelDuplicate   = "duplicate"
	RelContents    = "contents"
	RelVia         = "via"
)

// Relation types of the Change Notification specification, which takes them from WebSub.
const (
	RelHub  = "hub"
	RelSelf = "self"
)

// The values of Metadata.Change (clause 7, change).
const (
	Created = "created"
	Updated = "updated"
	Deleted = "deleted"
)

// Document is any document of the framework: a urlset, or, when Index is set, a
// sitemapindex.
type Document struct {
	// Capability is "" in a plain sitemap.
	Capability Capability
	Index      bool
	// Dialect is the version that the document is written in; "" is Dialect11.
	Dialect Dialect
	// At and Completed say when the snapshot began and ended. Resource Lists and
	// dumps of resources must have at, and no From or Until (Appendix A).
	At, Completed Datetime
	// From and Until are the interval of a Change List or a dump of changes, which
	// must have from, and no At or Completed. One without Until is open: it may grow
	// (clause 12.1).
	From, Until Datetime
	// Modified is when the document itself was last modified, in drafts only,
	// which had it in place of at and from.
	Modified Datetime
	// Links of the head. All but a Source Description must have one RelUp: to the
	// Capability List, or from that to the Source Description (clauses 9 to 13).
	Links []Link
	// Extra are attributes of the head's rs:md that the specification does not
	// define.
	Extra []xml.Attr
	// Entries is what a Writer writes before anything else. Long lists leave it
	// empty and stream.
	Entries []Entry
}

// Entry is one url or sitemap element (clause 7).
type Entry struct {
	// Loc is the URI of the resource, or of the document that the entry leads to;
	// mandatory. A Reader resolves it. A Writer escapes it for XML only: make it
	// absolute, and escape names of files with url.PathEscape.
	Loc string
	// LastMod is when the resource was last modified.
	LastMod Datetime
	// ChangeFreq and Priority are a sitemap's hints, as they stand.
	ChangeFreq, Priority string
	Metadata             Metadata
	Links                []Link
	// Line and Column are where a Reader met the entry, from 1; the column counts
	// bytes of UTF-8. A Writer ignores them.
	Line, Column int
}

// MaxDetails is how many bytes Metadata.Details may have.
const MaxDetails = 1 << 20

// Metadata is the rs:md element of an entry (clause 7). What is zero is not
// written.
type Metadata struct {
	Capability    Capability // in Source Descriptions and Capability Lists: that of the document at Loc
	At, Completed Datetime   // in indexes and dumps of resources
	From, Until   Datetime   // in indexes and dumps of changes
	// Change is Created, Updated or Deleted in a Change List, and "" elsewhere: the resource is
	// there. Any other word that was read is kept, and has no defined meaning.
	Change   string
	Datetime Datetime // of the change
	Encoding string   // content codings that were applied, such as "gzip"
	// Hash is a list of hashes with a space between them. Each is the algorithm
	// ("md5", "sha-1" or "sha-256"), a colon and hex digits.
	Hash   string
	Length Length // of the representation, in bytes; see the function Bytes
	Path   string // in manifests: where the bitstream is in the package, with a leading slash
	Type   string // media type
	// ETag and Modified are of drafts: the entity tag of the resource, and when
	// it was last modified.
	ETag     string
	Modified Datetime
	// ID, Title, Hreflang and CarriedModified are carried in CarriedNamespace, and
	// Details, a JSON object of at most MaxDetails bytes.
	ID, Title, Hreflang string
	CarriedModified     Datetime
	Details             string
	// Extra are attributes that the specification does not define.
	Extra []xml.Attr
}

// isZero reports whether there is nothing to write.
func (m *Metadata) isZero() bool {
	return m.Capability == "" && m.At.IsZero() && m.Completed.IsZero() && m.From.IsZero() && m.Until.IsZero() &&
		m.Change == "" && m.Datetime.IsZero() && m.Encoding == "" && m.Hash == "" && !m.Length.known && m.Path == "" && m.Type == "" &&
		m.ETag == "" && m.Modified.IsZero() && !m.carries() && len(m.Extra) == 0
}

// carries reports whether there is something in CarriedNamespace.
func (m *Metadata) carries() bool {
	return m.ID != "" || m.Title != "" || m.Hreflang != "" || !m.CarriedModified.IsZero() || m.Details != ""
}

// Link is an rs:ln element (clauses 7 and 14). What is zero is not written;
// Rel and Href are mandatory.
type Link struct {
	Rel  string // one of the constants, another registered name, or a URI
	Href string // absolute URI
	// Modified is when what is there was last modified; Encoding, Hash, Length, Path
	// and Type are as in Metadata.
	Modified Datetime
	Encoding string
	Hash     string
	Length   Length
	Path     string
	Pri      int // of several links of one relation the lowest is to be preferred; 1 to 999,999
	Type     string
	// Profile narrows the media type; the schema has had it since 2023.
	Profile string
	// ID is the identifier of the record that the link leads to, where that is
	// not its Href, and Hreflang the language of what is there. They are carried
	// in CarriedNamespace.
	ID, Hreflang string
	// Extra are attributes that the specification does not define.
	Extra []xml.Attr
}

// Up returns the URL of the document's Capability List (or, for a Capability List, of its
// Source Description); "" when it has no such link. In the drafts this was the link
// "resourcesync" or "top".
func (d *Document) Up() string {
	top := ""
	if d.Dialect.beta() {
		top = d.Link(relTop)
	}
	return cmp.Or(top, d.Link(relResourceSync), d.Link(RelUp))
}

// metadata returns the head's rs:md.
func (d *Document) metadata() Metadata {
	return Metadata{Capability: d.Capability, At: d.At, Completed: d.Completed, From: d.From, Until: d.Until, Modified: d.Modified, Extra: d.Extra}
}

// Link returns the target of the document's first link of a relation, "" when
// there is none.
func (d *Document) Link(rel string) string {
	for i := range d.Links {
		if d.Links[i].Rel == rel {
			return d.Links[i].Href
		}
	}
	return ""
}

// Length is a number of bytes, or unknown, which is its zero value: a length of 0 bytes is
// known.
type Length struct {
	n     int64
	known bool
}

// Bytes returns the length n; a negative n is unknown.
func Bytes(n int64) Length {
	if n < 0 {
		return Length{}
	}
	return Length{n: n, known: true}
}

// Bytes returns the number of bytes; known is false when it is unknown.
func (l Length) Bytes() (n int64, known bool) { return l.n, l.known }

// append appends the digits of a known length.
func (l Length) append(b []byte) []byte { return strconv.AppendInt(b, l.n, 10) }

// Dialect is the version of the specification that a document is written in, as
// far as its markup shows.
type Dialect string

// The dialects that a Reader recognises.
const (
	// Dialect11 is version 1.1 (ANSI/NISO Z39.99-2017). Documents that look the same in
	// 1.0 count as 1.1.
	Dialect11 Dialect = "1.1"
	// Dialect10 is version 1.0 (2014): a list of changes with entries, none of which has a
	// datetime. There the place in the list shows which of two changes is the later one;
	// lastmod does not. As the last entry may have one, a Reader sets this dialect only once it
	// has read to the end.
	Dialect10 Dialect = "1.0"
	// Dialect091 is a draft of 2013 up to 0.9.1 with today's namespace: the attribute
	// modified on an rs:md, the capability "resourcesync" for a Source
	// Description, or the relation "resourcesync" for up. A document of 0.9.1
	// without any of them looks like one of a later version.
	Dialect091 Dialect = "0.9.1"
	// DialectBeta is the draft that D-Lib Magazine showed in 2013, in BetaNamespace.
	// The newest change stands first, and a Reader leaves it there.
	DialectBeta Dialect = "2013 beta"
	// DialectAtomLinks, DialectAtomContents and DialectItems are the syntaxes that the
	// same paper shows as considered and not adopted: Atom feeds with the resource behind
	// a link canonical (figure 9) or behind a content with src (figure 10), and a format
	// of its own (figure 11). They are read, and not written.
	DialectAtomLinks    Dialect = "2013 Atom links"
	DialectAtomContents Dialect = "2013 Atom contents"
	DialectItems        Dialect = "2013 items"
	// DialectSitemap is a sitemap or an index of sitemaps without anything of
	// ResourceSync.
	DialectSitemap Dialect = "sitemap"
)

// namespace is that of the dialect's own elements; "" when it has none.
func (d Dialect) namespace() string {
	switch d {
	case DialectBeta, DialectAtomLinks, DialectAtomContents, DialectItems:
		return BetaNamespace
	case DialectSitemap:
		return ""
	}
	return Namespace
}

// sitemapBefore begins the namespaces of sitemaps before search engines agreed on one.
const sitemapBefore = "http://www.google.com/schemas/sitemap/0."

// longestNearly is how many bytes a namespace may have that is nearly right. A longer one is
// not looked at: it may be that of each element and attribute of a list.
const longestNearly = 200

// knownNamespace returns the namespace that was meant by one that is nearly right: the
// final slash too many or missing, other letter case, https, without www., or an
// early one of sitemaps. For any other it returns space itself.
func knownNamespace(space string) string {
	switch space {
	case SitemapNamespace, Namespace, BetaNamespace, CarriedNamespace:
		return space
	}
	if len(space) > longestNearly {
		return space
	}
	name := strings.ToLower(strings.Trim(space, " \t\r\n"))
	if rest, ok := strings.CutPrefix(name, "https://"); ok {
		name = "http://" + rest
	}
	if rest, ok := strings.CutPrefix(name, "http://"); ok && !strings.HasPrefix(rest, "www.") {
		name = "http://www." + rest
	}
	if strings.HasPrefix(name, sitemapBefore) {
		return SitemapNamespace
	}
	switch strings.TrimRight(name, "/#") {
	case SitemapNamespace, "http://www.sitemaps.org/schemas/sitemap/0.84":
		return SitemapNamespace
	case strings.TrimSuffix(Namespace, "/"):
		return Namespace
	case strings.TrimSuffix(BetaNamespace, "/"):
		return BetaNamespace
	}
	return space
}
