package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

// outboxHouse is a set with a target, on a real log and a real content store.
type outboxHouse struct {
	t        testing.TB
	log      *store.Store
	contents *content.Store
	store    *breakable
	source   event.SourceID
	target   event.SourceID
	cursor   int64
	library  *shelf
	// importPending is called when an accepted record can be imported; nil is nobody.
	importPending func()
}

const bookFormat = "https://schemas.example/book.xsd"

func newOutboxHouse(t testing.TB) *outboxHouse {
	t.Helper()
	thisDecade()
	ctx := context.Background()
	folder := t.TempDir()
	h := &outboxHouse{t: t, library: &shelf{formats: []string{"https://schemas.example/other.xsd", bookFormat}}}
	begin := time.Now() // both of the log's clocks are the bubble's
	l, err := eventlog.Open(ctx, folder, eventlog.Options{Clock: func() (time.Time, time.Duration) { return time.Now(), time.Since(begin) }})
	h.do(err)
	h.log = store.New(l)
	h.contents, err = content.Open(ctx, filepath.Join(folder, "content.db"), content.Options{})
	h.do(err)
	t.Cleanup(func() { h.do(errors.Join(h.contents.Close(), h.log.Close())) })
	h.store = &breakable{Store: h.log}
	h.do(h.log.EnsureSet(ctx, eventlog.SetConfig{Name: "books", Content: event.Mirror}))
	h.source, err = h.log.EnsureSource(ctx, "books", "atompmh", "https://books.example/feed", 0)
	h.do(err)
	h.target, err = h.log.EnsureSource(ctx, "books", eventlog.Target, "https://library.example/sip", 1)
	h.do(err)
	return h
}

func (h *outboxHouse) do(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// book is the record with a text, in XML.
func book(text string) string {
	return `<book xmlns="urn:books" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="urn:books ` + bookFormat + `">` + text + `</book>`
}

// found is a record as a harvest finds it.
func found(id, mediaType, text string) event.Observation {
	return event.Observation{Record: id, Title: "Book " + id, Fetched: true, Representations: []event.Representation{
		{Href: "https://books.example/" + id, Type: mediaType, Length: int64(len(text)), Hash: event.HashOf(sha256.Sum256([]byte(text)))}}}
}

// harvest logs what a Source has said.
func (h *outboxHouse) harvest(said ...event.Observation) {
	h.t.Helper()
	b := &event.Batch{Source: h.source, Cursor: h.cursor, Start: true, Documents: []event.Document{{URL: "https://books.example/feed"}}, Items: make([]event.Item, len(said))}
	for i, o := range said {
		b.Items[i].Observation = o
	}
	out, err := h.log.Append(context.Background(), b)
	h.do(err)
	h.cursor = out.Cursor
}

// keep stores contents and logs their records; each is given as its identifier
// and its text.
func (h *outboxHouse) keep(records ...[2]string) {
	h.t.Helper()
	var contents [][]byte
	var said []event.Observation
	for _, r := range records {
		contents = append(contents, []byte(book(r[1])))
		said = append(said, found(r[0], "application/xml", book(r[1])))
	}
	h.do(deskContents{h.contents}.Put(context.Background(), contents...))
	h.harvest(said...)
}

// outbox makes a Submitter of the target, that change completes.
func (h *outboxHouse) outbox(change func(*Submitter)) *Submitter {
	o := &Submitter{
		Set: "books", Source: h.target, URL: "https://library.example/sip", Store: h.store, Events: h.log, Contents: deskContents{h.contents}, Server: h.library,
		Recipient: func(token string) string { return "http://bridge.example/sip/books/" + token },
	}
	if change != nil {
		change(o)
	}
	return o
}

// start runs a Submitter until stop is called, which waits for its end.
func (h *outboxHouse) start(o *Submitter) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	return func() {
		h.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("Run: %v", err)
		}
	}
}

