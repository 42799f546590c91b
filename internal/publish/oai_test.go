package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/translate"
)

// tester is a test or a case of a law.
type tester interface {
	rapid.TB
	Cleanup(func())
}

// repositoryLog is a log with one set, "main", a clock that is moved by hand, and what is
// in it.
type repositoryLog struct {
	*eventlog.Log
	t      rapid.TB
	dir    string
	source event.SourceID
	mu     sync.Mutex
	wall   time.Time
	walked int
	// contents that representations name.
	contents map[[32]byte][]byte
}

func openRepositoryLog(t tester, content event.Content) *repositoryLog {
	t.Helper()
	dir, err := os.MkdirTemp("", "repository-")
	must(t, err)
	l := &repositoryLog{t: t, dir: dir, wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), contents: map[[32]byte][]byte{}}
	l.open(eventlog.Options{})
	t.Cleanup(func() { must(t, errors.Join(l.Close(), os.RemoveAll(dir))) })
	must(t, l.EnsureSet(context.Background(), eventlog.SetConfig{Name: "main", Title: "Maps", Content: content}))
	l.source, err = l.EnsureSource(context.Background(), "main", "atompmh", "https://source.example/feed.atom", 0)
	must(t, err)
	must(t, l.MarkSetComplete(context.Background(), "main"))
	return l
}

func (l *repositoryLog) open(o eventlog.Options) {
	l.t.Helper()
	o.Clock = func() (time.Time, time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.wall, time.Hour
	}
	var err error
	l.Log, err = eventlog.Open(context.Background(), l.dir, o)
	must(l.t, err)
}

func must(t rapid.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *repositoryLog) pass(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wall = l.wall.Add(d)
}

// live is a record that is there. Its title says which version it is.
func live(record, title string, specs ...string) *event.Item {
	it := &event.Item{Observation: event.Observation{Record: record, Title: title,
		Representations: []event.Representation{{Href: "https://source.example/" + title, Type: "text/html", Length: event.NoLength}}}}
	for _, spec := range specs {
		it.Categories = append(it.Categories, event.Category{Term: spec})
	}
	return it
}

func gone(record string) *event.Item {
	return &event.Item{Observation: event.Observation{Record: record, Deleted: true}}
}

// held is a record of a mirror with contents, each with its media type and profile.
func (l *repositoryLog) held(record string, contents ...[3]string) *event.Item {
	it := &event.Item{Observation: event.Observation{Record: record, Title: record, Fetched: true}}
	for i, c := range contents {
		sum := sha256.Sum256([]byte(c[0]))
		l.contents[sum] = []byte(c[0])
		it.Representations = append(it.Representations, event.Representation{Href: fmt.Sprintf("https://source.example/%s/%d", record, i), Type: c[1], Profile: c[2], Length: int64(len(c[0])), Hash: event.HashOf(sum)})
	}
	return it
}

func (l *repositoryLog) content(_ context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	b, ok := l.contents[sum]
	if !ok {
		return nil, 0, fs.ErrNotExist
	}
	return struct {
		*bytes.Reader
		io.Closer
	}{bytes.NewReader(b), io.NopCloser(nil)}, int64(len(b)), nil
}

// add appends items, each of which applies: its stamp is later than all before.
func (l *repositoryLog) add(items ...*event.Item) {
	l.t.Helper()
	must(l.t, l.addIn(items, func() {}))
}

// addIn is add in a transaction that calls wait before it commits.
func (l *repositoryLog) addIn(items []*event.Item, wait func()) error {
	l.walked++
	for i, it := range items {
		it.Order = event.StampFromNanos(int64(l.walked)*1000 + int64(i))
		it.Modified = it.Order
	}
	return l.Do(context.Background(), func(ctx context.Context, tx *eventlog.Tx) error {
		_, err := tx.Append(ctx, &event.Batch{Source: l.source, Mode: event.ModeSubmission, Documents: []event.Document{{URL: "https://source.example/"}}, Items: items})
		wait()
		return err
	})
}

func (l *repositoryLog) repository(page int) *Repository {
	r := NewRepository(RepositoryOptions{Log: l.Log, BaseURL: "https://bridge.example", Set: "main", Content: l.content, AdminEmail: "a@a.example", Page: page})
	return r
}

// told is what a list says of a record.
type told struct {
	identifier string
	at         time.Time
	title      string // "" of a deletion
}

// title reads the title of a record in oai_dc.
func title(t rapid.TB, rec *oaipmh.Record) string {
	var dc struct {
		Title string `xml:"title"`
	}
	if rec.Deleted {
		return ""
	}
	must(t, xml.Unmarshal(rec.Metadata, &dc))
	return dc.Title
}

// one asks for one answer of a list.
func (l *repositoryLog) one(r *Repository, q *oaipmh.Query) (records []told, date time.Time, next []byte) {
	l.t.Helper()
	list, err := r.List(context.Background(), q)
	must(l.t, err)
	for rec, err := range list.Records {
		must(l.t, err)
		records = append(records, told{rec.Identifier, rec.Datestamp, title(l.t, rec)})
	}
	return records, list.Date, list.Next()
}

// all asks for a whole list.
func (l *repositoryLog) all(r *Repository, q oaipmh.Query) (records []told) {
	l.t.Helper()
	for {
		page, _, next := l.one(r, &q)
		if records = append(records, page...); next == nil {
			return records
		}
		if len(page) == 0 {
			l.t.Fatal("an answer with a resumptionToken has no record")
		}
		q.Position = next
	}
}

// newest returns the state of all records as the log has it, in the order of the log.
func (l *repositoryLog) newest() (out []event.Event) {
	l.t.Helper()
	at := map[string]event.Event{}
	for e, err := range l.Events(context.Background(), "main", event.Range{Upto: 1 << 40}) {
		must(l.t, err)
		own := *e
		own.Categories = slices.Clone(e.Categories)
		at[e.Record] = own
	}
	return slices.SortedFunc(maps.Values(at), func(a, b event.Event) int { return int(a.Seq - b.Seq) })
}

