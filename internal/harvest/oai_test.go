package harvest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// archive is an OAI-PMH repository, and a log with one set that is harvested from it.
type archive struct {
	*harness
	repo *testserver.Repository
	url  string
	mu   sync.Mutex
	now  time.Time // of the repository and of the harvests, guarded by mu
}

func newArchive(t tester, mode event.Content) *archive {
	t.Helper()
	a := &archive{repo: testserver.NewRepository(), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	a.repo.Now = a.clock
	server := httptest.NewServer(a.repo)
	t.Cleanup(server.Close)
	a.url = server.URL + "/oai"
	a.harness = newHarness(t, tempDir(t), mode, eventlog.Options{Clock: func() (time.Time, time.Duration) { now := a.clock(); return now, time.Duration(now.UnixNano()) }})
	t.Cleanup(a.verify)
	a.harvest.Now = a.clock
	a.from(harvest.OAIPMH, a.url, server.Client())
	a.src.FullEvery = 7 * 24 * time.Hour
	return a
}

func (a *archive) clock() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// pass lets time go by, also while somebody asks.
func (a *archive) pass(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
}

// put puts a record, changed now.
func (a *archive) put(name, title string, sets ...string) {
	a.repo.Put(testserver.Item{Identifier: "oai:x:" + name, Sets: sets, Metadata: map[string]string{"oai_dc": testserver.DublinCore(title)}})
}

// run harvests once, an hour later, and fails if that does.
func (a *archive) run() harvest.Report {
	a.t.Helper()
	r, err := a.try(harvest.Options{})
	a.must(err)
	return r
}

func (a *archive) try(o harvest.Options) (harvest.Report, error) {
	a.t.Helper()
	a.pass(time.Hour)
	src := a.src
	r, err := a.harvest.Run(context.Background(), &src, o)
	a.pass(time.Minute)
	return r, err
}

// news returns the events since it was asked last: the kind, the record and its title.
func (a *archive) news() string {
	a.t.Helper()
	return strings.Join(a.told(func(ev *event.Event) string {
		return fmt.Sprintf("%v %s=%s", ev.Kind, strings.TrimPrefix(ev.Record, "oai:x:"), ev.Title)
	}), ", ")
}

func (a *archive) want(what, got, want string) {
	a.t.Helper()
	if got != want {
		a.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// bytesOf returns the content of a record's first representation, from the store.
func (a *archive) bytesOf(record string) string {
	a.t.Helper()
	said, err := a.log.SourceRecordsOf(context.Background(), a.src.ID, []string{record})
	a.must(err)
	sum, err := content.ParseSum(said[0].Observation.Representations[0].SHA256())
	a.must(err)
	blob, err := a.contents.Open(context.Background(), sum)
	a.must(err)
	defer blob.Close()
	b, err := io.ReadAll(blob)
	a.must(err)
	return string(b)
}

// knownArchive is a repository without deletions that has been harvested: a, b and c.
func knownArchive(t tester) *archive {
	t.Helper()
	a := newArchive(t, event.Mirror)
	a.repo.Deleted = "no"
	for _, name := range []string{"a", "b", "c"} {
		a.put(name, name+"1")
	}
	a.run()
	a.news()
	return a
}

// verbs returns the verbs that the repository was asked since.
func (a *archive) verbs() string {
	var out []string
	for _, c := range a.repo.Calls() {
		out = append(out, c.Verb())
	}
	return strings.Join(out, " ")
}

// A repository is harvested, in every mode: records appear, change, go and come back, with
// the requests that this takes.
func TestRepository(t *testing.T) {
	for _, mode := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		t.Run(mode.String(), func(t *testing.T) {
			a := newArchive(t, mode)
			a.repo.PageSize = 2
			for _, name := range []string{"a", "b", "c"} {
				a.put(name, name+"1")
			}
			r := a.run()
			a.want("events", a.news(), "created a=a1, created b=b1, created c=c1")
			a.want("requests", a.verbs(), "ListMetadataFormats Identify ListRecords ListRecords")
			if !r.Full || r.Partial() || r.Problems > 0 || r.Documents != 2 {
				t.Errorf("%+v", r)
			}
			if mode == event.Mirror {
				a.want("content", a.bytesOf("oai:x:a"), testserver.DublinCore("a1"))
			}
			r = a.run()
			a.want("events", a.news(), "")
			a.want("requests", a.verbs(), "Identify ListRecords")
			if !r.NotModified || r.Partial() {
				t.Errorf("%+v", r)
			}
			a.put("a", "a2")
			a.put("d", "d1")
			a.repo.Delete("oai:x:b")
			a.run()
			news := strings.Split(a.news(), ", ")
			slices.Sort(news)
			a.want("events", strings.Join(news, ", "), "created d=d1, deleted b=b1, updated a=a2")
			a.want("requests", a.verbs(), "Identify ListRecords ListRecords")
			a.put("b", "b2")
			a.run()
			a.want("events", a.news(), "created b=b2")
		})
	}
}

// week lets so much time pass that the headers of all records are read again.
func (a *archive) week() { a.pass(8 * 24 * time.Hour) }

// O5: a repository that asks for a pause in the middle of a list is asked for nothing else
// until then, and the list goes on where it was, however often it asks.
func TestO5Pause(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.PageSize, a.repo.RetryAfter = 1, 600
	for _, name := range []string{"a", "b", "c"} {
		a.put(name, name+"1")
	}
	a.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, Times: 3, How: testserver.Unavailable})
	for n, want := range []string{"ListMetadataFormats Identify ListRecords ListRecords", "ListMetadataFormats Identify ListRecords", "ListMetadataFormats Identify ListRecords"} {
		if r, err := a.try(harvest.Options{}); err == nil || r.RetryAfter.IsZero() {
			t.Errorf("%d: %+v, %v", n, r, err)
		}
		a.want("requests", a.verbs(), want)
	}
	a.run()
	a.want("requests", a.verbs(), "ListMetadataFormats Identify ListRecords ListRecords Identify ListRecords")
	a.want("events", a.news(), "created a=a1, created b=b1, created c=c1")
}

// O5: the same when the harvest is ordered during the pause, for which our own client keeps the
// request back, and when the repository does not say how long it pauses.
func TestO5PauseKept(t *testing.T) {
	for _, c := range []struct {
		how   testserver.How
		pause int // seconds
		kept  bool
	}{{testserver.Unavailable, 600, true}, {testserver.Unavailable, 0, false}, {testserver.TooMany, 0, false}} {
		a := newArchive(t, event.Mirror)
		client := func() *http.Client {
			return fetch.New(fetch.Options{Reach: fetch.Reach{Origin: strings.TrimSuffix(a.url, "/oai")}, Attempts: 1}).Client("")
		}
		a.src.Client, a.repo.PageSize, a.repo.RetryAfter = client(), 1, c.pause
		for _, name := range []string{"a", "b", "c"} {
			a.put(name, name+"1")
		}
		a.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, Times: 2, How: c.how})
		_, err := a.try(harvest.Options{})
		a.want("requests", a.verbs(), "ListMetadataFormats Identify ListRecords ListRecords")
		want := "ListMetadataFormats Identify ListRecords"
		if c.kept {
			want = "ListMetadataFormats Identify"
		}
		_, again := a.try(harvest.Options{})
		a.want("requests during the pause", a.verbs(), want)
		if err == nil || again == nil || errors.Is(again, fetch.ErrWait) != c.kept {
			t.Errorf("%+v: %v, then %v", c, err, again)
		}
		a.repo.Honest()
		a.src.Client = client()
		a.run()
		a.want("requests after it", a.verbs(), "ListMetadataFormats Identify ListRecords ListRecords Identify ListRecords")
		a.want("events", a.news(), "created a=a1, created b=b1, created c=c1")
	}
}

