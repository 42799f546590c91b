package console_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// withMany opens a bridge with a number of sets of one Source each, and one set of several.
func withMany(t *testing.T, sets, inOne int) *daemon.Bridge {
	t.Helper()
	var file strings.Builder
	file.WriteString("data = \"data\"\n")
	source := func(n int) {
		fmt.Fprintf(&file, "[[set.source]]\nkind = \"atompmh\"\nname = \"source %d\"\nurl = \"http://127.0.0.1:9/%[1]d.atom\"\n", n)
	}
	for n := range sets {
		fmt.Fprintf(&file, "[[set]]\nname = \"set-%04d\"\ncontent = \"redirect\"\n", n)
		source(n)
	}
	file.WriteString("[[set]]\nname = \"large\"\ncontent = \"redirect\"\n")
	for n := range inOne {
		source(sets + n)
	}
	return openBridge(t, daemon.Options{}, file.String())
}

// The state of everything is read for each page, and by everybody who may ask for one: of very
// many sets it must not cost some requests to the log for each.
func TestStatusOfMany(t *testing.T) { // not parallel: it counts allocations
	const sets = 500
	b := withMany(t, sets, 1)
	if cost := testing.AllocsPerRun(3, func() {
		if _, err := b.Status(t.Context()); err != nil {
			t.Error(err)
		}
	}) / sets; cost > 250 {
		t.Errorf("the state of one set takes %.0f allocations", cost)
	}
}

// The page of what is under review does not cost more with all that another server decides.
func TestReviewsBesideMany(t *testing.T) { // not parallel: it counts allocations
	b := openBridge(t, daemon.Options{}, "data = \"data\"\n[[set]]\nname = \"main\"\n[[set.source]]\nkind = \"sip\"\nmode = \"review\"\nformats = { \"{urn:r}r\" = \"http://127.0.0.1/r.xsd\" }\n")
	batch := submission.Batch{Source: b.Sources()[0].ID}
	for n := range 3000 {
		batch.Updates = append(batch.Updates, submission.Update{Submission: submission.Submission{Source: batch.Source, State: submission.StateProvisional, Token: fmt.Sprint(n), Tries: 1}})
	}
	batch.Updates = append(batch.Updates, submission.Update{Submission: submission.Submission{Source: batch.Source, State: submission.StateProvisional, Title: "Storke Tower"}})
	if _, err := b.SIP.Write(t.Context(), &batch); err != nil {
		t.Fatal(err)
	}
	pages := console.New(console.Options{Bridge: b})
	var page string
	cost := testing.AllocsPerRun(3, func() {
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+console.Path+"/reviews", nil))
		page = w.Body.String()
	})
	if !strings.Contains(page, "Storke Tower") || strings.Contains(page, "submission 3000") {
		t.Errorf("under review:\n%s", page)
	}
	if cost > 10_000 {
		t.Errorf("the page takes %.0f allocations", cost)
	}
}