// notify takes in a notification of a submission, as the notification recipient of the
// set does.
func (h *outboxHouse) notify(token string, d *sip.Disposition) error {
	ctx := context.Background()
	for {
		s, err := h.store.SubmissionByToken(ctx, token)
		if err != nil {
			return err
		}
		n := submission.Incoming("books", token, d)
		n.Submission, n.Verdict = s.ID, submission.NotificationMatched
		b := &submission.Batch{Source: s.Source, Incoming: []submission.IncomingNotification{*n}}
		next, effects := submission.Apply(*s, submission.Disposition{State: submission.StateAfter(d), Assigned: d.AssignedIdentifier, Reason: d.Reason}, time.Now())
		if effects.Changed {
			u := submission.Update{Submission: next, Rejected: effects.Rejected, Incoming: n}
			if effects.Resolution == submission.Contradicts {
				u.Incoming = submission.Contradiction(s, d, n)
			}
			b.Incoming, b.Updates = nil, []submission.Update{u}
		}
		out, err := h.store.Write(ctx, b)
		switch {
		case err != nil:
			return err
		case len(out.Stale) > 0:
			continue
		case effects.Import && h.importPending != nil:
			h.importPending()
		}
		return nil
	}
}

// rows returns the target's submissions, in the order in which they were made.
func (h *outboxHouse) rows() (rows []submission.Submission) {
	h.t.Helper()
	query := submission.Query{Source: h.target}
	for {
		page, err := h.log.Submissions(context.Background(), query)
		h.do(err)
		if len(page) == 0 {
			return rows
		}
		rows = append(rows, page...)
		query.After = page[len(page)-1].ID
	}
}

// states returns the submissions as "record state: reason".
func (h *outboxHouse) states() (out []string) {
	h.t.Helper()
	for _, s := range h.rows() {
		line := s.Record + " " + s.State.String()
		if s.State == submission.StateAccepted {
			line += " as " + s.Assigned
		}
		if s.Reason != "" {
			line += ": " + s.Reason
		}
		if s.Late {
			line += ", late"
		}
		if s.Conflicts > 0 {
			line += fmt.Sprintf(", %d conflicts", s.Conflicts)
		}
		out = append(out, line)
	}
	return out
}

func (h *outboxHouse) wantStates(want ...string) {
	h.t.Helper()
	if got := h.states(); !slices.Equal(got, want) {
		h.t.Errorf("submissions:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// rejections returns the rejected events of the set.
func (h *outboxHouse) rejections() (out []string) {
	h.t.Helper()
	for e, err := range h.log.Events(context.Background(), "books", event.Range{Upto: 1 << 40}) {
		h.do(err)
		if e.Kind == event.Rejected {
			out = append(out, e.Record+"/"+e.Origin.SourceIdentifier+": "+e.Origin.Reason)
		}
	}
	return out
}

// tokenOf is the token of the recipient that a request names.
func tokenOf(r *sip.Request) string {
	return strings.TrimPrefix(r.Recipient, "http://bridge.example/sip/books/")
}

// inBubble runs a test of an outbox with its own time.
func inBubble(t *testing.T, test func(t *testing.T, h *outboxHouse)) {
	synctest.Test(t, func(t *testing.T) { test(t, newOutboxHouse(t)) })
}

// What happens to the records of a set is submitted; what cannot be is listed.
func TestOutboxSubmitsChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, h *outboxHouse) {
		h.keep([2]string{"urn:a", "first"}, [2]string{"urn:b", "second"})
		stop := h.start(h.outbox(func(o *Submitter) {
			o.Submitter, o.Sequence, o.Workers = &sip.Submitter{Name: "Books", EmailAddress: "books@books.example"}, "Novels", 1
		}))
		defer stop()
		synctest.Wait()
		h.library.wantRequests(t, "urn:a first", "urn:b second")
		h.wantStates("urn:a accepted as shelf:urn:a", "urn:b accepted as shelf:urn:b")

		id, sequence := "urn:a", "Novels"
		first, s := h.library.got[0], h.rows()[0]
		want := sip.Source{Submitter: &sip.Submitter{Name: "Books", EmailAddress: "books@books.example"}, Sequence: &sequence, Identifier: &id}
		if got := sip.AppendSource(nil, first.Source); string(got) != string(sip.AppendSource(nil, &want)) || string(s.SourceXML) != string(got) {
			t.Errorf("sent as %s, kept as %s", got, s.SourceXML)
		}
		if string(first.Record.XML) != book("first") || s.Token == "" || tokenOf(&first) != s.Token || s.Token == h.rows()[1].Token {
			t.Errorf("sent: %s to %s, token %s", first.Record.XML, first.Recipient, s.Token)
		}
		if s.Tries != 1 || s.Due != 0 || s.Deadline != 0 || s.Seq != 1 || s.Title != "Book urn:a" || s.Type != "application/xml" || s.Length != int64(len(book("first"))) {
			t.Errorf("kept: %+v", s)
		}

		h.keep([2]string{"urn:a", "changed"})
		synctest.Wait()
		h.harvest(event.Observation{Record: "urn:b", Deleted: true})
		synctest.Wait()
		h.library.wantRequests(t, "urn:a first", "urn:b second", "urn:a changed")
		h.wantStates("urn:a accepted as shelf:urn:a", "urn:b accepted as shelf:urn:b", "urn:a accepted as shelf:urn:a", "urn:b unsent: a deletion: SIP has none")
	})
}

