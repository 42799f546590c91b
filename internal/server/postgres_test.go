package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"html"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/backup"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/oaipmh"
)

// TestSameOnServer: of two logs that get the same random history at the same times, one in
// a file and the other on a PostgreSQL server, all that is published is the same, byte for
// byte: documents of ResourceSync and their packages, feeds, OAI-PMH, pages, records and
// their earlier versions.
func TestSameOnServer(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.SharedPostgres(t)
	for seed := range uint64(testenv.Rounds(t, 1, 100)) {
		var inFile, onServer map[string]string
		url := postgres.NewSchema(t)
		t.Run(fmt.Sprintf("seed %d, in a file", seed), func(t *testing.T) { inFile = publishHistory(t, "", seed) })
		t.Run(fmt.Sprintf("seed %d, on a server", seed), func(t *testing.T) { onServer = publishHistory(t, url, seed) })
		for path, want := range inFile {
			if got := onServer[path]; got != want {
				t.Errorf("seed %d: %s is on a server\n%s\nand in a file\n%s", seed, path, got, want)
			}
		}
		if len(onServer) != len(inFile) {
			t.Errorf("seed %d: %d answers on a server, %d in a file", seed, len(onServer), len(inFile))
		}
		for _, kind := range []string{"/changelist/2.xml", "/resourcelist.xml", "/capabilitylist.xml", ".atom", "/timemap", "/at/", "verb=ListRecords&resumptionToken=", "/resourcedump"} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(inFile)), func(path string) bool {
				return strings.Contains(path, kind) && strings.HasPrefix(inFile[path], "200 ")
			}) {
				t.Errorf("seed %d: nothing that has %s is published", seed, kind)
			}
		}
	}
}

// TestSameAfterCopy: what is published of a log is the same, byte for byte, after it was
// copied from a file to a server, to another server, and back to a file.
func TestSameAfterCopy(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.SharedPostgres(t)
	for seed := range uint64(testenv.Rounds(t, 1, 100)) {
		cryptotest.SetGlobalRandom(t, seed)
		at := backup.Place{Folder: t.TempDir()}
		wall := makeHistory(t, at.Folder, "", seed)
		want := published(t, at.Folder, wall)
		for i, url := range []string{postgres.NewSchema(t), postgres.NewSchema(t), ""} {
			to := backup.Place{Folder: t.TempDir(), URL: url}
			if _, err := backup.Copy(t.Context(), at, to, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(to.Folder, eventlog.FileName)); (err == nil) != (url == "") {
				t.Errorf("the log of copy %d is in the wrong place: %v", i, err)
			}
			got := published(t, to.Folder, wall)
			for path := range want {
				if got[path] != want[path] {
					t.Errorf("seed %d: of copy %d %s is\n%s\nand was\n%s", seed, i, path, got[path], want[path])
				}
			}
			if len(got) != len(want) || len(want) < 100 {
				t.Errorf("seed %d: copy %d has %d answers, want %d", seed, i, len(got), len(want))
			}
			at = to
		}
	}
}

// publishHistory makes a log at a URL, "" for a file, with a random history, and returns
// what is published of it.
func publishHistory(t *testing.T, url string, seed uint64) map[string]string {
	t.Helper()
	cryptotest.SetGlobalRandom(t, seed) // from which sets have their UUIDs
	folder := t.TempDir()
	return published(t, folder, makeHistory(t, folder, url, seed))
}

