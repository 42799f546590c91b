package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// What happens to the records of a set is submitted; what cannot be is listed.
func TestSubmitterSubmitsChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.keep([2]string{"urn:a", "first"}, [2]string{"urn:b", "second"})
		stop := h.start(h.submitter(func(o *Submitter) {
			o.Submitter, o.Sequence, o.Workers = &sip.Submitter{Name: "Books", EmailAddress: "books@books.example"}, "Novels", 1
		}))
		defer stop()
		synctest.Wait()
		h.server.wantRequests(t, "urn:a first", "urn:b second")
		h.wantStates("urn:a accepted as library:urn:a", "urn:b accepted as library:urn:b")

		id, sequence := "urn:a", "Novels"
		first, s := h.server.got[0], h.rows()[0]
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
		h.server.wantRequests(t, "urn:a first", "urn:b second", "urn:a changed")
		h.wantStates("urn:a accepted as library:urn:a", "urn:b accepted as library:urn:b", "urn:a accepted as library:urn:a", "urn:b unsent: a deletion: SIP has none")
	})
}

// What happened while nobody was running is taken in by the next run, once, and
// only as it is then.
func TestSubmitterGoesOnWhereItWas(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "one"})
		stop := h.start(h.submitter(nil))
		synctest.Wait()
		stop()
		h.keep([2]string{"urn:a", "two"})
		h.keep([2]string{"urn:a", "three"}, [2]string{"urn:c", "one"})
		h.harvest(event.Observation{Record: "urn:c", Deleted: true}, event.Observation{Record: "urn:b", Deleted: true})
		h.keep([2]string{"urn:b", "back"})
		stop = h.start(h.submitter(func(o *Submitter) { o.Workers = 1 }))
		synctest.Wait()
		stop()
		h.wantStates("urn:a accepted as library:urn:a", "urn:b accepted as library:urn:b", "urn:a accepted as library:urn:a",
			"urn:c unsent: a deletion: SIP has none", "urn:b accepted as library:urn:b")
		if got := h.server.requests()[2:]; !slices.Equal(got, []string{"urn:a three", "urn:b back"}) {
			t.Errorf("the second run sent %q", got)
		}
		stop = h.start(h.submitter(nil))
		synctest.Wait()
		stop()
		if n := len(h.server.requests()); n != 4 {
			t.Errorf("a third run sent %d more", n-4)
		}
	})
}

// Only XML of a format that the server lists is sent; of what is not, the reason
// says what to do.
func TestSubmitterSendsListedFormats(t *testing.T) {
	plain := `<book xmlns="urn:books">plain</book>`
	inBubble(t, func(t *testing.T, h *harness) {
		texts := map[string]string{
			"urn:1-locates":    book("it says so itself"),
			"urn:2-configured": `<novel>configured</novel>`,
			"urn:3-unknown":    plain,
			"urn:4-unlisted":   strings.ReplaceAll(book("x"), bookFormat, "https://schemas.example/old.xsd"),
			"urn:5-broken":     `<book>`,
			"urn:6-doctype":    `<!DOCTYPE book><book/>`,
			"urn:8-\x01":       book("its identifier is none in XML"),
			"urn:7-overruled":  `<tale xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="https://schemas.example/old.xsd"/>`,
		}
		var said []event.Observation
		for _, id := range slices.Sorted(maps.Keys(texts)) {
			h.do(keep(context.Background(), h.contents, []byte(texts[id])))
			said = append(said, found(id, "application/xml", texts[id]))
		}
		h.harvest(said...)
		stop := h.start(h.submitter(func(o *Submitter) {
			o.Formats = map[xml.Name]string{{Local: "novel"}: "https://schemas.example/other.xsd", {Local: "tale"}: bookFormat}
		}))
		defer stop()
		synctest.Wait()
		const accepts = "the server accepts https://schemas.example/other.xsd, " + bookFormat
		h.wantStates(
			"urn:1-locates accepted as library:urn:1-locates",
			"urn:2-configured accepted as library:urn:2-configured",
			"urn:3-unknown unsent: its format is not known: the record names no schema for its root {urn:books}book; "+accepts+"; name its schema under formats of the target",
			"urn:4-unlisted unsent: the server does not accept the format https://schemas.example/old.xsd; it accepts https://schemas.example/other.xsd, "+bookFormat,
			"urn:5-broken unsent: the record cannot be read: "+restOf(h.rows()[4].Reason),
			"urn:6-doctype unsent: the record cannot be read: "+restOf(h.rows()[5].Reason),
			"urn:7-overruled accepted as library:urn:7-overruled",
			"urn:8-\x01 unsent: its source-identifier has characters that XML does not hold: \"urn:8-\\x01\"",
		)
		for i, word := range map[int]string{4: "cut off inside <book>", 5: "DOCTYPE is refused"} {
			if s := h.rows()[i]; !strings.Contains(s.Reason, word) {
				t.Errorf("%s: the reason %q does not say %q", s.Record, s.Reason, word)
			}
		}
	})
}