func (l *repositoryLog) tell(e event.Event) told {
	t := told{e.Record, e.Observed.Time().Truncate(time.Second), e.Title}
	if !e.Live() {
		t.title = ""
	}
	return t
}

// A harvester that asks from the responseDate of the first answer of its last list on
// misses nothing, whatever happens between two answers: records change, a transaction is
// under way, the clock is set back. No list tells a record twice, or has an answer
// without any.
func TestRepositoryUnderChange(t *testing.T) {
	testenv.Checks(t, 30)
	rapid.Check(t, func(t *rapid.T) {
		l := openRepositoryLog(t, event.Redirect)
		r := l.repository(rapid.IntRange(1, 4).Draw(t, "page"))
		r.scanStep, r.scanEvents = rapid.IntRange(1, 8).Draw(t, "step"), rapid.IntRange(1, 20).Draw(t, "scan")
		version := 0
		change := func() (items []*event.Item) {
			for range rapid.IntRange(1, 5).Draw(t, "records") {
				version++
				record := fmt.Sprintf("urn:x:%d", rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).Draw(t, "record"))
				if slices.ContainsFunc(items, func(it *event.Item) bool { return it.Record == record }) {
					continue
				}
				if rapid.SampledFrom([]bool{true, false, false}).Draw(t, "deleted") {
					items = append(items, gone(record))
				} else {
					items = append(items, live(record, fmt.Sprintf("version-%d", version)))
				}
			}
			return items
		}
		mirror := map[string]told{}
		var date, from time.Time // responseDate of the list under way, and of the one before
		var position []byte
		inList := map[string]bool{}
		walk := func() {
			q := &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, From: from, Position: position}
			page, at, next := l.one(r, q)
			if position == nil {
				date, inList = at, map[string]bool{}
			}
			if !at.Equal(date) {
				t.Fatalf("an answer has the responseDate %v, the first one %v", at, date)
			}
			if len(page) == 0 && (position != nil || next != nil) {
				t.Fatalf("an answer of several has no record")
			}
			for _, rec := range page {
				if inList[rec.identifier] {
					t.Fatalf("%s is there twice", rec.identifier)
				}
				inList[rec.identifier] = true
				mirror[rec.identifier] = rec
			}
			if position = next; next == nil {
				from = date
			}
		}
		var commit chan struct{}
		done := make(chan error, 1)
		settle := func() {
			if commit != nil {
				close(commit)
				must(t, <-done)
				commit = nil
			}
		}
		defer settle()
		actions := rapid.SliceOfN(rapid.SampledFrom([]string{"change", "change", "begin", "begin", "commit", "back", "pass", "pass", "walk", "walk", "walk"}), 20, 60).Draw(t, "actions")
		for _, action := range actions {
			switch action {
			case "change":
				settle()
				l.add(change()...)
			case "commit":
				settle()
			case "begin":
				settle()
				commit = make(chan struct{})
				begun, until, items := make(chan struct{}), commit, change()
				go func() { done <- l.addIn(items, func() { close(begun); <-until }) }()
				<-begun
			case "back":
				l.pass(-rapid.SampledFrom([]time.Duration{time.Millisecond, 700 * time.Millisecond, 3 * time.Second}).Draw(t, "back"))
			case "pass":
				l.pass(rapid.SampledFrom([]time.Duration{time.Microsecond, 400 * time.Millisecond, time.Second, 3 * time.Second}).Draw(t, "pass"))
			default:
				walk()
			}
		}
		settle()
		for position != nil {
			walk()
		}
		for walk(); position != nil; walk() {
		}
		want := map[string]told{}
		for _, e := range l.newest() {
			want[e.Record] = l.tell(e)
		}
		if !maps.Equal(mirror, want) {
			t.Fatalf("harvested\n%v\nthe log has\n%v", mirror, want)
		}
	})
}

// A list that nothing disturbs has what a look at all events says: the newest state of
// each record, in the order of the log, by set and by date.
func TestRepositorySelects(t *testing.T) {
	testenv.Checks(t, 20)
	rapid.Check(t, func(t *rapid.T) {
		l := openRepositoryLog(t, event.Redirect)
		specs := []string{"maps", "maps:old", "mapsx", "a b"}
		for n := range rapid.IntRange(1, 12).Draw(t, "batches") {
			l.pass(rapid.SampledFrom([]time.Duration{0, time.Second / 3, time.Second, 2 * time.Second}).Draw(t, "pass"))
			record := fmt.Sprintf("urn:x:%d", rapid.IntRange(0, 5).Draw(t, "record"))
			if rapid.IntRange(0, 4).Draw(t, "kind") == 0 {
				l.add(gone(record))
			} else {
				l.add(live(record, fmt.Sprintf("version-%d", n), rapid.SliceOfNDistinct(rapid.SampledFrom(specs), 0, 2, rapid.ID[string]).Draw(t, "specs")...))
			}
		}
		r := l.repository(rapid.IntRange(1, 3).Draw(t, "page"))
		r.scanStep, r.scanEvents = rapid.IntRange(1, 4).Draw(t, "step"), rapid.IntRange(1, 6).Draw(t, "scan")
		r.blockEvents = event.Seq(rapid.IntRange(1, 4).Draw(t, "block"))
		q := oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Set: rapid.SampledFrom([]string{"", "maps", "maps:old", "a-20b", "none"}).Draw(t, "set")}
		dates := []time.Time{{}}
		for _, e := range l.newest() {
			at := e.Observed.Time().Truncate(time.Second)
			dates = append(dates, at, at.Add(time.Second), at.Add(-time.Second))
		}
		q.From, q.Until = rapid.SampledFrom(dates).Draw(t, "from"), rapid.SampledFrom(dates).Draw(t, "until")
		var want []told
		sets, there := 0, false
		for _, e := range l.newest() {
			sets, there = sets+len(e.Categories), there || e.Live()
			rec := l.tell(e)
			in := q.Set == ""
			for _, c := range e.Categories {
				in = in || c.Term == q.Set || strings.HasPrefix(c.Term, q.Set+":") || c.Term == "a b" && q.Set == "a-20b"
			}
			if in && !rec.at.Before(q.From) && (q.Until.IsZero() || !rec.at.After(q.Until)) {
				want = append(want, rec)
			}
		}
		if q.Set != "" && sets == 0 && there {
			return // TestRepositoryWithoutSets
		}
		if got := l.all(r, q); !slices.Equal(got, want) {
			t.Fatalf("%+v: got\n%v\nwant\n%v", q, got, want)
		}
	})
}

