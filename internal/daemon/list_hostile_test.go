package daemon_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// requestLog notes who asks it for what, and with which credentials.
type requestLog struct {
	*httptest.Server
	mu      sync.Mutex
	reached []string
}

func newRequestLog(t *testing.T) *requestLog {
	l := &requestLog{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reached = append(l.reached, strings.TrimSpace(r.URL.Path+" "+r.Header.Get("Authorization")))
		fmt.Fprint(w, "secret")
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *requestLog) asked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.reached)
}

// rewrite makes a path answer what it holds with a text replaced.
func (b *listHarness) rewrite(path, old, new string) {
	b.origin.SetHook(path, fixtures.Hook{Body: func(doc []byte) []byte {
		out := strings.ReplaceAll(string(doc), old, new)
		if out == string(doc) {
			b.t.Errorf("%s does not have %q:\n%s", path, old, doc)
		}
		return []byte(out)
	}})
}

// named makes the server one that was typed by its name, so that its address is
// trusted by no other.
func named(c *config.Config) {
	s := &c.Sets[0].Sources[0]
	s.URL = strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
}

// newNamedListHarness is newListHarness for such a server, whose documents name it so too,
// with the resources a, b and c.
func newNamedListHarness(t *testing.T, o fixtures.SourceOptions, path string) *listHarness {
	t.Helper()
	o.Carry = true
	b := newListHarness(t, o, entry(path), named)
	b.quickTo("localhost")
	b.origin.SetBase(b.base())
	b.create("a", "b", "c")
	return b
}

// base is where a server is that was typed by its name.
func (b *listHarness) base() string {
	return strings.Replace(b.server.URL, "127.0.0.1", "localhost", 1)
}

// TestListFault_RequestForgery: a Source that was typed by name leads nowhere else
// into our own network, by no link, no loc and no redirect.
func TestListFault_RequestForgery(t *testing.T) {
	testenv.Heavy(t)
	inside := newRequestLog(t)
	for _, to := range []string{inside.URL + "/secret", "file:///etc/passwd"} {
		forgeDocuments(t, to)
		forgeContents(t, to)
	}
	forgeRedirects(t, inside.URL+"/redirected")
	if reached := inside.asked(); len(reached) != 0 {
		t.Errorf("reached %q", reached)
	}
}

// forgeDocuments lets documents name others elsewhere.
func forgeDocuments(t *testing.T, to string) {
	for _, row := range []struct {
		what, path, named string
		options           fixtures.SourceOptions
		entry             string
	}{
		{"a Capability List", fixtures.SourceDescription, fixtures.CapabilityList, fixtures.SourceOptions{}, fixtures.SourceDescription},
		{"a Resource List", fixtures.CapabilityList, fixtures.ResourceList, fixtures.SourceOptions{}, fixtures.CapabilityList},
		{"a Change List", fixtures.CapabilityList, fixtures.ChangeListIndex, fixtures.SourceOptions{}, fixtures.CapabilityList},
		{"a part of a Resource List", fixtures.ResourceList, fixtures.ResourceListPart(2), fixtures.SourceOptions{PerPart: 2}, fixtures.CapabilityList},
		{"a list of an index", fixtures.ChangeListIndex, fixtures.ChangeListPart(1), fixtures.SourceOptions{NoResourceList: true}, fixtures.CapabilityList},
	} {
		t.Run(row.what+" at "+to, func(t *testing.T) {
			b := newNamedListHarness(t, row.options, row.entry)
			b.rewrite(row.path, "<loc>"+b.base()+row.named, "<loc>"+to)
			r, err := b.try(harvest.Options{})
			if err == nil || !strings.Contains(err.Error(), "refused") || r.Deleted+r.Updated > 0 {
				t.Errorf("%v, %s", err, said(r))
			}
		})
	}
	// What leads up, or on from a host, is not needed: it is left alone.
	t.Run("a link up to "+to, func(t *testing.T) {
		b := newNamedListHarness(t, fixtures.SourceOptions{}, fixtures.ResourceList)
		b.rewrite(fixtures.ResourceList, `href="`+b.base()+fixtures.CapabilityList, `href="`+to)
		r := b.expect("alone", "created a 1", "created b 1", "created c 1")
		if first := reported(r, "rs-missing"); !strings.Contains(first, "refused") {
			t.Errorf("not reported: %s", said(r))
		}
	})
	t.Run("robots.txt leads to "+to, func(t *testing.T) {
		b := newNamedListHarness(t, fixtures.SourceOptions{Dialect: fixtures.PlainSitemap}, "/")
		b.origin.SetHook(fixtures.AboutPage, answer(http.StatusNotFound))
		b.rewrite(fixtures.Robots, b.base()+fixtures.Sitemap, to)
		b.want("logged", b.wantError("robots.txt"))
	})
}