// A page that is answered so for a week does not keep back what is new.
func TestO5PauseWithoutEnd(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.PageSize = 1
	a.put("a", "a1")
	a.run()
	a.news()
	a.put("b", "b1")
	a.week()
	a.repo.Fail(testserver.Failure{Verb: "ListIdentifiers", Page: 2, How: testserver.Unavailable})
	if _, err := a.try(harvest.Options{}); err == nil {
		t.Error("the headers were read")
	}
	a.want("events", a.news(), "created b=b1")
	a.put("c", "c1")
	for range 2 {
		if _, err := a.try(harvest.Options{}); err == nil {
			t.Error("the headers were read")
		}
	}
	a.want("events while it is paused", a.news(), "")
	a.week()
	if _, err := a.try(harvest.Options{}); err == nil {
		t.Error("the headers were read")
	}
	a.want("events after a week", a.news(), "created c=c1")
}

// O9, O10: what has neither metadata nor a deletion, or not exactly one element as its
// metadata, goes to quarantine, and the others are taken. Replay takes it when it can be
// read.
func TestO9O10Quarantine(t *testing.T) {
	for _, lie := range []testserver.Lie{testserver.HeaderOnly, testserver.NoElement, testserver.TwoElements, testserver.OnlyText} {
		t.Run(string(lie), func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.put("a", "a1")
			a.repo.Put(testserver.Item{Identifier: "oai:x:b", Lies: []testserver.Lie{lie}, Metadata: map[string]string{"oai_dc": testserver.DublinCore("b1")}})
			a.put("c", "c1")
			a.repo.PageSize = 2 // and the first page is read twice
			a.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, Times: 1, How: testserver.TokenRefused})
			r := a.run()
			a.want("events", a.news(), "created a=a1, created c=c1")
			all, err := a.log.Quarantined(context.Background(), "main")
			a.must(err)
			if len(all) == 1 {
				all[0], err = a.log.QuarantinedInput(context.Background(), all[0].ID)
				a.must(err)
			}
			if r.Quarantined != 1 || len(all) != 1 || all[0].Record != "oai:x:b" || !strings.Contains(string(all[0].Input), "oai:x:b</identifier>") {
				t.Fatalf("%+v\n%+v", r, all)
			}
			src := a.src
			if _, err := a.harvest.Replay(context.Background(), &src, &all[0]); !errors.Is(err, harvest.ErrStillBad) {
				t.Errorf("replay as it is: %v", err)
			}
			mended := all[0]
			mended.Input = regexp.MustCompile(`(?s)</header>.*</record>`).ReplaceAll(mended.Input, []byte("</header><metadata>"+testserver.DublinCore("b0")+"</metadata></record>"))
			_, err = a.harvest.Replay(context.Background(), &src, &mended)
			a.must(err)
			a.want("replayed", a.news(), "created b=b0")
			a.put("b", "b2")
			a.run()
			a.want("mended at the repository", a.news(), "updated b=b2")
		})
	}
}

// O9: a deletion with metadata is one; of two headers of a record in one list the later
// datestamp counts, of equal ones the later place.
func TestO9Deletions(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.put("a", "a1")
	a.put("b", "b1")
	a.repo.Lie(testserver.DeletedWithMetadata, testserver.DoubledHeaders)
	a.run()
	a.want("events", a.news(), "created a=a1, created b=b1")
	a.repo.Delete("oai:x:a")
	a.run()
	a.want("events", a.news(), "deleted a=a1")
	// The same record on two pages, and twice on one.
	for _, size := range []int{1, 2} {
		a.repo.Honest()
		a.repo.PageSize = size
		a.put("c", fmt.Sprintf("c1 on pages of %d", size))
		a.put("d", fmt.Sprintf("c2 on pages of %d", size))
		a.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte("oai:x:d"), []byte("oai:x:c"))
		}
		a.run()
		if got := a.news(); !strings.HasSuffix(got, fmt.Sprintf("c=c2 on pages of %d", size)) {
			t.Errorf("the later place does not count: %s", got)
		}
		a.repo.Rewrite = nil
		a.repo.Forget("oai:x:d")
	}
}

// O8: records whose identifiers are alike once what XML does not allow in them was replaced
// are not taken for one: they go to quarantine, and say nothing of others.
func TestO8Identifiers(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Deleted, a.repo.PageSize = "no", 2
	for _, name := range []string{"a", "b", "cafe", "cafo", "x"} {
		a.put(name, name+"1")
	}
	a.run()
	a.want("events", a.news(), "created a=a1, created b=b1, created cafe=cafe1, created cafo=cafo1, created x=x1")
	a.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
		body = bytes.ReplaceAll(body, []byte("oai:x:cafe"), []byte("oai:x:caf\xe9"))
		body = bytes.ReplaceAll(body, []byte("oai:x:cafo"), []byte("oai:x:caf\xf3"))
		return bytes.ReplaceAll(body, []byte("oai:x:b<"), []byte("oai:x:b & c<"))
	}
	r, err := a.try(harvest.Options{Full: true})
	a.must(err)
	a.want("events", a.news(), "created b & c=b1")
	all, err := a.log.Quarantined(context.Background(), "main")
	a.must(err)
	if r.Quarantined != 2 || len(all) != 2 || r.Held != 0 {
		t.Fatalf("%+v\n%+v", r, all)
	}
	for _, q := range all {
		if q.Record != "" || q.Rule != "oai-identifier" || !strings.Contains(q.Reason, "caf\uFFFD") {
			t.Errorf("%+v", q)
		}
		src := a.src
		if q, err = a.log.QuarantinedInput(context.Background(), q.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := a.harvest.Replay(context.Background(), &src, &q); !errors.Is(err, harvest.ErrStillBad) {
			t.Errorf("replay: %v", err)
		}
	}
	a.want("replayed", a.news(), "")
	a.repo.Rewrite = nil
	a.repo.Forget("oai:x:x")
	_, err = a.try(harvest.Options{Full: true})
	a.must(err)
	news := strings.Split(a.news(), ", ")
	slices.Sort(news)
	a.want("mended at the repository", strings.Join(news, ", "), "deleted b & c=b1, deleted x=x1")
}

// A record that a list has in no namespace goes to quarantine, and is not taken for absent.
func TestRecordInNoNamespace(t *testing.T) {
	a := knownArchive(t)
	a.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
		return regexp.MustCompile(`<record>(\s*<header>\s*<identifier>oai:x:b)`).ReplaceAll(body, []byte(`<record xmlns="">$1`))
	}
	r, err := a.try(harvest.Options{Full: true})
	a.must(err)
	a.want("events", a.news(), "")
	if r.Quarantined != 1 || r.Held != 0 {
		t.Errorf("%+v", r)
	}
}