// What is not whole yet is told to harvesters that ask from a date on alone: a whole list
// would be taken for all that there is.
func TestRepositoryOfPartialSet(t *testing.T) {
	l := openRepositoryLog(t, event.Redirect)
	l.add(live("urn:x:1", "one"))
	r := l.repository(0)
	r.o.Log = partialLog{l.Log}
	q := &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC}
	var wait *NotReadyError
	if _, err := r.List(t.Context(), q); !errors.As(err, &wait) || wait.Partial != "main" {
		t.Errorf("a whole list: %v, want that it is not ready", err)
	}
	q.From = l.wall
	if records, _, _ := l.one(r, q); len(records) != 1 {
		t.Errorf("from a date: %v", records)
	}
}

type partialLog struct{ *eventlog.Log }

func (l partialLog) Set(ctx context.Context, name string) (event.Set, error) {
	set, err := l.Log.Set(ctx, name)
	set.Partial = true
	return set, err
}

const (
	modsNamespace = "http://www.loc.gov/mods/v3"
	aMods         = `<mods xmlns="http://www.loc.gov/mods/v3"><title/></mods>`
	anotherMods   = `<m:mods xmlns:m="http://www.loc.gov/mods/v3"><b xmlns=""/></m:mods>`
	aDC           = `<oai_dc:dc xmlns:oai_dc="http://www.openarchives.org/OAI/2.0/oai_dc/" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>own</dc:title></oai_dc:dc>`
)

// Which formats records are in, and what stands in a list in place of those that are not.
func TestRepositoryFormats(t *testing.T) {
	l := openRepositoryLog(t, event.Mirror)
	l.add(l.held("urn:x:mods", [3]string{"<?xml version='1.0'?>\n" + aMods, "application/xml", modsNamespace}),
		l.held("urn:x:typed", [3]string{anotherMods, "application/mods+xml; charset=utf-8", ""}),
		l.held("urn:x:doctype", [3]string{"<!DOCTYPE mods><mods xmlns='" + modsNamespace + "'/>", "application/mods+xml", ""}),
		l.held("urn:x:broken", [3]string{"<mods", "application/mods+xml", ""}),
		l.held("urn:x:other-root", [3]string{"<a xmlns='urn:a'/>", "application/mods+xml", ""}),
		l.held("urn:x:no-namespace", [3]string{"<a/>", "application/mods+xml", ""}),
		l.held("urn:x:html", [3]string{"<html/>", "text/html", ""}),
		l.held("urn:x:was-mods", [3]string{aMods, "application/xml", modsNamespace}),
		l.held("urn:x:dc", [3]string{aDC, "application/xml", oaipmh.DCNamespace}, [3]string{aMods, "application/xml", modsNamespace}),
		l.held("urn:x:not-dc", [3]string{"<a xmlns='urn:a'/>", "application/xml", oaipmh.DCNamespace}),
		l.held("urn:x:gone", [3]string{aMods, "application/xml", modsNamespace}))
	l.add(l.held("urn:x:was-mods", [3]string{"text", "text/plain", ""}), gone("urn:x:gone"))

	r := l.repository(3)
	r.o.Formats = []RepositoryFormat{{oaipmh.Format{Prefix: "mods", Namespace: modsNamespace, Schema: "https://schema.example/"}, "application/mods+xml"}}
	list := func(verb oaipmh.Verb, prefix string) map[string]string {
		out := map[string]string{}
		for q := (oaipmh.Query{Verb: verb, Prefix: prefix}); ; {
			page, err := r.List(t.Context(), &q)
			must(t, err)
			for rec, err := range page.Records {
				must(t, err)
				id := strings.TrimPrefix(rec.Identifier, "urn:x:")
				switch {
				case rec.Deleted:
					out[id] = "deleted"
				case verb == oaipmh.ListIdentifiers:
					out[id] = "there"
				case bytes.Contains(rec.Metadata, []byte("<dc:title>urn:x:")):
					out[id] = "made"
				default:
					out[id] = string(rec.Metadata)
				}
			}
			if q.Position = page.Next(); q.Position == nil {
				return out
			}
		}
	}
	for _, c := range []struct {
		verb   oaipmh.Verb
		prefix string
		want   map[string]string
	}{
		{oaipmh.ListRecords, "mods", map[string]string{"mods": aMods, "typed": anotherMods, "doctype": "deleted", "broken": "deleted", "other-root": "deleted", "no-namespace": "deleted",
			"was-mods": "deleted", "dc": aMods, "gone": "deleted"}},
		{oaipmh.ListIdentifiers, "mods", map[string]string{"mods": "there", "typed": "there", "doctype": "deleted", "broken": "deleted", "other-root": "deleted", "no-namespace": "deleted",
			"was-mods": "deleted", "dc": "there", "gone": "deleted"}},
		{oaipmh.ListRecords, oaipmh.DC, map[string]string{"mods": "made", "typed": "made", "doctype": "made", "broken": "made", "other-root": "made", "no-namespace": "made", "html": "made",
			"was-mods": "made", "dc": aDC, "not-dc": "made", "gone": "deleted"}},
	} {
		if got := list(c.verb, c.prefix); !maps.Equal(got, c.want) {
			t.Errorf("%s of %s:\n%v\nwant\n%v", c.verb, c.prefix, got, c.want)
		}
	}

	code := func(err error) oaipmh.Code {
		var e *oaipmh.Error
		if errors.As(err, &e) {
			return e.Code
		}
		return ""
	}
	for _, c := range []struct {
		id, prefix string
		want       oaipmh.Code
	}{
		{"urn:x:mods", "mods", ""}, {"urn:x:mods", oaipmh.DC, ""}, {"urn:x:gone", "mods", ""}, {"urn:x:gone", "none", oaipmh.CannotDisseminateFormat},
		{"urn:x:doctype", "mods", oaipmh.CannotDisseminateFormat}, {"urn:x:html", "mods", oaipmh.CannotDisseminateFormat}, {"urn:x:was-mods", "mods", oaipmh.CannotDisseminateFormat},
		{"urn:x:mods", "none", oaipmh.CannotDisseminateFormat}, {"urn:x:none", "mods", oaipmh.IDDoesNotExist}, {"not a uri", "mods", oaipmh.IDDoesNotExist},
	} {
		rec, err := r.Record(t.Context(), c.id, c.prefix)
		if code(err) != c.want || c.want == "" && (err != nil || rec.Identifier != c.id) {
			t.Errorf("record %s as %s: %v, %v; want %q", c.id, c.prefix, rec, err, c.want)
		}
	}
	for id, want := range map[string]string{"": "oai_dc mods", "urn:x:mods": "oai_dc mods", "urn:x:html": "oai_dc", "urn:x:gone": "noMetadataFormats", "urn:x:none": "idDoesNotExist"} {
		formats, err := r.Formats(t.Context(), id)
		got := []string{string(code(err))}
		for _, f := range formats {
			got = append(got, f.Prefix)
		}
		if s := strings.TrimSpace(strings.Join(got, " ")); s != want {
			t.Errorf("formats of %q: %s, want %s", id, s, want)
		}
	}
	if _, err := r.List(t.Context(), &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: "none"}); code(err) != oaipmh.CannotDisseminateFormat {
		t.Errorf("a list of an unknown format: %v", err)
	}
}

