package resourcesync

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/follow"
)

func (s *site) discover(path string) (Found, error) {
	return s.walk(path).Discover(s.t.Context())
}

// short writes sets with paths: capability list, change list, resource list.
func (s *site) short(f Found) string {
	var sets []string
	for _, l := range f.Sets {
		sets = append(sets, strings.ReplaceAll(fmt.Sprintf("%s %s %s", or(l.CapabilityList), or(l.ChangeList), or(l.ResourceList)), s.URL, ""))
	}
	return strings.Join(sets, "; ")
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// TestEntryPoints: any document of the framework will do.
func TestEntryPoints(t *testing.T) {
	const set = "/cap /cl /rl"
	for _, tt := range []struct {
		name  string
		path  string
		serve func(*site)
		want  string
		asked string
	}{
		{"a Source Description", "/.well-known/resourcesync", nil, set, "/.well-known/resourcesync /cap"},
		{"a bare host", "", nil, set, "/ /.well-known/resourcesync /cap"},
		{"a Capability List", "/cap", nil, set, "/cap"},
		{"a Resource List", "/rl", nil, set, "/rl /cap"},
		{"a Change List Index", "/cl", nil, set, "/cl /cap"},
		{"a part that names its index", "/cl4", func(s *site) {
			s.put("/cl4", urlset(attrs("capability", "changelist", "from", 10), ln("up", "{}/cap"), ln("index", "{}/cl")))
		}, set, "/cl4 /cl /cap"},
		{"a part that names only its index", "/cl4", func(s *site) {
			s.put("/cl4", urlset(attrs("capability", "changelist", "from", 10), ln("index", "{}/cl")))
		}, set, "/cl4 /cl /cap"},
		{"a part with an index that does not name it", "/cl9", func(s *site) {
			s.put("/cl9", urlset(attrs("capability", "changelist", "from", 10), ln("index", "{}/cl")))
		}, "- /cl9 -", "/cl9 /cl"},
		{"a part whose index is not in a Capability List", "/x", func(s *site) {
			s.put("/x", urlset(attrs("capability", "changelist", "from", 10), ln("index", "{}/xs")))
			s.put("/xs", sitemapindex(attrs("capability", "changelist", "from", 10), named("/x")))
		}, "- /xs -", "/x /xs"},
		{"a list that its Capability List does not name", "/old", func(s *site) { s.put("/old", resources(5)) }, "- - /old", "/old /cap"},
		{"a list whose Capability List is missing", "/rl", func(s *site) { s.remove("/cap") }, "- - /rl", "/rl /cap"},
		{"a list whose Capability List is elsewhere", "/far", func(s *site) {
			s.put("/far", urlset(attrs("capability", "resourcelist", "at", 5), ln("up", "http://elsewhere.example/cap")))
		}, "- - /far", "/far"},
		{"a dump", "/dump", func(s *site) {
			s.put("/dump", urlset(attrs("capability", "resourcedump", "at", 5), ln("up", "{}/cap")))
		}, set, "/dump /cap"},
		{"an archive", "/archive", func(s *site) {
			s.put("/archive", urlset(attrs("capability", "changelist-archive"), ln("up", "{}/cap")))
		}, set, "/archive /cap"},
		{"an index of Source Descriptions", "/sdi", func(s *site) {
			s.put("/sdi", sitemapindex(attrs("capability", "description"), named("/.well-known/resourcesync"), named("/sd2")))
			s.put("/sd2", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist"), lists("/cap2", "capabilitylist")))
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/rl2", "resourcelist")))
		}, set + "; /cap2 - /rl2", "/sdi /.well-known/resourcesync /cap /sd2 /cap2"},
		{"an index of Capability Lists", "/cli", func(s *site) {
			s.put("/cli", sitemapindex(attrs("capability", "capabilitylist"), named("/cap")))
		}, set, "/cli /cap"},
		{"a plain sitemap", "/sitemap.xml", func(s *site) { s.put("/sitemap.xml", urlset("", res("a"))) }, "- - /sitemap.xml", "/sitemap.xml"},
		{"an index of plain sitemaps", "/sitemaps.xml", func(s *site) {
			s.put("/sitemaps.xml", sitemapindex("", "<sitemap><loc>{}/sitemap.xml</loc></sitemap>"))
		}, "- - /sitemaps.xml", "/sitemaps.xml"},
		{"a page with a link", "/page", func(s *site) {
			s.serve("/page", "text/html", `<!DOCTYPE html><html><head><title>T</title><base href="/x/"><link rel="up ResourceSync" href="../cap"></head><body><link rel="resourcesync" href="/no"></body></html>`)
		}, set, "/page /cap"},
		{"an XHTML page with a link", "/page", func(s *site) {
			s.serve("/page", "application/xhtml+xml", `<?xml version="1.0"?><!-- x --><html xmlns="http://www.w3.org/1999/xhtml"><head><link rel="resourcesync" href="{}/cap"/></head></html>`)
		}, set, "/page /cap"},
		{"a record with a Link header", "/r/a", func(s *site) {
			s.handle("/r/a", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Add("Link", `</x>; rel="up"; title="a, <b>; rel=resourcesync"`)
				w.Header().Add("Link", `</y>; rel=describedby , </cap>; title="x"; rel="collection resourcesync"`)
				_, _ = io.WriteString(w, "a record")
			})
		}, set, "/r/a /cap"},
		{"a page without a link", "/page", func(s *site) { s.serve("/page", "text/html", "<p>hello") }, set, "/page /.well-known/resourcesync /cap"},
		{"what is not there", "/missing", nil, set, "/missing /.well-known/resourcesync /cap"},
		{"a page's own link comes first", "/page", func(s *site) {
			s.serve("/page", "text/html", `<html><head><link rel="resourcesync" href="/cap2"></head></html>`)
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/rl2", "resourcelist")))
		}, "/cap2 - /rl2", "/page /cap2"},
		{"but not that of the home page", "/", func(s *site) {
			s.serve("/", "text/html", `<html><head><link rel="resourcesync" href="/cap2"></head></html>`)
		}, set, "/ /.well-known/resourcesync /cap"},
		{"a link of the home page", "/", func(s *site) {
			s.remove("/.well-known/resourcesync")
			s.serve("/", "text/html", `<html><head><link rel="resourcesync" href="/cap"></head></html>`)
		}, set, "/ /.well-known/resourcesync /cap"},
		{"robots.txt", "/", func(s *site) {
			s.remove("/.well-known/resourcesync")
			s.put("/plain", urlset("", res("x")))
			s.put("/robots.txt", "\uFEFFUser-agent: *\r\nDisallow: /\r\nsitemap : {}/plain\r\nSitemap: /rl # ours\r\nSitemap: http://elsewhere.example/x\r\n")
		}, set, "/ /.well-known/resourcesync /robots.txt /plain /rl /cap"},
		{"robots.txt with plain sitemaps", "/", func(s *site) {
			s.remove("/.well-known/resourcesync")
			s.put("/plain", urlset("", res("x")))
			s.put("/plain2", urlset("", res("y")))
			s.put("/robots.txt", "Sitemap: {}/plain\nSitemap: {}/plain2")
		}, "- - /plain; - - /plain2", "/ /.well-known/resourcesync /robots.txt /plain /plain2"},
		{"a list served as a page", "/rl", func(s *site) {
			s.serve("/rl", "text/html; charset=utf-8", "<?xml version=\"1.0\"?>\n<?x y?><!-- a\nb -->"+resources(5))
		}, set, "/rl /cap"},
		{"a Source Description that names a list", "/sd", func(s *site) {
			s.put("/sd", urlset(attrs("capability", "description"), lists("/sitemap.xml", "capabilitylist")))
			s.put("/sitemap.xml", urlset("", res("a")))
		}, "- - /sitemap.xml", "/sd /sitemap.xml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			classic(s)
			if tt.serve != nil {
				tt.serve(s)
			}
			path := tt.path
			f, err := s.discover(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.short(f); got != tt.want {
				t.Errorf("found %s, want %s", got, tt.want)
			}
			asked := tt.asked
			if path == "" {
				asked = strings.TrimPrefix(asked, "/")
			}
			expectRequests(t, s, asked)
			if f.URL == "" || f.Route == "" {
				t.Errorf("%+v", f)
			}
		})
	}
}

// TestEntryIsReadOnce: a list that stands alone is not asked for twice.
func TestEntryIsReadOnce(t *testing.T) {
	s := newSite(t)
	s.tags = true
	s.put("/sitemap.xml", urlset("", res("a"), res("b")))
	w := s.walk("/sitemap.xml")
	got := s.run(w)
	got.expect(t, "/sitemap.xml*")
	if !got.Complete || !got.At.IsZero() || !got.Mark.IsZero() || got.Dialects[0] != string(DialectSitemap) {
		t.Errorf("%+v", got.Result)
	}
	expectRequests(t, s, "/sitemap.xml")
	if again := s.again(w, got); !again.NotModified {
		t.Errorf("%+v", again.Result)
	}
	expectRequests(t, s, "/sitemap.xml!")
	s.put("/sitemap.xml", urlset("", res("a")))
	if again := s.again(w, got); !again.Complete || len(again.entries) != 2 {
		t.Errorf("%+v, %v", again.Result, again.entries)
	}
	s.remove("/sitemap.xml")
	s.put("/robots.txt", "Sitemap: /new.xml")
	s.put("/new.xml", urlset("", res("c")))
	// What is found in place of the address that the user gave does not stand for it.
	again := s.again(w, got)
	if again.Complete || again.Gap == nil || again.Gap.URL != s.URL+"/sitemap.xml" || strings.Join(again.entries, "") != "c|" {
		t.Errorf("%+v, %v, error %v", again.Result, again.entries, again.err)
	}
	w.Accepted = []string{s.URL + "/sitemap.xml"}
	if again := s.again(w, got); !again.Complete || strings.Join(again.entries, "") != "c|" {
		t.Errorf("accepted: %+v, %v, error %v", again.Result, again.entries, again.err)
	}
}

func TestNothingFound(t *testing.T) {
	s := newSite(t)
	s.put("/.well-known/resourcesync", "<html/>")
	s.put("/", `<feed xmlns="http://www.w3.org/2005/Atom"/>`)
	s.put("/robots.txt", "Sitemap: {}/rl\nSitemap: http://elsewhere.example/x")
	s.status("/rl", http.StatusForbidden)
	_, err := s.discover("/")
	var none *NoSourceError
	if !errors.As(err, &none) {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{"an Atom Feed Document", "/.well-known/resourcesync: an HTML page", "no Link header", "/rl: HTTP status 403", "elsewhere.example"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := visitAll(t.Context(), s.walk("/"), nil); !errors.As(err, &none) {
		t.Errorf("a walk: %v", err)
	}
}

// TestNothingToFollow: a Source that leads to no list says why.
func TestNothingToFollow(t *testing.T) {
	for _, tt := range []struct {
		name  string
		serve func(*site)
		want  string
	}{
		{"a manifest", func(s *site) { s.put("/sd", urlset(attrs("capability", "resourcedump-manifest", "at", 1))) }, "resourcedump-manifest"},
		{"an archive that stands alone", func(s *site) { s.put("/sd", urlset(attrs("capability", "resourcelist-archive"))) }, "resourcelist-archive"},
		{"no Capability List", func(s *site) { s.put("/sd", urlset(attrs("capability", "description"))) }, "leads to no list"},
		{"a missing Capability List", func(s *site) { s.remove("/cap") }, "/cap: HTTP status 404"},
		{"descriptions without end", func(s *site) {
			for i := range 9 {
				s.put("/sd"+strings.Repeat("+", i), sitemapindex(attrs("capability", "description"), named("/sd"+strings.Repeat("+", i+1))))
			}
		}, "nested more than 4 deep"},
		{"a description of itself", func(s *site) {
			s.put("/sd", urlset(attrs("capability", "description"), lists("/sd", "capabilitylist")))
		}, "leads to no list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.put("/sd", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist")))
			tt.serve(s)
			_, err := s.discover("/sd")
			if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, new(*NoSourceError)) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestDiscoveryMayPass: an error that may pass is no reason to take another
// route, since that may lead to other records.
func TestDiscoveryMayPass(t *testing.T) {
	for _, path := range []string{"/", "/.well-known/resourcesync", "/cap", "/robots.txt"} {
		s := newSite(t)
		s.put("/.well-known/resourcesync", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist")))
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist")))
		if path == "/robots.txt" {
			s.remove("/.well-known/resourcesync")
		}
		s.status(path, http.StatusServiceUnavailable)
		_, err := s.discover("/")
		var status *StatusError
		if !errors.As(err, &status) || status.Status != 503 {
			t.Errorf("%s: %v", path, err)
		}
	}
	s := newSite(t)
	s.put("/rl", resources(5))
	s.status("/cap", http.StatusBadGateway)
	if _, err := s.discover("/rl"); err == nil {
		t.Error("a Resource List stands alone while its Capability List may be there")
	}
}

// TestRefused: links lead nowhere else, and never to a file.
func TestRefused(t *testing.T) {
	for _, to := range []string{"http://elsewhere.example/x", "file:///etc/passwd", "ftp://127.0.0.1/x"} {
		s := newSite(t)
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), `<url><loc>`+to+`</loc><rs:md capability="changelist"/></url>`))
		if got := s.run(s.walk("/cap")); !errors.Is(got.err, ErrRefused) {
			t.Errorf("%s: %v", to, got.err)
		}
		s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), "<sitemap><loc>"+to+"</loc></sitemap>"))
		if got := s.run(s.walk("/rl")); !errors.Is(got.err, ErrRefused) {
			t.Errorf("%s in an index: %v", to, got.err)
		}
		s.handle("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
		if _, err := s.discover("/moved"); err == nil {
			t.Errorf("%s: a redirect was followed", to)
		}
	}
}

