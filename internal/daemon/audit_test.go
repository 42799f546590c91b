package daemon_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/audit"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// auditedSource is a ResourceSync Source that states whatever a test wants of its
// resources: a Resource List as it was on day 2, and a Change List with deletions on day
// 3. It is its own origin server too.
type auditedSource struct {
	mu   sync.Mutex
	all  map[string]*auditedResource
	down bool
	omit bool // the Resource List cannot be read to its end
}

type auditedResource struct {
	body, kind string
	day        int // of its last modification
	hash, size bool
	via        string // the URL of its original
	deleted    bool   // by the Change List
	absent     bool   // from both
}

func auditDay(n int) string {
	return time.Date(2026, 3, n, 0, 0, 0, 0, time.UTC).Format(time.RFC3339)
}

func (s *auditedSource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	base, name := "http://"+r.Host, strings.TrimPrefix(r.URL.Path, "/res/")
	head := `<?xml version="1.0" encoding="UTF-8"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">`
	switch res := s.all[name]; {
	case s.down && res == nil:
		w.WriteHeader(http.StatusForbidden)
	case r.URL.Path == "/capabilitylist.xml":
		fmt.Fprintf(w, `%s<rs:md capability="capabilitylist"/><url><loc>%s/resourcelist.xml</loc><rs:md capability="resourcelist"/></url><url><loc>%[2]s/changelist.xml</loc><rs:md capability="changelist"/></url></urlset>`, head, base)
	case r.URL.Path == "/resourcelist.xml":
		fmt.Fprintf(w, `%s<rs:md capability="resourcelist" at="%s"/>`, head, auditDay(2))
		s.each(func(name string, a *auditedResource) {
			if !a.deleted && !a.absent {
				fmt.Fprintf(w, `<url><loc>%s/res/%s</loc><lastmod>%s</lastmod><rs:md%s/>%s</url>`, base, name, auditDay(a.day), a.stated(), a.link())
			}
		})
		if !s.omit {
			_, _ = io.WriteString(w, `</urlset>`)
		}
	case r.URL.Path == "/changelist.xml":
		fmt.Fprintf(w, `%s<rs:md capability="changelist" from="%s"/>`, head, auditDay(2))
		s.each(func(name string, a *auditedResource) {
			if a.deleted {
				fmt.Fprintf(w, `<url><loc>%s/res/%s</loc><rs:md change="deleted" datetime="%s"/></url>`, base, name, auditDay(3))
			}
		})
		_, _ = io.WriteString(w, `</urlset>`)
	case res == nil || res.deleted:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", res.kind)
		_, _ = io.WriteString(w, res.body)
	}
}

func (s *auditedSource) each(do func(string, *auditedResource)) {
	var names []string
	for name := range s.all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		do(name, s.all[name])
	}
}

func (a *auditedResource) stated() string {
	out := fmt.Sprintf(` type="%s"`, a.kind)
	if a.hash {
		out += fmt.Sprintf(` hash="sha-256:%x"`, sha256.Sum256([]byte(a.body)))
	}
	if a.size {
		out += fmt.Sprintf(` length="%d"`, len(a.body))
	}
	return out
}

func (a *auditedResource) link() string {
	if a.via == "" {
		return ""
	}
	return fmt.Sprintf(`<rs:ln rel="via" href="%s"/>`, a.via)
}

// set changes a resource.
func (s *auditedSource) set(name string, change func(*auditedResource)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.all[name])
}

// auditHarness is a bridge that has harvested such a Source, and is to be audited.
type auditHarness struct {
	*harness
	origin *auditedSource
	other  *httptest.Server // of originals
}

func newAuditHarness(t *testing.T, names ...string) *auditHarness {
	s := &auditedSource{all: map[string]*auditedResource{}}
	other := httptest.NewServer(s)
	t.Cleanup(other.Close)
	for i, name := range names {
		s.all[name] = &auditedResource{body: fmt.Sprintf("body of %s", name), kind: "text/plain", day: 1, hash: true, size: true}
		switch name {
		case "length":
			s.all[name].hash = false
		case "published", "original":
			s.all[name].hash, s.all[name].size = false, false
		case "missing":
			s.all[name].absent = true
		}
		if name == "original" || i == 0 {
			s.all[name].via = other.URL + "/res/" + name
		}
	}
	a := &auditHarness{newHarness(t, s, resourceSync, entry("/capabilitylist.xml"), func(c *config.Config) { c.AllowHosts = []string{"127.0.0.1"} }), s, other}
	a.quick()
	a.harvest()
	return a
}

