package daemon_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// pushed is a bridge with a configuration file that serves, and can be started again at the
// same address.
type pushed struct {
	*harness
	file   string
	logged *testenv.Log
}

// newPushed starts a bridge whose set main has settings and one Source.
func newPushed(t *testing.T, set, source string) *pushed {
	t.Helper()
	b := &pushed{harness: &harness{t: t}, file: filepath.Join(t.TempDir(), "bridge.toml"), logged: &testenv.Log{}}
	b.options = daemon.Options{Network: daemon.Unresolved, Logger: slog.New(slog.NewTextHandler(b.logged, nil))}
	b.listen(&http.Transport{})
	b.write(set, source)
	b.load()
	b.start(b.serve)
	return b
}

func (b *pushed) write(set, source string) {
	b.t.Helper()
	text := fmt.Sprintf("listen = \"127.0.0.1:0\"\nbase_url = %q\ndata = %q\nallow_hosts = [\"127.0.0.1\"]\n[[set]]\nname = \"main\"\ncontent = \"mirror\"\n%s\n[[set.source]]\n%s\n",
		b.base, filepath.Join(filepath.Dir(b.file), "data"), set, source)
	if err := os.WriteFile(b.file, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *pushed) load() {
	b.t.Helper()
	var err error
	if b.config, err = config.Load(b.file); err != nil {
		b.t.Fatal(err)
	}
	b.open()
}

func (b *pushed) serve(ctx context.Context, l net.Listener) error {
	return b.bridge.Serve(ctx, l, nil)
}

// down ends the bridge; up starts it again.
func (b *pushed) down() {
	b.halt()
	b.close()
}

func (b *pushed) up() {
	b.t.Helper()
	b.load()
	b.start(b.serve)
}

func (b *pushed) reload() {
	b.t.Helper()
	if _, err := b.bridge.Reload(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// main is the state of the set.
func (b *pushed) main() status.Set {
	b.t.Helper()
	s, err := b.bridge.Status(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return s.Sets[0]
}

// push is the state of the Source's subscription; the zero one while there is none.
func (b *pushed) push() status.Push {
	b.t.Helper()
	for _, p := range b.main().Sources[0].Push {
		if p.Hub != "" && p.State != status.PushEnding {
			return p
		}
	}
	return status.Push{}
}

// counted reads a counter of pushes.
func (b *pushed) counted(result string) bool {
	w := httptest.NewRecorder()
	b.bridge.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return strings.Contains(w.Body.String(), `bridge_pushes_total{result="`+result+`"}`)
}

// newPushPair is a provider, a hub, a bridge A that harvests the one every second and tells
// the other, and a bridge B that is subscribed to a document of A, and has its records.
func newPushPair(t *testing.T, kind, document string) (p *fixtures.Provider, hub *testserver.Hub, a, b *pushed) {
	t.Helper()
	p = fixtures.New(fixtures.Options{})
	p.Create(record("one"))
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.SetBase(server.URL)
	hub = testserver.NewHub(t)
	a = newPushed(t, fmt.Sprintf("hub = %q", hub.URL), fmt.Sprintf("kind = \"atompmh\"\nurl = %q\nevery = \"1s\"", server.URL+fixtures.Subscription))
	eventually(t, "A has the record", func() bool { return a.main().Records == 1 })
	b = newPushed(t, "", fmt.Sprintf("kind = %q\nurl = %q\nevery = \"24h\"\npush = true", kind, a.base+document))
	eventually(t, "B has the record", func() bool { return b.main().Records == 1 })
	eventually(t, "B is subscribed", func() bool { return b.push().State == status.PushSubscribed && len(hub.Subscriptions()) > 0 })
	return p, hub, a, b
}

// TestPush: a record that a Source gets arrives at a subscriber of ours long before that asks
// by itself, whether it follows the feed or the lists; also after each of the three was
// started again, while the others go on.
func TestPush(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, document, topic string }{
		{"atompmh", "/sets/main/feed.atom", "/sets/main/feed.atom"},
		{"resourcesync", "/sets/main/capabilitylist.xml", "/sets/main/change-notification.xml"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			p, hub, a, b := newPushPair(t, c.kind, c.document)
			if got := b.push(); got.Topic != a.base+c.topic || got.Hub != hub.URL || got.Until.IsZero() {
				t.Fatalf("the subscription is %+v", got)
			}
			p.Create(record("two"))
			eventually(t, "the second record", func() bool { return b.main().Records == 2 })
			if b.push().Last.IsZero() {
				t.Error("status does not say when the last push came")
			}
			b.down()
			p.Create(record("three"))
			eventually(t, "A has the third record", func() bool { return a.main().Records == 3 })
			b.up()
			a.down()
			p.Create(record("four"))
			hub.Shut()
			a.up()
			eventually(t, "A has the fourth record, and its hub fails", func() bool {
				s := a.main()
				return s.Records == 4 && len(s.Hubs) == 1 && s.Hubs[0].Error != ""
			})
			a.down() // what the hub was not told is told after a restart
			hub.Up()
			a.up()
			eventually(t, "the third and the fourth record", func() bool { return b.main().Records == 4 })
			eventually(t, "the hub does not fail any more", func() bool { h := a.main().Hubs[0]; return h.Error == "" && !h.Told.IsZero() })
			for _, l := range []*testenv.Log{a.logged, b.logged} {
				for _, s := range hub.Subscriptions() {
					if token := s.Callback[strings.LastIndexByte(s.Callback, '/')+1:]; strings.Contains(l.String(), token) || strings.Contains(l.String(), s.Secret) {
						t.Error("a log has the callback or the secret")
					}
				}
			}
		})
	}
}

// TestForgedPush: what did not come from the hub, or from nobody that we asked, changes
// nothing, and is answered like what did.
func TestForgedPush(t *testing.T) {
	t.Parallel()
	p, hub, a, b := newPushPair(t, "atompmh", "/sets/main/feed.atom")
	hub.Shut() // from now on nobody pushes but this test
	p.Create(record("two"))
	eventually(t, "A has it, and B was harvested", func() bool { return a.main().Records == 2 && b.main().Sources[0].Last != nil })
	s := hub.Subscriptions()[0]
	harvests := func() string { return fmt.Sprint(b.main().Sources[0].Last.Started, b.main().Events) }
	before := harvests()
	forge := func(callback, signature string, body []byte) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, callback, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if signature != "" {
			req.Header.Set("X-Hub-Signature", signature)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, signature := range []string{"", "sha256=", "sha256=00", "sha1=" + strings.Repeat("0", 40), "md5=00", "sha256=" + strings.Repeat("z", 64), "none"} {
		if got := forge(s.Callback, signature, []byte("<feed/>")); got != http.StatusAccepted {
			t.Errorf("signature %q: %d", signature, got)
		}
	}
	if got := forge(s.Callback+"x", "", nil); got != http.StatusGone {
		t.Errorf("an unknown callback: %d", got)
	}
	for query, want := range map[string]int{
		"": 404, "?hub.mode=subscribe&hub.topic=" + a.base + "/other&hub.challenge=c&hub.lease_seconds=9": 404,
		"?hub.mode=unsubscribe&hub.topic=" + s.Topic + "&hub.challenge=c":                            404,
		"?hub.mode=subscribe&hub.topic=" + s.Topic + "&hub.challenge=c&hub.lease_seconds=-1":         404,
		"?hub.mode=subscribe&hub.topic=" + s.Topic + "&hub.challenge=%3Cb%3E&hub.lease_seconds=3600": 200, // that was asked
	} {
		if got := b.status(s.Callback + query); got != want {
			t.Errorf("%s: %d", query, got)
		}
	}
	if !b.counted("forged") || !b.counted("gone") || harvests() != before {
		t.Error("forged pushes are not counted, or have had the Source harvested")
	}
	for method, want := range map[string]int{http.MethodPut: 405, http.MethodHead: 405, http.MethodPost: 413} {
		req, err := http.NewRequestWithContext(t.Context(), method, s.Callback, endless{})
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = 65 << 20
		if method == http.MethodHead {
			req.Body, req.ContentLength = nil, 0
		}
		req.Header.Set("Expect", "100-continue") // so that nothing of it is sent
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s is answered %d", method, resp.StatusCode)
		}
	}
	harvested := func() int64 {
		all, err := b.bridge.Log.Schedule(t.Context(), b.main().Sources[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		return all.Harvests + all.Quiet.Count
	}
	began, first := time.Now(), harvested()
	var group sync.WaitGroup
	for range 8 { // the right one, and its replays
		group.Go(func() {
			for range testenv.Rounds(t, 8, 1250) {
				if got := testserver.Push(s.Callback, s.Secret, []byte("anything at all"), hub.URL, s.Topic); got != http.StatusAccepted {
					t.Errorf("a push is answered %d", got)
				}
			}
		})
	}
	group.Wait()
	eventually(t, "the push has B harvest", func() bool { return b.main().Records == 2 })
	if n := b.main().Events; n != 2 {
		t.Errorf("%d events", n)
	}
	if n, most := harvested()-first, int64(time.Since(began)/(10*time.Second))+2; n > most {
		t.Errorf("%d harvests, want %d at most", n, most)
	}
}

// endless is a body.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// status returns the status of a GET.
func (b *pushed) status(url string) int {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestPushLease: a lease is renewed before it ends; a denial and a hub that confirms nothing
// are said; without push the subscription ends at the hub.
func TestPushLease(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(nil)
	hub := testserver.NewHub(t)
	hub.Set(3*time.Second, "", false)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>t</title><atom:link rel="hub" href="%s"/><atom:link rel="self" href="http://topic.example/feed"/></channel></rss>`, hub.URL)
	})
	server.Start()
	t.Cleanup(server.Close)
	source := fmt.Sprintf("kind = \"feed\"\nurl = %q\n", server.URL)
	b := newPushed(t, "", source+"push = true")
	eventually(t, "the lease is renewed twice", func() bool { return len(hub.Asked()) > 2 })
	callbacks := map[string]bool{}
	for _, form := range hub.Asked() {
		callbacks[form.Get("hub.callback")] = true
		if form.Get("hub.topic") != "http://topic.example/feed" || len(form.Get("hub.secret")) < 32 || len(form.Get("hub.secret")) > 199 || form.Get("hub.lease_seconds") != "864000" {
			t.Fatalf("the hub is asked %v", form)
		}
	}
	if len(callbacks) != 1 || len(hub.Subscriptions()) != 1 {
		t.Errorf("%d callbacks, %d subscriptions", len(callbacks), len(hub.Subscriptions()))
	}
	hub.Set(3*time.Second, "not for you", false)
	eventually(t, "the denial is said", func() bool { return strings.Contains(b.push().Error, "not for you") })
	hub.Set(time.Hour, "", false)
	b.write("", source)
	b.reload()
	eventually(t, "the subscription ends at the hub, and here", func() bool { return len(hub.Subscriptions()) == 0 && len(b.main().Sources[0].Push) == 0 })
	b.write("", source+"push = true")
	b.reload()
	eventually(t, "it is subscribed again", func() bool { return len(hub.Subscriptions()) == 1 })
	if _, err := b.bridge.Pause(t.Context(), "main", "", "they move", time.Time{}); err != nil {
		t.Fatal(err)
	}
	b.reload()
	b.write("title = \"T\"", source+"push = true")
	b.reload()
	eventually(t, "a pause ends it", func() bool { return len(hub.Subscriptions()) == 0 })
}

// TestPushOfUnwanted: what was pushed to a Source before push was taken from it has it harvested
// once, and not without an end.
func TestPushOfUnwanted(t *testing.T) {
	t.Parallel()
	hub := testserver.NewHub(t)
	server := feedAt(t, hub.URL, nil)
	source := fmt.Sprintf("kind = \"feed\"\nurl = %q\nevery = \"6h\"\n", server.URL)
	b := newPushed(t, "", source+"push = true")
	eventually(t, "it is harvested and subscribed", func() bool {
		return b.main().Sources[0].Last != nil && len(hub.Subscriptions()) == 1 && b.push().State == status.PushSubscribed
	})
	if _, err := b.bridge.Pause(t.Context(), "main", "", "they move", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	s := hub.Subscriptions()[0]
	if got := testserver.Push(s.Callback, s.Secret, nil, hub.URL, s.Topic); got != http.StatusAccepted {
		t.Fatal(got)
	}
	b.down()
	b.write("", source)
	b.up()
	was := b.main().Sources[0].Last.Started
	if _, err := b.bridge.Resume(t.Context(), "main", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is harvested once, and then on its schedule", func() bool {
		wait, err := b.bridge.DueIn(t.Context(), b.bridge.Sources()[0])
		return err == nil && wait > time.Hour && b.main().Sources[0].Last.Started.After(was)
	})
}

// TestRefusingHub: a hub that refuses says what it was sent, and nobody reads that in a log or a
// state. One that refuses a document is told of the others.
func TestRefusingHub(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told, secrets []string
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form, _ := url.ParseQuery(string(body))
		mu.Lock()
		defer mu.Unlock()
		if topic := form.Get("hub.url"); topic != "" && !strings.HasSuffix(topic, "/change-notification.xml") {
			told = append(told, topic)
			return
		}
		if callback := form.Get("hub.callback"); callback != "" {
			secrets = append(secrets, callback[strings.LastIndexByte(callback, '/')+1:], form.Get("hub.secret"))
		}
		http.Error(w, "what shall I do with "+form.Get("hub.callback")+" and "+form.Get("hub.secret")+strings.Repeat(".", 120)+string(body), http.StatusBadRequest)
	}))
	t.Cleanup(hub.Close)
	server := feedAt(t, hub.URL, nil)
	b := newPushed(t, fmt.Sprintf("hub = %q", hub.URL), fmt.Sprintf("kind = \"feed\"\nurl = %q\nevery = \"6h\"\npush = true", server.URL))
	eventually(t, "the subscription is refused", func() bool { return strings.Contains(b.push().Error, "answers 400") })
	eventually(t, "the hub is told of all documents but one", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(told, b.setURL("feed.atom")) && slices.Contains(told, b.setURL("changelist.xml"))
	})
	eventually(t, "it is said what the hub refuses", func() bool { return strings.Contains(b.main().Hubs[0].Error, "answers 400") })
	mu.Lock()
	defer mu.Unlock()
	said := b.logged.String() + b.push().Error
	for _, secret := range secrets {
		if strings.Contains(said, secret[:16]) {
			t.Errorf("it is said that the hub was sent %s: %s", secret, said)
		}
	}
}

// TestPushLater: a clock that was ahead when a lease was granted, and another base URL, have the
// hub asked again at once.
func TestPushLater(t *testing.T) {
	t.Parallel()
	hub := testserver.NewHub(t)
	server := feedAt(t, hub.URL, nil)
	source := fmt.Sprintf("kind = \"feed\"\nurl = %q\nevery = \"6h\"\npush = true", server.URL)
	b := newPushed(t, "", source)
	subscribed := func() bool { return b.push().State == status.PushSubscribed }
	eventually(t, "it is subscribed", subscribed)
	b.down()
	b.options.Now = func() time.Time { return time.Now().AddDate(0, 0, -30) }
	b.up()
	eventually(t, "the hub is asked under another clock", func() bool {
		return len(hub.Asked()) == 2 && subscribed() && b.push().Until.Before(time.Now())
	})
	b.down()
	text, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(b.base, "127.0.0.1", "localhost", 1)
	if err := os.WriteFile(b.file, bytes.Replace(text, []byte(b.base), []byte(other), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	b.up()
	eventually(t, "the hub is given the other address", func() bool {
		return slices.ContainsFunc(hub.Asked(), func(form url.Values) bool { return strings.HasPrefix(form.Get("hub.callback"), other+"/websub/") })
	})
}

// TestHubDocuments: with a hub the documents that change name it and themselves, in their
// header too, and the Capability List advertises the channel of Change Notifications. Without
// one nothing does.
func TestHubDocuments(t *testing.T) {
	t.Parallel()
	p := fixtures.New(fixtures.Options{})
	p.Create(record("one"))
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.SetBase(server.URL)
	hub := testserver.NewHub(t)
	source := fmt.Sprintf("kind = \"atompmh\"\nurl = %q\n", server.URL+fixtures.Subscription)
	b := newPushed(t, "", source)
	eventually(t, "the record", func() bool { return b.main().Records == 1 })
	names := []string{"feed.atom", "recent.atom", "recent.rss", "recent.json", "changelist.xml", "changelist-index.xml", "capabilitylist.xml"}
	without := map[string]webReply{}
	for _, name := range names {
		without[name] = b.get(b.setURL(name)).want(t, 200)
		if r := without[name]; strings.Contains(string(r.body), "hub") || len(r.header.Values("Link")) > 0 {
			t.Errorf("%s names a hub: %s", name, r.body)
		}
	}
	b.ask("GET", b.setURL("change-notification.xml")).want(t, 404)
	b.write(fmt.Sprintf("hub = [%q, \"https://hub.example/?a=1&b=2\"]", hub.URL), source)
	b.reload()
	for _, name := range append(names, "change-notification.xml") {
		r := b.get(b.setURL(name)).want(t, 200)
		links := strings.Join(r.header.Values("Link"), ", ")
		for _, want := range []string{"<" + hub.URL + `>; rel="hub"`, `<https://hub.example/?a=1&b=2>; rel="hub"`, "<" + b.setURL(name) + `>; rel="self"`} {
			if !strings.Contains(links, want) {
				t.Errorf("%s has the header Link: %s, and not %s", name, links, want)
			}
		}
		if body := string(r.body); !strings.Contains(body, hub.URL) || !strings.Contains(body, b.setURL(name)) || r.header.Get("Etag") == without[name].header.Get("Etag") {
			t.Errorf("%s: %s", name, body)
		}
	}
	channel := b.list(b.setURL("change-notification.xml"), "urlset", "change-notification")
	channel.wantLink(t, "up", b.setURL("capabilitylist.xml"))
	if len(channel.URLs) != 1 {
		t.Errorf("the channel has %d entries", len(channel.URLs))
	}
	eventually(t, "the hub is told of each", func() bool {
		pings := hub.Pings()
		return !slices.ContainsFunc(append(names, "change-notification.xml"), func(name string) bool { return !slices.Contains(pings, b.setURL(name)) })
	})
	told := len(hub.Pings())
	if told != len(names)+1 {
		t.Errorf("%d pings: %v", told, hub.Pings())
	}
	b.get(b.setURL("changelist/1.xml")).want(t, 200)
	b.write("", source)
	b.reload()
	for _, name := range names {
		if r := b.get(b.setURL(name)).want(t, 200); !bytes.Equal(r.body, without[name].body) || r.header.Get("Etag") != without[name].header.Get("Etag") {
			t.Errorf("%s is not what it was", name)
		}
	}
}

// feedAt serves an RSS feed that names a hub.
func feedAt(t *testing.T, hub string, asked func(r *http.Request)) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked != nil {
			asked(r)
		}
		fmt.Fprintf(w, `<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>t</title><atom:link rel="hub" href="%s"/></channel></rss>`, hub)
	}))
	t.Cleanup(server.Close)
	return server
}