// The reason stays short, however long the names of formats are that a server lists or a
// record states: each record that is not sent has one, for ever.
func TestReasonOfUnlistedIsShort(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		long := "https://schemas.example/" + strings.Repeat("x", 1<<20)
		h.server.formats = []string{long, long, long, long, long}
		text := strings.ReplaceAll(book("x"), bookFormat, long+"y")
		h.do(keep(context.Background(), h.contents, []byte(text)))
		h.harvest(found("urn:1", "application/xml", text))
		stop := h.start(h.submitter(nil))
		defer stop()
		synctest.Wait()
		if s := h.rows()[0]; s.State != submission.StateUnsent || len(s.Reason) > 4<<10 || !strings.Contains(s.Reason, "https://schemas.example/xxx") {
			t.Errorf("%s with a reason of %d bytes: %.200s", s.State, len(s.Reason), s.Reason)
		}
	})
}

func restOf(text string) string {
	return strings.TrimPrefix(text, "the record cannot be read: ")
}

// The preferred representation is sent if it is XML, else the first that is.
func TestSubmittedContent(t *testing.T) {
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
		o := &Submitter{Now: time.Now}
		got := o.row(&event.Event{Seq: 1, Preferred: c.preferred, Representations: c.reps})
		if !strings.Contains(got.Reason, c.lacking) || (c.lacking == "") != (got.State == submission.StateWaiting) || got.Type != c.mediaType {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.lacking == "" && (got.Content != sum || got.Length != 4) {
			t.Errorf("%s: content %x of %d bytes", c.name, got.Content, got.Length)
		}
	}
}

// A later change replaces one that waits, in one transaction; one under way is
// answered first, and never two of one record are under way.
func TestSubmitterReplacesWhatWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		hold := make(chan struct{})
		h.server.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if n == 1 {
				<-hold
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "one"})
		h.run(nil)
		for _, text := range []string{"two", "three", "four"} {
			h.keep([2]string{"urn:a", text})
			synctest.Wait()
		}
		h.wantStates("urn:a replaced", "urn:a replaced", "urn:a replaced", "urn:a waiting")
		close(hold)
		synctest.Wait()
		h.server.wantRequests(t, "urn:a one", "urn:a four")
		h.wantStates("urn:a accepted as library:urn:a", "urn:a replaced", "urn:a replaced", "urn:a accepted as library:urn:a")
		if h.server.sameTwice {
			t.Error("two requests of one record were under way at a time")
		}
	})
}

// A deletion takes what waits out of the outbox too.
func TestSubmitterDropsWhatIsDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.broken = func() error { return &sip.StatusError{Status: 503} }
		h.keep([2]string{"urn:a", "one"})
		h.run(nil)
		h.harvest(event.Observation{Record: "urn:a", Deleted: true})
		synctest.Wait()
		h.wantStates("urn:a replaced", "urn:a unsent: a deletion: SIP has none")
	})
}

// Accepted records go on into another set under their assigned identifiers, and
// know where they come from.
func TestImport(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		ctx := context.Background()
		h.server.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if *r.Source.Identifier == "urn:b" {
				return &sip.Disposition{Outcome: sip.Rejected, Reason: "no"}, nil
			}
			return keep(), nil
		}
		inherited := found("urn:c", "application/xml", book("three"))
		inherited.Via = event.Link{Href: "https://origin.example/c", Length: event.NoLength}
		h.do(keep(ctx, h.contents, []byte(book("three"))))
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
		h.harvest(inherited)
		h.run(func(o *Submitter) { o.ImportTo, o.ImportURL, o.Workers = h.importTo, "/sip/accepted", 1 })
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
		for id, want := range map[string][3]string{"library:urn:a": {"urn:a", "https://books.example/urn:a", "one"}, "library:urn:c": {"urn:c", "https://origin.example/c", "three"}} {
			e := got[id]
			r := e.Representations[0]
			if e.Kind != event.Created || e.Origin.SourceIdentifier != want[0] || e.Via.Href != want[1] || r.Href != want[1] || r.Hash != event.HashOf(sha256.Sum256([]byte(book(want[2])))) ||
				r.Length != int64(len(book(want[2]))) || r.Type != "application/xml" || e.Title != "Book "+want[0] || e.Origin.Protocol != "sip" {
				t.Errorf("%s: %+v", id, e)
			}
		}
		h.verified()
	})
}

