package console

import (
	"cmp"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
)

// setPage is the data of the page of a set.
type setPage struct {
	event.Set
	Status    *status.Set
	Sources   []sourceRow // the first ones
	More      int         // Sources that are not shown
	Days      days
	URL       string // of the public page
	Documents []server.DocumentLink
	Events    []eventRow // the newest
}

// Up returns the relative path from the page to the pages below the set.
func (p setPage) Up() string { return p.Name + "/" }

// eventRow is an event as tables show it.
type eventRow struct {
	Seq      event.Seq
	Observed event.Micros
	Modified event.Stamp
	Kind     event.Kind
	Set      string
	Record   string
	Title    string
	Source   string
	Reason   string
	Formats  []string
}

// Class returns the class in the style sheet.
func (e eventRow) Class() string { return e.Kind.String() }

// Key returns the key of the record in URLs.
func (e eventRow) Key() string { return event.Key(e.Record) }

func eventRowOf(e *event.Event) eventRow {
	row := eventRow{Seq: e.Seq, Observed: e.Observed, Modified: e.Modified, Kind: e.Kind, Set: e.Set, Record: e.Record, Title: e.Title, Source: e.Origin.Source, Reason: e.Origin.Reason}
	for _, rep := range e.Representations {
		row.Formats = append(row.Formats, cmp.Or(rep.Type, "unknown type"))
	}
	return row
}

// newestShown is the number of events on the page of a set.
const newestShown = 15

func (c *Console) set(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	set, err := c.bridge.Log.Set(ctx, r.PathValue("set"))
	if err != nil {
		return err
	}
	p := setPage{Set: set, URL: c.opt.Base + "/sets/" + set.Name + "/"}
	s, err := c.status(ctx)
	if err != nil {
		return err
	}
	rows, err := c.rows(ctx, s)
	if err != nil {
		return err
	}
	for i := range s.Sets {
		if s.Sets[i].Name == set.Name {
			p.Status = &s.Sets[i]
		}
	}
	for _, row := range rows {
		if row.Set == set.Name {
			p.Sources = append(p.Sources, row)
		}
	}
	p.Days = sum(p.Sources)
	p.More = max(0, len(p.Sources)-rowsShown)
	p.Sources = p.Sources[:len(p.Sources)-p.More]
	segments, err := c.bridge.Log.Segments(ctx, set.Name)
	if err != nil {
		return err
	}
	p.Documents = server.DocumentLinks(c.opt.Base, set, segments)
	if _, err := c.bridge.Log.Back(ctx, set.Name, 0, func(e *event.Event) bool {
		p.Events = append(p.Events, eventRowOf(e))
		return len(p.Events) < newestShown
	}); err != nil {
		return err
	}
	c.write(w, r, http.StatusOK, "set", &page{Title: cmp.Or(set.Title, set.Name), Section: "sets", Body: p})
	return nil
}

// eventsPage is a page of the events of a set.
type eventsPage struct {
	event.Set
	Events []eventRow
	Kind   string
	Kinds  []string
	Older  string // link to earlier events, "" when there are none
	Newest bool   // it begins with the newest event
}

// Up returns the relative path from the page to the pages below the set.
func (p eventsPage) Up() string { return "" }

func (c *Console) events(w http.ResponseWriter, r *http.Request) error {
	set, err := c.bridge.Log.Set(r.Context(), r.PathValue("set"))
	if err != nil {
		return err
	}
	before := before(r)
	p := eventsPage{Set: set, Kind: argument(r.URL.Query(), "kind"), Kinds: []string{"created", "updated", "deleted", "rejected"}, Newest: before == 0}
	until := time.Now().Add(api.SearchTime)
	last, err := c.bridge.Log.Back(r.Context(), set.Name, before, func(e *event.Event) bool {
		if p.Kind == "" || e.Kind.String() == p.Kind {
			p.Events = append(p.Events, eventRowOf(e))
		}
		return len(p.Events) < perPage && time.Now().Before(until)
	})
	if err != nil {
		return err
	}
	if last > 1 {
		p.Older = query(r, "before", strconv.FormatInt(int64(last), 10))
	}
	c.write(w, r, http.StatusOK, "events", &page{Title: "Events of " + cmp.Or(set.Title, set.Name), Section: "sets", Body: p})
	return nil
}

// recordsPage is a page of the records of a set, or of those that a search finds.
type recordsPage struct {
	event.Set
	api.Found[eventRow]
	Text   string
	Older  string // link to earlier events
	Newest bool
}

// records shows the records of a set with the newest events, or those that contain a text.
func (c *Console) records(w http.ResponseWriter, r *http.Request) error {
	set, err := c.bridge.Log.Set(r.Context(), r.PathValue("set"))
	if err != nil {
		return err
	}
	before := before(r)
	p := recordsPage{Set: set, Text: argument(r.URL.Query(), "q"), Newest: before == 0}
	if p.Found, err = api.Search(r.Context(), c.bridge, set.Name, p.Text, before, perPage, eventRowOf); err != nil {
		return err
	}
	if p.Next > 0 {
		p.Older = query(r, "before", strconv.FormatInt(int64(p.Next), 10))
	}
	c.write(w, r, http.StatusOK, "records", &page{Title: "Records of " + cmp.Or(set.Title, set.Name), Section: "sets", Body: p})
	return nil
}

