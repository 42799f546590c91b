package daemon_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestFault_RetryAfter: no request to a host earlier than it asked, whatever was
// asked for and however it said so; and nothing is lost.
func TestFault_RetryAfter(t *testing.T) {
	at := func(layout string) func(time.Time) string {
		return func(now time.Time) string { return now.Add(2 * time.Second).UTC().Format(layout) }
	}
	value := func(v string) func(time.Time) string { return func(time.Time) string { return v } }
	for form, c := range map[string]struct {
		status int
		path   string
		ask    func(now time.Time) string
	}{
		"seconds":             {503, fixtures.Subscription, value("1")},
		"seconds, an archive": {429, fixtures.Archive(1), value("1")},
		"seconds, a record":   {429, "/records/a.atom", value("1")},
		"a fraction":          {429, fixtures.Subscription, value("1.2")},
		"a date":              {503, fixtures.Subscription, at(http.TimeFormat)},
		"RFC 850":             {429, fixtures.Subscription, at("Monday, 02-Jan-06 15:04:05 GMT")},
		"asctime":             {503, fixtures.Subscription, at(time.ANSIC)},
		"a date of yore":      {503, fixtures.Subscription, value("Thu, 01 Jan 1970 00:00:00 GMT")},
		"nonsense":            {429, fixtures.Subscription, value("in a while")},
		"less than nothing":   {503, fixtures.Subscription, value("-5")},
		"a zero":              {429, fixtures.Subscription, value("0")},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, fixtures.New(fixtures.Options{}))
			b.quick()
			b.bridge.Harvester().Workers = 1 // what is under way already is not too early
			b.provider.Create(record("a", fixtures.Atom()))
			b.provider.CloseArchive()
			b.provider.Create(record("b", fixtures.Atom()))
			w := &waited{harness: b}
			w.watch(c.path, c.status, c.ask)
			b.harvest()
			b.wantLive()
			w.check()
		})
	}
}

// waited looks when requests arrive after a host asked to be left alone.
type waited struct {
	*harness
	mu    sync.Mutex
	until time.Time
	early time.Duration
	asked int
}

// watch answers a path once with a status and Retry-After.
func (w *waited) watch(path string, status int, ask func(time.Time) string) {
	inner := w.server.Config.Handler
	w.server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		now := time.Now()
		w.mu.Lock()
		if d := w.until.Sub(now); d > 0 {
			w.early = max(w.early, d)
		}
		first := false
		if r.URL.Path == path {
			w.asked++
			first = w.asked == 1
		}
		w.mu.Unlock()
		if !first {
			inner.ServeHTTP(rw, r)
			return
		}
		value := ask(now)
		rw.Header().Set("Retry-After", value)
		rw.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		wait := time.Duration(0)
		if at, err := http.ParseTime(value); err == nil {
			wait = at.Sub(now.Truncate(time.Second)) // of the server's own Date
		} else if d, err := time.ParseDuration(value + "s"); err == nil {
			wait = d
		}
		w.mu.Lock()
		w.until = now.Add(wait)
		w.mu.Unlock()
		rw.WriteHeader(status)
	})
}

func (w *waited) check() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked != 2 {
		w.t.Errorf("asked %d times, want 2", w.asked)
	}
	if w.early > 0 {
		w.t.Errorf("a request came %s too early", w.early)
	}
}

// TestFault_RetryAfterLongerThanWeWait: the host is left alone altogether.
func TestFault_RetryAfterLongerThanWeWait(t *testing.T) {
	for _, value := range []string{"3600", "99999999999999999999", time.Now().Add(48 * time.Hour).UTC().Format(http.TimeFormat)} {
		t.Run(value, func(t *testing.T) {
			b := newHarness(t, fixtures.New(fixtures.Options{}))
			b.quick()
			b.provider.Create(record("a", fixtures.Atom()))
			b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Status: 503, Header: http.Header{"Retry-After": {value}}})
			b.want("logged", b.wantError("503"))
			b.provider.ForgetRequests()
			b.want("logged", b.wantError("not to be asked"))
			b.wantAsked(map[string]int{})
			b.provider.ClearHook(fixtures.Subscription)
			b.quick() // as after a restart
			b.harvest()
			b.wantLive()
		})
	}
}