// No record is taken for absent because it stands where none may be, or two are written as one.
func TestRecordsInTheWrongPlace(t *testing.T) {
	b := regexp.MustCompile(`(?s)<record>\s*<header>\s*<identifier>oai:x:b.*?</record>`)
	for name, rewrite := range map[string]func(string) string{
		"in another namespace": func(s string) string {
			return b.ReplaceAllStringFunc(s, func(r string) string {
				return strings.Replace(r, "<record>", `<record xmlns="http://www.openarchives.org/OAI/2.0">`, 1)
			})
		},
		"in another record": func(s string) string {
			of := b.FindString(s)
			return strings.Replace(strings.Replace(s, of, "", 1), "</record>", of+"</record>", 1)
		},
		"in an element of its own": func(s string) string { return b.ReplaceAllString(s, "<records>$0</records>") },
		"beside the list": func(s string) string {
			of := b.FindString(s)
			return strings.Replace(strings.Replace(s, of, "", 1), "</ListRecords>", "</ListRecords>"+of, 1)
		},
		"in a second list": func(s string) string {
			of := b.FindString(s)
			return strings.Replace(strings.Replace(s, of, "", 1), "</ListRecords>", "</ListRecords><ListRecords>"+of+"</ListRecords>", 1)
		},
		"with a deletion before it": func(s string) string {
			return b.ReplaceAllStringFunc(s, func(r string) string {
				return strings.Replace(r, "<record>", `<record><header status="deleted"><identifier>oai:x:z</identifier><datestamp>2026-05-01T00:00:00Z</datestamp></header>`, 1)
			})
		},
		"with a deletion cut off before it": func(s string) string {
			return b.ReplaceAllStringFunc(s, func(r string) string {
				return `<record><header status="deleted"><identifier>oai:x:z</identifier><datestamp>2026-05-01T00:00:00Z</datestamp></header><` + r
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := knownArchive(t)
			a.repo.Rewrite = func(verb string, _ int, body []byte) []byte {
				if verb != "ListRecords" {
					return body
				}
				return []byte(rewrite(string(body)))
			}
			r, err := a.try(harvest.Options{Full: true})
			a.must(err)
			a.want("events", a.news(), "")
			if r.Quarantined == 0 && r.Problems == 0 {
				t.Errorf("nothing is reported: %+v", r)
			}
			a.repo.Rewrite = nil
			a.put("b", "b2")
			a.run()
			a.want("mended at the repository", a.news(), "updated b=b2")
		})
	}
}

// A list that breaks off with an error inside of it was not read to its end: nothing is taken for
// absent, and what could not be read is asked for again. That no record matches is contradicted by
// the records beside it, which are taken.
func TestErrorInAList(t *testing.T) {
	b := regexp.MustCompile(`(?s)<record>\s*<header>\s*<identifier>oai:x:b.*?</record>`)
	const none = `<error code="noRecordsMatch"/>`
	for name, c := range map[string]struct {
		rewrite func(string) string
		fails   bool
	}{
		"in place of a record": {func(s string) string { return b.ReplaceAllString(s, `<error code="badArgument">out of memory</error>`) }, true},
		"without a code":       {func(s string) string { return b.ReplaceAllString(s, `<error>out of memory</error>`) }, true},
		"in no namespace": {func(s string) string {
			return b.ReplaceAllString(s, `<error xmlns="" code="badArgument">out of memory</error>`)
		}, true},
		"no record matches": {func(s string) string { return b.ReplaceAllString(s, none) }, false},
		"before the list": {func(s string) string {
			return strings.Replace(b.ReplaceAllString(s, ""), "<ListRecords>", none+"<ListRecords>", 1)
		}, false},
		"behind the list": {func(s string) string {
			return strings.Replace(b.ReplaceAllString(s, ""), "</ListRecords>", "</ListRecords>"+none, 1)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := knownArchive(t)
			a.put("a", "a2")
			a.repo.Rewrite = func(verb string, _ int, body []byte) []byte {
				if verb != "ListRecords" {
					return body
				}
				return []byte(c.rewrite(string(body)))
			}
			r, err := a.try(harvest.Options{Full: true})
			if c.fails != (err != nil) || err != nil && !strings.Contains(err.Error(), "out of memory") {
				t.Errorf("%v, %+v", err, r)
			}
			a.want("events", a.news(), "updated a=a2")
			a.repo.Rewrite = nil
			a.put("b", "b2")
			a.run()
			a.want("mended at the repository", a.news(), "updated b=b2")
		})
	}
}

// A record with a text that is longer than [limits] allow is in quarantine, and costs no more
// than that: the mark moves on, and replay takes the record once the limit is higher.
func TestLongText(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Deleted, a.repo.PageSize = "no", 2
	a.put("a", "a1")
	a.put("b", strings.Repeat("x", 300_000))
	a.put("c", "c1")
	a.src.Limits.Text = 1 << 16
	r := a.run()
	a.want("events", a.news(), "created a=a1, created c=c1")
	a.want("requests", a.verbs(), "ListMetadataFormats Identify ListRecords ListRecords")
	all, err := a.log.Quarantined(context.Background(), "main")
	a.must(err)
	if r.Quarantined != 1 || len(all) != 1 || all[0].Record != "oai:x:b" || !strings.Contains(all[0].Reason, "longer than 65536 bytes") {
		t.Fatalf("%+v, %+v", r, all)
	}
	a.run()
	a.want("requests of the next harvest", a.verbs(), "Identify ListRecords")
	all[0], err = a.log.QuarantinedInput(context.Background(), all[0].ID)
	a.must(err)
	src := a.src
	if _, err := a.harvest.Replay(context.Background(), &src, &all[0]); !errors.Is(err, harvest.ErrStillBad) {
		t.Errorf("replay with the same limit: %v", err)
	}
	src.Limits.Text = 1 << 20
	_, err = a.harvest.Replay(context.Background(), &src, &all[0])
	a.must(err)
	if got := a.news(); !strings.HasPrefix(got, "created b=xxx") {
		t.Errorf("replayed: %.100s", got)
	}
}

// O8: where a record is cut off in the middle of a page, another one may have gone with it: it
// is not taken for absent.
func TestO8CutRecord(t *testing.T) {
	for _, prefix := range []string{"", "oai:"} {
		a := knownArchive(t)
		cut := regexp.MustCompile(`(?s)(>a1</dc:)title>.*?</record>`)
		a.repo.Rewrite = func(verb string, _ int, body []byte) []byte {
			if verb != "ListRecords" {
				return body
			}
			body = cut.ReplaceAll(body, []byte("${1}ti"))
			body = bytes.ReplaceAll(body, []byte("<OAI-PMH "), []byte(`<OAI-PMH xmlns:oai="http://www.openarchives.org/OAI/2.0/" `))
			return regexp.MustCompile(`(</?)(record|header|identifier|metadata)>`).ReplaceAll(body, []byte("${1}"+prefix+"${2}>"))
		}
		r, err := a.try(harvest.Options{Full: true})
		a.must(err)
		a.want("events", a.news(), "")
		if r.Quarantined != 1 || r.Held != 0 {
			t.Errorf("%+v", r)
		}
		a.repo.Rewrite = nil
		a.repo.Forget("oai:x:c")
		_, err = a.try(harvest.Options{Full: true})
		a.must(err)
		a.want("mended at the repository", a.news(), "deleted c=c1")
	}
}

// O8: a record with characters that XML does not allow is taken, and reported.
func TestO8Reported(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Put(testserver.Item{Identifier: "oai:x:a", Lies: []testserver.Lie{testserver.ForbiddenCharacter}, Metadata: map[string]string{"oai_dc": testserver.DublinCore("a1")}})
	a.put("b", "b1")
	r := a.run()
	if !slices.ContainsFunc(r.Examples, func(e harvest.Example) bool { return e.Rule == "mended" && strings.Contains(e.First, `"oai:x:a"`) }) || r.Created != 2 {
		t.Errorf("%+v", r)
	}
	if got := a.bytesOf("oai:x:a"); !strings.Contains(got, "\uFFFD") {
		t.Errorf("no U+FFFD in %q", got)
	}
}

// O11: a format, a set, or a further format that the repository does not have is an error
// of the configuration, which says what there is.
func TestO11Selection(t *testing.T) {
	for name, c := range map[string]struct {
		url  string
		asks harvest.Repository
		sets []testserver.ItemSet
		want string
	}{
		"format":      {"?verb=ListRecords&metadataPrefix=marc", harvest.Repository{}, nil, `the repository has no format "marc"; it has "oai_dc"`},
		"also":        {"", harvest.Repository{Also: []string{"mods"}}, nil, `the repository has no format "mods", which is under also; it has "oai_dc"`},
		"set":         {"", harvest.Repository{Set: "b"}, []testserver.ItemSet{{Spec: "a", Name: "A"}}, `the repository has no set "b"; it has "a"`},
		"set of none": {"?set=b", harvest.Repository{}, nil, `the repository has no sets, and was asked for set "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.repo.Sets = c.sets
			a.put("a", "a1", "a")
			a.src.URL += c.url
			a.src.Repository = c.asks
			if _, err := a.try(harvest.Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			a.src.URL, a.src.Repository = a.url, harvest.Repository{}
			a.run()
			a.want("events", a.news(), "created a=a1")
		})
	}
}

// What a repository is asked for beside its URL may change: it is read whole then.
func TestRepositoryAskedAnew(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Sets = []testserver.ItemSet{{Spec: "a", Name: "A"}, {Spec: "b", Name: "B"}}
	for _, name := range []string{"1", "2"} {
		a.put(name, name, "a")
	}
	for _, name := range []string{"3", "4", "5", "6", "7", "8", "9"} {
		a.put(name, name, "b")
	}
	a.src.Repository.Set = "a"
	a.run()
	a.want("events", a.news(), "created 1=1, created 2=2")
	a.src.Repository.Set = "b"
	r := a.run()
	if got := a.news(); !strings.HasPrefix(got, "created 3=3") || r.Created != 7 || len(r.Warnings) == 0 {
		t.Errorf("%s, %+v", got, r)
	}
}

// O12: a repository that has another name is held as a feed with another id is, until an
// operator accepts it.
func TestO12ChangedRepository(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.put("a", "a1")
	a.run()
	a.news()
	a.repo.Lie(testserver.OtherBaseURL)
	a.put("a", "a2")
	_, err := a.try(harvest.Options{})
	if err == nil || !strings.Contains(err.Error(), `": nothing was harvested; if the repository has moved, or was replaced on purpose, run bridge source reset main `) {
		t.Errorf("%v", err)
	}
	a.want("events", a.news(), "")
	a.must(a.harvest.Reset(context.Background(), a.src.ID))
	a.run()
	a.want("events", a.news(), "updated a=a2")
}

// O12: all identifiers are new, and those from before are gone: the guard holds that.
func TestO12OtherIdentifiers(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Fill(20)
	a.run()
	a.news()
	for i := range 20 {
		a.repo.Forget(fmt.Sprintf("oai:repository.example:%d", i+1))
	}
	a.repo.Earliest = time.Date(2019, 1, 1, 0, 0, 0, 0, time.UTC)
	a.put("c", "c1")
	r := a.run()
	a.want("events", a.news(), "created c=c1")
	if r.Held != 20 {
		t.Errorf("%+v", r)
	}
}

// O13: a repository gets one request at a time, whatever is slow.
func TestO13OneAtATime(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.PageSize = 2
	a.repo.Fill(40)
	var now, most atomic.Int32
	a.repo.OnPage = func(string, int) { most.Store(max(most.Load(), now.Load())) }
	next := a.src.Client.Transport
	client := *a.src.Client
	client.Transport = transport(func(r *http.Request) (*http.Response, error) {
		now.Add(1)
		defer now.Add(-1)
		return next.RoundTrip(r)
	})
	a.src.Client = &client
	a.run()
	if most.Load() != 1 {
		t.Errorf("%d requests at a time", most.Load())
	}
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// O14: with a window the list is asked for in parts.
func TestO14Window(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Earliest = a.clock().Add(-100 * 24 * time.Hour)
	for i := range 10 {
		a.repo.Put(testserver.Item{Identifier: fmt.Sprintf("oai:x:%d", i), Datestamp: a.clock().Add(-time.Duration(i) * 10 * 24 * time.Hour), Metadata: map[string]string{"oai_dc": testserver.DublinCore("t")}})
	}
	a.src.Repository.Window = 30 * 24 * time.Hour
	r := a.run()
	if n := strings.Count(a.verbs(), "ListRecords"); r.Created != 10 || n != 4 {
		t.Errorf("%d lists, %+v", n, r)
	}
}

// A repository that does not tell of deletions, or not of all: what its headers do not
// have any more is deleted, every full_every, behind the guard. One that does is believed.
func TestAbsentFromHeaders(t *testing.T) {
	for _, deleted := range []string{"no", "transient", "persistent"} {
		t.Run(deleted, func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.repo.Deleted, a.repo.PageSize = deleted, 7
			a.repo.Fill(30)
			a.run()
			a.news()
			a.repo.Forget("oai:repository.example:5")
			a.run()
			a.want("before full_every", a.news(), "")
			a.week()
			a.verbs()
			r := a.run()
			want := "deleted oai:repository.example:5=Letter 5"
			if deleted == "persistent" {
				want = ""
			}
			a.want("after full_every", a.news(), want)
			if verbs := a.verbs(); strings.Count(verbs, "ListIdentifiers") != 5 || strings.Count(verbs, "GetRecord") > 0 || r.Problems > 0 || r.Partial() {
				t.Errorf("%s, %+v", verbs, r)
			}
			a.run()
			a.want("not again", strings.ReplaceAll(a.verbs(), "ListRecords", ""), "Identify ")
			// Most are gone: that may be a defect of the repository.
			for i := 6; i <= 30; i++ {
				a.repo.Forget(fmt.Sprintf("oai:repository.example:%d", i))
			}
			a.week()
			if r = a.run(); deleted != "persistent" && r.Held != 25 || r.Deleted != 0 {
				t.Errorf("%+v", r)
			}
			// The deletions are applied once the headers have confirmed them, a day later.
			if r = a.run(); r.Deleted != 0 {
				t.Errorf("%+v", r)
			}
			a.pass(25 * time.Hour)
			if r = a.run(); deleted != "persistent" && r.Deleted != 25 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// The same where the first harvest could not list what was changed meanwhile, or had to take
// answers without records for the end of the list: it is no full one then, as none after it is.
func TestAbsentAfterIncompleteFirst(t *testing.T) {
	for name, lie := range map[string]func(a *archive){
		"changes that cannot be listed": func(a *archive) {
			a.repo.PageSize = 1
			a.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, How: testserver.TokenRefused})
			changed := false
			a.repo.OnPage = func(verb string, page int) {
				if verb == "ListRecords" && !changed {
					changed = true
					a.pass(time.Second)
					a.put("d", "d1")
					a.put("e", "e1")
				}
			}
		},
		"a list without an end": func(a *archive) {
			a.repo.Rewrite = func(verb string, _ int, body []byte) []byte {
				if verb != "ListRecords" {
					return body
				}
				if bytes.Contains(body, []byte("<error")) {
					body = []byte(`<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>` + a.clock().Format(time.RFC3339) + `</responseDate><request/><ListRecords></ListRecords></OAI-PMH>`)
				}
				return bytes.Replace(body, []byte("</ListRecords>"), []byte(`<resumptionToken completeListSize="3">x</resumptionToken></ListRecords>`), 1)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.repo.Deleted = "no"
			for _, name := range []string{"a", "b", "c"} {
				a.put(name, name+"1")
				a.pass(time.Hour)
			}
			lie(a)
			r := a.run()
			if got := a.news(); !strings.HasPrefix(got, "created a=a1, created b=b1, created c=c1") || r.Full {
				t.Fatalf("%s, %+v", got, r)
			}
			a.repo.Honest()
			a.repo.OnPage, a.repo.Rewrite = nil, nil
			a.run()
			a.news()
			a.repo.Forget("oai:x:b")
			a.week()
			a.run()
			a.want("after full_every", a.news(), "deleted b=b1")
		})
	}
}

// ListIdentifiers shows deletions that ListRecords does not: they are taken.
func TestHiddenDeletions(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Lie(testserver.HiddenDeletion)
	a.put("a", "a1")
	a.put("b", "b1")
	a.run()
	a.news()
	a.repo.Delete("oai:x:a")
	a.run()
	a.want("the list of records", a.news(), "")
	a.week()
	a.run()
	a.want("the headers", a.news(), "deleted a=a1")
}

// A header with another datestamp than is known does not make its record look absent, and
// the change is not lost: it is in the next list, or the record is asked for.
func TestHeadersShowChanges(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Deleted = "no"
	a.put("a", "a1")
	a.put("b", "b1")
	a.run()
	a.news()
	// b changes after the list of records was read, and before the headers are.
	a.week()
	a.repo.OnPage = func(verb string, _ int) {
		if verb == "ListIdentifiers" {
			a.pass(time.Minute)
			a.put("b", "b2")
			a.put("c", "c1")
		}
	}
	r := a.run()
	a.repo.OnPage = nil
	if r.Held+r.Deleted+r.Problems > 0 {
		t.Errorf("%+v", r)
	}
	a.run()
	a.want("the next list", a.news(), "updated b=b2, created c=c1")
	// Both change, and the list of records does not say so: it has older datestamps.
	a.repo.Put(testserver.Item{Identifier: "oai:x:b", Datestamp: a.clock().Add(-1000 * time.Hour), Metadata: map[string]string{"oai_dc": testserver.DublinCore("b3")}})
	a.repo.Put(testserver.Item{Identifier: "oai:x:d", Datestamp: a.clock().Add(-1000 * time.Hour), Metadata: map[string]string{"oai_dc": testserver.DublinCore("d1")}})
	a.run()
	a.want("an earlier datestamp", a.news(), "")
	a.week()
	a.verbs()
	r = a.run()
	a.want("asked for", a.news(), "updated b=b3, created d=d1")
	if n := strings.Count(a.verbs(), "GetRecord"); n != 2 || r.Deleted > 0 {
		t.Errorf("%d records were asked for, %+v", n, r)
	}
	a.want("content", a.bytesOf("oai:x:b"), testserver.DublinCore("b3"))
	a.week()
	a.run()
	a.want("known by now", a.news()+strings.Repeat("!", strings.Count(a.verbs(), "GetRecord")), "")
}

// A record that both lists have is not deleted because the repository denies having it when it
// is asked for that alone. One that the lists do not have any more is.
func TestHeadersContradicted(t *testing.T) {
	for name, how := range map[string]testserver.How{"idDoesNotExist": "", "404": testserver.NotFound} {
		a := newArchive(t, event.Mirror)
		a.repo.Deleted = "no"
		for _, name := range []string{"a", "b", "c"} {
			a.put(name, name+"1")
		}
		earlier := regexp.MustCompile(`(?s)(oai:x:b</identifier>\s*<datestamp>2026-05-01)T1`)
		a.repo.Rewrite = func(verb string, _ int, body []byte) []byte {
			switch verb {
			case "ListIdentifiers":
				return earlier.ReplaceAll(body, []byte("${1}T0"))
			case "GetRecord":
				return []byte(`<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-05-01T00:00:00Z</responseDate><request/><error code="idDoesNotExist"/></OAI-PMH>`)
			}
			return body
		}
		a.run()
		a.news()
		a.week()
		a.verbs()
		if how != "" {
			a.repo.Fail(testserver.Failure{Verb: "GetRecord", Page: 1, Times: 1, How: how})
		}
		r := a.run()
		if !strings.Contains(a.verbs(), "GetRecord") || r.Problems != 1 || r.Examples[0].Rule != "headers" || !strings.Contains(r.Examples[0].First, "it stays") {
			t.Errorf("%s: %+v", name, r)
		}
		a.want(name, a.news(), "")
		a.repo.Forget("oai:x:b")
		a.week()
		a.run()
		a.want(name+", gone from the lists", a.news(), "deleted b=b1")
	}
}

// Headers of records that the list of records has, and that were not taken, are no changes
// that it hides: copies of our own records, those that are not selected, and bad ones.
func TestHeadersOfWhatIsNotTaken(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.src.Selection.Own = []string{"https://bridge.example/sets/main/"}
	a.src.Selection.Since, _ = event.StampOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	put := func(name, original, modified string, lies ...testserver.Lie) {
		about := `<provenance xmlns="http://www.openarchives.org/OAI/2.0/provenance"><originDescription harvestDate="2026-05-01T00:00:00Z" altered="false"><baseURL>` + original +
			`</baseURL><identifier>` + original + `</identifier><datestamp>` + modified + `</datestamp><metadataNamespace>urn:x</metadataNamespace></originDescription></provenance>`
		a.repo.Put(testserver.Item{Identifier: "oai:x:" + name, Metadata: map[string]string{"oai_dc": testserver.DublinCore(name)}, About: []string{about}, Lies: lies})
	}
	put("ours", "https://bridge.example/sets/main/records/1", "2026-02-01")
	put("old", "https://origin.example/1", "2025-01-01")
	put("bad", "https://origin.example/2", "2026-02-01", testserver.NoElement)
	a.put("a", "a1")
	r := a.run()
	a.want("events", a.news(), "created a=a1")
	if r.Skipped != 2 || r.Quarantined != 1 || r.Problems != 0 {
		t.Errorf("%+v", r)
	}
	a.week()
	a.verbs()
	r = a.run()
	if !strings.Contains(a.verbs(), "ListIdentifiers") || r.Problems != 0 || r.Skipped != 2 {
		t.Errorf("%+v", r)
	}
	a.want("events", a.news(), "")
}

// Headers that cannot be read keep nothing back: what the records said holds, and absence
// means nothing.
func TestHeadersRefused(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Deleted = "no"
	a.repo.Lie(testserver.NoListIdentifiers)
	a.put("a", "a1")
	a.put("b", "b1")
	a.run()
	a.news()
	a.repo.Forget("oai:x:a")
	a.put("b", "b2")
	a.week()
	r := a.run()
	a.want("events", a.news(), "updated b=b2")
	if !slices.ContainsFunc(r.Examples, func(e harvest.Example) bool { return e.Rule == "headers" }) {
		t.Errorf("%+v", r)
	}
	a.verbs()
	a.run()
	a.want("the mark has moved", a.verbs()+a.news(), "Identify ListRecords")
}

// Where a server cannot begin a list of records the error says what may help.
func TestListTooLongForServer(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.put("a", "a1")
	a.repo.Fail(testserver.Failure{Verb: "ListRecords", How: testserver.ServerError})
	if _, err := a.try(harvest.Options{}); err == nil || !strings.Contains(err.Error(), `HTTP status 500`) || !strings.Contains(err.Error(), `window = "30d"`) {
		t.Error(err)
	}
	a.repo.Honest()
	a.repo.Fail(testserver.Failure{Verb: "Identify", How: testserver.ServerError})
	if _, err := a.try(harvest.Options{}); err == nil || strings.Contains(err.Error(), "window") {
		t.Error(err)
	}
}

// A server that cannot list all headers, for now or ever, is harvested all the same, and
// asked for them in each harvest.
func TestHeadersUnread(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Deleted = "no"
	a.put("a", "a1")
	a.put("b", "b1")
	a.run()
	a.news()
	a.repo.Forget("oai:x:a")
	a.put("b", "b2")
	a.repo.Fail(testserver.Failure{Verb: "ListIdentifiers", How: testserver.ServerError})
	a.week()
	r := a.run()
	a.want("events", a.news(), "updated b=b2")
	if !slices.ContainsFunc(r.Examples, func(e harvest.Example) bool { return e.Rule == "headers" }) {
		t.Errorf("%+v", r)
	}
	mark := func() time.Time {
		p, err := a.log.Progress(context.Background(), a.src.ID)
		a.must(err)
		return p.Mark.Time()
	}
	if a.now.Sub(mark()) > 2*time.Hour {
		t.Errorf("at %s the mark is %s", a.now, mark())
	}
	a.verbs()
	a.run()
	a.want("once more", a.verbs()+a.news(), "Identify ListRecords Identify ListIdentifiers")
	a.repo.Honest()
	a.run()
	a.want("at last", a.news(), "deleted a=a1")
	a.verbs()
	a.run()
	a.want("not again", a.verbs()+a.news(), "Identify ListRecords")
}

// Two different states of one day, the granularity of the repository, both apply, in each
// mode: content decides (I5).
func TestStatesOfOneDay(t *testing.T) {
	for _, mode := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		a := newArchive(t, mode)
		a.repo.Days = true
		described := func(text string) {
			a.repo.Put(testserver.Item{Identifier: "oai:x:a", Metadata: map[string]string{"oai_dc": strings.Replace(testserver.DublinCore("A"), "</dc:title>", "</dc:title><dc:description>"+text+"</dc:description>", 1)}})
		}
		for _, text := range []string{"one", "two", "three"} {
			described(text)
			a.run()
			want := "updated a=A"
			if text == "one" {
				want = "created a=A"
			}
			a.want(mode.String()+" "+text, a.news(), want)
			a.run()
			a.want(mode.String()+" again", a.news(), "")
		}
		a.repo.Delete("oai:x:a")
		a.run()
		a.want("deleted on the same day", a.news(), "deleted a=A")
		described("four")
		a.run()
		a.want("and there again", a.news(), "created a=A")
	}
}

// Further formats are asked for record by record, and only when a record has changed. A
// record that lacks one is there without it.
func TestAlso(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Formats = append(a.repo.Formats, testserver.ItemFormat{Prefix: "mods", Schema: "http://www.loc.gov/mods/v3/mods.xsd", Namespace: "http://www.loc.gov/mods/v3"})
	a.src.Repository.Also = []string{"mods"}
	put := func(name, title string, mods bool) {
		it := testserver.Item{Identifier: "oai:x:" + name, Metadata: map[string]string{"oai_dc": testserver.DublinCore(title)}}
		if mods {
			it.Metadata["mods"] = `<mods xmlns="http://www.loc.gov/mods/v3"><titleInfo><title>` + title + `</title></titleInfo></mods>`
		}
		a.repo.Put(it)
	}
	put("a", "a1", true)
	put("b", "b1", false)
	r := a.run()
	a.want("events", a.news(), "created a=a1, created b=b1")
	if n := strings.Count(a.verbs(), "GetRecord"); n != 2 || r.Pending > 0 || r.Problems > 0 {
		t.Errorf("%d requests, %+v", n, r)
	}
	said, err := a.log.SourceRecordsOf(context.Background(), a.src.ID, []string{"oai:x:a", "oai:x:b"})
	a.must(err)
	if one, two := said[0].Observation.Representations, said[1].Observation.Representations; len(one) != 2 || len(two) != 1 || one[1].Profile != "http://www.loc.gov/mods/v3" || one[1].SHA256() == "" || !strings.Contains(one[1].Href, "metadataPrefix=mods") {
		t.Errorf("%+v\n%+v", one, two)
	}
	put("a", "a2", true)
	a.run()
	a.want("events", a.news(), "updated a=a2")
	if n := strings.Count(a.verbs(), "GetRecord"); n != 1 {
		t.Errorf("%d requests for one change", n)
	}
	_, err = a.try(harvest.Options{Full: true})
	a.must(err)
	a.want("read whole", a.news()+strings.Repeat("!", strings.Count(a.verbs(), "GetRecord")), "")
}

// An answer about another record says nothing of the one that was asked for.
func TestAnswerAboutAnother(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Formats = append(a.repo.Formats, testserver.ItemFormat{Prefix: "other", Schema: "http://other.example/x.xsd", Namespace: "http://other.example/"})
	a.src.Repository.Also = []string{"other"}
	for _, name := range []string{"a", "b"} {
		a.repo.Put(testserver.Item{Identifier: "oai:x:" + name, Metadata: map[string]string{"oai_dc": testserver.DublinCore(name + "1"), "other": `<o xmlns="http://other.example/">` + name + `</o>`}})
	}
	a.repo.Rewrite = func(verb string, _ int, body []byte) []byte {
		if verb != "GetRecord" {
			return body
		}
		return bytes.ReplaceAll(bytes.ReplaceAll(body, []byte("oai:x:a</"), []byte("oai:x:b</")), []byte(">a</o>"), []byte(">b</o>"))
	}
	r := a.run()
	a.want("events", a.news(), "created b=b1")
	if r.Pending != 1 {
		t.Errorf("%+v", r)
	}
	a.repo.Rewrite = nil
	a.run()
	a.want("events", a.news(), "created a=a1")
	said, err := a.log.SourceRecordsOf(context.Background(), a.src.ID, []string{"oai:x:a"})
	a.must(err)
	if all := said[0].Observation.Representations; len(all) != 2 || all[1].Length != int64(len(`<o xmlns="http://other.example/">a</o>`)) {
		t.Errorf("%+v", all)
	}
}

// An answer to GetRecord that is cut, or has two records, is not applied: the record stays
// as it is published, and is asked for again.
func TestGetRecordAnswers(t *testing.T) {
	for name, rewrite := range map[string]func([]byte) []byte{
		"cut": func(b []byte) []byte { return b[:len(b)-20] },
		"two records": func(b []byte) []byte {
			one := regexp.MustCompile(`(?s)<record>.*</record>`).Find(b)
			return bytes.Replace(b, one, append(bytes.Clone(one), one...), 1)
		},
	} {
		a := newArchive(t, event.Mirror)
		a.repo.Formats = append(a.repo.Formats, testserver.ItemFormat{Prefix: "other", Schema: "http://other.example/x.xsd", Namespace: "http://other.example/"})
		a.src.Repository.Also = []string{"other"}
		a.repo.Put(testserver.Item{Identifier: "oai:x:a", Metadata: map[string]string{"oai_dc": testserver.DublinCore("a1"), "other": "<o>1</o>"}})
		a.repo.Rewrite = func(verb string, _ int, body []byte) []byte {
			if verb == "GetRecord" {
				return rewrite(body)
			}
			return body
		}
		if r := a.run(); r.Pending != 1 || r.Created != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		a.repo.Rewrite = nil
		_, err := a.try(harvest.Options{AllPending: true})
		a.must(err)
		a.want(name, a.news(), "created a=a1")
	}
}

// Where lists end before they have what they say that they have, it may be that they end
// too early: a few deletions wait until they are absent once more, and of many nothing is
// believed.
func TestListsEndTooEarly(t *testing.T) {
	token := regexp.MustCompile(`>[^<>]*</resumptionToken>`)
	for _, c := range []struct {
		deleted    string
		full       bool // the list of all records shows it
		page       int  // the last one, of ten
		held       int64
		confirmed  int // deletions
		complaints int // warnings
	}{
		{"no", false, 9, 10, 10, 1}, {"no", false, 8, 0, 0, 1}, {"persistent", true, 9, 10, 0, 1}, {"transient", true, 5, 0, 0, 1}, {"no", true, 10, 0, 0, 0},
	} {
		t.Run(fmt.Sprintf("%s %v %d", c.deleted, c.full, c.page), func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.repo.Deleted, a.repo.PageSize = c.deleted, 10
			a.repo.Fill(100)
			a.run()
			a.news()
			a.repo.Rewrite = func(_ string, page int, body []byte) []byte {
				if page != c.page {
					return body
				}
				return token.ReplaceAll(body, []byte("></resumptionToken>"))
			}
			if a.week(); c.full {
				a.now = a.now.Add(-7 * 24 * time.Hour)
			}
			r, err := a.try(harvest.Options{Full: c.full})
			a.must(err)
			a.want("events", a.news(), "")
			if r.Held != c.held || len(r.Warnings) != c.complaints || slices.ContainsFunc(r.Warnings, harvest.IsAboutHeld) != (c.held > 0) {
				t.Errorf("%+v", r)
			}
			a.week()
			a.run()
			if got := strings.Count(a.news(), "deleted"); got != c.confirmed {
				t.Errorf("%d deletions, want %d", got, c.confirmed)
			}
			a.repo.Rewrite = nil
			a.week()
			a.run()
			if got := strings.Count(a.news(), "created"); got != c.confirmed {
				t.Errorf("%d records come back, want %d", got, c.confirmed)
			}
		})
	}
}

// A repository whose tokens count the records of its list leaves one out when another
// changes, or goes, while the list is read: what is absent then is deleted only when it is
// absent once more.
func TestListsChangeMeanwhile(t *testing.T) {
	changed := func(a *archive) {
		a.repo.Put(testserver.Item{Identifier: "oai:repository.example:1", Metadata: map[string]string{"oai_dc": testserver.DublinCore("Letter 1")}})
	}
	for name, change := range map[string]func(a *archive){
		"a record has changed":                               changed,
		"a record has changed, and datestamps are days":      changed,
		"a record has changed, and datestamps are midnights": changed,
		"a record has changed, and there are no datestamps":  changed,
		"a record has gone":                                  func(a *archive) { a.repo.Forget("oai:repository.example:1") },
		"a record has gone, and there are no datestamps":     func(a *archive) { a.repo.Forget("oai:repository.example:1") },
		"a record has gone, and no size is stated":           func(a *archive) { a.repo.Forget("oai:repository.example:1") },
	} {
		t.Run(name, func(t *testing.T) {
			a := newArchive(t, event.Reference)
			a.repo.Deleted, a.repo.PageSize, a.repo.Stateless = "no", 10, true
			a.repo.Lie(testserver.OffsetTokens)
			if strings.HasSuffix(name, "no size is stated") {
				a.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
					return regexp.MustCompile(` completeListSize="\d+"`).ReplaceAll(body, nil)
				}
			}
			switch {
			case strings.HasSuffix(name, "no datestamps"):
				a.repo.Lie(testserver.NoStamps)
			case strings.HasSuffix(name, "days"):
				a.repo.Lie(testserver.CoarserStamps)
			case strings.HasSuffix(name, "midnights"):
				a.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
					return regexp.MustCompile(`T[0-9:]+Z</datestamp>`).ReplaceAll(body, []byte("T00:00:00Z</datestamp>"))
				}
			}
			a.repo.Fill(100)
			a.run()
			a.news()
			a.week()
			a.repo.OnPage = func(verb string, page int) {
				if verb == "ListIdentifiers" && page == 2 {
					a.pass(time.Second)
					change(a)
				}
			}
			r := a.run()
			if ids := a.news(); strings.Contains(ids, "deleted") || r.Held == 0 || len(r.Warnings) != 1 || !harvest.IsAboutHeld(r.Warnings[0]) {
				t.Errorf("while it changed: %q, %+v", ids, r)
			}
			a.repo.OnPage = nil
			a.pass(25 * time.Hour)
			a.run()
			if strings.HasSuffix(name, "stated") || name == "a record has gone, and there are no datestamps" { // only now the record was absent for the first time
				a.want("a day later", a.news(), "")
				a.pass(25 * time.Hour)
				a.run()
			}
			want := ""
			if strings.HasPrefix(name, "a record has gone") {
				want = "deleted oai:repository.example:1=Letter 1"
			}
			if ids := a.news(); ids != want && (want != "" || strings.Contains(ids, "deleted")) {
				t.Errorf("a day later: %q, want %q", ids, want)
			}
		})
	}
}

