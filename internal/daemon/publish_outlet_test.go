package daemon_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// outlet is a bridge that publishes on loopback, at one address for as long as
// the test runs.
type outlet struct {
	*bench
	base     string
	listener lasting
	client   *http.Client
	stop     func()
}

// lasting is a listener that can be served again after it was closed, so that a
// bridge that is started again has the address it had.
type lasting struct{ *net.TCPListener }

func (l lasting) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// newOutlet has a bench publish.
func newOutlet(b *bench) *outlet {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	o := &outlet{bench: b, base: "http://" + l.Addr().String(), listener: lasting{l.(*net.TCPListener)}}
	b.t.Cleanup(func() {
		if err := o.listener.TCPListener.Close(); err != nil {
			b.t.Error(err)
		}
	})
	o.client = &http.Client{
		Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 4},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	b.config.BaseURL = o.base
	o.publish()
	return o
}

// newBenchOf is newBench for a provider of any kind.
func newBenchOf(t *testing.T, h http.Handler, options daemon.Options, change ...func(*config.Config)) *bench {
	t.Helper()
	if options.Logger == nil {
		said := &ledger{}
		options.Logger = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))
		t.Cleanup(func() {
			if t.Failed() { // of a failed request the log knows more than its answer says
				t.Logf("the bridge logged:\n%s", said)
			}
		})
	}
	b := &bench{t: t, server: httptest.NewServer(h), options: options}
	t.Cleanup(b.server.Close)
	c, err := config.FromArguments(config.Flags{Data: t.TempDir()}, []string{"atompmh:" + b.server.URL + "/feed.atom"})
	if err != nil {
		t.Fatal(err)
	}
	c.Sets[0].Sources[0].Overlap = 0
	for _, f := range change {
		f(c)
	}
	b.config = c
	b.open()
	return b
}

func segments(events int) func(*config.Config) {
	return func(c *config.Config) { c.Sets[0].SegmentEvents = events }
}

// publish starts to publish; it ends with the test or with halt.
func (o *outlet) publish() {
	o.t.Helper()
	o.start(o.house.Publish)
}

// start serves on the listener until the test ends, or halt.
func (o *outlet) start(serve func(context.Context, net.Listener) error) {
	o.t.Helper()
	if err := o.listener.SetDeadline(time.Time{}); err != nil {
		o.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(o.t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, o.listener) }()
	o.stop = func() {
		cancel()
		if err := <-done; err != nil {
			o.t.Error(err)
		}
	}
	o.t.Cleanup(o.halt)
}

// halt ends what start began, and nothing else.
func (o *outlet) halt() {
	if o.stop != nil {
		o.stop()
		o.stop = nil
	}
	o.client.CloseIdleConnections()
}

// restart ends the bridge and starts it again; meanwhile is done while it is
// down.
func (o *outlet) restart(meanwhile func()) {
	o.t.Helper()
	o.halt()
	o.close()
	if meanwhile != nil {
		meanwhile()
	}
	o.open()
	o.publish()
}

// webReply is an answer read to its end.
type webReply struct {
	url    string
	status int
	header http.Header
	body   []byte
}

// ask sends a request, with header fields in pairs; nothing is decompressed and
// no redirect is followed. A path is one below the base URL.
func (o *outlet) ask(method, url string, header ...string) webReply {
	o.t.Helper()
	r, err := o.request(method, url, header...)
	if err != nil {
		o.t.Fatal(err)
	}
	return r
}