// An answer has no more contents than fit, and at least one.
func TestRepositoryPageBytes(t *testing.T) {
	testenv.Heavy(t)
	l := openRepositoryLog(t, event.Mirror)
	for i := range 5 {
		l.add(l.held(fmt.Sprintf("urn:x:%d", i), [3]string{"<mods xmlns='" + modsNamespace + "'>" + strings.Repeat(fmt.Sprint(i), (i+1)*pageBytes*2/5) + "</mods>", "application/xml", modsNamespace}))
	}
	r := l.repository(0)
	var pages []int
	for q := (oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: "mods"}); ; {
		page, err := r.List(t.Context(), &q)
		must(t, err)
		n := 0
		for _, err := range page.Records {
			must(t, err)
			n++
		}
		pages = append(pages, n)
		if q.Position = page.Next(); q.Position == nil {
			break
		}
	}
	if !slices.Equal(pages, []int{1, 1, 1, 1, 1}) && !slices.Equal(pages, []int{2, 1, 1, 1}) {
		t.Errorf("records by answer: %v", pages)
	}
}

// A position of another log, or none at all, is a bad token; so is one beyond what a
// restored backup has.
func TestRepositoryPositions(t *testing.T) {
	l := openRepositoryLog(t, event.Redirect)
	for i := range 10 {
		l.add(live(fmt.Sprintf("urn:x:%d", i), fmt.Sprintf("title-%d", i)))
	}
	r := l.repository(2)
	_, _, next := l.one(r, &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC})
	set, err := l.Set(t.Context(), "main")
	must(t, err)
	good := position{log: logID(&set), next: 3, end: 10, date: 1, told: 2}
	for name, b := range map[string][]byte{
		"empty": {}, "cut": next[:len(next)-1], "longer": append(slices.Clone(next), 0), "noise": []byte("noise"), "endless": bytes.Repeat([]byte{0xff}, 40),
		"another log": (&position{good.log + 1, 3, 10, 1, 2}).bytes(), "beyond": (&position{good.log, 3, 11, 1, 2}).bytes(), "before": (&position{good.log, 0, 10, 1, 2}).bytes(),
		"in the future": (&position{good.log, 3, 10, 1 << 47, 2}).bytes(),
	} {
		var e *oaipmh.Error
		if _, err := r.List(t.Context(), &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Position: b}); !errors.As(err, &e) || e.Code != oaipmh.BadResumptionToken {
			t.Errorf("%s: %v, want badResumptionToken", name, err)
		}
	}
	if _, err := r.List(t.Context(), &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Position: good.bytes()}); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