// A list that breaks off is asked for in parts, by datestamps. A record that the repository has
// in none of them, as it does not select it by its datestamp, is not deleted for that.
func TestAbsentFromParts(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Deleted, a.repo.PageSize = "no", 4
	for i := range 12 {
		a.put(fmt.Sprint(i), "x")
		a.pass(time.Hour)
	}
	a.run()
	a.news()
	a.week()
	parts := false
	a.repo.Rewrite = func(_ string, page int, body []byte) []byte {
		if page == 1 {
			parts = regexp.MustCompile(`<request[^>]* (from|until)=`).Match(body)
		}
		if !parts {
			return body
		}
		body = bytes.ReplaceAll(body, []byte(`completeListSize="12"`), []byte(`completeListSize="11"`))
		return regexp.MustCompile(`(?s)<header>\s*<identifier>oai:x:5<.*?</header>`).ReplaceAll(body, nil)
	}
	a.repo.Fail(testserver.Failure{Verb: "ListIdentifiers", Page: 2, Times: 2, How: testserver.TokenRefused})
	r := a.run()
	a.want("events", a.news(), "")
	if r.Held != 1 {
		t.Errorf("%+v", r)
	}
	a.pass(25 * time.Hour)
	a.run()
	a.want("a day later, when its tokens are good", a.news(), "")
}

