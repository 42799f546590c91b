package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// harness is a real log and a real content store. The set books has a target, whose
// ingest server is in memory; the set maps has outgoing notifications.
type harness struct {
	t        testing.TB
	clock    *testenv.Clock // nil is that of the bubble
	log      *store.Store
	store    *store.Store // the same log, whose commits fail as faults says
	faults   *testenv.Faults
	page     time.Duration // how long it takes to find which notifications are due
	contents *content.Store
	source   event.SourceID // of the records of books
	target   event.SourceID
	cursor   int64
	server   *ingestServer
	importTo event.SourceID // of the set accepted
	// importPending is called when an accepted record can be imported; nil is nobody.
	importPending func()

	maps   event.SourceID
	boxes  *testserver.Recipients
	boxURL string // "" in a bubble
}

const bookFormat = "https://schemas.example/book.xsd"

func newHarness(t testing.TB, clock *testenv.Clock) *harness {
	t.Helper()
	ctx, folder := context.Background(), t.TempDir()
	h := &harness{t: t, clock: clock, server: &ingestServer{formats: []string{"https://schemas.example/other.xsd", bookFormat}}, boxes: &testserver.Recipients{}}
	var both func() (time.Time, time.Duration)
	if clock == nil {
		testenv.ThisDecade()
		begin := time.Now()
		both = func() (time.Time, time.Duration) { return time.Now(), time.Since(begin) }
	} else {
		h.boxURL = serve(t, &sip.Handler{Backend: h.boxes, Offers: sip.Operations{Notify: true}})
		both = clock.Both
	}
	l, err := eventlog.Open(ctx, folder, eventlog.Options{Clock: both})
	h.do(err)
	h.log = store.New(l)
	h.contents, err = content.Open(ctx, filepath.Join(folder, "content.db"), content.Options{})
	h.do(err)
	t.Cleanup(func() { h.do(errors.Join(h.contents.Close(), h.log.Close())) })
	h.store, h.faults = store.New(h.log.Log), &testenv.Faults{}
	h.store.Hook = func(query string, call func() error) error {
		if strings.Contains(query, "FROM outgoing_notification") && strings.Contains(query, "t.due > 0") {
			time.Sleep(h.page)
		}
		return h.faults.Hook(query, call)
	}
	ensure := func(set, kind, url string, rank int) event.SourceID {
		h.do(h.log.EnsureSet(ctx, eventlog.SetConfig{Name: set, Content: event.Mirror}))
		id, err := h.log.EnsureSource(ctx, set, kind, url, rank)
		h.do(err)
		return id
	}
	h.source = ensure("books", "atompmh", "https://books.example/feed", 0)
	h.target = ensure("books", eventlog.Target, "https://library.example/sip", 1)
	h.importTo = ensure("accepted", "sip", "/sip/accepted", 0)
	h.maps = ensure("maps", "sip", "/sip/maps", 0)
	return h
}

func (h *harness) do(err error) {
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
func (h *harness) harvest(said ...event.Observation) {
	h.t.Helper()
	b := &event.Batch{Source: h.source, Cursor: h.cursor, Start: true, Documents: []event.Document{{URL: "https://books.example/feed"}}, Items: make([]*event.Item, len(said))}
	for i, o := range said {
		b.Items[i] = &event.Item{Observation: o}
	}
	out, err := h.log.Append(context.Background(), b)
	h.do(err)
	h.cursor = out.Cursor
}

// keep stores contents and logs their records; each is given as its identifier
// and its text.
func (h *harness) keep(records ...[2]string) {
	h.t.Helper()
	var contents [][]byte
	var said []event.Observation
	for _, r := range records {
		contents = append(contents, []byte(book(r[1])))
		said = append(said, found(r[0], "application/xml", book(r[1])))
	}
	h.do(keep(context.Background(), h.contents, contents...))
	h.harvest(said...)
}

// outbox makes a Submitter of the target, that change completes.
func (h *harness) submitter(change func(*Submitter)) *Submitter {
	o := &Submitter{
		Set: "books", Source: h.target, URL: "https://library.example/sip", Store: h.store, Contents: h.contents, Server: h.server,
		Recipient: func(token string) string { return "http://bridge.example/sip/books/" + token },
	}
	if change != nil {
		change(o)
	}
	return o
}

// start runs a Submitter until stop is called, which waits for its end.
func (h *harness) start(o *Submitter) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); o.Run(ctx) }()
	return func() {
		h.t.Helper()
		cancel()
		<-ended
	}
}

