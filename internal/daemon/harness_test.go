package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// patience is how long a test waits for what must come soon. It is long because
// the machine may be busy; nothing waits for it to pass.
const patience = 3 * time.Minute

// harness is a bridge under test: mostly one that harvests a Source on loopback into
// set main. Once it publishes it does so at one address for as long as the test runs.
type harness struct {
	t        *testing.T
	server   *httptest.Server   // of the Source
	provider *fixtures.Provider // the Source, when it is one of these
	config   *config.Config
	options  daemon.Options
	bridge   *daemon.Bridge

	base     string // URL that it publishes at
	listener reusableListener
	client   *http.Client // asks it
	stop     func()
}

// newHarness opens a bridge over a Source that is served on loopback; an Atom-PMH
// provider, unless the configuration is changed.
func newHarness(t *testing.T, source http.Handler, change ...func(*config.Config)) *harness {
	t.Helper()
	return newHarnessWith(t, daemon.Options{}, source, change...)
}

func newHarnessWith(t *testing.T, options daemon.Options, source http.Handler, change ...func(*config.Config)) *harness {
	t.Helper()
	b := &harness{t: t, server: httptest.NewServer(source), options: options}
	b.provider, _ = source.(*fixtures.Provider)
	t.Cleanup(b.server.Close)
	b.openFor(config.AtomPMH+":"+b.server.URL+fixtures.Subscription, change...)
	return b
}

// newFileHarness opens a bridge over a Source in a file, which is given as on the
// command line.
func newFileHarness(t *testing.T, source string, change ...func(*config.Config)) *harness {
	t.Helper()
	b := &harness{t: t, provider: fixtures.New(fixtures.Options{})}
	b.openFor(source, change...)
	return b
}

// newFolderHarness opens a bridge over the files of a provider.
func newFolderHarness(t *testing.T, p *fixtures.Provider, change ...func(*config.Config)) (b *harness, folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := p.WriteFiles(folder); err != nil {
		t.Fatal(err)
	}
	b = newFileHarness(t, config.AtomPMH+":"+filepath.Join(folder, "feed.atom"), change...)
	b.provider = p
	return b, folder
}

// openFor configures and opens the bridge. Whatever it warns of is shown when the
// test fails.
func (b *harness) openFor(source string, change ...func(*config.Config)) {
	b.t.Helper()
	if b.options.Logger == nil {
		warnings := &testenv.Log{}
		b.options.Logger = slog.New(slog.NewTextHandler(warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
		b.t.Cleanup(func() {
			if b.t.Failed() { // of a failed request the log knows more than its answer says
				b.t.Logf("the bridge logged:\n%s", warnings)
			}
		})
	}
	if b.options.Network.Resolver == nil {
		b.options.Network = daemon.Unresolved
	}
	var err error
	if b.config, err = config.FromArguments(config.Flags{Data: b.t.TempDir()}, []string{source}); err != nil {
		b.t.Fatal(err)
	}
	b.config.Sets[0].Sources[0].Overlap = 0
	for _, f := range change {
		f(b.config)
	}
	b.open()
}

// newPublisher has a bridge publish.
func newPublisher(b *harness) *harness {
	b.t.Helper()
	b.listen(&http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 4})
	b.config.BaseURL, b.bridge.Config().BaseURL = b.base, b.base
	b.publish()
	return b
}

// reusableListener can be served again after it was closed, so that a bridge that is
// started again has the address it had.
type reusableListener struct{ *net.TCPListener }

func (l reusableListener) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// Accept says of a closed listener that it is: an http.Server tries again for ever after an
// error that is a timeout.
func (l reusableListener) Accept() (net.Conn, error) {
	c, err := l.TCPListener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = net.ErrClosed
	}
	return c, err
}