// TestPushBesideReload: a push whose harvest a reload ends has the Source harvested again.
func TestPushBesideReload(t *testing.T) {
	t.Parallel()
	hub := testserver.NewHub(t)
	var slow atomic.Bool
	asked := make(chan struct{}, 99)
	server := feedAt(t, hub.URL, func(r *http.Request) {
		if slow.Load() {
			asked <- struct{}{}
			<-r.Context().Done()
		}
	})
	source := fmt.Sprintf("kind = \"feed\"\nurl = %q\nevery = \"6h\"\npush = true\n", server.URL)
	b := newPushed(t, "", source)
	eventually(t, "it is subscribed, and harvested", func() bool {
		return b.push().State == status.PushSubscribed && len(hub.Subscriptions()) == 1 && b.main().Sources[0].Last != nil
	})
	was := b.main().Sources[0].Last.Started
	slow.Store(true)
	s := hub.Subscriptions()[0]
	if got := testserver.Push(s.Callback, s.Secret, nil, hub.URL, s.Topic); got != http.StatusAccepted {
		t.Fatal(got)
	}
	<-asked
	slow.Store(false)
	b.write("", source+"overlap = \"2h\"\n")
	b.reload()
	eventually(t, "what was pushed is harvested", func() bool { return b.main().Sources[0].Last.Started.After(was) })
}