// notify takes in a notification of a submission, as the notification recipient of the
// set does.
func (h *harness) notify(token string, d *sip.Disposition) error {
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

// run runs a Submitter of the target until the test ends.
func (h *harness) run(change func(*Submitter)) {
	h.t.Helper()
	h.t.Cleanup(h.start(h.submitter(change)))
	synctest.Wait()
}

// rows returns the target's submissions, in the order in which they were made.
func (h *harness) rows() (rows []submission.Submission) {
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
func (h *harness) states() (out []string) {
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

func (h *harness) wantStates(want ...string) {
	h.t.Helper()
	if got := h.states(); !slices.Equal(got, want) {
		h.t.Errorf("submissions:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// rejections returns the rejected events of the set.
func (h *harness) rejections() (out []string) {
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
func inBubble(t *testing.T, test func(t *testing.T, h *harness)) {
	synctest.Test(t, func(t *testing.T) { test(t, newHarness(t, nil)) })
}

func (h *harness) now() time.Time {
	if h.clock == nil {
		return time.Now()
	}
	return h.clock.Now()
}

// owe puts accepted submissions into the log whose recipient has to be notified.
func (h *harness) owe(recipient string, identifiers ...string) {
	h.t.Helper()
	b := &submission.Batch{Source: h.maps, URL: "/sip/maps"}
	for _, id := range identifiers {
		disp := &sip.Disposition{Source: &sip.Source{Identifier: &id}, Outcome: sip.Accepted, AssignedIdentifier: "urn:lib:" + id}
		s := submission.Submission{Source: h.maps, State: submission.StateAccepted, Recipient: recipient, SourceIdentifier: id, Assigned: disp.AssignedIdentifier}
		b.Updates = append(b.Updates, submission.Update{Submission: s,
			Item:     &event.Item{Observation: translate.FromSubmitted(&translate.Submitted{Assigned: s.Assigned, SourceIdentifier: id}, h.now())},
			Outgoing: &submission.OutgoingNotification{Recipient: recipient, Disposition: submission.Document(disp), Message: "submission-" + id + "@maps.bridge"}})
	}
	_, err := h.log.Write(context.Background(), b)
	h.do(err)
}

// in returns the notices in a state.
func (h *harness) in(state submission.DeliveryState) []submission.OutgoingNotification {
	h.t.Helper()
	found, err := h.log.Outgoing(context.Background(), "maps", state, 0, 100_000)
	h.do(err)
	return found
}

// notices returns those that wait.
func (h *harness) notices() []submission.OutgoingNotification {
	h.t.Helper()
	found, err := h.log.OutgoingDue(context.Background(), event.MicrosOf(h.now().Add(1000*time.Hour)), nil, 10_000)
	h.do(err)
	return found
}

func (h *harness) verified() {
	h.t.Helper()
	report := func(f eventlog.Finding) { h.t.Errorf("verify: %v", f) }
	h.do(errors.Join(h.log.Log.Verify(context.Background(), report), h.log.Verify(context.Background(), report)))
}

// notifier returns a Notifier of the harness with a log of its own life.
func (h *harness) notifier(l *testenv.Life) *Notifier {
	living := store.New(h.log.Log)
	living.Hook = l.Hook
	return &Notifier{Store: living, Now: h.clock.Now, HTTP: plainClient}
}

func serve(t testing.TB, handler http.Handler) string {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

func plainClient(recipient string) *sip.HTTPClient {
	return &sip.HTTPClient{URL: recipient, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// request is an ingest request for a map.
func request(identifier, text string) *sip.Request {
	return &sip.Request{
		Source: &sip.Source{Submitter: &sip.Submitter{Name: "Maps", EmailAddress: "maps@maps.example"}, Identifier: &identifier},
		Record: sip.Record{Root: xml.Name{Space: "urn:maps", Local: "map"}, XML: []byte(`<map xmlns="urn:maps">` + text + `</map>`)},
	}
}

// keep stores contents.
func keep(ctx context.Context, s *content.Store, contents ...[]byte) error {
	drafts := make([]*content.Draft, len(contents))
	for i, c := range contents {
		drafts[i] = content.NewDraft(c)
	}
	return s.Put(ctx, drafts...)
}

// accepted is the disposition of an accepted record.
func accepted(source *sip.Source, id string) *sip.Disposition {
	return &sip.Disposition{Source: source, Outcome: sip.Accepted, AssignedIdentifier: id}
}

// ingestServer is an ingest server in memory. It identifies records by their
// source-identifier.
type ingestServer struct {
	formats []string
	// answer, when set, decides instead of accepting; keep is what accepting is.
	answer func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error)
	// broken is what get-properties fails with; nil is not at all.
	broken func() error

	mu        sync.Mutex
	got       []sip.Request
	at        []time.Time // when they came
	asked     int         // for properties
	kept      map[string]string
	underWay  map[string]int
	together  int // the most requests at a time
	sameTwice bool
}

var _ Upstream = (*ingestServer)(nil)

func (s *ingestServer) GetProperties(context.Context) (*sip.Properties, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.broken != nil {
		if err := s.broken(); err != nil {
			return nil, err
		}
	}
	return &sip.Properties{Style: sip.Asynchronous, Formats: s.formats}, nil
}

func (s *ingestServer) Ingest(_ context.Context, r *sip.Request) (*sip.Disposition, error) {
	id := *r.Source.Identifier
	s.mu.Lock()
	s.got, s.at = append(s.got, *r), append(s.at, time.Now())
	n := len(s.got)
	if s.underWay == nil {
		s.underWay, s.kept = map[string]int{}, map[string]string{}
	}
	s.underWay[id]++
	s.sameTwice = s.sameTwice || s.underWay[id] > 1
	s.together = max(s.together, len(s.underWay))
	answer := s.answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.underWay[id]--; s.underWay[id] == 0 {
			delete(s.underWay, id)
		}
	}()
	keep := func() *sip.Disposition {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept[id] = string(r.Record.XML)
		return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "library:" + id}
	}
	if answer != nil {
		return answer(n, r, keep)
	}
	return keep(), nil
}

// requests returns what arrived, as "identifier text".
func (s *ingestServer) requests() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.got {
		_, text, _ := strings.Cut(string(r.Record.XML), ">")
		out = append(out, *r.Source.Identifier+" "+strings.TrimSuffix(text, "</book>"))
	}
	return out
}

func (s *ingestServer) wantRequests(t testing.TB, want ...string) {
	t.Helper()
	if got := s.requests(); !slices.Equal(got, want) {
		t.Errorf("the library got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