// audit audits beside the bridge that writes, and returns "kind name" of what it finds,
// with what became of the repair if that is asked for.
func (a *harness) audit(repair bool) (found []string, report *audit.Report) {
	a.t.Helper()
	return a.auditWith(func(p *audit.Page) error {
		if repair {
			return a.repairPage(p)
		}
		return nil
	})
}

// repairPage has the bridge that writes repair what an audit has found.
func (a *harness) repairPage(p *audit.Page) error {
	r, of, err := daemon.NewRepair(p)
	if err != nil {
		return err
	}
	var left []string
	if r != nil {
		done, err := a.bridge.Decide(a.t.Context(), daemon.Decision{Repair: r})
		if err != nil {
			return err
		}
		left = done.Left
	}
	daemon.SettleRepair(p, of, left)
	return nil
}

// auditWith is audit, and calls page with what it finds.
func (a *harness) auditWith(page func(*audit.Page) error) (found []string, report *audit.Report) {
	a.t.Helper()
	b, err := daemon.Open(a.t.Context(), a.config, daemon.Options{ReadOnly: true, Now: a.options.Now})
	if err != nil {
		a.t.Fatal(err)
	}
	defer b.Close()
	done, err := b.Audit(a.t.Context(), "main", daemon.AuditOptions{Origin: true,
		Begin: func(string) (func(harvest.Progress), func()) { return func(harvest.Progress) {}, func() {} },
		Found: func(_ context.Context, p *audit.Page) error {
			if err := page(p); err != nil {
				return err
			}
			for _, d := range p.Differences {
				for _, f := range d.Findings {
					if f.Set != "main" || f.Source == "" || f.Found == f.Expected || f.Expected == "" || f.Found == "" {
						a.t.Errorf("it says %+v", f)
					}
					found = append(found, strings.TrimSpace(string(f.Kind)+" "+f.Record[strings.LastIndexByte(f.Record, '/')+1:]+" "+f.Repair))
				}
			}
			return nil
		}})
	if err != nil {
		a.t.Fatal(err)
	}
	report = done.Sources[0]
	if err := report.Sums(); err != nil {
		a.t.Error(err)
	}
	if done.Records != done.Listed {
		a.t.Errorf("%d records live, %d listed", done.Records, done.Listed)
	}
	slices.Sort(found)
	return found, report
}

// write has the log take in what no Source has said.
func (a *auditHarness) write(name string, mode event.Mode, change func(*event.Item)) {
	a.t.Helper()
	a.close()
	defer a.open()
	log, err := eventlog.Open(a.t.Context(), a.config.Data, eventlog.Options{})
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	sources, err := log.Sources(a.t.Context(), "main")
	if err != nil {
		a.t.Fatal(err)
	}
	said, err := log.SourceRecordsOf(a.t.Context(), sources[0].ID, []string{a.server.URL + "/res/" + name})
	if err != nil {
		a.t.Fatal(err)
	}
	it := &event.Item{Observation: said[0].Observation}
	it.Fetched = true
	change(it)
	p, err := log.Progress(a.t.Context(), sources[0].ID)
	if err != nil {
		a.t.Fatal(err)
	}
	b := &event.Batch{Source: sources[0].ID, Cursor: p.Cursor.Version, Mode: mode, Items: []*event.Item{it}, Documents: []event.Document{{URL: a.server.URL}}}
	if _, err := log.Append(a.t.Context(), b); err != nil {
		a.t.Fatal(err)
	}
}

// tamperContent changes the contents of a record behind the log's back.
func (a *auditHarness) tamperContent(text, name string) {
	a.t.Helper()
	a.close()
	defer a.open()
	sum := sha256.Sum256([]byte("body of " + name))
	tamper(a.t, filepath.Join(a.config.Data, "content.db"), text, sum[:])
}