// TestFiles: a folder of files is a Source, too.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, doc string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(doc, "{}", "file://"+dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
	write("rl", resources(5, res("a")))
	write("cl", changes(1, 0, change("b", 6)))
	write("page.html", "<html></html>")
	transport := &http.Transport{}
	transport.RegisterProtocol("file", http.NewFileTransport(http.Dir("/")))
	t.Cleanup(transport.CloseIdleConnections)
	s := newSite(t)
	w := &Walk{Client: &http.Client{Transport: transport}, URL: "file://" + dir + "/rl"}
	got := s.run(w)
	if got.err != nil || !got.Complete || len(got.lists) != 2 {
		t.Errorf("%+v, %v, error %v", got.Result, got.lists, got.err)
	}
	w.URL = "file://" + dir + "/page.html"
	if _, err := w.Discover(t.Context()); !errors.As(err, new(*NoSourceError)) || strings.Contains(err.Error(), "robots") {
		t.Errorf("a page on disk: %v", err)
	}
}

// A Capability List that fails, or that a Source Description names on a host that may not be asked,
// keeps no other set of resources from being read. It is a gap; where there is no other set, it is
// the error.
func TestOneCapabilityListFails(t *testing.T) {
	for _, status := range []int{0, 500, 503} {
		s := newSite(t)
		two := "{}/cap2"
		if status == 0 {
			two = "http://127.0.0.2/cap2"
		}
		description := func(caps ...string) {
			for i := range caps {
				caps[i] = `<url><loc>` + caps[i] + `</loc><rs:md capability="capabilitylist"/></url>`
			}
			s.put("/.well-known/resourcesync", urlset(attrs("capability", "description"), caps...))
		}
		description("{}/cap1", two, "{}/cap3")
		for _, n := range []string{"1", "2", "3"} {
			s.put("/cap"+n, urlset(attrs("capability", "capabilitylist"), lists("/rl"+n, "resourcelist")))
			s.put("/rl"+n, resources(5, res("a"+n)))
		}
		s.put("/sitemap", urlset("", res("s")))
		s.put("/robots.txt", "Sitemap: {}/sitemap")
		if status > 0 {
			s.status("/cap2", status)
		}
		w := s.walk("/")
		if found, err := w.Discover(t.Context()); len(found.Sets) != 2 || follow.Status(err) != status || err == nil {
			t.Errorf("%d: found %+v, error %v", status, found.Sets, err)
		}
		for range 2 {
			got := s.run(w)
			if got.expect(t, "/rl1* /rl3*"); got.Gap == nil || got.Complete || !strings.HasSuffix(got.Gap.URL, "/cap2") {
				t.Errorf("%d: gap %v, %+v", status, got.Gap, got.Result)
			}
			w.Full = true
		}
		description(two)
		if got := s.run(w); got.Gap != nil || follow.Status(got.err) != status || status == 0 && !errors.Is(got.err, ErrRefused) {
			t.Errorf("%d: it is the only one: visited %v, gap %v, error %v", status, got.lists, got.Gap, got.err)
		}
	}
}