// What happened while nobody was running is taken in by the next run, once, and
// only as it is then.
func TestOutboxGoesOnWhereItWas(t *testing.T) {
	inBubble(t, func(t *testing.T, h *outboxHouse) {
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "one"})
		stop := h.start(h.outbox(nil))
		synctest.Wait()
		stop()
		h.keep([2]string{"urn:a", "two"})
		h.keep([2]string{"urn:a", "three"}, [2]string{"urn:c", "one"})
		h.harvest(event.Observation{Record: "urn:c", Deleted: true}, event.Observation{Record: "urn:b", Deleted: true})
		h.keep([2]string{"urn:b", "back"})
		stop = h.start(h.outbox(func(o *Submitter) { o.Workers = 1 }))
		synctest.Wait()
		stop()
		h.wantStates("urn:a accepted as shelf:urn:a", "urn:b accepted as shelf:urn:b", "urn:a accepted as shelf:urn:a",
			"urn:c unsent: a deletion: SIP has none", "urn:b accepted as shelf:urn:b")
		if got := h.library.requests()[2:]; !slices.Equal(got, []string{"urn:a three", "urn:b back"}) {
			t.Errorf("the second run sent %q", got)
		}
		stop = h.start(h.outbox(nil))
		synctest.Wait()
		stop()
		if n := len(h.library.requests()); n != 4 {
			t.Errorf("a third run sent %d more", n-4)
		}
	})
}

// Only XML of a format that the server lists is sent; of what is not, the reason
// says what to do.
func TestOutboxSendsListedFormats(t *testing.T) {
	plain := `<book xmlns="urn:books">plain</book>`
	inBubble(t, func(t *testing.T, h *outboxHouse) {
		texts := map[string]string{
			"urn:1-locates":    book("it says so itself"),
			"urn:2-configured": `<novel>configured</novel>`,
			"urn:3-unknown":    plain,
			"urn:4-unlisted":   strings.ReplaceAll(book("x"), bookFormat, "https://schemas.example/old.xsd"),
			"urn:5-broken":     `<book>`,
			"urn:6-doctype":    `<!DOCTYPE book><book/>`,
			"urn:7-overruled":  `<tale xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="https://schemas.example/old.xsd"/>`,
		}
		var said []event.Observation
		for _, id := range slices.Sorted(maps.Keys(texts)) {
			h.do(deskContents{h.contents}.Put(context.Background(), []byte(texts[id])))
			said = append(said, found(id, "application/xml", texts[id]))
		}
		h.harvest(said...)
		stop := h.start(h.outbox(func(o *Submitter) {
			o.Formats = map[xml.Name]string{{Local: "novel"}: "https://schemas.example/other.xsd", {Local: "tale"}: bookFormat}
		}))
		defer stop()
		synctest.Wait()
		const accepts = "the server accepts https://schemas.example/other.xsd, " + bookFormat
		h.wantStates(
			"urn:1-locates accepted as shelf:urn:1-locates",
			"urn:2-configured accepted as shelf:urn:2-configured",
			"urn:3-unknown unsent: its format is not known: the record names no schema for its root {urn:books}book; "+accepts+"; name its schema under formats of the target",
			"urn:4-unlisted unsent: the server does not accept the format https://schemas.example/old.xsd; it accepts https://schemas.example/other.xsd, "+bookFormat,
			"urn:5-broken unsent: the record cannot be read: "+restOf(h.rows()[4].Reason),
			"urn:6-doctype unsent: the record cannot be read: "+restOf(h.rows()[5].Reason),
			"urn:7-overruled accepted as shelf:urn:7-overruled",
		)
		for i, word := range map[int]string{4: "cut off inside <book>", 5: "DOCTYPE is refused"} {
			if s := h.rows()[i]; !strings.Contains(s.Reason, word) {
				t.Errorf("%s: the reason %q does not say %q", s.Record, s.Reason, word)
			}
		}
	})
}