// seeds are the kinds of differences, how each comes about, and the event that repairs
// it; "" is none.
var seeds = []struct {
	kind  audit.Kind
	seed  func(a *auditHarness, name string)
	event string
}{
	{audit.Missing, func(a *auditHarness, name string) { a.origin.set(name, func(r *auditedResource) { r.absent = false }) }, "created"},
	{audit.Extra, func(a *auditHarness, name string) { a.origin.set(name, func(r *auditedResource) { r.absent = true }) }, "deleted"},
	{audit.Stale, func(a *auditHarness, name string) {
		a.origin.set(name, func(r *auditedResource) { r.day, r.body = 2, "later" })
	}, "updated"},
	{audit.Hash, func(a *auditHarness, name string) {
		a.origin.set(name, func(r *auditedResource) { r.body = strings.ToUpper(r.body) })
	}, "updated"},
	{audit.Length, func(a *auditHarness, name string) {
		a.origin.set(name, func(r *auditedResource) { r.body += " and more" })
	}, "updated"},
	{audit.Type, func(a *auditHarness, name string) {
		a.origin.set(name, func(r *auditedResource) { r.kind = "text/csv" })
	}, "updated"},
	{audit.DeletedThere, func(a *auditHarness, name string) {
		a.origin.set(name, func(r *auditedResource) { r.deleted = true })
	}, "deleted"},
	{audit.DeletedHere, func(a *auditHarness, name string) {
		a.write(name, event.ModeAbsent, func(it *event.Item) {
			it.Observation = event.Observation{Record: it.Record, Deleted: true}
			it.Reason = "by mistake"
		})
	}, "created"},
	{audit.ContentMissing, func(a *auditHarness, name string) { a.tamperContent("DELETE FROM content WHERE sum = $1", name) }, ""},
	{audit.ContentDamaged, func(a *auditHarness, name string) {
		a.tamperContent("UPDATE content SET bytes = zeroblob(length) WHERE sum = $1", name)
	}, ""},
	{audit.Published, func(a *auditHarness, name string) {
		a.write(name, event.ModeReplay, func(it *event.Item) { // one that replaces what was said, under the same claim
			it.Order = it.Order.Add(time.Second)
			it.Representations[0].Length--
		})
	}, "updated"},
	{audit.Original, func(a *auditHarness, name string) {
		a.origin.set(name, func(r *auditedResource) { r.body = strings.ToUpper(r.body) })
	}, "updated"},
}

// names returns the records that the seeds are sown in, and some more.
func seededNames() []string {
	names := []string{"a", "b", "c", "d"}
	for _, s := range seeds {
		names = append(names, string(s.kind))
	}
	return names
}

// An audit finds each kind of difference, beside the process that writes, and a repair
// mends it, with one event or none. Another audit finds nothing.
func TestAuditFindsAndRepairs(t *testing.T) {
	testenv.Heavy(t)
	for _, s := range seeds {
		t.Run(string(s.kind), func(t *testing.T) {
			name := string(s.kind)
			a := newAuditHarness(t, append(seededNames()[:4], name)...)
			if found, r := a.audit(false); len(found) > 0 || !r.Whole() {
				t.Fatalf("before: %q %+v", found, r)
			}
			s.seed(a, name)
			before := a.last()
			found, _ := a.audit(false)
			a.want("it finds", found, name+" "+name)
			a.want("it only reads", a.logged(before))
			found, r := a.audit(true)
			a.want("it repairs", found, name+" "+name+" done")
			if !r.Whole() || r.Repaired != 1 {
				t.Errorf("the report of the repair: %+v", r)
			}
			a.wantRepaired(before, s.event, name)
		})
	}
}

// All kinds at once: each record is repaired, and nothing is logged of the others.
func TestAuditRepairsAll(t *testing.T) {
	a := newAuditHarness(t, seededNames()...)
	before := event.Seq(0)
	var want, done, events []string
	for _, s := range seeds {
		name := string(s.kind)
		s.seed(a, name)
		want, done = append(want, name+" "+name), append(done, name+" "+name+" done")
		if s.event != "" {
			events = append(events, s.event+" "+name)
		}
	}
	before = a.last()
	found, r := a.audit(false)
	slices.Sort(want)
	a.want("it finds", found, want...)
	if r.Missing != 1 || r.Extra != 1 || r.ToDelete != 1 || r.DeletedHere != 1 || r.AtSource != int64(len(a.origin.all)-2) {
		t.Errorf("the report: %+v", r)
	}
	found, _ = a.audit(true)
	slices.Sort(done)
	a.want("it repairs", found, done...)
	got := a.logged(before)
	slices.Sort(got)
	slices.Sort(events)
	a.want("the log has", got, events...)
	if found, r := a.audit(false); len(found) > 0 || !r.Whole() {
		t.Errorf("afterwards: %q %+v", found, r)
	}
	if left := findings(t, a.config.Data); len(left) > 0 {
		t.Errorf("verify finds %q", left)
	}
	if r := a.full(); r.Events() > 0 {
		t.Errorf("a full harvest logs %+v", r)
	}
}