// about is left out, and counted.
func TestAboutCounted(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Put(testserver.Item{Identifier: "oai:x:a", About: []string{`<r xmlns="urn:r"/>`, `<s xmlns="urn:s"/>`}, Metadata: map[string]string{"oai_dc": testserver.DublinCore("a1")}})
	if r := a.run(); r.About != 2 || r.Created != 1 {
		t.Errorf("%+v", r)
	}
}

// A list that breaks off for good ends the harvest with an error and leaves the mark where
// it was: the next harvest reads again what this one could not.
func TestMarkStaysBehind(t *testing.T) {
	mark := func(a *archive) string {
		p, err := a.log.Progress(context.Background(), a.src.ID)
		a.must(err)
		return p.Mark.String()
	}
	a := newArchive(t, event.Mirror)
	a.repo.PageSize = 10
	a.repo.Fill(35)
	a.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 3, How: testserver.Unavailable})
	began := a.clock().Add(time.Hour)
	if _, err := a.try(harvest.Options{}); err == nil || mark(a) != "" {
		t.Errorf("%v, mark %q", err, mark(a))
	}
	a.repo.Honest()
	r := a.run() // goes on where it was left

	if got := len(strings.Split(a.news(), ", ")); got != 35 || mark(a) != began.Format(time.RFC3339) {
		t.Errorf("%d records, mark %q; want that of the first answer, %s; %+v", got, mark(a), began, r)
	}
}