// began is when the histories begin.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// makeHistory makes a log at a URL, "" for a file, with a random history, and its contents.
// It returns the time at the end.
func makeHistory(t *testing.T, folder, url string, seed uint64) time.Time {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wall := began
	open := func(url string) *eventlog.Log {
		log, err := eventlog.Open(ctx, folder, eventlog.Options{URL: url, Clock: func() (time.Time, time.Duration) { return wall, wall.Sub(began) }})
		must(err)
		return log
	}
	log := open(url)
	defer func() { must(log.Close()) }()
	contents, err := content.Open(ctx, filepath.Join(folder, "content.db"), content.Options{})
	must(err)
	defer func() { must(contents.Close()) }()

	rnd := rand.New(rand.NewPCG(1, seed))
	type walk struct {
		set    string
		cursor int64
		on     bool
	}
	walks := map[event.SourceID]*walk{}
	for _, c := range []eventlog.SetConfig{
		{Name: "main", Title: "Main", Content: event.Mirror, History: true, Dumps: true, SegmentEvents: 20},
		{Name: "B", Content: event.Reference, SegmentEvents: 15}, {Name: "a-z", Content: event.Redirect, SegmentEvents: 50, SegmentHours: 1},
	} {
		must(log.EnsureSet(ctx, c))
		for rank, kind := range []string{"atompmh", "sip"} {
			id, err := log.EnsureSource(ctx, c.Name, kind, fmt.Sprintf("https://origin.example/%s/%s", c.Name, kind), rank)
			must(err)
			walks[id] = &walk{set: c.Name}
		}
		must(log.MarkSetComplete(ctx, c.Name))
	}
	sources := slices.Sorted(maps.Keys(walks))
	names := []string{"a", "B", "Z", "ä", "_", "é", "ab", "a-b", "a b", "😀", "1", "10", "9"}
	for range 60 {
		source := sources[rnd.IntN(len(sources))]
		w := walks[source]
		b := &event.Batch{Source: source, Cursor: w.cursor, Start: !w.on, Documents: []event.Document{{URL: "https://origin.example/feed"}}}
		if w.on = rnd.IntN(3) > 0; w.on {
			b.Next = []byte("on")
		}
		for range 1 + rnd.IntN(8) {
			name := names[rnd.IntN(len(names))]
			stamp := event.StampFromNanos(began.UnixNano() + rnd.Int64N(1_000_000_000_000))
			o := event.Observation{Record: "urn:x:" + name, Order: stamp, Modified: stamp, Deleted: rnd.IntN(4) == 0}
			if !o.Deleted {
				o.Title, o.Fetched = "Title "+name+" <&>", true
				for i := range 1 + rnd.IntN(2) {
					body := fmt.Sprintf("<mods xmlns=\"%s\">%s, %d</mods>", mods, name, rnd.IntN(4))
					must(contents.Put(ctx, content.NewDraft([]byte(body))))
					o.Representations = append(o.Representations, event.Representation{Href: fmt.Sprintf("https://origin.example/data/%d/%d", rnd.IntN(9), i),
						Type: []string{"application/mods+xml", "text/xml"}[i], Length: int64(len(body)), Hash: event.HashOf(sha256.Sum256([]byte(body)))})
				}
				o.Categories = []event.Category{{Term: names[rnd.IntN(len(names))]}}
			}
			b.Items = append(b.Items, &event.Item{Observation: o})
		}
		out, err := log.Append(ctx, b)
		must(err)
		w.cursor = out.Cursor
		wall = wall.Add(time.Duration(rnd.Int64N(int64(20 * time.Minute))))
		if rnd.IntN(20) == 0 {
			must(log.Close())
			log = open("")
		}
	}
	return wall
}

