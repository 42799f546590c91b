package console_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/sip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// evil is a title that would run in a page that does not escape it, and evilLink an
// identifier that would.
const (
	evil     = `</title></td><script src="https://evil.example/x.js"></script><img src=x onerror=alert(1)> "'><b class=evil>`
	evilLink = `javascript:alert('evil')//"><script>alert(2)</script>`
)

// site is a bridge with its console, both on loopback.
type site struct {
	t       testing.TB
	bridge  *daemon.Bridge
	base    string // of what is published
	console string // of the console, without a slash at its end
	client  *http.Client

	catalogue, instruments *fixtures.Provider
	broken                 atomic.Bool // the failing Source fails
	repaired               atomic.Bool // the hostile Source has no bad entry any more
}

// newSite opens a bridge with one Source of each sort: that of the fixtures, one whose
// texts are hostile and some of whose entries are bad, one that fails, one that has
// deleted all at once, and a set that takes submissions for review.
func newSite(t testing.TB, options ...func(*console.Options)) *site {
	t.Helper()
	s := &site{t: t, catalogue: fixtures.Catalogue(nil), instruments: fixtures.Instruments(nil)}
	s.broken.Store(true)
	catalogue, maps := httptest.NewServer(s.catalogue), httptest.NewServer(fixtures.Maps(nil))
	instruments, hostile := httptest.NewServer(s.instruments), httptest.NewServer(http.HandlerFunc(s.serveHostile))
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.broken.Load() {
			http.NotFound(w, r) // which is not tried again at once
			return
		}
		s.instruments.ServeHTTP(w, r)
	}))
	for _, server := range []*httptest.Server{catalogue, maps, instruments, hostile, failing} {
		t.Cleanup(server.Close)
	}
	public, private := listen(t), listen(t)
	s.base, s.console = "http://"+public.Addr().String(), "http://"+private.Addr().String()+console.Path
	s.bridge = openBridge(t, daemon.Options{Version: "test"}, fmt.Sprintf(`data = "data"
listen = %q
allow_hosts = ["127.0.0.1"]
contact = "metadata@example.org"
[limits]
rate = 0
[[set]]
name = "catalogue"
title = "Research data"
description = "Metadata of research data"
licence = "https://creativecommons.org/publicdomain/zero/1.0/"
[[set.source]]
name = "catalogue"
url = %q
[[set.source]]
url = %q
[[set]]
name = "instruments"
[[set.source]]
kind = "atompmh"
url = %q
[[set]]
name = "hostile"
title = %q
[[set.source]]
kind = "atompmh"
name = %q
url = %q
[[set]]
name = "failing"
[[set.source]]
kind = "atompmh"
name = "archive"
url = %q
[[set]]
name = "deposits"
[[set.source]]
kind = "sip"
mode = "review"
access = "addresses"
access_addresses = ["127.0.0.1", "::1"]
formats = { "{urn:r}r" = "http://schemas.example/r.xsd" }
[[set]]
name = "inbox"
[[set.source]]
kind = "sip"
access = "addresses"
access_addresses = ["127.0.0.1", "::1"]
`, public.Addr(), catalogue.URL+fixtures.Subscription, maps.URL+fixtures.SourceDescription, instruments.URL+fixtures.Subscription,
		evil, evil, hostile.URL+"/feed.atom", failing.URL+fixtures.Subscription))
	o := console.Options{Bridge: s.bridge, Base: s.base, Version: "bridge test"}
	for _, change := range options {
		change(&o)
	}
	s.bridge.SetConsole(console.New(o), private)
	s.harvestAll()
	s.catalogue.Update(fixtures.Record{Name: s.catalogue.Live()[0].Name, Title: "Another title"})
	s.instruments.SetTime(time.Now())
	for _, change := range s.instruments.Live()[1:] { // of all together a person alone decides
		s.instruments.Delete(change.Name)
	}
	s.harvestAll()
	for _, src := range s.bridge.Sources() { // nothing is due while a test looks
		plan, err := s.bridge.Log.Schedule(t.Context(), src.ID)
		if plan.Next = event.MicrosOf(time.Now().Add(time.Hour)); err == nil {
			err = s.bridge.Log.SaveSchedule(t.Context(), src.ID, plan, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.serve(public)
	return s
}

// openBridge opens a bridge with a configuration until the test ends.
func openBridge(t testing.TB, o daemon.Options, text string) *daemon.Bridge {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bridge.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := daemon.Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// serve has the bridge serve until the test ends.
func (s *site) serve(public net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.bridge.Serve(ctx, public, nil) }()
	transport := &http.Transport{}
	s.client = &http.Client{Transport: transport, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	s.t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// harvestAll harvests each Source once, whatever comes of it.
func (s *site) harvestAll() {
	s.t.Helper()
	for _, src := range s.bridge.Sources() {
		if src.Kind != harvest.SIP {
			_, _ = s.bridge.Harvest(s.t.Context(), src, harvest.Options{Full: true}) // the pages show what failed
		}
	}
}

// serveHostile is a feed with texts that want to be more than texts.
func (s *site) serveHostile(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/feed.atom" {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, evil)
		return
	}
	id := "<id>" + html.EscapeString(evilLink) + "2</id>"
	if !s.repaired.Load() {
		id = ""
	}
	w.Header().Set("Content-Type", "application/atom+xml")
	fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:hostile</id><title>%[1]s</title><updated>2025-02-01T00:00:00Z</updated><author><name>%[1]s</name></author>
<entry><id>%[2]s</id><title>%[1]s</title><updated>2025-02-01T00:00:00Z</updated><link rel="alternate" type="text/html" href="/a?%[3]s"/></entry>
<entry><id>urn:bidi</id><title>%[4]s</title><updated>2025-01-31T00:00:00Z</updated><link rel="alternate" type="text/html" href="/b"/></entry>
<entry>%[5]s<title>%[1]s</title><updated>2025-01-30T00:00:00Z</updated><link rel="alternate" type="text/html" href="/c"/></entry></feed>`,
		html.EscapeString(evil), html.EscapeString(evilLink), url.QueryEscape(evil), "right \u202e left", id)
}

// submit has a record submitted for review.
func (s *site) submit(n int, title string) {
	s.t.Helper()
	text := fmt.Sprintf(`<r xmlns="urn:r"><title>%s</title><number>%d</number></r>`, html.EscapeString(title), n)
	record, err := sip.ReadRecord(strings.NewReader(text), sip.Limits{})
	if err != nil {
		s.t.Fatal(err)
	}
	identifier := fmt.Sprintf("place-%d", n)
	client := sip.HTTPClient{HTTP: s.client, URL: s.base + "/sip/deposits"}
	d, err := client.Ingest(s.t.Context(), &sip.Request{Record: record, Recipient: s.base + "/sip/inbox",
		Source: &sip.Source{Identifier: &identifier, Submitter: &sip.Submitter{Name: "Museum " + evil, EmailAddress: "museum@example.org"}}})
	if err != nil || d.Outcome != sip.ProvisionallyAccepted {
		s.t.Fatalf("submission %d: %+v, %v", n, d, err)
	}
}

// answer is an answer with its body.
type answer struct {
	*http.Response
	body string
	root *html.Node
}

// get asks for a page below the console.
func (s *site) get(path string) *answer {
	s.t.Helper()
	return s.ask(s.console + path)
}

// ask asks for a URL.
func (s *site) ask(url string) *answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.do(req)
}

func (s *site) do(req *http.Request) *answer {
	s.t.Helper()
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	a := &answer{Response: resp, body: string(body)}
	if a.root, err = html.Parse(strings.NewReader(a.body)); err != nil {
		s.t.Fatal(err)
	}
	return a
}

// page asks for a page and requires it.
func (s *site) page(path string) *answer {
	s.t.Helper()
	a := s.get(path)
	if a.StatusCode != http.StatusOK {
		s.t.Fatalf("GET %s: %s\n%s", path, a.Status, text(a.root))
	}
	return a
}

// elements returns all elements of a name in a tree, of any for "".
func elements(n *html.Node, name string) (all []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && (name == "" || d.Data == name) {
			all = append(all, d)
		}
	}
	return all
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// text returns what a tree says.
func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
