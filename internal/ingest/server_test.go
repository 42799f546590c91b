package ingest

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// judge is a *testing.T, or a *rapid.T.
type judge interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// storage is a real log and a real content store, with the set "maps".
type storage struct {
	t        judge
	log      *store.Store
	contents *content.Store
	source   event.SourceID
	feed     string
}

func newStorage(t testing.TB, clock func() (time.Time, time.Duration)) *storage {
	t.Helper()
	ctx, folder := context.Background(), t.TempDir()
	s := &storage{t: t}
	l, err := eventlog.Open(ctx, folder, eventlog.Options{Clock: clock})
	s.do(err)
	s.log = store.New(l)
	s.contents, err = content.Open(ctx, filepath.Join(folder, "content.db"), content.Options{})
	s.do(err)
	t.Cleanup(func() {
		if err := errors.Join(s.contents.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *storage) ensureSet(kind event.Content) {
	s.t.Helper()
	ctx := context.Background()
	s.do(s.log.EnsureSet(ctx, eventlog.SetConfig{Name: "maps", Content: kind}))
	var err error
	s.source, err = s.log.EnsureSource(ctx, "maps", "sip", "/sip/maps", 0)
	s.do(err)
	set, err := s.log.Set(ctx, "maps")
	s.do(err)
	s.feed = set.Feed
}

func (s *storage) do(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// due returns the notifications that are due by a time.
func (s *storage) due(by time.Time) []submission.OutgoingNotification {
	s.t.Helper()
	found, err := s.log.OutgoingDue(context.Background(), event.MicrosOf(by), nil, 10_000)
	s.do(err)
	return found
}

// verified fails the test when the log is not in order.
func (s *storage) verified() {
	s.t.Helper()
	report := func(f eventlog.Finding) { s.t.Errorf("verify: %v", f) }
	s.do(errors.Join(s.log.Log.Verify(context.Background(), report), s.log.Verify(context.Background(), report)))
}

// harness is a Server on a storage.
type harness struct {
	*storage
	server *Server
	store  *store.Store // the same log, whose commits fail as faults says
	faults *testenv.Faults
	ahead  atomic.Int64 // how far its clock is ahead of ours, in nanoseconds
}

func (h *harness) now() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }

const mapFormat = "https://schemas.example/map.xsd"

// newHarness makes a Server for the set "maps"; change completes it before it runs.
func newHarness(t testing.TB, mode Mode, change func(h *harness, d *Server)) *harness {
	t.Helper()
	testenv.ThisDecade()
	h := &harness{}
	begin := time.Now()
	h.storage = newStorage(t, func() (time.Time, time.Duration) { now := h.now(); return now, now.Sub(begin) })
	h.store, h.faults = breakable(h.log)
	h.server = &Server{
		Set: "maps", URL: "/sip/maps", Mode: mode, Store: h.store, Keep: keep(h.contents),
		Formats: map[xml.Name]string{{Space: "urn:maps", Local: "map"}: mapFormat}, Now: h.now,
	}
	if change != nil {
		change(h, h.server)
	}
	kind := h.server.Content
	if kind == 0 {
		kind = event.Mirror
	}
	h.ensureSet(kind)
	h.server.Source, h.server.Feed = h.source, h.feed

	// What Run does but for what becomes due, which would change what a test has just
	// put into the log.
	h.do(h.server.recover(context.Background()))
	h.server.service.set(nil)
	return h
}

// target makes a Source for a target of the set.
func (h *harness) target() event.SourceID {
	h.t.Helper()
	id, err := h.log.EnsureSource(context.Background(), "maps", eventlog.Target, "https://library.example/sip", 1)
	h.do(err)
	return id
}

// add puts a submission into the log and returns it as it is stored.
func (h *harness) add(s submission.Submission) *submission.Submission {
	h.t.Helper()
	ctx := context.Background()
	if s.Source == 0 {
		s.Source = h.server.Source
	}
	out, err := h.log.Write(ctx, &submission.Batch{Source: s.Source, Updates: []submission.Update{{Submission: s}}})
	h.do(err)
	return h.submission(out.IDs[0])
}

func (h *harness) submission(id int64) *submission.Submission {
	h.t.Helper()
	s, err := h.log.Submission(context.Background(), id)
	h.do(err)
	return s
}

// events returns the rejections of anonymous callers that are kept, and the events of the set
// as "kind record" and what a rejected one says.
func (h *harness) events() []string {
	h.t.Helper()
	out := []string{}
	kept, err := h.log.Rejections(context.Background(), "maps", 0, 10_000)
	h.do(err)
	for _, r := range slices.Backward(kept) {
		out = append(out, fmt.Sprintf("kept %s: %s", r.SourceIdentifier, r.Reason))
	}
	for e, err := range h.log.Events(context.Background(), "maps", event.Range{Upto: 1 << 40}) {
		h.do(err)
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s", e.Kind, e.Record)))
		if e.Kind == event.Rejected {
			out[len(out)-1] = fmt.Sprintf("rejected %s: %s", e.Origin.SourceIdentifier, e.Origin.Reason)
		}
	}
	return out
}

func (h *harness) wantEvents(want ...string) {
	h.t.Helper()
	if got := h.events(); !slices.Equal(got, want) {
		h.t.Errorf("events:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// notifications returns the log's as "verdict times".
func (h *harness) notifications() []string {
	h.t.Helper()
	found, err := h.log.Incoming(context.Background(), "maps", 0, 0, 10_000)
	h.do(err)
	var out []string
	for _, n := range found {
		out = append(out, fmt.Sprintf("%s %d", n.Verdict, n.Times))
	}
	slices.Sort(out)
	return out
}

// notices returns those that wait.
func (h *harness) notices() []submission.OutgoingNotification {
	h.t.Helper()
	return h.due(time.Now().Add(time.Hour))
}

func (h *harness) ingest(r *sip.Request) *sip.Disposition {
	h.t.Helper()
	disp, err := h.server.Ingest(context.Background(), sip.Caller{}, r)
	h.do(err)
	return disp
}

func (h *harness) notify(token string, disp *sip.Disposition) {
	h.t.Helper()
	h.do(h.server.Notify(context.Background(), sip.Caller{Token: token}, disp))
}

// request is an ingest request for a map.
func request(identifier, text string) *sip.Request {
	r := &sip.Request{Record: sip.Record{Root: xml.Name{Space: "urn:maps", Local: "map"}, XML: []byte(`<map xmlns="urn:maps">` + text + `</map>`)}}
	if identifier != "" {
		r.Source = &sip.Source{Submitter: &sip.Submitter{Name: "Maps", EmailAddress: "maps@maps.example"}, Identifier: &identifier}
	}
	return r
}

// breakable returns the same log with commits that fail as told.
func breakable(log *store.Store) (*store.Store, *testenv.Faults) {
	s, faults := store.New(log.Log), &testenv.Faults{}
	s.Hook = faults.Hook
	return s, faults
}

// keep stores records.
func keep(s *content.Store) func(context.Context, ...[]byte) error {
	return func(ctx context.Context, records ...[]byte) error {
		drafts := make([]*content.Draft, len(records))
		for i, r := range records {
			drafts[i] = content.NewDraft(r)
		}
		return s.Put(ctx, drafts...)
	}
}

// isFault fails the test unless err is a fault of the code with the path.
func isFault(t testing.TB, err error, code sip.Code, path string) {
	t.Helper()
	var f *sip.Fault
	if !errors.As(err, &f) || f.Code != code || f.Path != path {
		t.Errorf("got %v, want a fault of code %s at %q", err, code, path)
	}
}

func TestOperationsOfEachMode(t *testing.T) {
	for _, c := range []struct {
		mode    Mode
		targets bool
		want    sip.Operations
	}{
		{Recipient, false, sip.Operations{Notify: true}},
		{Library, false, sip.Operations{Ingest: true}},
		{Library, true, sip.Operations{Ingest: true, Notify: true}},
		{Review, false, sip.Operations{Ingest: true}},
		{Review, true, sip.Operations{Ingest: true, Notify: true}},
		{Gateway, false, sip.Operations{Ingest: true, Notify: true}},
	} {
		d := &Server{Mode: c.mode, Targets: c.targets}
		if got := d.Offers(); got != c.want {
			t.Errorf("mode %q, targets %v: %+v, want %+v", c.mode, c.targets, got, c.want)
		}
		if !c.want.Notify {
			isFault(t, d.Notify(context.Background(), sip.Caller{}, &sip.Disposition{Outcome: sip.Rejected}), sip.Client, "ingest-disposition")
		}
	}
	d := &Server{}
	_, err := d.GetProperties(context.Background(), sip.Caller{})
	isFault(t, err, sip.Client, "")
	_, err = d.Ingest(context.Background(), sip.Caller{}, request("1", ""))
	isFault(t, err, sip.Client, "")
}

func TestProperties(t *testing.T) {
	formats := map[xml.Name]string{{Local: "b"}: "https://s.example/b", {Local: "a"}: "https://s.example/b", {Space: "urn:x", Local: "a"}: "https://s.example/a"}
	for mode, style := range map[Mode]sip.Style{Library: sip.Synchronous, Review: sip.Asynchronous} {
		d := &Server{Mode: mode, Formats: formats}
		p, err := d.GetProperties(context.Background(), sip.Caller{})
		want := &sip.Properties{Style: style, Formats: []string{"https://s.example/a", "https://s.example/b"}}
		if err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, %v, want %+v", mode, p, err, want)
		}
	}
}

// What the service does not say to an anonymous caller it says to nobody: a failure of the
// log is a fault of code Server, over HTTP as well.
func TestFailuresOverHTTP(t *testing.T) {
	h := newHarness(t, Library, nil)
	server := httptest.NewServer(&sip.Handler{Backend: h.server, Offers: h.server.Offers()})
	defer server.Close()
	client := &sip.HTTPClient{HTTP: server.Client(), URL: server.URL}
	h.faults.Before.Store(1)
	_, err := client.Ingest(t.Context(), request("1", "a"))
	isFault(t, err, sip.Server, "")
	if err != nil && strings.Contains(err.Error(), testenv.ErrBroken.Error()) {
		t.Errorf("the caller is told %v", err)
	}
	if !sip.Temporary(err) {
		t.Errorf("%v looks final", err)
	}
	if disp, err := client.Ingest(t.Context(), request("1", "a")); err != nil || disp.Outcome != sip.Accepted {
		t.Errorf("the repeat: %+v, %v", disp, err)
	}
}

func read(t testing.TB, c *content.Store, sum [32]byte) []byte {
	t.Helper()
	r, err := c.Open(context.Background(), sum)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Requests wait until the service runs, and go when it ends.
func TestIngestWaitsForRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Library, nil)
		d := &Server{Set: "maps", Mode: Library, Source: h.server.Source, Store: h.store, Keep: h.server.Keep, Formats: h.server.Formats}
		hurried, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			if _, err := d.Ingest(hurried, sip.Caller{}, request("1", "")); !errors.Is(err, context.Canceled) {
				t.Errorf("whoever hung up before the service ran was answered %v", err)
			}
		})
		wait.Go(func() {
			if disp, err := d.Ingest(t.Context(), sip.Caller{}, request("2", "")); err != nil || disp.Outcome != sip.Accepted {
				t.Errorf("whoever waited was answered %v, %v", disp, err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		running, stop := context.WithCancel(t.Context())
		wait.Go(func() { d.Run(running) })
		synctest.Wait()
		stop()
		wait.Wait()
		if _, err := d.Ingest(t.Context(), sip.Caller{}, request("3", "")); !errors.Is(err, errEnded) {
			t.Errorf("after the end: %v", err)
		}
	})
}