// What the configuration does not select is not kept either, whatever came with it.
func TestUnselectedContents(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.src.Selection.Prefixes = []string{a.url + "?verb=GetRecord&identifier=oai:x:a"}
	a.put("a1", "one")
	a.put("b1", "two")
	a.put("a2", "three")
	a.run()
	a.want("events", a.news(), "created a1=one, created a2=three")
	held, err := a.contents.Stats(context.Background())
	a.must(err)
	if held.Count != 2 {
		t.Errorf("%d contents are kept, want those of 2 records", held.Count)
	}
}

// A repository whose base URL answers with a page, and that does not answer Identify for a
// moment, is not taken for the site around it. A Source with a Capability List is one whatever
// the answer to Identify.
func TestKindWhileIdentifyFails(t *testing.T) {
	a := newArchive(t, event.Reference)
	a.put("a", "A")
	var fails, framework atomic.Bool
	fails.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := "http://" + r.Host + "/list.xml"
		switch {
		case r.URL.Path == "/robots.txt":
			_, _ = io.WriteString(w, "Sitemap: "+list+"\n")
		case r.URL.Path == "/list.xml" && framework.Load():
			_, _ = io.WriteString(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/><url><loc>`+list+`/1</loc></url></urlset>`)
		case r.URL.Path == "/list.xml":
			_, _ = io.WriteString(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>`+list+`/1</loc></url></urlset>`)
		case r.URL.Path != "/oai":
			http.NotFound(w, r)
		case r.URL.RawQuery == "":
			_, _ = io.WriteString(w, "<!DOCTYPE html><html><title>a repository</title></html>")
		case fails.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			a.repo.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	var err error
	a.src.URL, a.src.Kind = server.URL+"/oai", ""
	a.src.ID, err = a.log.EnsureSource(t.Context(), "main", "", a.src.URL, 1)
	a.must(err)
	var kinds []string
	a.src.Found = func(_ context.Context, kind string) error { kinds = append(kinds, kind); return nil }

	_, err = a.try(harvest.Options{})
	if err == nil || !strings.Contains(err.Error(), "?verb=Identify: HTTP status 503") || !strings.Contains(err.Error(), "write the kind, oaipmh or resourcesync") {
		t.Errorf("error %v", err)
	}
	a.want("kinds found while Identify fails", strings.Join(kinds, " "), "")
	fails.Store(false)
	a.run()
	a.want("kinds found then", strings.Join(kinds, " "), "oaipmh")
	a.want("events", a.news(), "created a=A")

	fails.Store(true)
	framework.Store(true)
	a.run()
	a.want("kinds found of a Source with a Resource List", strings.Join(kinds, " "), "oaipmh resourcesync")
}

// A record that does not exist in one of the further formats goes without it, whether the
// repository says so with an error or with a header alone, as EPrints does; and nothing
// waits for it.
func TestFurtherFormats(t *testing.T) {
	for name, lies := range map[string][]testserver.Lie{"honest": nil, "header alone": {testserver.HeaderForFormat}} {
		t.Run(name, func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.repo.Formats = append(a.repo.Formats, testserver.ItemFormat{Prefix: "mods", Schema: "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd", Namespace: "http://www.loc.gov/mods/v3"})
			a.repo.Lie(lies...)
			a.src.Repository = harvest.Repository{Also: []string{"mods"}}
			a.put("1", "One")
			a.repo.Put(testserver.Item{Identifier: "oai:x:2", Metadata: map[string]string{"oai_dc": testserver.DublinCore("Two"),
				"mods": `<mods xmlns="http://www.loc.gov/mods/v3"><titleInfo><title>Two</title></titleInfo></mods>`}})
			if r := a.run(); r.Created != 2 || r.Partial() {
				t.Errorf("%+v", r)
			}
			said, err := a.log.SourceRecordsOf(context.Background(), a.src.ID, []string{"oai:x:1", "oai:x:2"})
			a.must(err)
			for i, want := range []string{"oai_dc", "oai_dc mods"} {
				var got []string
				for _, rep := range said[i].Observation.Representations {
					_, prefix, _ := strings.Cut(rep.Href, "metadataPrefix=")
					got = append(got, prefix)
				}
				a.want("formats of record", strings.Join(got, " "), want)
			}
		})
	}
}
