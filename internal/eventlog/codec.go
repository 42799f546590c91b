package eventlog

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// The body of an event row holds all that a document needs of the event, so
// that a range of the log is read without a join. It is a version byte, fields
// in a fixed order (numbers as varints, strings with their length in front),
// and a CRC-32C over the row's columns and the body: a damaged row is an error,
// never a wrong document.
//
// An observation (pending, regressed, or suppressed by that of another Source) is
// kept in the same form.

const bodyVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged is wrapped with the place where a row was found that is not what was stored.
var ErrDamaged = errors.New("damaged: the stored bytes do not match their checksum")

const (
	flagModified = 1 << iota
	flagVia
	flagUnlisted
	flagFetched
	flagDeleted
	flagGone
	flagArrived
	flagLate
	flagClaim
	flagOrder     // the order is there
	flagSameOrder // it is that of Modified
	flagPlace
	flagTargets // some link may lead to a record of the set
	flagReason  // why a submission was rejected, or a record withdrawn
	// The flags of nearly every event are above: these cost a byte.
	flagCopy       // when the copy was modified
	flagVariants   // some representation has a language, profile or encoding
	flagCategories // the record has categories
	flagDetails    // Details, which are no part of the state
	flagBefore     // the record had an event before
	flagPri        // some representation or link has a priority
	flagMore       // more details
	flagHistory    // it was logged while the set served earlier versions
	flagContent    // the bits of content that no representation states
)

