// Package resourcesync writes the documents of the ResourceSync Framework
// Specification 1.1 (ANSI/NISO Z39.99-2017).
//
// All documents of the framework are of one model (clause 6.1): a head with a
// capability, a few times and links, and entries. So there is one type,
// [Document], and one [Writer], which streams.
package resourcesync

import (
	"strconv"
	"time"
)

// Namespaces of the documents (clause 4).
const (
	SitemapNamespace = "http://www.sitemaps.org/schemas/sitemap/0.9"
	Namespace        = "http://www.openarchives.org/rs/terms/"
	// CarriedNamespace is ours, for what travels between two bridges in
	// attributes of an entry's rs:md (clause 7 allows attributes in other
	// namespaces): "id", the identifier of the record where it is not its loc,
	// and "title", its title. It is a name and no address, and it never changes.
	CarriedNamespace = "urn:x-bridge:terms:1"
)

// The limits of one document (clause 7). The community's 50 MB are read as the
// smaller of the two megabytes.
const (
	MaxEntries       = 50_000
	MaxBytes   int64 = 50_000_000
)

// Capability is the nature of a document (clause 7, capability).
type Capability string

// The capabilities that clause 7 defines.
const (
	Description          Capability = "description"
	CapabilityList       Capability = "capabilitylist"
	ResourceList         Capability = "resourcelist"
	ChangeList           Capability = "changelist"
	ResourceDump         Capability = "resourcedump"
	ChangeDump           Capability = "changedump"
	ResourceDumpManifest Capability = "resourcedump-manifest"
	ChangeDumpManifest   Capability = "changedump-manifest"
)

// changes tells whether documents of the capability cover an interval (from,
// until) and not a moment (at, completed): Appendix A.
func (c Capability) changes() bool {
	return c == ChangeList || c == ChangeDump || c == ChangeDumpManifest
}

// state tells whether documents of the capability show a moment.
func (c Capability) state() bool {
	return c == ResourceList || c == ResourceDump || c == ResourceDumpManifest
}

// Relation types of the framework's own navigation (clauses 6.2 and 7).
const (
	RelUp          = "up"
	RelIndex       = "index"
	RelDescribedBy = "describedby"
	RelAlternate   = "alternate"
	RelVia         = "via"
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
	Capability Capability
	Index      bool
	// At and Completed say when the snapshot began and ended; Resource Lists and
	// dumps of resources have at (Appendix A).
	At, Completed Datetime
	// From and Until are the interval of a Change List or a dump of changes; one
	// without Until is open (clause 12.1).
	From, Until Datetime
	Links       []Link
	// Entries is what a Writer writes before anything else. Long lists leave it
	// empty and stream.
	Entries []Entry
}

// Entry is one url or sitemap element (clause 7).
type Entry struct {
	Loc      string // absolute URI; mandatory
	LastMod  Datetime
	Metadata Metadata
	Links    []Link
}

// Metadata is the rs:md element of an entry (clause 7). What is zero is not
// written.
type Metadata struct {
	Capability    Capability // in Source Descriptions and Capability Lists
	At, Completed Datetime   // in indexes and dumps of resources
	From, Until   Datetime   // in indexes and dumps of changes
	Change        string     // in Change Lists: Created, Updated or Deleted
	Datetime      Datetime   // of the change
	Encoding      string
	// Hash is a whitespace-delimited list of hashes, each the algorithm, a colon
	// and hex digits.
	Hash   string
	Length Length
	Path   string
	Type   string
	// ID and Title are carried in CarriedNamespace.
	ID, Title string
}

// Link is an rs:ln element (clauses 7 and 14). What is zero is not written;
// Rel and Href are mandatory.
type Link struct {
	Rel      string
	Href     string
	Modified Datetime
	Encoding string
	Hash     string
	Length   Length
	Path     string
	Pri      int // 1 to 999,999
	Type     string
}

// Length is a number of bytes, or unknown, which is its zero value: a length of
// nought is a length.
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

// Datetime is a W3C Datetime in UTC, written YYYY-MM-DDThh:mm:ss[.s]Z as clause
// 7 recommends, with a fraction that its maker has chosen. The zero Datetime is
// absent, and so is one outside the years 0 to 9999, which has no such form.
type Datetime struct {
	sec    int64
	nano   int32
	digits int8 // of the fraction; exact: as many as needed
	known  bool
}

const exact = -1

// Seconds cuts t to the second.
func Seconds(t time.Time) Datetime { return datetime(t, 0) }

// Micros cuts t to the microsecond and is always written with six digits.
func Micros(t time.Time) Datetime { return datetime(t, 6) }

// Exact is t with as many digits as it needs, up to nine.
func Exact(t time.Time) Datetime { return datetime(t, exact) }

func datetime(t time.Time, digits int8) Datetime {
	if y := t.UTC().Year(); y < 0 || y > 9999 {
		return Datetime{}
	}
	nano := t.Nanosecond()
	switch digits {
	case 0:
		nano = 0
	case 6:
		nano -= nano % 1000
	}
	return Datetime{sec: t.Unix(), nano: int32(nano), digits: digits, known: true}
}

// IsZero tells whether the datetime is absent.
func (d Datetime) IsZero() bool { return !d.known }

// Time returns the datetime in UTC; the zero time when it is absent.
func (d Datetime) Time() time.Time {
	if !d.known {
		return time.Time{}
	}
	return time.Unix(d.sec, int64(d.nano)).UTC()
}

// before orders two datetimes that are there.
func (d Datetime) before(o Datetime) bool {
	return d.sec < o.sec || d.sec == o.sec && d.nano < o.nano
}

// String returns the form of Append.
func (d Datetime) String() string { return string(d.Append(nil)) }

// Append appends the datetime's W3C form to b; nothing when it is absent.
func (d Datetime) Append(b []byte) []byte {
	if !d.known {
		return b
	}
	t := time.Unix(d.sec, 0).UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = appendDigits(b, year, 4)
	b = appendDigits(append(b, '-'), int(month), 2)
	b = appendDigits(append(b, '-'), day, 2)
	b = appendDigits(append(b, 'T'), hour, 2)
	b = appendDigits(append(b, ':'), minute, 2)
	b = appendDigits(append(b, ':'), second, 2)
	switch {
	case d.digits == 6:
		b = appendDigits(append(b, '.'), int(d.nano)/1000, 6)
	case d.digits == exact && d.nano != 0:
		b = appendDigits(append(b, '.'), int(d.nano), 9)
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return append(b, 'Z')
}

// appendDigits appends n with leading zeros.
func appendDigits(b []byte, n, digits int) []byte {
	end := len(b) + digits
	b = append(b, "000000000"[:digits]...)
	for i := end - 1; n > 0 && i >= end-digits; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return b
}

// append appends the digits of a known length.
func (l Length) append(b []byte) []byte { return strconv.AppendInt(b, l.n, 10) }