// The sets of a repository are the categories of its records, with those above them, and
// its Sources where there are several.
func TestRepositorySets(t *testing.T) {
	l := openRepositoryLog(t, event.Redirect)
	l.add(live("urn:x:1", "one", "maps:old"), live("urn:x:2", "two", "Prints & plans"))
	r := l.repository(0)
	r.o.Sources = []RepositorySource{{URL: "https://source.example/feed.atom", Name: "maps"}, {URL: "https://other.example/"}}
	r.sources = []string{"https://source.example/feed.atom", "https://other.example/"}
	names := func(after string, most int) (out []string) {
		sets, err := r.Sets(t.Context(), after, most)
		must(t, err)
		for _, s := range sets {
			out = append(out, s.Spec+"="+s.Name)
		}
		return out
	}
	if got, want := names("", 9), []string{"Prints-20-26-20plans=Prints & plans", "maps=maps", "maps:old=maps:old", "source:1=maps", "source:2=Source 2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	l.add(live("urn:x:1", "one again", "maps"), live("urn:x:3", "three", "new"))
	if got, want := names("maps:old", 2), []string{"new=new", "source:1=maps"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := l.all(r, oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Set: "source:1"}); len(got) != 3 {
		t.Errorf("of the first Source: %v", got)
	}
	if got := l.all(r, oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Set: "source:2"}); len(got) != 0 {
		t.Errorf("of the second Source: %v", got)
	}
}

// A repository whose records are in no set says so to those who ask for one.
func TestRepositoryWithoutSets(t *testing.T) {
	l := openRepositoryLog(t, event.Redirect)
	ask := &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Set: "maps"}
	if got, _, _ := l.one(l.repository(0), ask); len(got) != 0 { // its first record may have one
		t.Errorf("while it is empty: %v", got)
	}
	l.add(live("urn:x:1", "one"))
	_, err := l.repository(0).List(t.Context(), ask)
	var refused *oaipmh.Error
	if !errors.As(err, &refused) || refused.Code != oaipmh.NoSetHierarchy {
		t.Errorf("error %v", err)
	}
	l.add(live("urn:x:2", "two", "plans"))
	if got, _, _ := l.one(l.repository(0), ask); len(got) != 0 {
		t.Errorf("of another set: %v", got)
	}
}

// A Source can name sets of as many levels, and as long, as it likes: the index holds a bounded
// part of them, and records of the others are found all the same.
func TestRepositorySetsBounded(t *testing.T) {
	testenv.Heavy(t)
	l := openRepositoryLog(t, event.Redirect)
	add := func(record, title, spec string) {
		it := live(record, title, spec)
		it.Categories[0].Scheme = translate.SetScheme
		l.add(it)
	}
	deep := strings.Repeat("a:", 10_000) + "b"
	add("urn:x:deep", "deep", deep)
	var long string
	for i := range 50 {
		long = fmt.Sprint(strings.Repeat("x", 200_000), i)
		add(fmt.Sprint("urn:x:", i), "long", long)
	}
	r := l.repository(0)
	for of, term := range map[string]string{"deep": deep, "long": long} {
		spec := translate.SetSpec(event.Category{Term: term, Scheme: translate.SetScheme})
		if got := l.all(r, oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Set: spec}); len(got) != 1 {
			t.Errorf("of the %s set: %v", of, got)
		}
	}
	held := 0
	for spec, set := range r.index.sets {
		held += len(spec) + len(set.name)
	}
	if held > indexedBytes || held != r.index.bytes || !r.index.full || len(r.index.sets) > 50 {
		t.Errorf("%d sets with names of %d bytes, as it counts %d", len(r.index.sets), held, r.index.bytes)
	}
}

// A request that has read an older state of the set than another does not make the index
// read the log again.
func TestRepositoryIndexGoesOn(t *testing.T) {
	l := openRepositoryLog(t, event.Redirect)
	l.add(live("urn:x:1", "one", "maps"))
	older, err := l.Set(t.Context(), "main")
	must(t, err)
	l.add(live("urn:x:2", "two", "plans"))
	newer, err := l.Set(t.Context(), "main")
	must(t, err)
	r := l.repository(0)
	must(t, r.update(t.Context(), &newer))
	must(t, r.update(t.Context(), &older))
	if r.index.upto != newer.Last {
		t.Errorf("the index ends at event %d, want %d", r.index.upto, newer.Last)
	}
}

// A Source can state as many formats as it likes; the repository names some of them.
func TestRepositoryFormatsBounded(t *testing.T) {
	l := openRepositoryLog(t, event.Mirror)
	for i := range 2 {
		it := l.held(fmt.Sprintf("urn:x:%d", i))
		for j := range 150 {
			doc := fmt.Sprintf("<a xmlns='urn:f:%d-%d'/>", i, j)
			sum := sha256.Sum256([]byte(doc))
			l.contents[sum] = []byte(doc)
			it.Representations = append(it.Representations, event.Representation{Type: "application/xml", Length: int64(len(doc)), Hash: event.HashOf(sum), Profile: fmt.Sprintf("urn:f:%d-%d", i, j),
				Href: fmt.Sprintf("https://source.example/oai?verb=GetRecord&identifier=urn%%3Ax%%3A%d&metadataPrefix=f-%d-%d", i, i, j)})
		}
		l.add(it)
	}
	r := l.repository(0)
	formats, err := r.Formats(t.Context(), "")
	must(t, err)
	if len(formats) != 1+indexedFormats {
		t.Errorf("%d formats, want %d", len(formats), 1+indexedFormats)
	}
	if got, _, _ := l.one(r, &oaipmh.Query{Verb: oaipmh.ListIdentifiers, Prefix: "f-1-149"}); len(got) != 1 {
		t.Errorf("records in a format beyond: %v", got)
	}
}

// Records that are made of what is known of them count towards the length of an answer
// as those with a content do.
func TestRepositoryPageBytesOfMade(t *testing.T) {
	testenv.Heavy(t)
	l := openRepositoryLog(t, event.Redirect)
	for i := range 40 {
		it := live(fmt.Sprintf("urn:x:%d", i), "title")
		for j := range 150 {
			it.Categories = append(it.Categories, event.Category{Term: fmt.Sprintf("%d-%d", i, j), Label: strings.Repeat("m", 2000)})
		}
		l.add(it)
	}
	r := l.repository(1000)
	for _, verb := range []oaipmh.Verb{oaipmh.ListRecords, oaipmh.ListIdentifiers} {
		list, err := r.List(t.Context(), &oaipmh.Query{Verb: verb, Prefix: oaipmh.DC})
		must(t, err)
		var n, size int
		for rec, err := range list.Records {
			must(t, err)
			n++
			size += len(rec.Metadata)
		}
		if size > pageBytes || verb == oaipmh.ListRecords && n < 10 {
			t.Errorf("%s: an answer with %d records and %d bytes, want at most %d", verb, n, size, pageBytes)
		}
	}
}