func restOf(text string) string {
	return strings.TrimPrefix(text, "the record cannot be read: ")
}

// The preferred representation is sent if it is XML, else the first that is.
func TestToSubmit(t *testing.T) {
	sum := sha256.Sum256([]byte("kept"))
	kept, other := event.HashOf(sum), event.HashOf(sha256.Sum256(nil))
	rep := func(mediaType, hash string) event.Representation {
		return event.Representation{Type: mediaType, Hash: hash, Length: 4}
	}
	for _, c := range []struct {
		name      string
		preferred int
		reps      []event.Representation
		lacking   string // a part of the reason
		mediaType string
	}{
		{"the only one", 0, []event.Representation{rep("text/xml; charset=utf-8", kept)}, "", "text/xml; charset=utf-8"},
		{"the preferred", 1, []event.Representation{rep("text/xml", other), rep("application/mods+xml", kept)}, "", "application/mods+xml"},
		{"the first that is XML", 0, []event.Representation{rep("text/html", other), rep("APPLICATION/XML", kept), rep("text/xml", other)}, "", "APPLICATION/XML"},
		{"none is XML", 0, []event.Representation{rep("application/json", kept), rep("", kept), rep("text/xmlish", kept)}, "no representation of it is XML", ""},
		{"none at all", 0, nil, "no representation of it is XML", ""},
		{"not kept", 0, []event.Representation{rep("text/xml", "")}, `content = "mirror"`, ""},
		{"not kept, with another hash", 0, []event.Representation{rep("text/xml", "md5:1e0ca5b1252f1f6b1e0ac91be7e7219e")}, `content = "mirror"`, ""},
	} {
		got := toSubmit(&event.Event{Preferred: c.preferred, Representations: c.reps})
		if !strings.Contains(got.lacking, c.lacking) || (c.lacking == "") != (got.lacking == "") || got.mediaType != c.mediaType {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.lacking == "" && (got.sum != sum || got.length != 4) {
			t.Errorf("%s: content %x of %d bytes", c.name, got.sum, got.length)
		}
	}
}

// A later change replaces one that waits, in one transaction; one under way is
// answered first, and never two of one record are under way.
func TestOutboxReplacesWhatWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, h *outboxHouse) {
		hold := make(chan struct{})
		h.library.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if n == 1 {
				<-hold
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "one"})
		stop := h.start(h.outbox(nil))
		defer stop()
		synctest.Wait()
		for _, text := range []string{"two", "three", "four"} {
			h.keep([2]string{"urn:a", text})
			synctest.Wait()
		}
		h.wantStates("urn:a replaced", "urn:a replaced", "urn:a replaced", "urn:a waiting")
		close(hold)
		synctest.Wait()
		h.library.wantRequests(t, "urn:a one", "urn:a four")
		h.wantStates("urn:a accepted as shelf:urn:a", "urn:a replaced", "urn:a replaced", "urn:a accepted as shelf:urn:a")
		if h.library.sameTwice {
			t.Error("two requests of one record were under way at a time")
		}
	})
}