// request is ask for other goroutines than the test's own.
func (o *outlet) request(method, url string, header ...string) (webReply, error) {
	if strings.HasPrefix(url, "/") {
		url = o.base + url
	}
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return webReply{}, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := o.client.Do(req)
	if err != nil {
		return webReply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return webReply{url, res.StatusCode, res.Header, body}, err
}

// get asks for what must answer 200.
func (o *outlet) get(url string, header ...string) webReply {
	o.t.Helper()
	return o.ask(http.MethodGet, url, header...).want(o.t, http.StatusOK)
}

func (r webReply) want(t testing.TB, status int) webReply {
	t.Helper()
	if r.status != status {
		t.Fatalf("%s: status %d, want %d; body %.300q", r.url, r.status, status, r.body)
	}
	return r
}

func (r webReply) field(t testing.TB, name, want string) {
	t.Helper()
	if got := r.header.Get(name); got != want {
		t.Errorf("%s: %s is %q, want %q", r.url, name, got, want)
	}
}

func (r webReply) sum() string {
	sum := sha256.Sum256(r.body)
	return hex.EncodeToString(sum[:])
}

// The documents of ResourceSync as this test reads them, with encoding/xml and
// nothing of ours.
type (
	listDoc struct {
		url     string
		size    int
		XMLName xml.Name
		Meta    listMeta    `xml:"http://www.openarchives.org/rs/terms/ md"`
		Links   []listLink  `xml:"http://www.openarchives.org/rs/terms/ ln"`
		URLs    []listEntry `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 url"`
		Maps    []listEntry `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 sitemap"`
	}
	listEntry struct {
		Loc     string     `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 loc"`
		LastMod string     `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 lastmod"`
		Meta    listMeta   `xml:"http://www.openarchives.org/rs/terms/ md"`
		Links   []listLink `xml:"http://www.openarchives.org/rs/terms/ ln"`
	}
	listMeta struct {
		Capability string `xml:"capability,attr"`
		Change     string `xml:"change,attr"`
		Datetime   string `xml:"datetime,attr"`
		Hash       string `xml:"hash,attr"`
		Length     string `xml:"length,attr"`
		Type       string `xml:"type,attr"`
		ID         string `xml:"urn:x-bridge:terms:1 id,attr"`
		Title      string `xml:"urn:x-bridge:terms:1 title,attr"`
		At         string `xml:"at,attr"`
		Completed  string `xml:"completed,attr"`
		From       string `xml:"from,attr"`
		Until      string `xml:"until,attr"`
	}
	listLink struct {
		Rel      string `xml:"rel,attr"`
		Href     string `xml:"href,attr"`
		Modified string `xml:"modified,attr"`
		Hash     string `xml:"hash,attr"`
		Length   string `xml:"length,attr"`
		Type     string `xml:"type,attr"`
	}
)

const sitemapSpace = "http://www.sitemaps.org/schemas/sitemap/0.9"

// list reads a document, which must be one of that root element and capability.
func (o *outlet) list(url, root, capability string) *listDoc {
	o.t.Helper()
	r := o.get(url)
	doc, err := parseList(r)
	if err != nil {
		o.t.Fatal(err)
	}
	if doc.XMLName.Local != root || doc.Meta.Capability != capability {
		o.t.Fatalf("%s is a %s with capability %q, want a %s with %q", url, doc.XMLName.Local, doc.Meta.Capability, root, capability)
	}
	return doc
}

func parseList(r webReply) (*listDoc, error) {
	doc := &listDoc{url: r.url, size: len(r.body)}
	if err := xml.Unmarshal(r.body, doc); err != nil {
		return nil, fmt.Errorf("%s: %w", r.url, err)
	}
	if doc.XMLName.Space != sitemapSpace {
		return nil, fmt.Errorf("%s: its root element is of namespace %q", r.url, doc.XMLName.Space)
	}
	return doc, nil
}

// linked returns where a document or an entry links with a relation.
func linked(links []listLink, rel string) []listLink {
	return slices.DeleteFunc(slices.Clone(links), func(l listLink) bool { return l.Rel != rel })
}

// wantLink fails unless the document has just this link of that relation.
func (d *listDoc) wantLink(t testing.TB, rel, href string) {
	t.Helper()
	if l := linked(d.Links, rel); len(l) != 1 || l[0].Href != href {
		t.Errorf("%s: links with rel %q: %v, want one to %s", d.url, rel, l, href)
	}
}

func (o *outlet) setURL(name string) string { return o.base + "/sets/main/" + name }

// changeLists reads the index and every Change List that it names, in order.
func (o *outlet) changeLists() []*listDoc {
	o.t.Helper()
	var lists []*listDoc
	for _, e := range o.list(o.setURL("changelist-index.xml"), "sitemapindex", "changelist").Maps {
		lists = append(lists, o.list(e.Loc, "urlset", "changelist"))
	}
	return lists
}

// changes reads the entries of all Change Lists.
func (o *outlet) changes() []listEntry {
	o.t.Helper()
	var all []listEntry
	for _, l := range o.changeLists() {
		all = append(all, l.URLs...)
	}
	return all
}

// resources reads the Resource List, with its parts when it is an index.
func (o *outlet) resources() []listEntry {
	o.t.Helper()
	r := o.get(o.setURL("resourcelist.xml"))
	doc, err := parseList(r)
	if err != nil {
		o.t.Fatal(err)
	}
	all := doc.URLs
	for _, m := range doc.Maps {
		all = append(all, o.list(m.Loc, "urlset", "resourcelist").URLs...)
	}
	return all
}

// logged returns the events of the set in a range.
func (o *outlet) logged(r event.Range) []event.Event {
	o.t.Helper()
	var all []event.Event
	for ev, err := range o.house.Log.Events(context.Background(), "main", r) {
		if err != nil {
			o.t.Fatal(err)
		}
		kept := *ev // what it points at is used again
		kept.Representations = slices.Clone(ev.Representations)
		all = append(all, kept)
	}
	return all
}