// TestPushOfAnotherURL: a Source that gets another URL is asked for its hubs at once.
func TestPushOfAnotherURL(t *testing.T) {
	t.Parallel()
	first, second := testserver.NewHub(t), testserver.NewHub(t)
	was, is := feedAt(t, first.URL, nil), feedAt(t, second.URL, nil)
	source := "kind = \"feed\"\nname = \"news\"\nurl = %q\nevery = \"6h\"\npush = true\n"
	b := newPushed(t, "", fmt.Sprintf(source, was.URL))
	eventually(t, "it is subscribed", func() bool { return b.push().State == status.PushSubscribed })
	b.write("", fmt.Sprintf(source, is.URL))
	b.reload()
	eventually(t, "it is subscribed at the other hub, and not at the first", func() bool {
		return len(second.Subscriptions()) == 1 && len(first.Subscriptions()) == 0
	})
}

// TestHubOfOwnAuthority: a hub at the Source's own host and port is believed by what the
// Source's ca_file has.
func TestHubOfOwnAuthority(t *testing.T) {
	t.Parallel()
	hub := testserver.NewHub(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/hub", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Api-Key") != "" {
			t.Error("the hub gets what is for the Source")
		}
		hub.ServeHTTP(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>t</title><atom:link rel="hub" href="https://%s/hub"/></channel></rss>`, r.Host)
	})
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newPushed(t, "", fmt.Sprintf("kind = \"feed\"\nurl = %q\nca_file = %q\nheaders = { \"X-Api-Key\" = \"k\" }\nevery = \"6h\"\npush = true\n", server.URL, ca))
	eventually(t, "it is subscribed", func() bool { return b.push().State == status.PushSubscribed || b.push().Error != "" })
	if p := b.push(); p.State != status.PushSubscribed {
		t.Errorf("the subscription is %+v", p)
	}
}

// TestHubFailsForOneDocument: a hub that always fails for one document is told of the others.
func TestHubFailsForOneDocument(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	told := map[string]bool{}
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		topic := r.PostFormValue("hub.url")
		if strings.HasSuffix(topic, "/change-notification.xml") {
			http.Error(w, "it cannot be fetched", http.StatusBadGateway)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		told[topic] = true
	}))
	t.Cleanup(hub.Close)
	server := feedAt(t, testserver.NewHub(t).URL, nil)
	b := newPushed(t, fmt.Sprintf("hub = %q", hub.URL), fmt.Sprintf("kind = \"feed\"\nurl = %q\nevery = \"6h\"\n", server.URL))
	eventually(t, "the hub is told of the others", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return told[b.setURL("changelist.xml")] && told[b.setURL("recent.json")]
	})
}

// TestHubAfterChangeTakenBack: a hub that could not be told of a change which was taken back then
// does not fail for ever.
func TestHubAfterChangeTakenBack(t *testing.T) {
	t.Parallel()
	hub, other := testserver.NewHub(t), testserver.NewHub(t)
	server := feedAt(t, hub.URL, nil)
	source := fmt.Sprintf("kind = \"feed\"\nurl = %q\nevery = \"6h\"\n", server.URL)
	alone := fmt.Sprintf("hub = %q", hub.URL)
	b := newPushed(t, alone, source)
	eventually(t, "the hub is told", func() bool {
		return slices.Contains(hub.Pings(), b.setURL("recent.json")) && !b.main().Hubs[0].Told.IsZero()
	})
	hub.Shut()
	b.write(fmt.Sprintf("hub = [%q, %q]", hub.URL, other.URL), source)
	b.reload()
	eventually(t, "the hub fails", func() bool { return !b.main().Hubs[0].FailingSince.IsZero() })
	b.write(alone, source)
	b.reload()
	hub.Up()
	eventually(t, "the hub does not fail any more", func() bool { return b.main().Hubs[0].FailingSince.IsZero() })
}

// TestDenials: however often a hub denies, it is said once.
func TestDenials(t *testing.T) {
	t.Parallel()
	hub := testserver.NewHub(t)
	server := feedAt(t, hub.URL, nil)
	b := newPushed(t, "", fmt.Sprintf("kind = \"feed\"\nurl = %q\nevery = \"6h\"\npush = true\n", server.URL))
	eventually(t, "it is subscribed", func() bool { return len(hub.Subscriptions()) == 1 && b.push().State == status.PushSubscribed })
	s := hub.Subscriptions()[0]
	for i := range 9 {
		if got := b.status(fmt.Sprintf("%s?hub.mode=denied&hub.topic=%s&hub.reason=no-%d", s.Callback, url.QueryEscape(s.Topic), i)); got != http.StatusOK {
			t.Errorf("a denial is answered %d", got)
		}
	}
	if n := strings.Count(b.logged.String(), "has denied the subscription"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