// TestFault_BodyCutAtEveryByte: of a document that is not whole nothing is
// applied, and from what it lacks nothing is inferred.
func TestFault_BodyCutAtEveryByte(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	cut := map[string]func(doc []byte, n int) fixtures.Hook{
		"the connection breaks": func(_ []byte, n int) fixtures.Hook { return fixtures.Hook{Break: n} },
		"a short document, well sent": func(doc []byte, n int) fixtures.Hook {
			return fixtures.Hook{Body: fixed(string(doc[:n]))}
		},
	}
	for name, hook := range cut {
		t.Run("complete feed, "+name, func(t *testing.T) {
			b := newEntryHarness(t, fixtures.Options{Complete: true})
			b.quick(func(o *fetch.Options) { o.Attempts = 1 })
			b.feed(active("a", "v1", day(1)), active("b", "v1", day(1)))
			b.wantLog("first", "created a v1", "created b v1")
			b.feed(active("a", "v2", day(2)))
			doc := b.fetchSource(fixtures.Subscription)
			end := bytes.LastIndexByte(doc, '>') // what follows is white space
			for n := 1; n <= end; n++ {
				b.provider.SetHook(fixtures.Subscription, hook(doc, n))
				if got := b.wantError(fixtures.Subscription); len(got) != 0 {
					t.Fatalf("cut after %d of %d bytes: %q", n, len(doc), got)
				}
			}
			b.provider.ClearHook(fixtures.Subscription)
			b.wantLog("whole", "updated a v2", "deleted b v1")
		})
		t.Run("archive, "+name, func(t *testing.T) {
			b := newEntryHarness(t, fixtures.Options{})
			b.quick(func(o *fetch.Options) { o.Attempts = 1 })
			b.archive(active("a", "v1", day(1)), active("b", "v1", day(1)))
			b.feed(active("c", "v1", day(2)))
			doc := b.fetchSource(fixtures.Archive(1))
			end := bytes.LastIndexByte(doc, '>')
			for n := 1; n <= end; n += 7 {
				b.provider.SetHook(fixtures.Archive(1), hook(doc, n))
				before := b.last()
				r, err := b.try(harvest.Options{Full: true})
				if err == nil && r.Gap == "" {
					t.Fatalf("cut after %d of %d bytes: %+v", n, len(doc), r)
				}
				if got := b.log(before); len(got) != 0 && (before != 0 || len(got) != 1 || got[0] != "created c v1") {
					t.Fatalf("cut after %d of %d bytes: %q", n, len(doc), got)
				}
			}
			b.provider.ClearHook(fixtures.Archive(1))
			b.wantFull("whole", "created a v1", "created b v1")
		})
	}
}

func TestFault_CompleteFeedShrunk(t *testing.T) {
	for _, n := range []int{1, 2, 11, 100, 3000} {
		for _, left := range []int{0, n / 5} {
			if left == n || n-left <= 10 && left > 0 {
				continue // too few for the guard
			}
			t.Run(fmt.Sprintf("%d of %d", left, n), func(t *testing.T) {
				b := newEntryHarness(t, fixtures.Options{Complete: true})
				b.feed(many(n)...)
				b.harvest()
				before := b.last()
				b.feed(many(left)...)
				r := b.wantLog("held")
				if r.Held != int64(n-left) || !r.Partial() {
					t.Errorf("report %+v", r)
				}
				b.feed(many(n)...)
				b.wantLog("back")
				if b.stored().Held != 0 || b.last() != before {
					t.Errorf("%d held, %d events", b.stored().Held, b.last()-before)
				}
			})
		}
	}
}

// endless is a chain without end, or a cycle of so many documents.
type endless struct{ cycle int }

