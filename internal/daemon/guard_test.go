package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// testNetwork is a network on loopback: names have the addresses that a test gives
// them, and a connection to an address and port of it ends at the test's server
// for it.
type testNetwork struct {
	t *testing.T

	mu      sync.Mutex
	names   map[string]string // to addresses, with spaces between them
	servers map[string]string // from "10.0.0.1:80" to where it listens
	asked   []string          // "ann private.example:8080/secret"
}

func newNetwork(t *testing.T) *testNetwork {
	return &testNetwork{t: t, names: map[string]string{}, servers: map[string]string{}}
}

// name gives a name its addresses.
func (w *testNetwork) name(name, addresses string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = addresses
}

// serve answers at an address and port.
func (w *testNetwork) serve(address string, h http.HandlerFunc) {
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		w.mu.Lock()
		w.asked = append(w.asked, strings.TrimSpace(user+" "+r.Host+r.URL.Path))
		w.mu.Unlock()
		h(rw, r)
	}))
	w.t.Cleanup(s.Close)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[address] = s.Listener.Addr().String()
}

// requests returns who was asked for what since the last call, sorted.
func (w *testNetwork) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := slices.Sorted(slices.Values(w.asked))
	w.asked = nil
	return asked
}

func (w *testNetwork) network() fetch.Network {
	return fetch.Network{
		Resolver: testserver.Names(func(name string, _ dnsmessage.Type) string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.names[name]
		}),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			w.mu.Lock()
			at, ok := w.servers[address]
			w.mu.Unlock()
			if !ok {
				return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
			}
			return new(net.Dialer).DialContext(ctx, network, at)
		},
	}
}

// atomOf is a complete feed with a record urn:NAME for each URL.
func atomOf(urls map[string]string) string {
	var b strings.Builder
	b.WriteString(`<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:feed</id><title>t</title>` +
		`<updated>2025-01-01T00:00:00Z</updated><author><name>n</name></author><fh:complete/>`)
	for name, u := range urls {
		fmt.Fprintf(&b, `<entry><id>urn:%s</id><title>%s</title><updated>2025-01-01T00:00:00Z</updated><link rel="alternate" type="application/xml" href="%s"/></entry>`, name, name, u)
	}
	return b.String() + `</feed>`
}

// openIn opens a bridge in a testNetwork, on a data folder, that harvests SOURCEs.
func (w *testNetwork) openIn(data string, sources []string, change ...func(*config.Config)) *daemon.Bridge {
	w.t.Helper()
	c, err := config.FromArguments(config.Flags{Data: data}, sources)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range change {
		f(c)
	}
	h, err := daemon.Open(w.t.Context(), c, daemon.Options{Network: w.network()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = h.Close() })
	return h
}

func (w *testNetwork) harvest(h *daemon.Bridge, source int) (harvest.Report, error) {
	w.t.Helper()
	return h.Harvest(w.t.Context(), h.Sources()[source], harvest.Options{})
}

// A host that allow_hosts names as people write it, or in ASCII, is allowed as documents write it.
func TestAllowedInternationalHost(t *testing.T) {
	for _, allowed := range []string{"b\u00fccher.example", "XN--BCHER-KVA.example"} {
		for _, linked := range []string{"b\u00fccher.example", "xn--bcher-kva.example", "xn--bcher-kva.example."} {
			file := filepath.Join(t.TempDir(), "bridge.toml")
			if err := os.WriteFile(file, fmt.Appendf(nil, "allow_hosts = [%q]\n", allowed), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			w := newNetwork(t)
			w.name("main.example", "93.184.216.34")
			w.name("xn--bcher-kva.example", "93.184.216.35")
			w.serve("93.184.216.34:80", func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/feed.atom" {
					fmt.Fprint(rw, "<good/>")
					return
				}
				fmt.Fprint(rw, strings.Replace(atomOf(map[string]string{"one": "http://main.example/1"}), "<fh:complete/>", `<link rel="next" href="http://`+linked+`/2.atom"/>`, 1))
			})
			w.serve("93.184.216.35:80", func(rw http.ResponseWriter, r *http.Request) {
				fmt.Fprint(rw, strings.Replace(atomOf(map[string]string{"two": "http://main.example/2"}), "<fh:complete/>", "", 1))
			})
			h := w.openIn(t.TempDir(), []string{"feed:http://main.example/feed.atom"}, func(to *config.Config) { to.AllowHosts = c.AllowHosts })
			if r, err := w.harvest(h, 0); err != nil || r.Created != 2 {
				t.Errorf("allowed %s, linked %s: %d created, warned of %q, %v", allowed, linked, r.Created, r.Warnings, err)
			}
		}
	}
}