func (a *auditHarness) wantRepaired(before event.Seq, kind, name string) {
	a.t.Helper()
	var want []string
	if kind != "" {
		want = []string{kind + " " + name}
	}
	a.want("the log has", a.logged(before), want...)
	if found, r := a.audit(false); len(found) > 0 || !r.Whole() {
		a.t.Errorf("afterwards: %q %+v", found, r)
	}
}

// absentOnly is why a record that a Source does not name is left, where that shows no deletion.
const absentOnly = "its absence alone does not delete it: bridge harvest --full does, or holds the deletion, if the Source lists all its records"

// I6: what was not read whole, and without any error, deletes nothing; nor do too many
// deletions at once.
func TestAuditAbsence(t *testing.T) {
	testenv.Heavy(t)
	names := []string{"a", "b", "c", "d", "e", "f"}
	for _, c := range []struct {
		name    string
		change  func(s *auditedSource)
		want    []string // found when it is repaired
		checked bool
		events  []string
	}{
		{name: "cut short", change: func(s *auditedSource) { s.omit = true; s.all["b"].absent = true }},
		{name: "not to be had", change: func(s *auditedSource) { s.down = true }},
		{name: "a bad entry", change: func(s *auditedSource) { s.all["a"].kind, s.all["b"].absent = strings.Repeat("x", 300), true },
			want: []string{"extra b " + absentOnly, "quarantined a the entry is bad: tell the Source's operator"}, checked: true},
		{name: "one of six", change: func(s *auditedSource) { s.all["b"].absent = true }, want: []string{"extra b done"}, checked: true, events: []string{"deleted b"}},
		{name: "all", change: func(s *auditedSource) {
			for _, r := range s.all {
				r.absent = true
			}
		}, want: []string{"extra a its deletion is held", "extra b its deletion is held", "extra c its deletion is held", "extra d its deletion is held", "extra e its deletion is held", "extra f its deletion is held"}, checked: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAuditHarness(t, names...)
			before := a.last()
			a.origin.mu.Lock()
			c.change(a.origin)
			a.origin.mu.Unlock()
			found, r := a.audit(true)
			a.want("it finds", found, c.want...)
			if checked := len(r.Unchecked) == 0; checked != c.checked {
				t.Errorf("not checked: %q", r.Unchecked)
			}
			a.want("the log has", a.logged(before), c.events...)
			if c.name == "all" {
				held, r := a.audit(true)
				if len(held) != 6 || held[0] != "held a a person decides: bridge source release main" || r.Held != 6 {
					t.Errorf("then it finds %q", held)
				}
				a.want("then the log has", a.logged(before))
			}
		})
	}
}

// A record that changes between an audit and the repair is left alone, and what the log
// takes in during the audit is not judged.
func TestAuditBesideHarvest(t *testing.T) {
	a := newAuditHarness(t, "a", "b", "c")
	a.origin.set("b", func(r *auditedResource) { r.body = "BODY OF b" })
	before := a.last()
	found, _ := a.auditWith(func(p *audit.Page) error {
		a.origin.set("b", func(r *auditedResource) { r.body = "BODY OF B" })
		a.full()
		return a.repairPage(p)
	})
	a.want("it finds", found, "hash b the record has changed since it was audited")
	a.want("the log has", a.logged(before), "updated b")

	a.origin.set("c", func(r *auditedResource) { r.body = "BODY OF C" })
	a.origin.set("a", func(r *auditedResource) { r.body = "BODY OF A" })
	first := true
	found, r := a.auditWith(func(*audit.Page) error {
		if first {
			first = false
			a.full()
		}
		return nil
	})
	if len(found) != 2 || r.Differences != 2 {
		t.Errorf("it finds %q: %+v", found, r)
	}
}