// A deletion takes what waits out of the outbox too.
func TestOutboxDropsWhatIsDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, h *outboxHouse) {
		h.library.broken = func() error { return &sip.StatusError{Status: 503} }
		h.keep([2]string{"urn:a", "one"})
		stop := h.start(h.outbox(nil))
		defer stop()
		synctest.Wait()
		h.harvest(event.Observation{Record: "urn:a", Deleted: true})
		synctest.Wait()
		h.wantStates("urn:a replaced", "urn:a unsent: a deletion: SIP has none")
	})
}

// Accepted records go on into another set under their assigned identifiers, and
// know where they come from.
func TestOutboxInto(t *testing.T) {
	inBubble(t, func(t *testing.T, h *outboxHouse) {
		ctx := context.Background()
		h.do(h.log.EnsureSet(ctx, eventlog.SetConfig{Name: "accepted", Content: event.Mirror}))
		into, err := h.log.EnsureSource(ctx, "accepted", "sip", "/sip/accepted", 0)
		h.do(err)
		h.library.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if *r.Source.Identifier == "urn:b" {
				return &sip.Disposition{Outcome: sip.Rejected, Reason: "no"}, nil
			}
			return keep(), nil
		}
		inherited := found("urn:c", "application/xml", book("three"))
		inherited.Via = event.Link{Href: "https://origin.example/c", Length: event.NoLength}
		h.do(deskContents{h.contents}.Put(ctx, []byte(book("three"))))
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
		h.harvest(inherited)
		target := SetImporter{Store: h.store, Events: h.log, Source: into, URL: "/sip/accepted"}
		stop := h.start(h.outbox(func(o *Submitter) { o.Importer, o.Workers = &target, 1 }))
		defer stop()
		synctest.Wait()
		got := map[string]*event.Event{}
		for e, err := range h.log.Events(ctx, "accepted", event.Range{Upto: 1 << 40}) {
			h.do(err)
			own := *e
			own.Representations = slices.Clone(e.Representations)
			got[e.Record] = &own
		}
		if len(got) != 2 {
			t.Fatalf("%d events, want 2", len(got))
		}
		for id, want := range map[string][3]string{"shelf:urn:a": {"urn:a", "https://books.example/urn:a", "one"}, "shelf:urn:c": {"urn:c", "https://origin.example/c", "three"}} {
			e := got[id]
			r := e.Representations[0]
			if e.Kind != event.Created || e.Origin.SourceIdentifier != want[0] || e.Via.Href != want[1] || r.Href != want[1] || r.Hash != event.HashOf(sha256.Sum256([]byte(book(want[2])))) ||
				r.Length != int64(len(book(want[2]))) || r.Type != "application/xml" || e.Title != "Book "+want[0] || e.Origin.Protocol != "sip" {
				t.Errorf("%s: %+v", id, e)
			}
		}
		// The same again, as after a crash.
		rows := h.rows()
		h.do(target.Import(ctx, &rows[0], &rows[2], &rows[0]))
		h.do(target.Import(ctx))
		set, err := h.log.Set(ctx, "accepted")
		h.do(err)
		if set.Events != 2 {
			t.Errorf("what was taken twice made %d events, want 2", set.Events)
		}
		report := func(f eventlog.Finding) { t.Errorf("verify: %v", f) }
		h.do(errors.Join(h.log.Log.Verify(ctx, report), h.log.Verify(ctx, report)))
	})
}

// D39: a target whose server does not know our get-properties gets everything, when
// it is told not to ask.
func TestOutboxSkipsProperties(t *testing.T) {
	inBubble(t, func(t *testing.T, h *outboxHouse) {
		h.library.broken = func() error { return &sip.Fault{Code: sip.Client, Text: "what is get-properties?"} }
		h.library.formats = nil
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
		stop := h.start(h.outbox(func(o *Submitter) { o.SkipProperties = true }))
		defer stop()
		synctest.Wait()
		h.wantStates("urn:a accepted as shelf:urn:a", "urn:b accepted as shelf:urn:b")
		if h.library.asked != 0 {
			t.Errorf("asked %d times", h.library.asked)
		}
	})
}
