package delivery

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// recipients are notification recipients in memory.
type recipients struct {
	mu  sync.Mutex
	got map[string][]*sip.Disposition // by source-identifier
	// refuse, when set, may answer something else.
	refuse func(*sip.Disposition) error
}

func (m *recipients) Admit(context.Context, sip.Caller) error { return nil }

func (m *recipients) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return nil, errors.New("not here")
}

func (m *recipients) Ingest(context.Context, sip.Caller, *sip.Request) (*sip.Disposition, error) {
	return nil, errors.New("not here")
}

func (m *recipients) Notify(_ context.Context, _ sip.Caller, d *sip.Disposition) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		if err := m.refuse(d); err != nil {
			return err
		}
	}
	m.got[*d.Source.Identifier] = append(m.got[*d.Source.Identifier], d)
	return nil
}

func (m *recipients) of(identifier string) []*sip.Disposition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.got[identifier]
}

// notifyHarness is a log with outgoing notifications, and their recipients.
type notifyHarness struct {
	t      testing.TB
	clock  *testClock
	log    *store.Store
	boxes  *recipients
	boxURL string
	source event.SourceID
}

func newNotifyHarness(t testing.TB) *notifyHarness {
	t.Helper()
	h := &notifyHarness{t: t, clock: &testClock{wall: time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)}, boxes: &recipients{got: map[string][]*sip.Disposition{}}}
	h.boxURL = serve(t, &sip.Handler{Backend: h.boxes, Offers: sip.Operations{Notify: true}})
	h.open(h.clock.both)
	return h
}

// newBubbleNotifyHarness is one in a bubble, without recipients.
func newBubbleNotifyHarness(t testing.TB) *notifyHarness {
	t.Helper()
	thisDecade()
	h := &notifyHarness{t: t}
	begin := time.Now()
	h.open(func() (time.Time, time.Duration) { return time.Now(), time.Since(begin) })
	return h
}

func (h *notifyHarness) open(clock func() (time.Time, time.Duration)) {
	h.t.Helper()
	ctx := context.Background()
	l, err := eventlog.Open(ctx, h.t.TempDir(), eventlog.Options{Clock: clock})
	h.do(err)
	h.log = store.New(l)
	h.t.Cleanup(func() { h.do(h.log.Close()) })
	h.do(h.log.EnsureSet(ctx, eventlog.SetConfig{Name: "maps", Content: event.Mirror}))
	h.source, err = h.log.EnsureSource(ctx, "maps", "sip", "/sip/maps", 0)
	h.do(err)
}

func (h *notifyHarness) do(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *notifyHarness) now() time.Time {
	if h.clock == nil {
		return time.Now()
	}
	return h.clock.now()
}

// owe puts accepted submissions into the log whose recipient has to be notified.
func (h *notifyHarness) owe(recipient string, identifiers ...string) {
	h.t.Helper()
	b := &submission.Batch{Source: h.source, URL: "/sip/maps"}
	for _, id := range identifiers {
		disp := &sip.Disposition{Source: &sip.Source{Identifier: &id}, Outcome: sip.Accepted, AssignedIdentifier: "urn:lib:" + id}
		s := submission.Submission{Source: h.source, State: submission.StateAccepted, Recipient: recipient, SourceIdentifier: id, Assigned: disp.AssignedIdentifier}
		b.Updates = append(b.Updates, submission.Update{Submission: s,
			Item:     &event.Item{Observation: translate.FromSubmitted(&translate.Submitted{Assigned: s.Assigned, SourceIdentifier: id}, h.now())},
			Outgoing: &submission.OutgoingNotification{Recipient: recipient, Disposition: submission.Document(disp), Message: "submission-" + id + "@maps.bridge"}})
	}
	_, err := h.log.Write(context.Background(), b)
	h.do(err)
}

// in returns the notices in a state.
func (h *notifyHarness) in(state submission.DeliveryState) []submission.OutgoingNotification {
	h.t.Helper()
	found, err := h.log.Outgoing(context.Background(), "maps", state, 0, 100_000)
	h.do(err)
	return found
}