// What a harvest finds again unchanged between an audit and the repair logs no event, and
// is left alone all the same.
func TestAuditBesideUnchanged(t *testing.T) {
	a := newAuditHarness(t, "a", "b", "c", "d")
	before := a.last()
	absent := func(is bool) func(*auditedResource) { return func(r *auditedResource) { r.absent = is } }
	a.origin.set("b", absent(true))
	found, _ := a.auditWith(func(p *audit.Page) error {
		a.origin.set("b", absent(false))
		a.full()
		return a.repairPage(p)
	})
	a.want("of an absence it finds", found, "extra b the Source was harvested since the audit has read it: audit it again")

	body := func(text string) func(*auditedResource) { return func(r *auditedResource) { r.body = text } }
	a.origin.set("b", body("BODY OF b"))
	found, _ = a.auditWith(func(p *audit.Page) error {
		a.origin.set("b", body("body of b"))
		a.full()
		return a.repairPage(p)
	})
	a.want("of a hash it finds", found, "hash b the Source was harvested since the audit has read it: audit it again")
	a.want("the log has", a.logged(before))
}

// The limits of a harvest hold for an audit too, four times as wide.
func TestAuditIsLimited(t *testing.T) {
	a := newAuditHarness(t, "a", "b", "c")
	for _, c := range []struct {
		size  int64
		whole bool
	}{{20, false}, {1000, true}} { // its documents have about 1,500 bytes
		a.config.Limits.HarvestSize = c.size
		if found, r := a.audit(false); len(found) > 0 || r.Whole() != c.whole {
			t.Errorf("%d bytes: it finds %q, not checked: %q", c.size, found, r.Unchecked)
		}
	}
}

// TestAuditLeavesOutPaused: a paused Source is not asked for anything, by an audit either, which says
// so. Our copies of its records are checked, and those that are bad wait until it is resumed.
func TestAuditLeavesOutPaused(t *testing.T) {
	a := newAuditHarness(t, "equal", "missing")
	src := a.source()
	if _, err := a.bridge.Pause(t.Context(), src.Set, src.URL, "their server is too slow", time.Time{}); err != nil {
		t.Fatal(err)
	}
	found, report := a.audit(false)
	if len(found) > 0 || report.Documents > 0 || report.Whole() || len(report.Unchecked) != 1 || !strings.Contains(report.Unchecked[0], "is paused, and not asked for anything") {
		t.Errorf("found %q in %d documents, not checked: %q", found, report.Documents, report.Unchecked)
	}
	if report.Here != 1 || report.Contents != 1 {
		t.Errorf("%d records here, %d contents read", report.Here, report.Contents)
	}
	a.tamperContent("UPDATE content SET bytes = zeroblob(length) WHERE sum = $1", "equal")
	if found, _ := a.audit(true); !slices.Equal(found, []string{"content-damaged equal the Source is paused: resume it with bridge source resume"}) {
		t.Errorf("damaged: found %q", found)
	}
	if _, err := a.bridge.Resume(t.Context(), src.Set, src.URL); err != nil {
		t.Fatal(err)
	}
	if found, report := a.audit(true); report.Documents == 0 || len(report.Unchecked) > 0 || !slices.Equal(found, []string{"content-damaged equal " + audit.Done}) {
		t.Errorf("resumed: found %q in %d documents, not checked: %q", found, report.Documents, report.Unchecked)
	}
}