// body is what an event or observation row holds besides its columns.
type body struct {
	obs      event.Observation
	document int64 // id in table document
	back     int64 // of an event: the distance to the set's previous event; 0 for the first
	before   int64 // the distance to the record's previous event; 0 for its first
	version  int64 // of an event with a previous one: the number of the record's version, from 2
	anchor   int64 // the distance from that previous event to the anchor below; see history.go
	history  bool  // lists name it as a memento
	gone     string
	unlisted bool
	arrived  bool
	reason   string // of a rejection, or a withdrawal
	late     bool   // of one that waits: its stamp lay in the future (A3)

	// Not stored: the observation's digest and the key of its URI, when they
	// have been worked out.
	digest, loc int64
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendStamp(b []byte, s event.Stamp) []byte {
	if !s.Known() {
		return append(b, 0)
	}
	b = append(b, 1)
	return binary.AppendVarint(b, s.Nanos())
}

func appendLink(b []byte, l event.Link) []byte {
	b = appendString(b, l.Rel)
	b = appendString(b, l.Href)
	b = appendString(b, l.Type)
	b = binary.AppendVarint(b, l.Length)
	b = appendString(b, l.Hash)
	return appendStamp(b, l.Modified)
}

// flag returns bit if on is set, else 0: one of the flags in front of a body or a source
// state.
func flag(bit uint64, on bool) uint64 {
	if on {
		return bit
	}
	return 0
}

// appendBody appends the body without its checksum.
func appendBody(b []byte, v *body) []byte {
	o := &v.obs
	flags := flag(flagModified, o.Modified.Known()) | flag(flagVia, o.Via != (event.Link{})) | flag(flagUnlisted, v.unlisted) | flag(flagFetched, o.Fetched) |
		flag(flagDeleted, o.Deleted) | flag(flagGone, v.gone != "") | flag(flagArrived, v.arrived) | flag(flagLate, v.late) | flag(flagClaim, o.Claim != 0) |
		flag(flagSameOrder, o.Order.Known() && o.Order == o.Modified) | flag(flagOrder, o.Order.Known() && o.Order != o.Modified) | flag(flagPlace, !o.Place.IsZero()) |
		flag(flagTargets, slices.ContainsFunc(o.Links, func(l event.Link) bool { return l.Record != "" })) | flag(flagReason, v.reason != "") |
		flag(flagCopy, o.CopyModified.Known()) |
		flag(flagVariants, slices.ContainsFunc(o.Representations, func(r event.Representation) bool { return r.Hreflang != "" || r.Profile != "" || r.Encoding != "" })) |
		flag(flagCategories, len(o.Categories) > 0) | flag(flagDetails, o.Details != nil) | flag(flagBefore, v.before != 0) |
		flag(flagPri, slices.ContainsFunc(o.Representations, func(r event.Representation) bool { return r.Pri != 0 }) ||
			slices.ContainsFunc(o.Links, func(l event.Link) bool { return l.Pri != 0 })) |
		flag(flagMore, o.Details != nil && hasMore(o.Details)) |
		flag(flagHistory, v.history) | flag(flagContent, o.ContentBits != 0)
	b = append(b, bodyVersion)
	b = binary.AppendUvarint(b, flags)
	b = appendString(b, o.Record)
	if o.Modified.Known() {
		b = binary.AppendVarint(b, o.Modified.Nanos())
	}
	b = binary.AppendVarint(b, v.document)
	b = binary.AppendUvarint(b, uint64(v.back))
	b = appendString(b, o.Title)
	b = appendString(b, o.SourceIdentifier)
	b = appendString(b, o.Loc)
	if v.gone != "" {
		b = appendString(b, v.gone)
	}
	b = binary.AppendUvarint(b, uint64(len(o.Representations)))
	for i := range o.Representations {
		r := &o.Representations[i]
		b = appendString(b, r.Href)
		b = appendString(b, r.Type)
		b = binary.AppendVarint(b, r.Length)
		b = appendString(b, r.Hash)
		b = appendString(b, r.Name)
	}
	b = binary.AppendUvarint(b, uint64(o.Preferred))
	if flags&flagVia != 0 {
		b = appendLink(b, o.Via)
	}
	b = binary.AppendUvarint(b, uint64(len(o.Links)))
	for _, l := range o.Links {
		b = appendLink(b, l)
	}
	if o.Claim != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(o.Claim))
	}
	if flags&flagOrder != 0 {
		b = binary.AppendVarint(b, o.Order.Nanos())
	}
	if flags&flagPlace != 0 {
		b = appendPlace(b, o.Place)
	}
	if flags&flagTargets != 0 {
		for _, l := range o.Links {
			if b = appendString(b, l.Record); l.Record != "" {
				b = append(b, boolByte(l.InSet))
			}
		}
	}
	if v.reason != "" {
		b = appendString(b, v.reason)
	}
	if flags&flagCopy != 0 {
		b = binary.AppendVarint(b, o.CopyModified.Nanos())
	}
	if flags&flagVariants != 0 {
		for i := range o.Representations {
			b = appendString(b, o.Representations[i].Hreflang)
			b = appendString(b, o.Representations[i].Profile)
			b = appendString(b, o.Representations[i].Encoding)
		}
	}
	if flags&flagCategories != 0 {
		b = appendCategories(b, o.Categories)
	}
	if flags&flagDetails != 0 {
		b = appendDetails(b, o.Details)
	}
	if v.before != 0 {
		b = binary.AppendUvarint(b, uint64(v.before))
		b = binary.AppendUvarint(b, uint64(v.version))
		b = binary.AppendUvarint(b, uint64(v.anchor))
	}
	if flags&flagPri != 0 {
		for i := range o.Representations {
			b = binary.AppendUvarint(b, uint64(o.Representations[i].Pri))
		}
		for i := range o.Links {
			b = binary.AppendUvarint(b, uint64(o.Links[i].Pri))
		}
	}
	if flags&flagMore != 0 {
		b = appendMore(b, o.Details)
	}
	if flags&flagContent != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(o.ContentBits))
	}
	return b
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func appendCategories(b []byte, categories []event.Category) []byte {
	b = binary.AppendUvarint(b, uint64(len(categories)))
	for _, c := range categories {
		b = appendString(appendString(appendString(b, c.Term), c.Scheme), c.Label)
	}
	return b
}