// A bridge with very many sets and Sources has pages that a browser can show, and which lead to
// all of them.
func TestManySources(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	const sets, inOne = 450, 210
	b := withMany(t, sets, inOne)
	pages := console.New(console.Options{Bridge: b})
	get := func(path string) *html.Node {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+console.Path+path, nil)
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Body.Len() > 1<<20 {
			t.Fatalf("%s: status %d, %d bytes; want at most a megabyte", path, w.Code, w.Body.Len())
		}
		root, err := html.Parse(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	next := func(root *html.Node) string {
		for _, a := range elements(root, "a") {
			if attr(a, "rel") == "next" {
				return attr(a, "href")
			}
		}
		return ""
	}
	for _, of := range []struct {
		path, links string
		want        int
	}{{"/", "./sources/", sets + inOne}, {"/?sort=name&order=desc", "./sources/", sets + inOne}, {"/?set=large", "./sources/", inOne}, {"/sets", "./sets/", sets + 1}} {
		var met []string
		folder := of.path[:strings.LastIndexByte(of.path, '/')+1]
		for path := of.path; path != ""; {
			root := get(path)
			for _, row := range elements(root, "tr") {
				for _, a := range elements(row, "a") {
					if href := attr(a, "href"); strings.HasPrefix(href, of.links) && !slices.Contains(met, href) {
						met = append(met, href)
					}
				}
			}
			base, _, _ := strings.Cut(of.path, "?")
			switch path = next(root); {
			case strings.HasPrefix(path, "?"):
				path = base + path
			case path != "":
				path = folder + path
			}
		}
		if len(met) != of.want {
			t.Errorf("%s and the pages after it have %d of %d", of.path, len(met), of.want)
		}
	}
	if said := text(get("/sets/large")); !strings.Contains(said, "All 210 Sources") {
		t.Errorf("the page of a set with %d Sources does not lead to all of them", inOne)
	}
}

// Pages of a large set answer as those of a small one do. In a soak that is a set of a
// million records and ten million events, and each page has 200 ms.
func TestLarge(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	records, batch, rounds := 3000, 1000, testenv.Rounds(t, 10, 10)
	if testenv.Soaking() {
		records, batch = 1_000_000, 50_000
	}
	b := openBridge(t, daemon.Options{}, "data = \"data\"\n[[set]]\nname = \"main\"\n[[set.source]]\nkind = \"atompmh\"\nurl = \"http://127.0.0.1:9/feed.atom\"\n")
	source := b.Sources()[0].ID
	name := func(n int) string {
		sum := sha256.Sum256(fmt.Appendf(nil, "record %d", n))
		return fmt.Sprintf("urn:uuid:%x", sum[:16])
	}
	version, began := int64(0), time.Now()
	for round := range rounds {
		for first := 0; first < records; first += batch {
			in := event.Batch{Source: source, Cursor: version, Start: true, Documents: []event.Document{{URL: "http://127.0.0.1:9/feed.atom", FeedID: "urn:feed", FeedTitle: "Catalogue"}}}
			for n := first; n < first+batch; n++ {
				at := event.StampFromNanos(1_577_836_800_000_000_000 + int64(round*records+n)*1_000_000)
				sum := sha256.Sum256(fmt.Appendf(nil, "content %d %d", n, round))
				it := &event.Item{Observation: event.Observation{Record: name(n), Title: fmt.Sprintf("Observation series %08d", n), Fetched: true, Order: at, Modified: at,
					Representations: []event.Representation{{Href: fmt.Sprintf("http://127.0.0.1:9/%d.xml", n), Type: "application/xml", Length: 100, Hash: event.HashOf(sum)}}}}
				it.Claim = it.ClaimOf()
				in.Items = append(in.Items, it)
			}
			out, err := b.Log.Append(t.Context(), &in)
			if err != nil || out.Created+out.Updated != batch {
				t.Fatal(out, err)
			}
			version = out.Cursor
		}
	}
	set, err := b.Log.Set(t.Context(), "main")
	if err != nil || set.Events != int64(rounds*records) || set.Live != int64(records) {
		t.Fatalf("%d events, %d records, %v", set.Events, set.Live, err)
	}
	t.Logf("%d events of %d records after %v", set.Events, set.Live, time.Since(began))
	l := listen(t)
	p, err := b.Publisher("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	all := server.New(server.Options{Documents: p, Log: b.Log, BaseURL: "http://" + l.Addr().String(), Console: console.New(console.Options{Bridge: b, Base: "http://127.0.0.1:9"})})
	web := &http.Server{Handler: all.Handler(), ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(l) }()
	defer func() { _, _ = web.Close(), <-ended }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	s := &site{t: t, bridge: b, console: "http://" + l.Addr().String() + console.Path, client: &http.Client{Transport: transport}}
	middle := rounds * records / 2
	key := event.Key(name(records / 2))
	pages := []string{"/", "/sets", "/sets/main", "/sets/main/events", fmt.Sprintf("/sets/main/events?before=%d", middle), "/sets/main/events?kind=deleted", "/sets/main/records",
		fmt.Sprintf("/sets/main/records?before=%d", middle), "/sets/main/records?q=" + url.QueryEscape(name(records/2)), "/sets/main/records?q=series+00000123", "/sets/main/records?q=nothing+like+that",
		"/sets/main/records/" + key, fmt.Sprintf("/sources/%d", source), fmt.Sprintf("/sources/%d/held", source), "/quarantine", "/reviews"}
	for i := range pages {
		pages[i] = s.console + pages[i]
	}
	root := strings.TrimSuffix(s.console, console.Path) + api.Path
	for _, path := range []string{"/status", "/sources", fmt.Sprintf("/sources/%d", source), fmt.Sprintf("/sources/%d/history", source), fmt.Sprintf("/sources/%d/held", source), "/sets", "/sets/main",
		"/sets/main/events?limit=1000", fmt.Sprintf("/sets/main/events?cursor=%d", middle), "/events?limit=1000", fmt.Sprintf("/events?cursor=%d", middle), "/events?set=main&kind=deleted", "/sets/main/records?limit=1000",
		fmt.Sprintf("/sets/main/records?cursor=%d", middle), "/sets/main/records?q=" + url.QueryEscape(name(records/2)), "/sets/main/records?q=series+00000123", "/sets/main/records?q=nothing+like+that",
		"/sets/main/records/" + key, "/quarantine", "/submissions"} {
		pages = append(pages, root+path)
	}
	public := "http://" + l.Addr().String()
	for _, path := range []string{"changes.json", "changes.json?limit=1000", fmt.Sprintf("changes.json?after=%d&limit=1000", middle), fmt.Sprintf("changes.json?after=%d", set.Last), ""} {
		pages = append(pages, public+"/sets/main/"+path)
	}
	for _, path := range pages {
		for _, time0 := range []string{"first", "then"} {
			start := time.Now()
			if a := s.ask(path); a.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s\n%s", path, a.Status, a.body)
			}
			took := time.Since(start)
			path := strings.TrimPrefix(path, public)
			t.Logf("%8s %s %s", took.Round(100*time.Microsecond), time0, path)
			if testenv.Soaking() && took > 200*time.Millisecond {
				t.Errorf("%s took %v, and has 200 ms", path, took)
			}
		}
	}
}