// lookingLog counts the events that lists look at.
type lookingLog struct {
	*eventlog.Log
	looked event.Seq
}

func (l *lookingLog) Newest(ctx context.Context, set string, r event.Range, most int, do func(*event.Event) bool) (event.Seq, error) {
	upto, err := l.Log.Newest(ctx, set, r, most, do)
	l.looked += upto - r.After
	return upto, err
}

// A list of few records among many looks at few events, by set and by format.
func TestRepositoryPassesOver(t *testing.T) {
	l := openRepositoryLog(t, event.Mirror)
	const far = 400
	items := make([]*event.Item, far)
	for i := range items {
		content, spec := [3]string{fmt.Sprint(i), "text/plain", ""}, "many"
		if i == 1 || i == far-2 {
			content, spec = [3]string{"<mods xmlns='" + modsNamespace + "'/>", "application/xml", modsNamespace}, "rare"
		}
		items[i] = l.held(fmt.Sprintf("urn:x:%d", i), content)
		items[i].Categories = []event.Category{{Term: spec}}
	}
	l.add(items...)
	looking := &lookingLog{Log: l.Log}
	r := l.repository(0)
	r.o.Log, r.blockEvents, r.scanStep = looking, 10, 5
	for name, q := range map[string]oaipmh.Query{
		"set":        {Prefix: oaipmh.DC, Set: "rare"},
		"format":     {Prefix: "mods"},
		"both":       {Prefix: "mods", Set: "rare"},
		"set apart":  {Prefix: "mods", Set: "many"},
		"set of all": {Prefix: oaipmh.DC, Set: "many"},
		"no set":     {Prefix: oaipmh.DC, Set: "none"},
	} {
		must(t, func() error { _, err := r.Sets(t.Context(), "", 1); return err }())
		looking.looked = 0
		q.Verb = oaipmh.ListIdentifiers
		list, err := r.List(t.Context(), &q)
		must(t, err)
		var got int
		for _, err := range list.Records {
			must(t, err)
			got++
		}
		want, most := 2, event.Seq(60)
		switch name {
		case "set apart", "no set":
			want = 0
		case "set of all":
			want, most = 100, far
		}
		if got != want || looking.looked > most {
			t.Errorf("%s: %d records, looked at %d events: want %d, and at most %d", name, got, looking.looked, want, most)
		}
	}
}