func appendPersons(b []byte, persons []event.Person) []byte {
	b = binary.AppendUvarint(b, uint64(len(persons)))
	for _, p := range persons {
		b = appendString(appendString(appendString(b, p.Name), p.URI), p.Email)
	}
	return b
}

func appendText(b []byte, t event.Text) []byte {
	return appendString(appendString(b, t.Value), t.Language)
}

func appendDetails(b []byte, d *event.Details) []byte {
	b = appendString(b, d.Language)
	b = appendPersons(b, d.Authors)
	b = appendPersons(b, d.Contributors)
	b = appendText(b, d.Rights)
	b = appendString(b, d.ChangeFreq)
	if d.Source == nil {
		return append(b, 0)
	}
	return appendFeed(append(b, 1), d.Source)
}

// hasMore reports whether there are details beside those that appendDetails appends.
func hasMore(d *event.Details) bool {
	return d.EntryLanguage != "" || d.Published.Known() || d.Edited.Known() || d.DeletedBy != (event.Person{}) || d.Comment != (event.Text{})
}

func appendMore(b []byte, d *event.Details) []byte {
	b = appendStamp(appendStamp(appendString(b, d.EntryLanguage), d.Published), d.Edited)
	b = appendString(appendString(appendString(b, d.DeletedBy.Name), d.DeletedBy.URI), d.DeletedBy.Email)
	return appendText(b, d.Comment)
}

// appendFeed appends the metadata of a feed; table document has it in the same form.
func appendFeed(b []byte, f *event.Feed) []byte {
	b = appendString(b, f.ID)
	b = appendText(b, f.Title)
	b = appendStamp(b, f.Updated)
	b = appendPersons(b, f.Authors)
	b = appendPersons(b, f.Contributors)
	b = appendText(b, f.Rights)
	b = appendCategories(b, f.Categories)
	b = binary.AppendUvarint(b, uint64(len(f.Links)))
	for _, l := range f.Links {
		b = appendLink(b, l)
	}
	return b
}

func appendPlace(b []byte, p event.Place) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(p.List))
	b = binary.AppendUvarint(b, uint64(p.Position)<<2|flag(placePart, p.Part != 0)|flag(placeFrom, p.From.Known()))
	if p.Part != 0 {
		b = binary.AppendUvarint(b, uint64(p.Part))
	}
	if p.From.Known() {
		b = binary.AppendVarint(b, p.From.Nanos())
	}
	return b
}

// Flags that follow the position of a place.
const (
	placePart = 1 << iota
	placeFrom
)

// columns are the columns of an event row that its checksum covers. The row's id has
// both set and seq.
type columns struct {
	seq      int64
	set      int64
	record   int64
	kind     int64
	observed int64
}

const (
	eventColumns = "id, record, kind, observed, body"
	seqBits      = 40
	maxSeq       = 1<<seqBits - 1
	maxSet       = 1<<(63-seqBits) - 2 // the id after its last event is still a number
)

// eventID is the id of an event's row.
func eventID(set int64, seq event.Seq) int64 { return set<<seqBits | int64(min(seq, maxSeq)) }

func seqOf(id int64) event.Seq { return event.Seq(id & maxSeq) }

func (c *columns) id() int64 { return eventID(c.set, event.Seq(c.seq)) }

// scan scans eventColumns, and returns the body with its checksum, which is good until
// the next row.
func (c *columns) scan(rows *sql.Rows) (sealed sql.RawBytes, err error) {
	var id int64
	err = rows.Scan(&id, &c.record, &c.kind, &c.observed, &sealed)
	c.set, c.seq = id>>seqBits, id&maxSeq
	return sealed, err
}

func checksum(c columns, body []byte) uint32 {
	var head [40]byte
	for i, v := range [...]int64{c.seq, c.set, c.record, c.kind, c.observed} {
		binary.LittleEndian.PutUint64(head[i*8:], uint64(v))
	}
	return crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, body)
}