// notices returns those that wait.
func (h *notifyHarness) notices() []submission.OutgoingNotification {
	h.t.Helper()
	found, err := h.log.OutgoingDue(context.Background(), event.MicrosOf(h.now().Add(1000*time.Hour)), nil, 10_000)
	h.do(err)
	return found
}

func (h *notifyHarness) verified() {
	h.t.Helper()
	report := func(f eventlog.Finding) { h.t.Errorf("verify: %v", f) }
	h.do(errors.Join(h.log.Log.Verify(context.Background(), report), h.log.Verify(context.Background(), report)))
}

// postOf returns a Notifier of the harness with a log of its own life.
func (h *notifyHarness) postOf(l *life) *Notifier {
	return &Notifier{Store: livingStore{h.log, l}, Now: h.clock.now, HTTP: plainClient}
}

// testClock is a clock that a test moves on.
type testClock struct {
	mu   sync.Mutex
	wall time.Time
	run  time.Duration
}

func (c *testClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *testClock) both() (time.Time, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall, c.run
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.run = c.wall.Add(d), c.run+d
}

func serve(t testing.TB, handler http.Handler) string {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

func plainClient(recipient string) *sip.HTTPClient {
	return &sip.HTTPClient{URL: recipient, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// thisDecade lets the clock of a bubble, which begins in the year 2000, go to where a
// log believes it.
func thisDecade() {
	if day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); time.Now().Before(day) {
		time.Sleep(time.Until(day))
	}
}

// gatedLog is a log whose commits wait to be let pass.
type gatedLog struct {
	Store
	pass  chan error
	sizes []int // of the commits, in submissions and notifications
}

func (g *gatedLog) Write(ctx context.Context, b *submission.Batch) (submission.Written, error) {
	if err := <-g.pass; err != nil {
		return submission.Written{}, err
	}
	g.sizes = append(g.sizes, len(b.Updates)+len(b.Outgoing))
	return g.Store.Write(ctx, b)
}

// request is an ingest request for a map.
func request(identifier, text string) *sip.Request {
	return &sip.Request{
		Source: &sip.Source{Submitter: &sip.Submitter{Name: "Maps", EmailAddress: "maps@maps.example"}, Identifier: &identifier},
		Record: sip.Record{Root: xml.Name{Space: "urn:maps", Local: "map"}, XML: []byte(`<map xmlns="urn:maps">` + text + `</map>`)},
	}
}

// breakable is a log whose commits fail.
type breakable struct {
	*store.Store
	before, after atomic.Int32 // how many calls are to fail yet
	appended      atomic.Int32
}

var errBroken = errors.New("the disk is gone")

func failing(n *atomic.Int32) bool { return n.Load() > 0 && n.Add(-1) >= 0 }

// Write fails before it has done anything, or after everything.
func (b *breakable) Write(ctx context.Context, batch *submission.Batch) (out submission.Written, err error) {
	err = b.pass(func() error { out, err = b.Store.Write(ctx, batch); return err })
	return out, err
}

// Append fails as Write does.
func (b *breakable) Append(ctx context.Context, batch *event.Batch) (out event.Appended, err error) {
	err = b.pass(func() error { out, err = b.Store.Append(ctx, batch); return err })
	return out, err
}

func (b *breakable) pass(commit func() error) error {
	if failing(&b.before) {
		return errBroken
	}
	b.appended.Add(1)
	err := commit()
	if err == nil && failing(&b.after) {
		return errBroken
	}
	return err
}

// deskContents lets the content store be Contents.
type deskContents struct{ *content.Store }

func (c deskContents) Put(ctx context.Context, records ...[]byte) error {
	drafts := make([]*content.Draft, len(records))
	for i, r := range records {
		drafts[i] = content.NewDraft(r)
	}
	return c.Store.Put(ctx, drafts...)
}

func (c deskContents) Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	b, err := c.Store.Open(ctx, sum)
	if err != nil {
		return nil, 0, err
	}
	return b, b.Size(), nil
}

// accepted is the disposition of an accepted record.
func accepted(source *sip.Source, id string) *sip.Disposition {
	return &sip.Disposition{Source: source, Outcome: sip.Accepted, AssignedIdentifier: id}
}