// D39: a target whose server does not know our get-properties gets everything, when
// it is told not to ask.
func TestSubmitterSkipsProperties(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.broken = func() error { return &sip.Fault{Code: sip.Client, Text: "what is get-properties?"} }
		h.server.formats = nil
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
		h.run(func(o *Submitter) { o.SkipProperties = true })
		h.wantStates("urn:a accepted as library:urn:a", "urn:b accepted as library:urn:b")
		if h.server.asked != 0 {
			t.Errorf("asked %d times", h.server.asked)
		}
	})
}

// serverBackend serves a ingestServer to others.
type serverBackend struct {
	*ingestServer
	ingested atomic.Int64
	all      chan struct{} // closed when the last of want was ingested
	want     int64
}

func (s *serverBackend) Admit(context.Context, sip.Caller) error { return nil }

func (s *serverBackend) GetProperties(ctx context.Context, _ sip.Caller) (*sip.Properties, error) {
	return s.ingestServer.GetProperties(ctx)
}

func (s *serverBackend) Ingest(ctx context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	d, err := s.ingestServer.Ingest(ctx, r)
	if s.ingested.Add(1) == s.want {
		close(s.all)
	}
	return d, err
}

func (s *serverBackend) Notify(context.Context, sip.Caller, *sip.Disposition) error {
	return fmt.Errorf("nobody notifies an ingest server")
}

// serve puts the ingest server of a harness on loopback. all is closed when it has got so
// many requests.
func (h *harness) serve(t *testing.T, want int) (client *sip.HTTPClient, all <-chan struct{}) {
	backend := &serverBackend{ingestServer: h.server, want: int64(want), all: make(chan struct{})}
	server := httptest.NewServer(&sip.Handler{Backend: backend, Offers: sip.Operations{Ingest: true}})
	t.Cleanup(server.Close)
	own := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(own.CloseIdleConnections)
	return &sip.HTTPClient{URL: server.URL, HTTP: &http.Client{Transport: own}}, backend.all
}

// Over real connections, with several workers, each record arrives once.
func TestSubmitterOverHTTP(t *testing.T) {
	const n = 1000
	h := newHarness(t, nil)
	var records [][2]string
	for i := range n {
		records = append(records, [2]string{fmt.Sprintf("urn:%07d", i), fmt.Sprintf("%s%d", strings.Repeat("All the world's a stage. ", 70), i)})
	}
	h.keep(records...)
	client, all := h.serve(t, n)
	stop := h.start(h.submitter(func(o *Submitter) { o.Server = client }))
	<-all
	stop()
	sent := map[string]int{}
	for i := range h.server.got {
		sent[*h.server.got[i].Source.Identifier]++
	}
	for _, s := range h.rows() {
		if s.State != submission.StateAccepted || sent[s.Record] != 1 {
			t.Fatalf("%s is %v (%s) after %d requests", s.Record, s.State, s.Reason, sent[s.Record])
		}
	}
	if len(sent) != n || len(h.server.got) != n || h.server.sameTwice {
		t.Errorf("%d records were sent in %d requests, want %d", len(sent), len(h.server.got), n)
	}
}