// seal appends the checksum of the row to its body.
func seal(c columns, body []byte) []byte {
	return binary.LittleEndian.AppendUint32(body, checksum(c, body))
}

// unseal checks the row and returns its body without the checksum.
func unseal(c columns, sealed []byte) ([]byte, error) {
	if len(sealed) < 5 {
		return nil, ErrDamaged
	}
	b := sealed[:len(sealed)-4]
	if sumOfSealed(sealed) != checksum(c, b) {
		return nil, ErrDamaged
	}
	return b, nil
}

// sumOfSealed returns the checksum that seal has appended.
func sumOfSealed(sealed []byte) uint32 { return binary.LittleEndian.Uint32(sealed[len(sealed)-4:]) }

// reader takes fields off the front of a body. After the first error it only
// returns zero values.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() { r.bad, r.b = true, nil }

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) fixed() int64 {
	if len(r.b) < 8 {
		r.fail()
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return int64(v)
}

func (r *reader) string() string {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// count reads the length of a list whose items take at least one byte each.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) stamp() event.Stamp {
	if r.byte() == 0 {
		return event.Stamp{}
	}
	return event.StampFromNanos(r.varint())
}

func (r *reader) place() event.Place {
	p := event.Place{List: r.fixed()}
	position := r.uvarint()
	if p.Position = int64(position >> 2); position&placePart != 0 {
		p.Part = int(r.uvarint())
	}
	if position&placeFrom != 0 {
		p.From = event.StampFromNanos(r.varint())
	}
	return p
}

func (r *reader) link() event.Link {
	return event.Link{Rel: r.string(), Href: r.string(), Type: r.string(),
		Length: r.varint(), Hash: r.string(), Modified: r.stamp()}
}

func (r *reader) bool() bool { return r.byte() != 0 }

func (r *reader) text() event.Text { return event.Text{Value: r.string(), Language: r.string()} }

func (r *reader) categories() (out []event.Category) {
	for range r.count() {
		out = append(out, event.Category{Term: r.string(), Scheme: r.string(), Label: r.string()})
	}
	return out
}

func (r *reader) persons() (out []event.Person) {
	for range r.count() {
		out = append(out, event.Person{Name: r.string(), URI: r.string(), Email: r.string()})
	}
	return out
}

func (r *reader) details() *event.Details {
	d := &event.Details{Language: r.string(), Authors: r.persons(), Contributors: r.persons(), Rights: r.text(), ChangeFreq: r.string()}
	if r.bool() {
		d.Source = r.feed()
	}
	return d
}

func (r *reader) more(d *event.Details) {
	d.EntryLanguage, d.Published, d.Edited = r.string(), r.stamp(), r.stamp()
	d.DeletedBy = event.Person{Name: r.string(), URI: r.string(), Email: r.string()}
	d.Comment = r.text()
}

func (r *reader) feed() *event.Feed {
	f := &event.Feed{ID: r.string(), Title: r.text(), Updated: r.stamp(), Authors: r.persons(), Contributors: r.persons(),
		Rights: r.text(), Categories: r.categories()}
	for range r.count() {
		f.Links = append(f.Links, r.link())
	}
	return f
}

// readFeed is the inverse of appendFeed; nothing is no feed.
func readFeed(b []byte) (*event.Feed, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := reader{b: b}
	f := r.feed()
	if r.bad || len(r.b) != 0 {
		return nil, ErrDamaged
	}
	return f, nil
}

// readBody is the inverse of appendBody. It reuses the slices of v.
func readBody(b []byte, v *body) error {
	r := reader{b: b}
	if version := r.byte(); version != bodyVersion {
		return errors.New("written by a newer bridge: its form is not known to this one")
	}
	flags := r.uvarint()
	o := &v.obs
	reps, links := o.Representations[:0], o.Links[:0]
	*o = event.Observation{Record: r.string(), Deleted: flags&flagDeleted != 0, Fetched: flags&flagFetched != 0}
	if flags&flagModified != 0 {
		o.Modified = event.StampFromNanos(r.varint())
	}
	v.document = r.varint()
	v.back = int64(r.uvarint())
	o.Title = r.string()
	o.SourceIdentifier = r.string()
	o.Loc = r.string()
	v.unlisted, v.arrived, v.late, v.gone = flags&flagUnlisted != 0, flags&flagArrived != 0, flags&flagLate != 0, ""
	if flags&flagGone != 0 {
		v.gone = r.string()
	}
	for range r.count() {
		reps = append(reps, event.Representation{Href: r.string(), Type: r.string(),
			Length: r.varint(), Hash: r.string(), Name: r.string()})
	}
	o.Representations = reps
	o.Preferred = int(r.uvarint())
	if flags&flagVia != 0 {
		o.Via = r.link()
	}
	for range r.count() {
		links = append(links, r.link())
	}
	o.Links = links
	if flags&flagClaim != 0 {
		o.Claim = r.fixed()
	}
	switch {
	case flags&flagSameOrder != 0:
		o.Order = o.Modified
	case flags&flagOrder != 0:
		o.Order = event.StampFromNanos(r.varint())
	}
	if flags&flagPlace != 0 {
		o.Place = r.place()
	}
	if flags&flagTargets != 0 {
		for i := range links {
			if links[i].Record = r.string(); links[i].Record != "" {
				links[i].InSet = r.bool()
			}
		}
	}
	if v.reason = ""; flags&flagReason != 0 {
		v.reason = r.string()
	}
	if flags&flagCopy != 0 {
		o.CopyModified = event.StampFromNanos(r.varint())
	}
	if flags&flagVariants != 0 {
		for i := range reps {
			reps[i].Hreflang, reps[i].Profile, reps[i].Encoding = r.string(), r.string(), r.string()
		}
	}
	if flags&flagCategories != 0 {
		o.Categories = r.categories()
	}
	if flags&flagDetails != 0 {
		o.Details = r.details()
	}
	v.before, v.version, v.anchor, v.history = 0, 0, 0, flags&flagHistory != 0
	if flags&flagBefore != 0 {
		v.before, v.version, v.anchor = int64(r.uvarint()), int64(r.uvarint()), int64(r.uvarint())
	}
	if flags&flagPri != 0 {
		for i := range reps {
			reps[i].Pri = int(r.uvarint())
		}
		for i := range links {
			links[i].Pri = int(r.uvarint())
		}
	}
	if flags&flagMore != 0 && o.Details != nil {
		r.more(o.Details)
	}
	if flags&flagContent != 0 {
		o.ContentBits = r.fixed()
	}
	if r.bad || len(r.b) != 0 {
		return ErrDamaged
	}
	return nil
}

// sumOf is the sum column of a row: a CRC-32C over its other columns, each with
// its kind and length, so that no two rows look alike.
func sumOf(columns ...any) int64 {
	var b []byte
	for _, c := range columns {
		switch v := c.(type) {
		case nil:
			b = append(b, 0)
		case int64:
			b = binary.AppendVarint(append(b, 1), v)
		case int:
			b = binary.AppendVarint(append(b, 1), int64(v))
		case event.Micros:
			b = binary.AppendVarint(append(b, 1), int64(v))
		case event.SourceID:
			b = binary.AppendVarint(append(b, 1), int64(v))
		case bool:
			b = binary.AppendVarint(append(b, 1), int64(boolByte(v)))
		case event.Stamp:
			b = appendStamp(append(b, 2), v)
		case string:
			b = appendString(append(b, 3), v)
		case []byte:
			if len(v) == 0 { // an empty blob is read back as NULL
				b = append(b, 0)
				continue
			}
			b = append(binary.AppendUvarint(append(b, 4), uint64(len(v))), v...)
		default:
			panic(fmt.Sprintf("eventlog: a column of type %T", c))
		}
	}
	return int64(crc32.Checksum(b, castagnoli))
}
