package daemon_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// versionedSource is a Source with one resource, /r, whose lists also name how to come
// from one version to the next, and where each version stays.
type versionedSource struct {
	mu    sync.Mutex
	lists map[string]string // bodies of documents
	files map[string]string // of everything else
	asked []string          // files, in their order
}

func (s *versionedSource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	base := "http://" + r.Host
	if list, ok := s.lists[r.URL.Path]; ok {
		w.Header().Set("Content-Type", "application/xml")
		_, _ = w.Write([]byte(strings.ReplaceAll(list, "BASE", base)))
		return
	}
	s.asked = append(s.asked, r.URL.Path)
	file, ok := s.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(file))
}

// change lists a version of the resource in the Change List, with further links.
func (s *versionedSource) change(n int, change, body string, links ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := fmt.Sprintf(`<url><loc>BASE/r</loc><rs:md change="%s" datetime="2026-01-01T00:00:%02dZ" hash="sha-256:%x" length="%d" type="application/json"/>%s</url>`,
		change, n, sha256.Sum256([]byte(body)), len(body), strings.Join(links, ""))
	s.lists["/changelist.xml"] = strings.Replace(s.lists["/changelist.xml"], "</urlset>", entry+"</urlset>", 1)
}

// took returns what was asked for since it was asked last.
func (s *versionedSource) took() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := strings.Join(s.asked, " ")
	s.asked = nil
	return got
}

// newVersionedHarness has harvested the first version, which is 900 bytes of JSON.
func newVersionedHarness(t *testing.T, first string) (*harness, *versionedSource) {
	t.Helper()
	const head = `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">`
	s := &versionedSource{lists: map[string]string{}, files: map[string]string{"/r": first}}
	s.lists["/capabilitylist.xml"] = head + `<rs:md capability="capabilitylist"/><url><loc>BASE/changelist.xml</loc><rs:md capability="changelist"/></url></urlset>`
	s.lists["/changelist.xml"] = head + `<rs:ln rel="up" href="BASE/capabilitylist.xml"/><rs:md capability="changelist" from="2025-12-31T00:00:00Z"/></urlset>`
	s.change(1, "created", first)
	b := newHarness(t, s, resourceSync, entry("/capabilitylist.xml"))
	b.quick()
	if r := b.harvest(); r.Created != 1 || s.took() != "/r" {
		t.Fatalf("the first harvest: %+v", r)
	}
	return b, s
}

// content returns what the only record holds.
func (b *harness) content() string {
	b.t.Helper()
	e, err := b.bridge.Log.Event(b.t.Context(), b.last())
	if err != nil {
		b.t.Fatal(err)
	}
	return string(b.bytes(&e.Representations[0]))
}

func versionOf(value string) string {
	return fmt.Sprintf(`{"title":"%s","pages":"%s"}`, value, strings.Repeat("x", 900))
}

func patchLink(path, kind, body string) string {
	return fmt.Sprintf(`<rs:ln rel="http://www.openarchives.org/rs/terms/patch" href="BASE%s" hash="sha-256:%x" length="%d" type="%s"/>`, path, sha256.Sum256([]byte(body)), len(body), kind)
}

// The description of a change is fetched in place of the resource where it is known, the
// version before is there, and the result is what the list says; else the resource is
// fetched, as ever. What was asked for is counted.
func TestList_Patches(t *testing.T) {
	const diff = `[{"op":"replace","path":"/title","value":"two"}]`
	for _, c := range []struct {
		name, kind, file, link string // file is what is served, link what the list states of it
		want                   string // requests
		report                 string
	}{
		{name: "applied", kind: "application/json-patch+json", file: diff, want: "/diff"},
		{name: "the type of the standard's example", kind: "application/json-patch", file: diff, want: "/diff"},
		{name: "of another type", kind: "application/x-tiff-diff", file: diff, want: "/r"},
		{name: "with another result", kind: "application/json-patch+json", file: `[{"op":"replace","path":"/title","value":"too"}]`, want: "/diff /r", report: "does not have the stated hash"},
		{name: "that fails", kind: "application/json-patch+json", file: `[{"op":"remove","path":"/none"}]`, want: "/diff /r", report: "JSON Patch"},
		{name: "that is none", kind: "application/xml-patch+xml", file: diff, want: "/diff /r", report: "XML Patch"},
		{name: "other than stated", kind: "application/json-patch+json", file: diff, link: strings.Replace(diff, "two", "tow", 1), want: "/diff /r", report: "its SHA-256 is"},
		{name: "that is missing", kind: "application/json-patch+json", link: diff, want: "/diff /r", report: "404"},
		{name: "as long as the resource", kind: "application/json-patch+json", file: diff + strings.Repeat(" ", 2000), want: "/r"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, s := newVersionedHarness(t, versionOf("one"))
			if c.file != "" {
				s.files["/diff"] = c.file
			}
			if c.link == "" {
				c.link = c.file
			}
			s.files["/r"] = versionOf("two")
			s.change(2, "updated", versionOf("two"), patchLink("/diff", c.kind, c.link))
			r := b.harvest()
			if got := s.took(); got != c.want || r.Updated != 1 {
				t.Errorf("asked for %q, want %q; %d updated", got, c.want, r.Updated)
			}
			if got := b.content(); got != versionOf("two") {
				t.Errorf("the content is %.50q", got)
			}
			if got := reported(r, "patch"); !strings.Contains(got, c.report) || (got == "") != (c.report == "") {
				t.Errorf("reported %q, want %q", got, c.report)
			}
		})
	}
}

