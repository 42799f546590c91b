package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
)

// segmentRow is a segment as it is stored; start is the Observed of its first
// event.
type segmentRow struct {
	event.Segment
	start event.Micros
	feed  int64 // an upper bound of the bytes of its archive document
}

const selectSegments = "SELECT n, from_at, until_at, start, first, last, events, entries, weight, feed_weight FROM segment WHERE set_id = $1"

func scanSegment(rows *sql.Rows) (s segmentRow, err error) {
	err = rows.Scan(&s.N, &s.From, &s.Until, &s.start, &s.First, &s.Last, &s.Events, &s.Entries, &s.Weight, &s.feed)
	return s, err
}

func (b *batch) loadOpenSegment(ctx context.Context, q preparer) error {
	err := q.Each(ctx, selectSegments+" ORDER BY n DESC LIMIT 1", []any{b.set.id}, func(rows *sql.Rows) (err error) {
		b.open, err = scanSegment(rows)
		return err
	})
	if err == nil && (b.open.N == 0 || !b.open.Open()) {
		err = fmt.Errorf("set %d has no open segment: run bridge verify", b.set.id)
	}
	return err
}

// place puts an event into the open segment. A segment closes before an event that comes
// segment_hours after its first, or that would make its documents too large, and after
// the event with which it has enough events or bytes. This depends on the log alone,
// never on a timer. It is never empty when it closes.
func (b *batch) place(seq event.Seq, kind event.Kind, observed event.Micros, v *body, source int64) {
	entries := entriesOf(kind, v)
	w := weightOf(v, b.set.Content, entries, source)
	// The weight has the URI of a record in mode reference once, beside the address that its Source
	// writes, which may be a third of it. Documents have the URI twice.
	more := func(list int64, entries int) int64 {
		if b.set.Content != event.Reference {
			return 0
		}
		return max(0, list-(weightListed+weightLink)*int64(entries)) / 2
	}
	extra := more(b.open.Weight+w.list, b.open.Entries+entries)
	if s := &b.open; s.Events > 0 &&
		(observed-s.start >= event.Micros(b.set.segmentHours)*event.Micros(time.Hour/time.Microsecond) || int64(s.Entries+entries) > maxEntries ||
			s.Weight+w.list+extra > listRoom || s.feed+w.feed+extra > feedRoom) {
		b.closeSegment()
	}
	s := &b.open
	if s.Events == 0 {
		s.First, s.start = seq, observed
	}
	s.Last = seq
	s.Events++
	s.Entries += entries
	s.Weight += w.list
	s.feed += w.feed
	if s.Events >= b.set.segmentEvents || s.Weight+more(s.Weight, s.Entries) > maxWeight || int64(s.Entries) >= maxEntries {
		s.Until = observed
		b.closeSegment()
	}
}

// maxEntries is what one list may hold (ResourceSync 7).
const maxEntries = 50_000

// closeSegment ends the open segment at its last event and opens the next. When
// it closes before an event its border is the Observed of the event before.
func (b *batch) closeSegment() {
	b.open.Until = cmp.Or(b.open.Until, b.set.LastObserved)
	b.closed = append(b.closed, b.open)
	b.open = segmentRow{Segment: event.Segment{N: b.open.N + 1, From: b.open.Until}}
}