// A record that has left the set which is listed is told there only where the answer to a
// resumptionToken would be empty without it.
func TestRepositoryRecordLeavesSet(t *testing.T) {
	for name, c := range map[string]struct {
		others int
		want   []string
	}{"others are left": {3, []string{"urn:x:2"}}, "it was the last": {2, []string{"urn:x:1"}}} {
		l := openRepositoryLog(t, event.Redirect)
		for i := range c.others {
			l.add(live(fmt.Sprintf("urn:x:%d", i), fmt.Sprint(i), "maps"))
		}
		r := l.repository(1)
		q := oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, Set: "maps"}
		_, _, q.Position = l.one(r, &q)
		l.add(live("urn:x:1", "moved", "plans"))
		var got []string
		for _, rec := range l.all(r, q) {
			got = append(got, rec.identifier)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A content that is missing costs its own record alone: a list of what has changed goes on
// without it, one of headers has it, and GetRecord fails. A whole list fails, since
// harvesters delete what it lacks, and so does an answer that would be empty.
func TestRepositoryContentIsLost(t *testing.T) {
	l := openRepositoryLog(t, event.Mirror)
	docs := make([]string, 4)
	for i := range docs {
		docs[i] = fmt.Sprintf("<mods xmlns='%s'>%d</mods>", modsNamespace, i)
		l.add(l.held(fmt.Sprintf("urn:x:%d", i), [3]string{docs[i], "application/xml", modsNamespace}))
	}
	delete(l.contents, sha256.Sum256([]byte(docs[1])))
	var noted []string
	lost := func(identifier string, err error) bool {
		noted = append(noted, identifier)
		return errors.Is(err, fs.ErrNotExist)
	}
	for name, c := range map[string]struct {
		verb oaipmh.Verb
		page int
		from bool
		lost func(string, error) bool
		want []string
	}{
		"whole":         {oaipmh.ListRecords, 0, false, lost, []string{"urn:x:0", "failed"}},
		"records":       {oaipmh.ListRecords, 0, true, lost, []string{"urn:x:0", "urn:x:2", "urn:x:3"}},
		"headers":       {oaipmh.ListIdentifiers, 0, false, lost, []string{"urn:x:0", "urn:x:1", "urn:x:2", "urn:x:3"}},
		"alone":         {oaipmh.ListRecords, 1, true, lost, []string{"urn:x:0", "failed"}},
		"another error": {oaipmh.ListRecords, 0, true, func(string, error) bool { return false }, []string{"urn:x:0", "failed"}},
	} {
		noted = nil
		r := l.repository(c.page)
		r.o.Lost = c.lost
		var got []string
		q := oaipmh.Query{Verb: c.verb, Prefix: "mods"}
		if c.from {
			q.From = l.wall.Add(-time.Hour)
		}
		for {
			list, err := r.List(t.Context(), &q)
			must(t, err)
			for rec, err := range list.Records {
				if err != nil {
					got = append(got, "failed")
					break
				}
				got = append(got, rec.Identifier)
			}
			if q.Position = list.Next(); q.Position == nil || got[len(got)-1] == "failed" {
				break
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if name == "records" && !slices.Equal(noted, []string{"urn:x:1"}) {
			t.Errorf("%s: %q were noted", name, noted)
		}
	}
	r := l.repository(0)
	r.o.Lost = lost
	if rec, err := r.Record(t.Context(), "urn:x:1", "mods"); err == nil {
		t.Errorf("GetRecord: %v", rec)
	}
}

// Few answers at a time may look at many events to find a record; the others wait.
func TestRepositoryLongScans(t *testing.T) {
	l := openRepositoryLog(t, event.Redirect)
	for i := range 30 {
		l.add(live("urn:x:1", fmt.Sprint(i)))
	}
	r := l.repository(0)
	r.scanStep, r.scanEvents = 5, 10
	for range longScans {
		r.scanning <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	q := &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC}
	if _, err := r.List(ctx, q); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with no place: %v", err)
	}
	<-r.scanning
	if got, _, _ := l.one(r, q); len(got) != 1 || len(r.scanning) != longScans-1 {
		t.Errorf("with a place: %v, %d places taken", got, len(r.scanning))
	}
}

// Few long contents are in memory at a time, also where each is asked for alone: a place is free
// again when the answer has ended.
func TestRepositoryLongRecords(t *testing.T) {
	l := openRepositoryLog(t, event.Mirror)
	long := `<mods xmlns="` + modsNamespace + `">` + strings.Repeat("x", largeContent) + "</mods>"
	l.add(l.held("urn:x:long", [3]string{long, "application/xml", modsNamespace}), l.held("urn:x:short", [3]string{aMods, "application/xml", modsNamespace}))
	r := l.repository(0)
	r.o.Formats = []RepositoryFormat{{oaipmh.Format{Prefix: "mods", Namespace: modsNamespace}, ""}}
	srv := httptest.NewServer(&oaipmh.Handler{Repository: r, BaseURL: r.base})
	defer srv.Close()
	ask := func(ctx context.Context, record string) (body string, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/?verb=GetRecord&metadataPrefix=mods&identifier="+record, nil)
		must(t, err)
		res, err := srv.Client().Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		all, err := io.ReadAll(res.Body)
		return string(all), err
	}
	for range cap(r.large) - 1 { // it needs two
		r.large <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if body, err := ask(ctx, "urn:x:long"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with no place it has %d bytes, %v", len(body), err)
	}
	if body, err := ask(t.Context(), "urn:x:short"); err != nil || !strings.Contains(body, aMods) {
		t.Errorf("a short one: %s, %v", body, err)
	}
	<-r.large
	for range 2 { // the second time it is the place of the first
		if body, err := ask(t.Context(), "urn:x:long"); err != nil || !strings.Contains(body, long) {
			t.Errorf("with a place it has %d bytes, %v", len(body), err)
		}
	}
}

// Clients that do not read a long record do not keep it from others.
func TestRepositoryLongRecordsOfSlowClients(t *testing.T) {
	t.Parallel()
	l := openRepositoryLog(t, event.Mirror)
	long := `<mods xmlns="` + modsNamespace + `">` + strings.Repeat("x", 12<<20) + "</mods>" // more than connections take in
	l.add(l.held("urn:x:long", [3]string{long, "application/xml", modsNamespace}))
	r := l.repository(0)
	r.o.Formats = []RepositoryFormat{{oaipmh.Format{Prefix: "mods", Namespace: modsNamespace}, ""}}
	srv := httptest.NewServer(&oaipmh.Handler{Repository: r, BaseURL: r.base})
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last *http.Response
	for n := range 9 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/?verb=GetRecord&metadataPrefix=mods&identifier=urn:x:long", nil)
		must(t, err)
		if last, err = srv.Client().Do(req); err != nil {
			t.Fatalf("beside %d clients that do not read: %v", n, err)
		}
		defer last.Body.Close()
	}
	if n, err := io.Copy(io.Discard, last.Body); err != nil || n < int64(len(long)) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestEarliestInANewEpoch: where a backup was restored, the set is created anew, and what it
// has keeps its datestamps: none is before the earliestDatestamp.
func TestEarliestInANewEpoch(t *testing.T) {
	t.Parallel()
	l := openRepositoryLog(t, event.Reference)
	l.add(live("urn:a", "First"))
	was, err := l.Set(t.Context(), "main")
	must(t, err)
	l.pass(time.Hour)
	l.add(live("urn:b", "Second"))
	must(t, l.Close())
	l.pass(time.Hour)
	must(t, os.Remove(filepath.Join(l.dir, eventlog.HeadName))) // which no backup has
	l.open(eventlog.Options{Restored: l.wall})
	set, err := l.Set(t.Context(), "main")
	must(t, err)
	first, err := l.Record(t.Context(), "main", event.Key("urn:a"))
	must(t, err)
	if set.Created <= was.Created || set.Created <= first.Observed {
		t.Fatalf("no new epoch: created %v, and before %v", set.Created.Time(), was.Created.Time())
	}
	r := NewRepository(RepositoryOptions{Log: l, BaseURL: "https://bridge.example", Set: "main", AdminEmail: "a@bridge.example"})
	id, err := r.Identity(t.Context())
	must(t, err)
	if got := first.Observed.Time().Truncate(time.Second); !id.Earliest.Truncate(time.Second).Equal(got) {
		t.Errorf("the earliest datestamp is %v, and the first record's %v", id.Earliest, got)
	}
}

// renamedLog is a log whose set gets another name in the moment before a list is looked up.
type renamedLog struct {
	*repositoryLog
}

func (l renamedLog) FirstAt(ctx context.Context, set string, at event.Micros) (event.Seq, error) {
	must(l.t, l.RenameSet(ctx, set, "another", false))
	return l.Log.FirstAt(ctx, set, at)
}

// TestRenamedMeanwhile: who asks what has changed while the set gets another name is not told
// that nothing has, after which what has would be missed.
func TestRenamedMeanwhile(t *testing.T) {
	t.Parallel()
	l := openRepositoryLog(t, event.Reference)
	l.add(live("urn:a", "First"))
	set, err := l.Set(t.Context(), "main")
	must(t, err)
	r := NewRepository(RepositoryOptions{Log: renamedLog{l}, BaseURL: "https://bridge.example", Set: "main", AdminEmail: "a@bridge.example"})
	list, err := r.List(t.Context(), &oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, From: l.wall.Add(-time.Hour)})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OAI-PMH: the list is %v, %v", list, err)
	}
	page, err := Changes(t.Context(), l, "https://bridge.example", &set, 0, DefaultChanges)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("changes.json: the page is %+v, %v", page, err)
	}
}

// Contents that are read together give the same records as those that are opened one by one,
// and those that are left out are opened, as all are where one of them cannot be read.
func TestRepositorySmallContents(t *testing.T) {
	l := openRepositoryLog(t, event.Mirror)
	for i := range 2 * readAhead {
		l.add(l.held(fmt.Sprintf("urn:x:%d", i), [3]string{fmt.Sprintf("<mods xmlns='%s'>%d%s</mods>", modsNamespace, i, strings.Repeat("x", i*1000)), "application/xml", modsNamespace}))
		l.add(live(fmt.Sprintf("urn:x:none-%d", i), fmt.Sprintf("none-%d", i)))
	}
	mods := []RepositoryFormat{{oaipmh.Format{Prefix: "mods", Namespace: modsNamespace, Schema: "https://schema.example/"}, ""}}
	list := func(r *Repository) (all []string) {
		r.o.Formats = mods
		for q := (oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: "mods"}); ; {
			page, err := r.List(t.Context(), &q)
			must(t, err)
			for rec, err := range page.Records {
				must(t, err)
				all = append(all, rec.Identifier+" "+string(rec.Metadata))
			}
			if q.Position = page.Next(); q.Position == nil {
				return all
			}
		}
	}
	want := list(l.repository(100))
	together, opened := 0, 0
	r := l.repository(100)
	r.o.SmallContents = func(_ context.Context, sums [][32]byte) (map[[32]byte][]byte, error) {
		small := map[[32]byte][]byte{}
		for _, sum := range sums {
			if sum[0]%3 != 0 {
				small[sum], together = l.contents[sum], together+1
			}
		}
		return small, nil
	}
	r.o.Content = func(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
		opened++
		return l.content(ctx, sum)
	}
	if got := list(r); !slices.Equal(got, want) || together == 0 || opened == 0 {
		t.Errorf("%d contents read together and %d opened: %d records, want %d:\n%.2000q", together, opened, len(got), len(want), got)
	}

	r.o.SmallContents = func(context.Context, [][32]byte) (map[[32]byte][]byte, error) {
		return nil, errors.New("one of them cannot be read")
	}
	if got := list(r); !slices.Equal(got, want) {
		t.Errorf("contents that cannot be read together, but one by one: %d records, want %d", len(got), len(want))
	}
}