// Of what waits for a target that is not configured any more, that ends which may
// have arrived, at its deadline; the rest is sent when the target is back. A log
// that fails is waited for.
func TestExpiry(t *testing.T) {
	down, lost := callFailures(t)
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			switch *r.Source.Identifier {
			case "urn:a":
				return nil, lost
			case "urn:b":
				return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
			}
			return nil, down
		}
		h.keep([2]string{"urn:a", "1"})
		h.keep([2]string{"urn:b", "1"})
		h.keep([2]string{"urn:c", "1"})
		stop := h.start(h.submitter(func(o *Submitter) { o.Workers = 1 }))
		synctest.Wait()
		stop()
		states := func() (out [3]submission.State) {
			for i, s := range h.rows() {
				out[i] = s.State
			}
			return out
		}
		f := &Expiry{Store: h.store, Targets: []event.SourceID{h.target}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); f.Run(ctx) }()
		time.Sleep(DefaultDeadline - time.Hour)
		synctest.Wait()
		if got, want := states(), [3]submission.State{submission.StateWaiting, submission.StateProvisional, submission.StateWaiting}; got != want {
			t.Errorf("before the deadline: %v, want %v", got, want)
		}
		h.faults.Before.Store(3)
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got, want := states(), [3]submission.State{submission.StateUnresolved, submission.StateUnresolved, submission.StateWaiting}; got != want {
			t.Errorf("after it: %v, want %v", got, want)
		}
		if s := h.rows()[0]; s.Due != 0 || s.Deadline != 0 || s.Tries != 1 {
			t.Errorf("%+v", s)
		}
		cancel()
		<-ended
		h.server.answer = nil
		stop = h.start(h.submitter(nil))
		synctest.Wait()
		stop()
		if got := states(); got[2] != submission.StateAccepted {
			t.Errorf("when the target is back: %v", got)
		}
	})
}

// What was put off while the clock was ahead is not put off for that long once it is right.
func TestSubmitterWhenTheClockIsRightAgain(t *testing.T) {
	down, _ := callFailures(t)
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			switch {
			case *r.Source.Identifier == "urn:b":
				return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
			case n == 1:
				return nil, down
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "1"})
		var ahead atomic.Int64
		ahead.Store(int64(300 * 24 * time.Hour))
		stop := h.start(h.submitter(func(o *Submitter) {
			o.Workers = 1
			o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		}))
		defer stop()
		synctest.Wait()
		if rows := h.rows(); rows[0].State != submission.StateWaiting || rows[0].Tries != 1 {
			t.Fatalf("%+v", rows)
		}
		ahead.Store(0)
		h.keep([2]string{"urn:b", "1"})
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		h.wantStates("urn:a accepted as library:urn:a", "urn:b provisional")
		// A clock that is behind for a while ends no deadline.
		ahead.Store(int64(-300 * 24 * time.Hour))
		time.Sleep(2 * time.Hour)
		ahead.Store(0)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		h.wantStates("urn:a accepted as library:urn:a", "urn:b provisional")
	})
}

// What the server would not have is sent again when a person says so: not a
// deletion, and not what a later change has replaced.
func TestResend(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		refused := true
		h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if refused {
				return nil, &sip.Fault{Code: sip.Client, Text: "the recipient is not allowed"}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "1"}, [2]string{"urn:b", "1"}, [2]string{"urn:c", "1"})
		reload := make(chan struct{}, 1)
		o := h.submitter(func(o *Submitter) { o.Reload = reload })
		stop := h.start(o)
		defer stop()
		synctest.Wait()
		h.keep([2]string{"urn:b", "2"})
		gone := found("urn:c", "", "")
		gone.Deleted, gone.Representations = true, nil
		h.harvest(gone)
		synctest.Wait()
		rows := h.rows()
		for _, s := range rows {
			if s.State != submission.StateUnsent {
				t.Fatalf("%s: %v", s.Record, s.State)
			}
		}
		h.server.mu.Lock()
		refused = false
		h.server.mu.Unlock()

		n, err := o.Resend(context.Background(), rows[0].ID, submission.StateUnsent)
		if n != 1 || err != nil {
			t.Fatalf("one of them: %d, %v", n, err)
		}
		reload <- struct{}{}
		synctest.Wait()
		if _, err := o.Resend(context.Background(), rows[0].ID, submission.StateUnsent); err == nil {
			t.Error("what was accepted was sent again")
		}
		if n, err := o.Resend(context.Background(), 0, submission.StateUnsent); n != 1 || err != nil {
			t.Fatalf("all: %d, %v", n, err)
		}
		reload <- struct{}{}
		synctest.Wait()
		var accepted []string
		for _, s := range h.rows() {
			if s.State == submission.StateAccepted {
				accepted = append(accepted, s.Record)
			}
		}
		if len(accepted) != 2 || accepted[0] != "urn:a" || accepted[1] != "urn:b" || len(h.rows()) != 5 {
			t.Errorf("accepted: %v of %d", accepted, len(h.rows()))
		}
	})
}