// forgeContents lets an entry name content elsewhere.
func forgeContents(t *testing.T, to string) {
	for what, replace := range map[string][2]string{
		"loc":       {"<loc>{}/res/a</loc>", "<loc>" + to + "</loc>"},
		"alternate": {`href="{}/res/a.json"`, `href="` + to + `"`},
		"mirror":    {`href="{}/mirror/1/res/a"`, `href="` + to + `"`},
	} {
		t.Run(what+" at "+to, func(t *testing.T) {
			o := fixtures.SourceOptions{}
			if what == "mirror" {
				o.Mirrors = 1
			}
			b := newNamedListHarness(t, o, fixtures.CapabilityList)
			b.origin.Update(fixtures.Resource{Name: "a", Alternates: []fixtures.Format{{Ext: "json", Type: "application/json"}}})
			if what == "mirror" {
				b.origin.SetHook("/res/a", answer(http.StatusInternalServerError))
			}
			for _, path := range []string{fixtures.ResourceList, fixtures.ChangeListPart(1)} {
				b.rewrite(path, strings.ReplaceAll(replace[0], "{}", b.base()), replace[1])
			}
			// D4: what may be had is published; what nobody would ask for does not wait.
			want, waits := []string{"created a 2", "created b 1", "created c 1"}, int64(1)
			if what == "mirror" {
				want = want[1:]
			} else if strings.HasPrefix(to, "file:") {
				waits = 0
			}
			if r := b.expect("the others", want...); r.Pending != waits {
				t.Errorf("%s", said(r))
			}
		})
	}
}

// forgeRedirects lets paths of a Source redirect elsewhere.
func forgeRedirects(t *testing.T, to string) {
	redirect := fixtures.Hook{Status: http.StatusFound, Header: http.Header{"Location": {to}}}
	for _, path := range []string{fixtures.CapabilityList, fixtures.ResourceList, fixtures.ChangeListIndex, fixtures.ChangeListPart(1)} {
		t.Run("a redirect of "+path, func(t *testing.T) {
			b := newNamedListHarness(t, fixtures.SourceOptions{NoResourceList: path == fixtures.ChangeListPart(1)}, fixtures.CapabilityList)
			b.origin.SetHook(path, redirect)
			says := "refused"
			if path == fixtures.CapabilityList { // that was typed, so only addresses are judged
				says = "not public"
			}
			b.want("logged", b.wantError(says))
		})
	}
	t.Run("a redirect of content", func(t *testing.T) {
		b := newNamedListHarness(t, fixtures.SourceOptions{}, fixtures.CapabilityList)
		b.origin.SetHook("/res/a", redirect)
		if r := b.expect("the others", "created b 1", "created c 1"); r.Pending != 1 {
			t.Errorf("%s", said(r))
		}
	})
}

// TestListFault_Credentials: what the operator typed goes to its own host and port
// and nowhere else; what a document names as a user is not sent at all.
func TestListFault_Credentials(t *testing.T) {
	other := newRequestLog(t)
	var mu sync.Mutex
	sent := map[string]bool{}
	b := newListHarness(t, fixtures.SourceOptions{Carry: true})
	b.quick(func(o *fetch.Options) {
		o.Reach.User = url.UserPassword("reader", "s3cret")
	})
	inner := b.server.Config.Handler
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		sent[r.Header.Get("Authorization")] = true
		mu.Unlock()
		inner.ServeHTTP(w, r)
	})
	b.create("a", "b", "c")
	b.origin.MisbehaveOn("c", fixtures.LocCredentials)
	for _, path := range []string{fixtures.ResourceList, fixtures.ChangeListPart(1)} {
		b.rewrite(path, "<loc>"+b.server.URL+"/res/a</loc>", "<loc>"+strings.Replace(other.URL, "://", "://reader:s3cret@", 1)+"/res/a</loc>")
	}
	b.origin.SetHook("/res/b", fixtures.Hook{Status: http.StatusFound, Header: http.Header{"Location": {other.URL + "/res/b"}}})
	r := b.harvest()
	if first := reported(r, "user"); !strings.Contains(first, "which is not sent") || strings.Contains(first, "s3cret") {
		t.Errorf("%q", first)
	}
	mu.Lock()
	defer mu.Unlock()
	reached := other.asked()
	slices.Sort(reached)
	b.want("the other port got", reached, "/res/a", "/res/b")
	if len(sent) != 1 || !sent["Basic cmVhZGVyOnMzY3JldA=="] {
		t.Errorf("our own host got %v", sent)
	}
}

// TestListFault_LocalFiles: a file: URL of a remote list is neither read nor
// published, in any mode and any place.
func TestListFault_LocalFiles(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Redirect, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{Carry: true}, content(mode))
			b.origin.Create(fixtures.Resource{Name: "a", Via: "file:///etc/hostname", Alternates: []fixtures.Format{{Ext: "json", Type: "application/json"}}})
			b.create("b")
			b.origin.MisbehaveOn("b", fixtures.LocFile)
			for _, path := range []string{fixtures.ResourceList, fixtures.ChangeListPart(1)} {
				b.rewrite(path, `href="`+b.server.URL+`/res/a.json"`, `href="file:///etc/passwd"`)
			}
			if r := b.harvest(); r.Pending+r.Quarantined == 0 {
				t.Errorf("%s", said(r))
			}
			if log := b.dump(); strings.Contains(log, "file:") || strings.Contains(log, "root:") {
				t.Errorf("the log has a local file:\n%s", log)
			}
		})
	}
}