// A format without a schema of its own has that which a harvested repository states for its
// namespace, if it can be one.
func TestRepositorySchemas(t *testing.T) {
	l := openRepositoryLog(t, event.Mirror)
	l.add(l.held("urn:x:a", [3]string{aMods, "application/xml", modsNamespace}))
	r := l.repository(10)
	r.o.Formats = []RepositoryFormat{{oaipmh.Format{Prefix: "mods", Namespace: modsNamespace}, ""}, {oaipmh.Format{Prefix: "own", Namespace: "urn:own", Schema: "https://own.example/"}, ""}}
	schema := func(prefix string) string {
		formats, err := r.Formats(t.Context(), "")
		must(t, err)
		for _, f := range formats {
			if f.Prefix == prefix {
				return f.Schema
			}
		}
		return "no such format"
	}
	if got := schema("mods"); got != "" {
		t.Errorf("without Known it is %q", got)
	}
	known, broken := []oaipmh.Format{{Namespace: modsNamespace, Schema: "no URL"}, {Namespace: "urn:own", Schema: "https://other.example/"},
		{Namespace: modsNamespace, Schema: "https://stated.example/"}, {Namespace: modsNamespace, Schema: "https://later.example/"}}, error(nil)
	r.o.Known = func(context.Context) ([]oaipmh.Format, error) { return known, broken }
	if got, own := schema("mods"), schema("own"); got != "https://stated.example/" || own != "https://own.example/" {
		t.Errorf("the schemas are %q and %q", got, own)
	}
	broken = errors.New("the log is broken")
	if _, err := r.Formats(t.Context(), ""); !errors.Is(err, broken) {
		t.Errorf("Known fails: %v", err)
	}
}

// Who asks from the responseDate of an answer on misses nothing that was being written then.
func TestRepositoryNow(t *testing.T) {
	l := openRepositoryLog(t, event.Redirect)
	r := l.repository(10)
	var now time.Time
	must(t, l.addIn([]*event.Item{live("urn:x:a", "a")}, func() {
		l.pass(time.Hour)
		now = r.Now(t.Context())
	}))
	l.pass(time.Hour)
	got := l.all(r, oaipmh.Query{Verb: oaipmh.ListRecords, Prefix: oaipmh.DC, From: now})
	if len(got) != 1 || got[0].identifier != "urn:x:a" {
		t.Errorf("from %v on: %v", now, got)
	}
	if then := r.Now(t.Context()); !then.After(now.Add(time.Hour)) {
		t.Errorf("two hours later it is %v, then %v", then, now)
	}
}