// listen reserves the address of the bridge.
func (b *harness) listen(transport *http.Transport) {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	b.base, b.listener = "http://"+l.Addr().String(), reusableListener{l.(*net.TCPListener)}
	b.t.Cleanup(func() { b.listener.TCPListener.Close() })
	b.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// The changes of a configuration that most tests make.
func segments(events int) func(*config.Config) {
	return func(c *config.Config) { c.Sets[0].SegmentEvents = events }
}
func content(mode string) func(*config.Config) {
	return func(c *config.Config) { c.Sets[0].Content = mode }
}

func (b *harness) open() {
	b.t.Helper()
	h, err := daemon.Open(b.t.Context(), b.config, b.options)
	if err != nil {
		b.t.Fatal(err)
	}
	b.bridge = h
	b.t.Cleanup(func() {
		if b.bridge == h {
			b.close()
		}
	})
}

func (b *harness) close() {
	if err := b.bridge.Close(); err != nil {
		b.t.Error(err)
	}
	b.bridge = nil
}

// reopen ends the bridge and starts it again on the same folder.
func (b *harness) reopen() {
	b.t.Helper()
	b.close()
	b.open()
}

// publish starts to publish; it ends with the test or with halt.
func (o *harness) publish() {
	o.t.Helper()
	o.start(o.bridge.Publish)
}

// start serves on the listener until the test ends, or halt.
func (o *harness) start(serve func(context.Context, net.Listener) error) {
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
func (o *harness) halt() {
	if o.stop != nil {
		o.stop()
		o.stop = nil
	}
	o.client.CloseIdleConnections()
}

// restart ends the bridge and starts it again; meanwhile is done while it is
// down.
func (o *harness) restart(meanwhile func()) {
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
func (o *harness) ask(method, url string, header ...string) webReply {
	o.t.Helper()
	r, err := o.request(method, url, header...)
	if err != nil {
		o.t.Fatal(err)
	}
	return r
}

// request is ask for other goroutines than the test's own.
func (o *harness) request(method, url string, header ...string) (webReply, error) {
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
func (o *harness) get(url string, header ...string) webReply {
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

func (r webReply) sum() string { return hexSum(r.body) }

func (b *harness) source() *daemon.Source { return b.bridge.Sources()[0] }

// harvest makes one pass that must not fail.
func (b *harness) harvest() harvest.Report {
	b.t.Helper()
	r, err := b.try(harvest.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *harness) full() harvest.Report {
	b.t.Helper()
	r, err := b.try(harvest.Options{Full: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *harness) try(o harvest.Options) (harvest.Report, error) {
	b.t.Helper()
	return b.bridge.Harvest(b.t.Context(), b.source(), o)
}

// eventsOf yields the events of a set, or of all with "", after a position.
func (b *harness) eventsOf(set string, after event.Seq) iter.Seq[*event.Event] {
	return b.checked(b.bridge.Log.Events(context.Background(), set, event.Range{After: after, Upto: math.MaxInt64}))
}

// liveEvents yields the last event of each live record of set main.
func (b *harness) liveEvents() iter.Seq[*event.Event] {
	b.t.Helper()
	set, err := b.bridge.Log.Set(b.t.Context(), "main")
	if err != nil {
		b.t.Fatal(err)
	}
	return b.checked(b.bridge.Log.Live(b.t.Context(), "main", set.Last))
}

// checked yields events that are read without an error.
func (b *harness) checked(events iter.Seq2[*event.Event, error]) iter.Seq[*event.Event] {
	return func(yield func(*event.Event) bool) {
		for ev, err := range events {
			if err != nil {
				b.t.Fatal(err)
			}
			if !yield(ev) {
				return
			}
		}
	}
}

// events returns what the log holds after a position, in the words of bridge
// log: "created a", "updated b [atom rdf]", with the last part of identifiers.
func (b *harness) events(after event.Seq) []string {
	b.t.Helper()
	var out []string
	for ev := range b.eventsOf("", after) {
		out = append(out, b.words(ev))
	}
	return out
}

func (b *harness) words(ev *event.Event) string {
	var exts []string
	for _, r := range ev.Representations {
		exts = append(exts, event.Extension(r.Type))
	}
	s := ev.Kind.String() + " " + b.name(ev.Record)
	if len(exts) > 0 {
		s += " [" + strings.Join(exts, " ") + "]"
	}
	return s
}

// name is what the provider calls a record.
func (b *harness) name(id string) string {
	for _, c := range b.provider.History() {
		if c.ID == id {
			return c.Name
		}
	}
	return id
}

func (b *harness) last() event.Seq {
	b.t.Helper()
	seq, err := b.bridge.Log.LastSeq(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return seq
}

// live returns the names of the live records with their formats, sorted.
func (b *harness) live() []string {
	b.t.Helper()
	return b.eachLive(func(ev *event.Event) string {
		_, words, _ := strings.Cut(b.words(ev), " ")
		return words
	})
}

// eachLive returns what say says of each live record, sorted.
func (b *harness) eachLive(say func(*event.Event) string) []string {
	b.t.Helper()
	var out []string
	for ev := range b.liveEvents() {
		out = append(out, say(ev))
	}
	slices.Sort(out)
	return out
}

// want fails unless got is exactly this.
func (b *harness) want(what string, got []string, want ...string) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// wantLive fails unless the bridge has just the records that the provider has.
func (b *harness) wantLive() {
	b.t.Helper()
	var want []string
	for _, c := range b.provider.Live() {
		var exts []string
		for _, a := range c.Alternates {
			exts = append(exts, event.Extension(a.Type))
		}
		want = append(want, fmt.Sprintf("%s [%s]", c.Name, strings.Join(exts, " ")))
	}
	slices.Sort(want)
	b.want("live records", b.live(), want...)
}

func record(name string, formats ...fixtures.Format) fixtures.Record {
	return fixtures.Record{Name: name, Title: strings.ToUpper(name), Formats: formats}
}

// TestCatalogue is the main job: harvest, change, harvest again.
func TestCatalogue(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Redirect, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			p := fixtures.Catalogue(nil)
			b := newHarness(t, p, content(mode))
			r := b.harvest()
			if got := r.Created; got != 27 {
				t.Errorf("%d records created, want 27: %+v", got, r)
			}
			b.wantLive()
			p.ForgetRequests()
			again := b.harvest()
			if !again.NotModified || again.Events() != 0 {
				t.Errorf("the second harvest: %+v", again)
			}
			if asked := p.Asked(); len(asked) != 1 || asked[fixtures.Subscription] != 1 {
				t.Errorf("the second harvest asked for %v", asked)
			}
			for range 30 {
				c := p.Evolve()
				before := b.last()
				b.harvest()
				want := c.Kind
				got := b.events(before)
				if len(got) != 1 || !strings.HasPrefix(got[0], want+" "+c.Name) {
					t.Fatalf("after %s %s the log has %q", c.Kind, c.Name, got)
				}
			}
			b.wantLive()
			before := b.last()
			if r := b.full(); r.Events() != 0 {
				t.Errorf("a full harvest added %q", b.events(before))
			}
		})
	}
}
