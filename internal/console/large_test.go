package console_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// Pages of a large set answer as those of a small one do. In a soak that is a set of a
// million records and ten million events, and each page has 200 ms.
func TestLarge(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	records, batch, rounds := 3000, 1000, testenv.Rounds(t, 10, 10)
	if testenv.Soaking() {
		records, batch = 1_000_000, 50_000
	}
	c, err := config.FromArguments(config.Flags{Data: filepath.Join(t.TempDir(), "data")}, []string{"main=atompmh:http://127.0.0.1:9/feed.atom"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
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
				it := event.Item{Observation: event.Observation{Record: name(n), Title: fmt.Sprintf("Observation series %08d", n), Fetched: true, Order: at, Modified: at,
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