// published returns all answers that a client finds from the first pages on, by their path,
// of the log in a data folder at a time.
func published(t *testing.T, folder string, wall time.Time) map[string]string {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log, err := eventlog.Open(ctx, folder, eventlog.Options{Clock: func() (time.Time, time.Duration) { return wall, wall.Sub(began) }})
	must(err)
	defer func() { must(log.Close()) }()
	contents, err := content.Open(ctx, filepath.Join(folder, "content.db"), content.Options{})
	must(err)
	defer func() { must(contents.Close()) }()
	const base = "https://bridge.example/b"
	stored := stored{contents}
	pub, err := publish.New(publish.Options{Log: log, BaseURL: base, CacheDir: filepath.Join(folder, "cache"), SnapshotDir: filepath.Join(folder, "snapshots"), CacheBytes: 1 << 30,
		Content: stored.Open, Now: func() time.Time { return wall }})
	must(err)
	must(pub.Snapshot(ctx, "main"))
	must(pub.Dump(ctx, "main"))
	repositories := map[string]*publish.Repository{}
	for _, set := range []string{"main", "B", "a-z"} {
		repositories[set] = publish.NewRepository(publish.RepositoryOptions{Log: log, BaseURL: base, Set: set, Content: stored.Open, AdminEmail: "a@a.example", Page: 3,
			Formats: []publish.RepositoryFormat{{Format: oaipmh.Format{Prefix: "mods", Namespace: mods, Schema: "https://schema.example/mods.xsd"}, Type: "application/mods+xml"}}})
	}
	handler := server.New(server.Options{Documents: pub, Log: log, Contents: stored, BaseURL: base, Now: func() time.Time { return wall },
		Repository: func(_ context.Context, set string) (*publish.Repository, error) {
			if r := repositories[set]; r != nil {
				return r, nil
			}
			return nil, publish.ErrNotFound
		}}).Handler()
	return crawl(t, handler, base, "/", "/.well-known/resourcesync", "/sets/main/oai?verb=ListRecords&metadataPrefix=mods",
		"/sets/B/oai?verb=ListRecords&metadataPrefix=oai_dc", "/sets/a-z/oai?verb=ListIdentifiers&metadataPrefix=oai_dc")
}

var resumptionToken = regexp.MustCompile(`<resumptionToken[^>]*>([^<]+)<`)

// crawl asks for pages and for all that they lead to below a URL. It returns the answers
// with their header fields, by their path.
func crawl(t *testing.T, handler http.Handler, base string, paths ...string) map[string]string {
	t.Helper()
	link := regexp.MustCompile(regexp.QuoteMeta(base) + `(/[^\s"'<>]*)`)
	answers := map[string]string{}
	for len(paths) > 0 {
		path := paths[0]
		paths = paths[1:]
		if _, known := answers[path]; known || strings.HasSuffix(path, "/changes/stream") { // which does not end
			continue
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, base+path, nil))
		r := w.Result()
		var header strings.Builder
		if err := r.Header.Write(&header); err != nil {
			t.Fatal(err)
		}
		body := w.Body.String()
		answers[path] = fmt.Sprintf("%d %s\n%s", r.StatusCode, header.String(), body)
		for _, found := range link.FindAllStringSubmatch(header.String()+body, -1) {
			paths = append(paths, html.UnescapeString(found[1]))
		}
		if list, _, ok := strings.Cut(path, "&"); ok {
			if token := resumptionToken.FindStringSubmatch(body); token != nil {
				paths = append(paths, list+"&resumptionToken="+token[1])
			}
		}
		if len(answers) > 5000 {
			t.Fatal("there is no end to the answers")
		}
	}
	return answers
}