// D62: a Source lists what is on another Source's private host: by name, by
// address, by a redirect, on another port. It gets nothing and no password, while
// the other Source is harvested with its own.
func TestSourceCannotReachAnothersPrivateHost(t *testing.T) {
	w := newNetwork(t)
	w.name("private.example", "10.0.0.1")
	w.name("alias.example", "10.0.0.1")
	w.name("evil.example", "93.184.216.34")
	w.serve("10.0.0.1:8080", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/feed.atom" {
			fmt.Fprint(rw, atomOf(map[string]string{"own": "http://private.example:8080/own"}))
			return
		}
		fmt.Fprint(rw, "<private/>")
	})
	w.serve("10.0.0.1:9090", func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "<private/>") })
	w.serve("93.184.216.34:80", func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/feed.atom":
			fmt.Fprint(rw, atomOf(map[string]string{
				"name": "http://private.example:8080/secret", "user": "http://ann:pw@private.example:8080/secret", "alias": "http://alias.example:8080/secret",
				"address": "http://10.0.0.1:8080/secret", "port": "http://private.example:9090/secret", "hop": "http://evil.example/hop", "good": "http://evil.example/good"}))
		case "/hop":
			http.Redirect(rw, r, "http://private.example:8080/secret", http.StatusFound)
		default:
			fmt.Fprint(rw, "<good/>")
		}
	})
	h := w.openIn(t.TempDir(), []string{"inner=atompmh:http://private.example:8080/feed.atom", "outer=atompmh:http://evil.example/feed.atom"}, func(c *config.Config) {
		c.Sets[0].Sources[0].User = "ann"
	})
	if r, err := w.harvest(h, 0); err != nil || r.Created != 1 {
		t.Fatalf("the private Source: %+v, %v", r, err)
	}
	if got, want := w.requests(), []string{"ann private.example:8080/feed.atom", "ann private.example:8080/own"}; !slices.Equal(got, want) {
		t.Errorf("asked for %q, want %q", got, want)
	}
	r, err := w.harvest(h, 1)
	if err != nil || r.Created != 1 || r.Pending != 6 {
		t.Errorf("%+v, %v; want 1 created and 6 pending", r, err)
	}
	if got, want := w.requests(), []string{"evil.example/feed.atom", "evil.example/good", "evil.example/hop"}; !slices.Equal(got, want) {
		t.Errorf("asked for %q, want %q", got, want)
	}
}

// D62: content_hosts says where a Source's contents may come from.
func TestContentHosts(t *testing.T) {
	for _, c := range []struct {
		only  bool
		hosts []string
		want  []string
	}{
		{false, nil, []string{"cdn.example/b", "own.example/a", "own.example/feed.atom"}},
		{true, nil, []string{"own.example/a", "own.example/feed.atom"}},
		{true, []string{"cdn.example"}, []string{"cdn.example/b", "own.example/a", "own.example/feed.atom"}},
		{true, []string{"inner.example:80"}, []string{"inner.example/c", "own.example/a", "own.example/feed.atom"}},
	} {
		w := newNetwork(t)
		w.name("own.example", "93.184.216.34")
		w.name("cdn.example", "93.184.216.35")
		w.name("inner.example", "10.0.0.1")
		for _, at := range []string{"93.184.216.34:80", "93.184.216.35:80", "10.0.0.1:80"} {
			w.serve(at, func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/feed.atom" {
					fmt.Fprint(rw, atomOf(map[string]string{"a": "/a", "b": "http://cdn.example/b", "c": "http://inner.example/c"}))
					return
				}
				fmt.Fprint(rw, "<r/>")
			})
		}
		h := w.openIn(t.TempDir(), []string{"atompmh:http://own.example/feed.atom"}, func(cfg *config.Config) {
			cfg.Sets[0].Sources[0].OwnContents, cfg.Sets[0].Sources[0].ContentHosts = c.only, c.hosts
		})
		if _, err := w.harvest(h, 0); err != nil {
			t.Fatal(err)
		}
		if got := w.requests(); !slices.Equal(got, c.want) {
			t.Errorf("only %t %q: asked for %q, want %q", c.only, c.hosts, got, c.want)
		}
	}
}