func (e endless) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := 0
	if s, ok := strings.CutPrefix(r.URL.Path, "/archive/"); ok {
		if _, err := fmt.Sscan(s, &n); err != nil {
			http.NotFound(w, r)
			return
		}
	}
	next := n + 1
	if e.cycle > 0 && next == e.cycle {
		next = 0
	}
	stamp := day(300).Add(-time.Duration(n) * time.Second).Format(time.RFC3339)
	prev := fmt.Sprintf("/archive/%d", next)
	if next == 0 {
		prev = fixtures.Subscription
	}
	fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title><updated>%s</updated><author><name>x</name></author>
<link rel="prev-archive" href="%s"/><entry><id>urn:%d</id><title>v1</title><updated>%s</updated><link href="/x" type="text/plain"/></entry></feed>`, stamp, prev, n, stamp)
}

func TestFault_ChainsWithoutEnd(t *testing.T) {
	testenv.Heavy(t)
	for name, c := range map[string]struct {
		handler endless
		most    int
		want    string
		events  int
	}{
		"cycle of 10,000":     {endless{10_000}, 20_000, "loop", 10_000},
		"a million documents": {endless{}, 10_000, "too many documents", 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newEntryHarness(t, fixtures.Options{}, func(cf *config.Config) { cf.Sets[0].Sources[0].MaxDocuments = c.most })
			b.server.Config.Handler = c.handler
			r, err := b.try(harvest.Options{})
			switch {
			case c.handler.cycle > 0 && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want one with %q", err, c.want)
			case c.handler.cycle == 0 && (err != nil || !strings.Contains(r.Gap, c.want)): // what is older was not seen (D108)
				t.Errorf("gap %q, error %v; want a gap with %q", r.Gap, err, c.want)
			}
			if got := r.Events(); got != int64(c.events) {
				t.Errorf("%d events, want %d", got, c.events)
			}
			b.wantMark(time.Time{})
		})
	}
}

func TestFault_OneBadEntryAmongTenThousand(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.quick()
	var all []fixtures.Entry
	for i := range 10_000 {
		all = append(all, active(fmt.Sprintf("r%05d", i), "v1", day(1).Add(time.Duration(i)*time.Second)))
	}
	// Active and deleted at the same time, and the server cannot say.
	all = append(all, deletion("r05000", all[5000].Updated))
	b.provider.SetHook("/records/r05000.xml", fixtures.Hook{Status: http.StatusInternalServerError})
	b.feed(all...)
	r := b.harvest()
	q := b.quarantined()
	if r.Created != 9_999 || r.Quarantined != 1 || len(q) != 1 || !r.Partial() {
		t.Fatalf("%d in quarantine, report %+v", len(q), r)
	}
	b.provider.SetHook("/records/r05000.xml", fixtures.Hook{Status: http.StatusOK})
	if got, err := b.replay(q[0]); err != nil || len(got) != 1 || got[0] != "created r05000 v1" {
		t.Errorf("replay: %q, %v", got, err)
	}
	b.wantFull("again")
}

func TestFault_GzipBomb(t *testing.T) {
	bomb := func(b *harness) fixtures.Hook {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		doc := b.fetchSource(fixtures.Subscription)
		cut := bytes.LastIndex(doc, []byte("</feed>"))
		for _, part := range [][]byte{doc[:cut], bytes.Repeat([]byte(" "), 8<<20), doc[cut:]} {
			if _, err := w.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return fixtures.Hook{Body: fixed(packed.String()), Header: http.Header{"Content-Encoding": {"gzip"}}}
	}
	t.Run("document", func(t *testing.T) {
		b := newCompleteHarness(t, 20)
		b.feed(many(19)...)
		b.provider.SetHook(fixtures.Subscription, bomb(b))
		b.want("logged", b.wantErrorFull("suspiciously many bytes"))
	})
	t.Run("representation", func(t *testing.T) {
		b := newHarness(t, fixtures.New(fixtures.Options{}))
		b.provider.Create(record("a", fixtures.Atom()))
		b.provider.SetHook("/records/a.atom", bomb(b))
		if r := b.harvest(); r.Pending != 1 || r.Created != 0 {
			t.Errorf("report %+v", r)
		}
	})
}