// recordPage is the data of the page of a record.
type recordPage struct {
	Set     event.Set
	Event   *event.Event // the last one
	Key     string
	URL     string // of the record, "" when it is published elsewhere
	Sources []presence
	Events  []eventRow
	Older   string
	Newest  bool
	// Text is the preferred representation, as far as it is shown; with Binary it has the
	// bytes as numbers. Missing is the reason why nothing is shown.
	Text, Missing string
	Binary, Cut   bool
	Length        int64
}

// presence is what a Source of the set has of a record.
type presence struct {
	sourceRow
	Has string
}

// eventsShown is the number of events of a record on a page.
const eventsShown = 50

func (c *Console) record(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	set, err := c.bridge.Log.Set(ctx, r.PathValue("set"))
	if err != nil {
		return err
	}
	key, from := r.PathValue("key"), before(r)
	ev, err := c.bridge.Log.Record(ctx, set.Name, key)
	if err != nil {
		return err
	}
	p := recordPage{Set: set, Event: ev, Key: event.Key(ev.Record), Newest: from == 0}
	if set.Content != event.Reference {
		p.URL = c.opt.Base + "/sets/" + set.Name + "/records/" + p.Key
	}
	var last event.Seq
	if err := c.bridge.Log.EventsOf(ctx, set.Name, key, from, func(e *event.Event) bool {
		if len(p.Events) == eventsShown {
			p.Older = query(r, "before", strconv.FormatInt(int64(last), 10))
			return false
		}
		p.Events = append(p.Events, eventRowOf(e))
		last = e.Seq
		return true
	}); err != nil {
		return err
	}
	if p.Sources, err = c.presences(r, set.Name, ev.Record); err != nil {
		return err
	}
	c.addContent(r, &p)
	c.write(w, r, http.StatusOK, "record", &page{Title: cmp.Or(ev.Title, ev.Record), Section: "sets", Body: p})
	return nil
}

// presences returns which Sources of a set have a record.
func (c *Console) presences(r *http.Request, set, record string) (all []presence, err error) {
	s, err := c.status(r.Context())
	if err != nil {
		return nil, err
	}
	for src := range s.Sources() {
		if src.Set != set {
			continue
		}
		has, err := c.bridge.Log.Presence(r.Context(), src.ID, record)
		if err != nil {
			return nil, err
		}
		if has != event.NeverPresent {
			word := "has it"
			if has == event.Withdrawn {
				word = "had it, and has taken it back"
			}
			all = append(all, presence{rowOf(src), word})
		}
	}
	return all, nil
}

// addContent reads the beginning of the stored content of a record.
func (c *Console) addContent(r *http.Request, p *recordPage) {
	rep, ok := p.Event.Pref()
	switch {
	case !ok:
		p.Missing = "It has no representation now."
		return
	case p.Set.Content != event.Mirror || c.bridge.Contents == nil:
		p.Missing = "This set keeps no contents: it leads to the original."
		return
	}
	text, length, err := c.content(r, rep.SHA256())
	if err != nil {
		p.Missing = "The content cannot be read: " + err.Error() + ". Run bridge verify."
		return
	}
	p.Length, p.Cut = length, length > int64(len(text))
	p.Text, p.Binary = shown(text)
}

// content reads the first inputShown bytes of a content.
func (c *Console) content(r *http.Request, sha256 string) (text []byte, length int64, err error) {
	sum, err := content.ParseSum(sha256)
	if err != nil {
		return nil, 0, err
	}
	blob, err := c.bridge.Contents.Open(r.Context(), sum)
	if err != nil {
		return nil, 0, err
	}
	text, err = io.ReadAll(io.LimitReader(blob, inputShown))
	return text, blob.Size(), errors.Join(err, blob.Close())
}

// shown returns bytes as a text whose characters are all visible, or as numbers if they are
// not text.
func shown(b []byte) (text string, binary bool) {
	cut := b
	for range utf8.UTFMax { // the end may be a part of a character
		if utf8.Valid(cut) || len(cut) == 0 {
			break
		}
		cut = cut[:len(cut)-1]
	}
	if len(b)-len(cut) < utf8.UTFMax && utf8.Valid(cut) && !strings.ContainsRune(string(cut), 0) {
		return visible(string(cut)), false
	}
	return hex.Dump(b[:min(len(b), 1024)]), true
}

// before and after return the position at which a page begins; 0 means the beginning.
func before(r *http.Request) event.Seq {
	n, err := strconv.ParseInt(r.URL.Query().Get("before"), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return event.Seq(n)
}

func after(r *http.Request) int64 {
	n, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	if err != nil || n < 0 || n == math.MaxInt64 {
		return 0
	}
	return n
}

// number64 parses the number in a path.
func number64(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, errNotFound
	}
	return n, nil
}