// What an archived feed does not name any more may have been deleted or not: it is found,
// and left.
func TestAuditOfFeed(t *testing.T) {
	p := fixtures.Catalogue(nil)
	b := newHarness(t, p)
	b.harvest()
	if found, r := b.audit(false); len(found) > 0 || !r.Whole() || r.Complete {
		t.Fatalf("it finds %q: %+v", found, r)
	}
	before := b.last()
	b.close()
	log, err := eventlog.Open(t.Context(), b.config.Data, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sources, err := log.Sources(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	said, err := log.SourceRecordsOf(t.Context(), sources[0].ID, []string{p.Live()[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	it := &event.Item{Observation: said[0].Observation}
	it.Record, it.Fetched = "urn:extra", true
	if _, err := log.Append(t.Context(), &event.Batch{Source: sources[0].ID, Cursor: sources[0].Cursor.Version, Mode: event.ModeReplay, Items: []*event.Item{it}}); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	b.open()
	found, r := b.audit(true)
	b.want("it finds", found, "extra urn:extra "+absentOnly)
	if r.Extra != 1 || b.last() != before+1 {
		t.Errorf("%+v", r)
	}
}

// A verification that is interrupted, wherever, ends with that error, and takes what it could not
// read any more for no damage.
func TestVerifyInterrupted(t *testing.T) {
	b := newHarness(t, fixtures.Catalogue(nil), segments(3))
	b.harvest()
	for n := 1; ; n += 1 + n/10 {
		inner, cancel := context.WithCancel(t.Context())
		ctx := &endingContext{Context: inner, cancel: cancel}
		ctx.left.Store(int64(n))
		var found []daemon.Finding
		_, err := b.bridge.Verify(ctx, false, func(f daemon.Finding) { found = append(found, f) })
		ended := inner.Err() != nil
		cancel()
		if len(found) > 0 || ended && err == nil {
			t.Fatalf("ended at %d: it finds %+v, %v", n, found, err)
		}
		if !ended {
			if err != nil || n < 10 {
				t.Errorf("%d: %v", n, err)
			}
			return
		}
	}
}

// endingContext ends when it was looked at so many times.
type endingContext struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func (c *endingContext) Done() <-chan struct{} {
	if c.left.Add(-1) == 0 {
		c.cancel()
	}
	return c.Context.Done()
}

// logged returns the events after a position, as "kind name".
func (a *auditHarness) logged(after event.Seq) (out []string) {
	a.t.Helper()
	for ev := range a.eventsOf("main", after) {
		out = append(out, ev.Kind.String()+" "+ev.Record[strings.LastIndexByte(ev.Record, '/')+1:])
	}
	return out
}

// setsSource is a Source with a set of resources for each letter, and a resource in each.
// A letter in upper case has other content.
type setsSource struct{ letters atomic.Pointer[string] }

func (s *setsSource) set(letters string) { s.letters.Store(&letters) }

func (s *setsSource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	base, letters := "http://"+r.Host, *s.letters.Load()
	write := func(md string, entries string) {
		fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md %s/>%s</urlset>`, md, entries)
	}
	letter := r.URL.Path[len(r.URL.Path)-1:]
	there := strings.Contains(strings.ToLower(letters), letter)
	switch kind := strings.TrimSuffix(r.URL.Path, letter); {
	case r.URL.Path == "/sd":
		var all strings.Builder
		for _, l := range strings.ToLower(letters) {
			fmt.Fprintf(&all, `<url><loc>%s/cap/%c</loc><rs:md capability="capabilitylist"/></url>`, base, l)
		}
		write(`capability="description"`, all.String())
	case kind == "/cap/" && there:
		write(`capability="capabilitylist"`, fmt.Sprintf(`<url><loc>%s/rl/%s</loc><rs:md capability="resourcelist"/></url>`, base, letter))
	case kind == "/rl/" && there:
		hash := strings.Repeat("0", 32)
		if strings.Contains(letters, strings.ToUpper(letter)) {
			hash = strings.Repeat("1", 32)
		}
		write(fmt.Sprintf(`capability="resourcelist" at="%s"`, auditDay(2)), fmt.Sprintf(`<url><loc>%s/res/%s</loc><rs:md hash="md5:%s"/></url>`, base, letter, hash))
	case kind == "/res/" && there:
		fmt.Fprint(w, letter)
	default:
		http.NotFound(w, r)
	}
}

// The sets of a Source keep their numbers in an audit, also when the first one is gone: a
// repair places a record in its own set. One in a set that no harvest knows is left.
func TestAuditKeepsNumbersOfSets(t *testing.T) {
	s := &setsSource{}
	s.set("ab")
	b := newHarness(t, s, resourceSync, entry("/sd"), func(c *config.Config) { c.Sets[0].Content = config.Reference })
	b.quick()
	if r := b.harvest(); r.Created != 2 {
		t.Fatalf("%+v", r)
	}
	part := func() int {
		said, err := b.bridge.Log.SourceRecordsOf(t.Context(), b.source().ID, []string{b.server.URL + "/res/b"})
		if err != nil {
			t.Fatal(err)
		}
		return said[0].Observation.Place.Part
	}
	if part() != 1 {
		t.Fatalf("b is in set %d", part())
	}
	s.set("Bc")
	found, _ := b.audit(true)
	b.want("it finds", found, "extra a done", "hash b done", "missing c it is in a set of resources of the Source that no harvest has met: harvest the Source")
	if part() != 1 {
		t.Errorf("after the repair b is in set %d", part())
	}
}