// D63: whether a name was public or private at first contact outlives the
// process, and a change is refused until allow_hosts names the host.
func TestTypedNameThatChanges(t *testing.T) {
	const public, private = "93.184.216.34", "10.0.0.1"
	for _, c := range [][2]string{{public, private}, {private, public}} {
		w := newNetwork(t)
		for _, a := range []string{public, private} {
			w.serve(a+":80", func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, atomOf(nil)) })
		}
		data, source := t.TempDir(), []string{"atompmh:http://source.example/feed.atom"}
		w.name("source.example", c[0])
		h := w.openIn(data, source)
		if _, err := w.harvest(h, 0); err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		w.requests()
		w.name("source.example", c[1])
		h = w.openIn(data, source)
		if r, err := w.harvest(h, 0); !errors.Is(err, fetch.ErrAddress) || !strings.Contains(r.Error, "when it was first asked") || !strings.Contains(r.Error, "allow_hosts") {
			t.Errorf("%s, then %s: %v", c[0], c[1], err)
		}
		if got := w.requests(); len(got) > 0 {
			t.Errorf("%s, then %s: asked for %q", c[0], c[1], got)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		h = w.openIn(data, source, func(c *config.Config) { c.AllowHosts = []string{"source.example"} })
		if _, err := w.harvest(h, 0); err != nil {
			t.Errorf("allowed: %v", err)
		}
	}
}

// D50: what the operator typed may be redirected to another public host, from
// which the walk goes on; a permanent move is reported; addresses are guarded as
// ever, and the login stays at home.
func TestTypedURLIsRedirected(t *testing.T) {
	w := newNetwork(t)
	w.name("old.example", "93.184.216.34")
	w.name("www.example", "93.184.216.35")
	w.name("inner.example", "10.0.0.1")
	status, to := http.StatusMovedPermanently, "http://www.example/feed.atom"
	w.serve("93.184.216.34:80", func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, to, status) })
	w.serve("93.184.216.35:80", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, atomOf(map[string]string{"a": "/a"}))
	})
	w.serve("10.0.0.1:80", func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, atomOf(nil)) })
	h := w.openIn(t.TempDir(), []string{"atompmh:http://old.example/feed.atom"}, func(c *config.Config) { c.Sets[0].Sources[0].User = "ann" })
	r, err := w.harvest(h, 0)
	if err != nil || r.Created != 1 || r.Moved != to || r.Partial() {
		t.Errorf("%+v, %v", r, err)
	}
	if got, want := w.requests(), []string{"ann old.example/feed.atom", "www.example/a", "www.example/feed.atom"}; !slices.Equal(got, want) {
		t.Errorf("asked for %q, want %q", got, want)
	}
	status = http.StatusFound
	if r, err = w.harvest(h, 0); err != nil || r.Moved != "" {
		t.Errorf("a redirect that is not permanent: %+v, %v", r, err)
	}
	w.requests()
	to = "http://inner.example/feed.atom"
	if _, err = w.harvest(h, 0); !errors.Is(err, fetch.ErrAddress) {
		t.Errorf("redirected to a private host: %v", err)
	}
	if got, want := w.requests(), []string{"ann old.example/feed.atom"}; !slices.Equal(got, want) {
		t.Errorf("asked for %q, want %q", got, want)
	}
}

// D56: an answer of 401 says what to write.
func TestUnauthorizedSaysWhatToWrite(t *testing.T) {
	w := newNetwork(t)
	w.name("source.example", "93.184.216.34")
	w.serve("93.184.216.34:80", func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(http.StatusUnauthorized) })
	for source, user := range map[string]string{"http://source.example/": "", "atompmh:http://source.example/": "", "resourcesync:http://source.example/x": "", "feed:http://source.example/": "ann"} {
		h := w.openIn(t.TempDir(), []string{source}, func(c *config.Config) { c.Sets[0].Sources[0].User = user })
		_, err := w.harvest(h, 0)
		if err == nil || !strings.Contains(err.Error(), "401") || !strings.Contains(err.Error(), "user and password_file") || strings.Contains(err.Error(), "want an Atom") ||
			strings.Contains(err.Error(), `login of "ann"`) != (user != "") {
			t.Errorf("%s: %v", source, err)
		}
	}
}