func (b *batch) saveSegments(ctx context.Context) error {
	if b.out.Last == 0 {
		return nil
	}
	for _, s := range append(b.closed, b.open) {
		err := b.tx.Exec(ctx, `INSERT OR REPLACE INTO segment (set_id, n, from_at, until_at, start, first, last, events, entries, weight, feed_weight)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, b.set.id, s.N, int64(s.From), int64(s.Until), int64(s.start), int64(s.First), int64(s.Last), s.Events, s.Entries, s.Weight, s.feed)
		if err != nil {
			return err
		}
	}
	return nil
}

func entriesOf(kind event.Kind, v *body) int {
	e := event.Event{Kind: kind, Gone: v.gone, Unlisted: v.unlisted}
	return e.Entries()
}

// A segment is published as a Change List of at most 50 MB (ResourceSync 7), and as
// an archive document, of which consumers, we among them, take 64 MiB. So the log
// keeps upper bounds of both. They are functions of the events and of what their
// documents state about themselves, where the base URL and the set's name are no longer
// than 100 bytes together.
const (
	listRoom  = 49_000_000 // what closes a segment before an event
	feedRoom  = 62_000_000
	maxWeight = 40_000_000 // what closes it after an event
)

// The numbers are those of the markup with the longest times and lengths.
const (
	weightURL     = 100 + 16 + 87 // a URL of ours: base and set, path, key
	weightListed  = 285           // a url element, with its rs:md
	weightLink    = 165           // an rs:ln or atom:link
	weightType    = 24            // application/octet-stream, in place of no type
	weightEntry   = 260           // an atom:entry
	weightUUID    = 45
	weightPerson  = 90
	weightHistory = 17 + 9 + 8 + 24 // /at/ and a Seq, /timegate, /timemap with its type
	weightElement = 60              // an atom:category, atom:rights, changefreq, xml:lang
	weightCopied  = 90              // modified, hash, length, pri, profile, encoding of a link
	weightDated   = 85              // an atom:published or app:edited
	weightField   = 50              // a field of the details in a list, with its quotes
)

// weight is an upper bound of the bytes that an event takes.
type weight struct{ list, feed int64 }

// weightOf returns the weight of an event with so many entries in a Change List of a set that
// treats content so.
// source is that of the atom:source that its document gives it.
func weightOf(v *body, content event.Content, entries int, source int64) (w weight) {
	o := &v.obs
	url := int64(weightURL)
	reference := content == event.Reference && o.Loc != ""
	if reference { // it is published under the Source's own
		url = 0
	}
	record, title := escaped(o.Record), escaped(o.Title)
	via := weightLink + escaped(o.ViaHref()) + escaped(o.Via.Type) + escaped(o.Via.Hash) + escaped(o.SourceIdentifier)
	w.list = (weightListed+via+url+record+title)*int64(max(entries, 1)) + escaped(o.Loc) + 2*escaped(v.gone)
	w.feed = weightEntry + weightUUID + via + record
	if !reference { // it stands in the via
		w.feed += escaped(o.Loc)
	}
	if strings.TrimSpace(o.Title) == "" {
		w.feed += record + weightUUID
	} else {
		w.feed += title
	}
	if len(o.Representations) == 0 && !o.Deleted {
		w.feed += weightLink + weightURL + weightType
	}
	for i := range o.Representations {
		if o.Deleted {
			break
		}
		r := &o.Representations[i]
		n := max(escaped(r.Type), weightType) + escaped(r.Hash) + escaped(r.Hreflang) + escaped(r.Encoding)
		if r.Profile != "" || r.Encoding != "" || r.Pri != 0 {
			n += weightCopied
			w.feed += escaped(r.Profile)
		}
		own := url + 1 + int64(len(r.Name))
		if url == 0 {
			own = escaped(r.Href)
		}
		w.feed += weightLink + own + n
		w.list += n
		if i == o.Preferred { // its type and hash stand in rs:md and in the via
			w.list += n
			w.feed += n + escaped(o.Loc)
			continue
		}
		w.list += weightLink + own + escaped(r.Profile)
	}
	if v.history { // a memento, with type and hash, a TimeGate and a TimeMap
		w.list += 3*weightLink + 3*url + weightHistory
		if o.Preferred < len(o.Representations) {
			r := &o.Representations[o.Preferred]
			w.list += max(escaped(r.Type), weightType) + escaped(r.Hash)
		}
	}
	for i := range o.Links {
		l := &o.Links[i]
		if o.Deleted && !l.PublishedOfDeletion() || !o.Deleted && !l.Published(event.Reference) {
			continue
		}
		n := weightCopied + escaped(l.Hash) + weightLink + url + escaped(l.Rel) + escaped(l.Type) + escaped(l.Record)
		if url == 0 || l.Record == "" {
			n += escaped(l.Href)
		}
		w.list += n
		w.feed += n
	}
	categories := weightOfCategories(o.Categories)
	w.feed += categories
	if categories > 0 {
		w.list += weightField + weightInJSON*categories
	}
	if d := o.Details; d != nil {
		w.list += weightElement + escaped(d.ChangeFreq)
		texts := escaped(d.Language) + escaped(d.EntryLanguage) + escaped(d.Rights.Value) + escaped(d.Rights.Language) + weightOfPersons(d.Authors) + weightOfPersons(d.Contributors)
		w.feed += 3*weightElement + texts + escaped(d.ChangeFreq)
		w.list += 10*weightField + weightInJSON*texts
		if d.Published.Known() || d.Edited.Known() {
			w.feed += 2 * weightDated
		}
		if d.DeletedBy != (event.Person{}) || d.Comment != (event.Text{}) {
			texts := weightPerson + 4*weightElement + escaped(d.DeletedBy.Name) + escaped(d.DeletedBy.URI) + escaped(d.DeletedBy.Email) + escaped(d.Comment.Value) + escaped(d.Comment.Language)
			w.feed += texts
			w.list += weightInJSON * texts
		}
		if d.Source != nil {
			source = weightOfSource(d.Source)
			w.list += 8*weightField + weightInJSON*source
		}
	}
	w.feed += source
	return w
}

// weightInJSON is how many times as long, at most, a text or the markup of an element is
// in the details that another bridge reads as in a feed.
const weightInJSON = 2

// weightOfSource is that of an atom:source.
func weightOfSource(f *event.Feed) int64 {
	n := 4*weightElement + escaped(f.ID) + escaped(f.Title.Value) + escaped(f.Title.Language) + escaped(f.Rights.Value) + escaped(f.Rights.Language) +
		weightOfPersons(f.Authors) + weightOfPersons(f.Contributors) + weightOfCategories(f.Categories)
	for i := range f.Links {
		l := &f.Links[i]
		n += weightLink + escaped(l.Rel) + escaped(l.Href) + escaped(l.Type)
	}
	return n
}

func weightOfPersons(persons []event.Person) (n int64) {
	for _, p := range persons {
		n += weightPerson + escaped(p.Name) + escaped(p.URI) + escaped(p.Email)
	}
	return n
}

func weightOfCategories(categories []event.Category) (n int64) {
	for _, c := range categories {
		n += weightElement + escaped(c.Term) + escaped(c.Scheme) + escaped(c.Label)
	}
	return n
}

// escaped is an upper bound of the length of s in a text or an attribute.
func escaped(s string) int64 {
	n, all := int64(len(s)), byte(0)
	for i := range len(s) {
		n += int64(escapes[s[i]])
		all |= s[i]
	}
	if all >= utf8.RuneSelf && !utf8.ValidString(s) { // invalid bytes become U+FFFD
		n += 2 * int64(len(s))
	}
	return n
}

// escapes is how many bytes more than itself a byte may take.
var escapes = func() (more [256]uint8) {
	for c := range byte(' ') {
		more[c] = 5
	}
	for _, c := range []byte(`&<>"'`) {
		more[c] = 5
	}
	return more
}()

// sourceWeight is the weight of the atom:source that a document gives its entries.
func (b *batch) sourceWeight(ctx context.Context, document int64) (n int64, err error) {
	if document == 0 {
		return 0, nil
	}
	n, ok := b.weights[document]
	if ok {
		return n, nil
	}
	var d documentRow
	if err := b.tx.Each(ctx, selectDocuments+" WHERE id = $1", []any{document}, d.scan); err != nil {
		return 0, fmt.Errorf("document %d: %w: run bridge verify", document, err)
	}
	n = documentWeight(&d.Document)
	b.weights[document] = n
	return n, nil
}

func documentWeight(d *event.Document) int64 {
	if d.FeedID == "" && d.FeedTitle == "" && d.Feed == nil {
		return 0
	}
	var of event.Feed
	if d.Feed != nil {
		of = *d.Feed
	}
	of.ID, of.Title.Value = d.FeedID, d.FeedTitle
	return weightOfSource(&of)
}