// TestServerAway: while the server of the log does not answer, whoever asks is told to ask
// again, and gets the document when it is back.
func TestServerAway(t *testing.T) {
	testenv.Heavy(t)
	ctx, folder := t.Context(), t.TempDir()
	postgres := testenv.Postgres(t)
	log, err := eventlog.Open(ctx, folder, eventlog.Options{URL: postgres.NewSchema(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Redirect}); err != nil {
		t.Fatal(err)
	}
	source, err := log.EnsureSource(ctx, "main", "atompmh", "https://origin.example/feed", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(ctx, &event.Batch{Source: source, Start: true, Documents: []event.Document{{URL: "https://origin.example/feed"}}, Items: []*event.Item{{Observation: event.Observation{
		Record: "urn:a", Representations: []event.Representation{{Href: "https://origin.example/a", Length: event.NoLength}}}}}}); err != nil {
		t.Fatal(err)
	}
	const base = "https://bridge.example"
	pub, err := publish.New(publish.Options{Log: log, BaseURL: base, CacheDir: filepath.Join(folder, "cache"), SnapshotDir: filepath.Join(folder, "snapshots"), CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	handler := server.New(server.Options{Documents: pub, Log: log, BaseURL: base}).Handler()
	want := func(path string, status int, retry string) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, base+path, nil))
		if w.Code != status || w.Header().Get("Retry-After") != retry {
			t.Errorf("%s: %d, Retry-After %q; want %d, %q: %s", path, w.Code, w.Header().Get("Retry-After"), status, retry, w.Body)
		}
	}
	paths := []string{"/sets/main/changelist.xml", "/sets/main/feed.atom", "/sets/main/", "/.well-known/resourcesync"}
	for _, path := range paths {
		want(path, http.StatusOK, "")
	}
	for _, how := range []testenv.Shutdown{testenv.FastShutdown, testenv.ImmediateShutdown} {
		postgres.Stop(t, how)
		for _, path := range paths {
			want(path, http.StatusServiceUnavailable, "5")
		}
		postgres.Start(t)
		for _, path := range paths {
			want(path, http.StatusOK, "")
		}
	}
}

// BenchmarkChangeListOfLog makes a compressed Change List of 50,000 events that nobody has
// asked for yet, from the rows of a log in a file, and on a server that is set up by default.
func BenchmarkChangeListOfLog(b *testing.B) {
	b.Run("file", func(b *testing.B) { coldChangeList(b, "") })
	b.Run("server", func(b *testing.B) { coldChangeList(b, testenv.DefaultPostgres(b).NewSchema(b)) })
}

func coldChangeList(b *testing.B, url string) {
	const events = 50_000
	ctx := b.Context()
	log, err := eventlog.Open(ctx, b.TempDir(), eventlog.Options{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	if err := log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Reference, SegmentEvents: events}); err != nil {
		b.Fatal(err)
	}
	src, err := log.EnsureSource(ctx, "main", "atompmh", "https://repository.example/feed.atom", 0)
	if err != nil {
		b.Fatal(err)
	}
	const batch = 10_000
	for from := 0; from <= events; from += batch { // one more closes the segment
		p, err := log.Progress(ctx, src)
		if err != nil {
			b.Fatal(err)
		}
		items := make([]*event.Item, batch)
		for i := range items {
			n := from + i
			items[i] = &event.Item{}
			o := &items[i].Observation
			*o = event.Observation{Record: fmt.Sprintf("urn:uuid:%08x-8000-4000-8000-%012x", uint32(n)*2654435761, n), Title: fmt.Sprintf("Record number %d of the catalogue", n),
				Order: event.StampFromNanos(int64(1_700_000_000_000_000_000 + n)), Modified: event.StampFromNanos(int64(1_700_000_000_000_000_000 + n)),
				Representations: []event.Representation{{Href: fmt.Sprintf("https://repository.example/records/%d.xml", n), Type: "application/xml", Length: event.NoLength}}}
			o.Claim = o.ClaimOf()
		}
		if _, err := log.Append(ctx, &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: p.Cursor.Data == nil, Next: fmt.Append(nil, from+batch),
			Documents: []event.Document{{URL: fmt.Sprintf("https://repository.example/%d.atom", from)}}, Items: items}); err != nil {
			b.Fatal(err)
		}
	}
	folder := b.TempDir()
	read := func(n int) {
		p, err := publish.New(publish.Options{Log: log, BaseURL: "https://bridge.example", CacheDir: filepath.Join(folder, fmt.Sprint(n)), CacheBytes: 1 << 30, SnapshotDir: filepath.Join(folder, "snapshots")})
		if err != nil {
			b.Fatal(err)
		}
		d, err := p.Document(ctx, "/sets/main/changelist/1.xml", true)
		if err != nil {
			b.Fatal(err)
		}
		body, _, err := d.Open()
		if err == nil {
			_, err = io.Copy(io.Discard, body)
		}
		if err != nil {
			b.Fatal(err)
		}
		body.Close()
	}
	read(-1) // the first time rows are read they are written too, by both engines' means
	b.ResetTimer()
	for n := range b.N {
		read(n)
	}
	b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "urls/s")
}