// The bytes of XML that no operation names stay as they are, so that the hash is right.
func TestList_PatchOfXML(t *testing.T) {
	version := func(title string) string {
		return "<?xml version='1.0'?>\n<r  a='1'>\n <title>" + title + "</title><!-- " + strings.Repeat("x", 900) + " -->\n</r>\n"
	}
	b, s := newVersionedHarness(t, version("one"))
	s.files["/diff"], s.files["/r"] = `<p:patch xmlns:p="urn:ietf:rfc:7351"><p:replace sel="r/title/text()">two &amp; a half</p:replace></p:patch>`, version("two &amp; a half")
	s.change(2, "updated", s.files["/r"], patchLink("/diff", "application/xml-patch+xml", s.files["/diff"]))
	b.harvest()
	if got := s.took(); got != "/diff" || b.content() != s.files["/r"] {
		t.Errorf("asked for %q, and has %.80q", got, b.content())
	}
}

// A change whose version before was missed, and one of a new record, cost the resource.
func TestList_PatchWithoutItsBase(t *testing.T) {
	b, s := newVersionedHarness(t, versionOf("one"))
	s.files["/diff"], s.files["/r"] = `[{"op":"test","path":"/title","value":"two"},{"op":"replace","path":"/title","value":"three"}]`, versionOf("three")
	s.change(2, "updated", versionOf("two"))
	s.change(3, "updated", versionOf("three"), patchLink("/diff", "application/json-patch+json", s.files["/diff"]))
	b.harvest()
	if got := s.took(); got != "/diff /r" || b.content() != versionOf("three") {
		t.Errorf("asked for %q, and has %.50q", got, b.content())
	}
}

// Of many versions that are not there some are asked for.
func TestList_ManyMementosThatAreNotThere(t *testing.T) {
	b, s := newVersionedHarness(t, versionOf("one"))
	delete(s.files, "/r")
	var mementos []string
	for i := range 40 {
		mementos = append(mementos, fmt.Sprintf(`<rs:ln rel="memento" href="BASE/r/at/%d"/>`, i))
	}
	s.change(2, "updated", versionOf("two"), mementos...)
	b.harvest()
	if n := len(strings.Fields(s.took())); n < 2 || n > 30 {
		t.Errorf("%d requests", n)
	}
}

// The resource has moved on: the version that the change names is taken from its own
// address, if it has the stated hash, and the next change brings the newer one.
func TestList_MementoOfAResourceThatMovedOn(t *testing.T) {
	memento := `<rs:ln rel="memento" href="BASE/r/at/2" modified="2026-01-01T00:00:02Z"/>`
	for _, c := range []struct {
		name, now, version string // what is served at the resource, and at the version; "" is nothing
		want               string
		pending            bool
	}{
		{name: "not moved on", now: versionOf("two"), version: versionOf("two"), want: "/r"},
		{name: "changed", now: versionOf("three"), version: versionOf("two"), want: "/r /r/at/2"},
		{name: "gone", version: versionOf("two"), want: "/r /r/at/2"},
		{name: "and the version is another one", now: versionOf("three"), version: versionOf("tow"), want: "/r /r/at/2", pending: true},
		{name: "and the version is not there", now: versionOf("three"), want: "/r /r/at/2", pending: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, s := newVersionedHarness(t, versionOf("one"))
			delete(s.files, "/r")
			for path, body := range map[string]string{"/r": c.now, "/r/at/2": c.version} {
				if body != "" {
					s.files[path] = body
				}
			}
			s.change(2, "updated", versionOf("two"), memento)
			r := b.harvest()
			if got := s.took(); !c.pending && got != c.want || c.pending && !strings.HasPrefix(got, c.want) {
				t.Errorf("asked for %q, want %q", got, c.want)
			}
			want := versionOf("two")
			if c.pending {
				want = versionOf("one")
			}
			if got := b.content(); got != want || (r.Pending == 0) == c.pending {
				t.Errorf("the content is %.30q, %d pending", got, r.Pending)
			}
			if c.now == versionOf("three") {
				s.change(3, "updated", versionOf("three"))
				b.harvest()
				if got := b.content(); got != versionOf("three") {
					t.Errorf("after the next change the content is %.30q", got)
				}
			}
		})
	}
}
