package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/audit"
	"github.com/pmh-bridge/bridge/internal/config"
	contents "github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// dumpServer publishes dumps of what another Source has in its lists. It passes on what
// is asked for besides.
type dumpServer struct {
	t      *testing.T
	origin *fixtures.Source

	mu      sync.Mutex
	pages   map[string][]byte
	asked   []string
	changed time.Time            // up to when the packages of changes reach
	changes []resourcesync.Entry // of the Change Dump
	// tamper changes the files of a package before it is written.
	tamper func(path string, files []testenv.ZipFile) []testenv.ZipFile
	copies bool // manifests have copies
	lists  bool // the Capability List names the lists of the origin too
	dead   bool // nothing but the dumps answers
}

// newDumpHarness opens a bridge over the dumps of a Source.
func newDumpHarness(t *testing.T, origin *fixtures.Source, change ...func(*config.Config)) (*listHarness, *dumpServer) {
	t.Helper()
	d := &dumpServer{t: t, origin: origin, pages: map[string][]byte{}}
	b := &listHarness{newHarness(t, d, append([]func(*config.Config){resourceSync, entry(fixtures.CapabilityList)}, change...)...), origin, nil}
	origin.SetBase(b.server.URL)
	b.quick()
	return b, d
}

func (d *dumpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	page, ok := d.pages[r.URL.Path]
	d.asked = append(d.asked, r.URL.Path)
	dead := d.dead
	d.mu.Unlock()
	switch {
	case ok:
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, event.KeyBits(string(page))))
		http.ServeContent(w, r, path.Base(r.URL.Path), time.Time{}, bytes.NewReader(page))
	case dead:
		http.NotFound(w, r)
	default:
		d.origin.ServeHTTP(w, r)
	}
}

// requests returns which paths were asked for since it was last called, sorted.
func (d *dumpServer) requests() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nil
	slices.Sort(asked)
	return asked
}

func (d *dumpServer) get(path string) []byte {
	w := httptest.NewRecorder()
	d.origin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		d.t.Fatalf("%s: status %d", path, w.Code)
	}
	return w.Body.Bytes()
}

// read reads a list of the origin.
func (d *dumpServer) read(path string) (*resourcesync.Document, []resourcesync.Entry) {
	r := resourcesync.NewReader(bytes.NewReader(d.get(path)), resourcesync.ReadOptions{URL: "http://origin" + path})
	var entries []resourcesync.Entry
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return r.Document(), entries
		}
		if err != nil {
			d.t.Fatal(err)
		}
		entries = append(entries, *e)
	}
}

func (d *dumpServer) put(path string, doc *resourcesync.Document) {
	var b bytes.Buffer
	if _, err := doc.WriteTo(&b); err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages[path] = b.Bytes()
}

func (d *dumpServer) up() []resourcesync.Link {
	return []resourcesync.Link{{Rel: resourcesync.RelUp, Href: d.base() + fixtures.CapabilityList}}
}

func (d *dumpServer) base() string {
	u, err := url.Parse(d.loc())
	if err != nil {
		d.t.Fatal(err)
	}
	return "http://" + u.Host
}

// loc is that of any resource.
func (d *dumpServer) loc() string {
	_, entries := d.read(fixtures.CapabilityList)
	return entries[0].Loc
}

// pack writes a package with the present bytes of some entries, and returns its entry
// in the dump.
func (d *dumpServer) pack(name string, manifest resourcesync.Document, entries []resourcesync.Entry) resourcesync.Entry {
	var files []testenv.ZipFile
	add := func(href string) string {
		u, err := url.Parse(href)
		if err != nil {
			d.t.Fatal(err)
		}
		path := fmt.Sprintf("resources/%d/%d", len(files)%7, len(files))
		files = append(files, testenv.ZipFile{Name: path, Data: string(d.get(u.Path)), Deflated: len(files)%2 == 0})
		return "/" + path
	}
	for i := range entries {
		e := &entries[i]
		if e.Metadata.Change == resourcesync.Deleted {
			continue
		}
		e.Metadata.Path = add(e.Loc)
		e.Links = slices.Clone(e.Links)
		for j := range e.Links {
			if l := &e.Links[j]; l.Rel == resourcesync.RelAlternate {
				l.Path = add(l.Href)
			}
		}
	}
	manifest.Entries, manifest.Links = entries, d.up()
	var doc bytes.Buffer
	if _, err := manifest.WriteTo(&doc); err != nil {
		d.t.Fatal(err)
	}
	files = append([]testenv.ZipFile{{Name: resourcesync.ManifestName, Data: doc.String(), Deflated: true}}, files...)
	if d.tamper != nil {
		files = d.tamper(name, files)
	}
	body := testenv.Zip(testenv.ZipEnd{}, files...)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages[name+".zip"] = body
	e := resourcesync.Entry{Loc: d.base() + name + ".zip", Metadata: resourcesync.Metadata{Type: "application/zip", Length: resourcesync.Bytes(int64(len(body)))}}
	if d.copies {
		d.pages[name+".xml"] = doc.Bytes()
		e.Links = []resourcesync.Link{{Rel: resourcesync.RelContents, Href: d.base() + name + ".xml"}}
	}
	return e
}

// publish writes a Resource Dump of what the origin has now, with so many resources in a
// package.
func (d *dumpServer) publish(each int) {
	list, entries := d.read(fixtures.ResourceList)
	var packages []resourcesync.Entry
	for part := range slices.Chunk(entries, each) {
		e := d.pack(fmt.Sprintf("/resourcedump/%d", len(packages)+1), resourcesync.Document{Capability: resourcesync.ResourceDumpManifest, At: list.At}, part)
		e.Metadata.At = list.At
		packages = append(packages, e)
	}
	d.put("/resourcedump.xml", &resourcesync.Document{Capability: resourcesync.ResourceDump, At: list.At, Links: d.up(), Entries: packages})
	d.publishChanges()
}

// publishChanges adds a package with the changes since the last one. A resource may have
// changed once only.
func (d *dumpServer) publishChanges() {
	list, all := d.read(fixtures.ChangeList)
	from := list.From
	if !d.changed.IsZero() {
		from = resourcesync.Exact(d.changed)
	}
	var entries []resourcesync.Entry
	for _, e := range all {
		if e.Metadata.Datetime.Time().After(d.changed) {
			entries = append(entries, e)
		}
	}
	if d.changed.IsZero() { // the dump has these
		entries = nil
	}
	until := list.From.Time()
	if len(all) > 0 {
		until = all[len(all)-1].Metadata.Datetime.Time()
	}
	if d.changed = until; len(entries) > 0 {
		e := d.pack(fmt.Sprintf("/changedump/%d", len(d.changes)+1), resourcesync.Document{Capability: resourcesync.ChangeDumpManifest, From: from, Until: resourcesync.Exact(until)}, entries)
		e.Metadata.From, e.Metadata.Until = from, resourcesync.Exact(until)
		d.changes = append(d.changes, e)
	}
	d.put("/changedump.xml", &resourcesync.Document{Capability: resourcesync.ChangeDump, From: list.From, Links: d.up(), Entries: d.changes})
	named := []resourcesync.Capability{resourcesync.ResourceDump, resourcesync.ChangeDump}
	if d.lists {
		named = append(named, resourcesync.ResourceList, resourcesync.ChangeList)
	}
	capabilities := resourcesync.Document{Capability: resourcesync.CapabilityList, Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: d.base() + fixtures.SourceDescription}}}
	for _, c := range named {
		capabilities.Entries = append(capabilities.Entries, resourcesync.Entry{Loc: d.base() + "/" + string(c) + ".xml", Metadata: resourcesync.Metadata{Capability: c}})
	}
	d.put(fixtures.CapabilityList, &capabilities)
}

// dumpedSource is a Source with resources, some of which have a second representation.
func dumpedSource(n int) *fixtures.Source {
	s := fixtures.NewSource(fixtures.SourceOptions{Carry: true, ChangeLists: fixtures.SingleChangeList})
	for i := range n {
		r := fixtures.Resource{Name: fmt.Sprintf("r%d", i), ID: fmt.Sprintf("urn:r%d", i)}
		if i%5 == 0 {
			r.Alternates = []fixtures.Format{{Type: "text/html", Body: []byte(fmt.Sprintf("<p>%d", i))}}
		}
		s.Create(r)
	}
	return s
}

// live goes through the same changes in each of two Sources.
func live(sources ...*fixtures.Source) {
	for _, s := range sources {
		s.Update(fixtures.Resource{Name: "r1"})
		s.Delete("r2")
		s.Create(fixtures.Resource{Name: "new", ID: "urn:new"})
	}
}

// A bridge that has harvested nothing but dumps has the same log, and the same bytes, as
// one that has harvested lists and asked for each content.
func TestDumpsAsLists(t *testing.T) {
	testenv.Heavy(t)
	for _, tt := range []struct {
		name          string
		copies, lists bool
		mode          string
	}{
		{"packages", false, false, config.Mirror},
		{"with copies of manifests", true, false, config.Mirror},
		{"beside lists", false, true, config.Mirror},
		{"beside lists, with copies", true, true, config.Mirror},
		{"no contents wanted", true, false, config.Redirect},
		{"no contents wanted, no copies", false, false, config.Reference},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const n = 23
			one := &listHarness{harness: newHarness(t, dumpedSource(n), resourceSync, entry(fixtures.CapabilityList), content(tt.mode))}
			one.quick()
			lists := one.server.Config.Handler.(*fixtures.Source)
			lists.SetBase(one.server.URL)
			other, d := newDumpHarness(t, dumpedSource(n), content(tt.mode))
			d.copies, d.lists = tt.copies, tt.lists
			d.publish(10)
			one.harvest()
			d.requests()
			r := other.harvest()
			other.quiet("the first harvest", r)
			last := "" // the last change is at the very time of the dump
			if tt.lists {
				last = fmt.Sprintf("/res/r%d", n-1)
			}
			d.expectDumped(tt.mode == config.Mirror || !tt.copies, last)
			if tt.mode == config.Mirror && r.Fetched != n+5 {
				t.Errorf("%d contents, want %d", r.Fetched, n+5)
			}
			wantSameLogs(t, "the first harvest", one.harness, other.harness)

			live(lists, d.origin)
			d.publishChanges()
			one.harvest()
			d.requests()
			other.quiet("changes", other.harvest())
			if !tt.lists {
				d.expectDumped(tt.mode == config.Mirror || !tt.copies, "")
			}
			wantSameLogs(t, "changes", one.harness, other.harness)

			d.requests()
			if r := other.harvest(); !r.NotModified {
				t.Errorf("nothing has changed: %+v", r)
			}
			if asked := strings.Join(d.requests(), " "); strings.Contains(asked, ".zip") {
				t.Errorf("nothing has changed, and %s was asked for", asked)
			}
			other.quiet("everything again", other.full())
			if asked := strings.Join(d.requests(), " "); tt.copies && strings.Contains(asked, ".zip") {
				t.Errorf("nothing is wanted, and %s was asked for", asked)
			}
			wantSameLogs(t, "everything again", one.harness, other.harness)
			if tt.mode == config.Mirror {
				other.wantSame("at last")
			}
		})
	}
}

// expectDumped fails when a resource itself was asked for, but for one, or, unless
// packages, a package.
func (d *dumpServer) expectDumped(packages bool, but string) {
	d.t.Helper()
	asked := d.requests()
	for _, p := range asked {
		if strings.HasPrefix(p, "/res/") && p != but || strings.HasSuffix(p, ".zip") && !packages {
			d.t.Errorf("%s was asked for", p)
		}
	}
	if packages && !slices.ContainsFunc(asked, func(p string) bool { return strings.HasSuffix(p, ".zip") }) {
		d.t.Errorf("no package was asked for: %v", asked)
	}
}

// wantSameLogs fails unless two bridges have logged the same, but for the documents that it
// came from.
func wantSameLogs(t *testing.T, what string, a, b *harness) {
	t.Helper()
	x, y := loggedOf(a), loggedOf(b)
	if slices.Equal(x, y) {
		return
	}
	t.Errorf("%s: the logs differ:\n%s", what, firstDifference(strings.Join(x, "\n"), strings.Join(y, "\n")))
}

// loggedOf returns what a bridge has logged, sorted, with the bytes that it keeps.
func loggedOf(b *harness) (out []string) {
	b.t.Helper()
	for ev := range b.eventsOf("main", 0) {
		line := fmt.Sprintf("%s %s %q %s via %s", ev.Kind, ev.Record, ev.Title, ev.Modified, ev.Via.Href)
		for _, r := range ev.Representations {
			line += fmt.Sprintf(" %s %s %s %d", r.Href, r.Type, r.Hash, r.Length)
		}
		out = append(out, strings.ReplaceAll(line, b.server.URL, "http://provider"))
	}
	slices.Sort(out)
	return out
}

// What a user sees of packages that are not what they should be: a report, and nothing
// wrong is taken. What a package does not give, or not rightly, is asked for one by one.
func TestDumpTricks(t *testing.T) {
	testenv.Heavy(t)
	replace := func(old, new string) func([]testenv.ZipFile) []testenv.ZipFile {
		return func(f []testenv.ZipFile) []testenv.ZipFile {
			out := strings.Replace(f[0].Data, old, new, 1)
			if out == f[0].Data {
				t.Errorf("the manifest does not have %q:\n%s", old, out)
			}
			f[0].Data = out
			return f
		}
	}
	with := func(more testenv.ZipFile) func([]testenv.ZipFile) []testenv.ZipFile {
		return func(f []testenv.ZipFile) []testenv.ZipFile { return append(f, more) }
	}
	first := func(change func(*testenv.ZipFile)) func([]testenv.ZipFile) []testenv.ZipFile {
		return func(f []testenv.ZipFile) []testenv.ZipFile { change(&f[1]); return f }
	}
	for _, tt := range []struct {
		name   string
		tamper func([]testenv.ZipFile) []testenv.ZipFile
		whole  bool // the package as a whole is refused
		want   string
	}{
		{"a name out of the package", with(testenv.ZipFile{Name: "../../../escaped", Data: "x"}), true, "leads out of the package"},
		{"an absolute name", with(testenv.ZipFile{Name: "/tmp/escaped", Data: "x"}), true, "absolute path"},
		{"a back slash", with(testenv.ZipFile{Name: `..\escaped`, Data: "x"}), true, "back slash"},
		{"a symbolic link", with(testenv.ZipFile{Name: "l", Data: "/etc/passwd", Mode: 0o120777}), true, "link or another special file"},
		{"encrypted", first(func(f *testenv.ZipFile) { f.Flags = 1 }), true, "encrypted"},
		{"a name twice", with(testenv.ZipFile{Name: "resources/0/0", Data: "x"}), true, "also that of the file"},
		{"a name twice, in other case", with(testenv.ZipFile{Name: "Resources/0/0", Data: "x"}), true, "also that of the file"},
		{"files that share bytes", with(testenv.ZipFile{Name: "x", Shared: true}), true, "shares bytes"},
		{"no manifest", func(f []testenv.ZipFile) []testenv.ZipFile { return f[1:] }, true, "no manifest.xml"},
		{"a manifest of changes", replace("resourcedump-manifest", "changedump-manifest"), true, "want a resourcedump-manifest"},
		{"a manifest that is not well formed", replace("</urlset>", ""), true, "urlset"},
		{"a bomb", first(func(f *testenv.ZipFile) { f.Data, f.Deflated = strings.Repeat("\x00", 4<<20), true }), false, "more than 100 times"},
		{"other bytes", first(func(f *testenv.ZipFile) { f.Data = strings.ToUpper(f.Data) }), false, "its SHA-256 is"},
		{"other bytes, another length", first(func(f *testenv.ZipFile) { f.Data += "x" }), false, "the Source says"},
		{"a wrong length in the package", first(func(f *testenv.ZipFile) { f.Length = int64(len(f.Data)) - 1 }), false, "more bytes than"},
		{"a file that the manifest invents", replace("/resources/0/0", "/resources/0/9"), false, "the package does not have it"},
		{"a path out of the package", replace("/resources/0/0", "/../../etc/passwd"), false, "leads out of the package"},
		{"another hash", func(f []testenv.ZipFile) []testenv.ZipFile {
			at := strings.Index(f[0].Data, "sha-256:") + len("sha-256:")
			f[0].Data = f[0].Data[:at] + "0000" + f[0].Data[at+4:]
			return f
		}, false, "its SHA-256 is"},
		{"no path", replace(` path="/resources/0/0"`, ""), false, "rs-path"},
	} {
		for _, reach := range []string{"alone", "with single GETs", "beside lists"} {
			t.Run(tt.name+" "+reach, func(t *testing.T) {
				b, d := newDumpHarness(t, dumpedSource(4))
				d.lists = reach == "beside lists"
				d.tamper = func(_ string, files []testenv.ZipFile) []testenv.ZipFile { return tt.tamper(files) }
				d.publish(10)
				d.tamper, d.dead = nil, reach == "alone"
				r, err := b.try(harvest.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if text := said(r) + r.Gap; !strings.Contains(text, tt.want) {
					t.Errorf("the report does not say %q:\n%s", tt.want, text)
				}
				have := b.liveState(config.Mirror)
				var want []string
				for _, c := range b.origin.Live() {
					s := c.ID
					for _, r := range c.Representations {
						s += " " + r.Type + " " + r.SHA256
					}
					want = append(want, s)
				}
				for _, s := range have { // whatever is there is right
					if !slices.Contains(want, s) && (len(strings.Fields(s)) > 3 || !strings.HasPrefix(strings.Join(want, "\n"), s)) && !strings.HasPrefix(s, "urn:r0 text/html") {
						t.Errorf("wrong: %s", s)
					}
				}
				complete := reach == "beside lists" || reach == "with single GETs" && !tt.whole
				if tt.name == "another hash" {
					complete = false
				}
				switch {
				case complete && !slices.Equal(have, want):
					t.Errorf("have %q, want %q", have, want)
				case !complete && tt.whole && (len(have) > 0 || r.Gap == ""):
					t.Errorf("have %q, gap %q", have, r.Gap)
				case !complete && !tt.whole && r.Pending == 0:
					t.Errorf("nothing is pending: %+v", r)
				}
				if !complete && !r.Partial() {
					t.Errorf("all is well: %+v", r)
				}
				for _, escaped := range []string{"/tmp/escaped", "/escaped", b.config.Data + "/escaped", b.config.Data + "/../escaped"} {
					if _, err := os.Stat(escaped); err == nil {
						t.Errorf("%s was written", escaped)
					}
				}
			})
		}
	}
}

// A download that breaks off goes on where it was, with the real client.
func TestDumpDownloadResumed(t *testing.T) {
	b, d := newDumpHarness(t, dumpedSource(9))
	d.publish(10)
	var ranges []string
	direct := b.server.Config.Handler
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ".zip") {
			direct.ServeHTTP(w, r)
			return
		}
		ranges = append(ranges, r.Header.Get("Range"))
		if len(ranges) > 1 {
			direct.ServeHTTP(w, r)
			return
		}
		page := d.pages[r.URL.Path]
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, event.KeyBits(string(page))))
		w.Header().Set("Content-Length", fmt.Sprint(len(page)))
		_, _ = w.Write(page[:len(page)/2])
	})
	b.quiet("a harvest", b.harvest())
	b.wantSame("a harvest")
	if half := fmt.Sprintf("bytes=%d-", len(d.pages["/resourcedump/1.zip"])/2); !slices.Equal(ranges, []string{"", half}) {
		t.Errorf("asked for %q, want all and then %s", ranges, half)
	}
}

// A dump in a folder is read as one on a server is.
func TestDumpInFolder(t *testing.T) {
	folder := t.TempDir()
	up := []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "cap.xml"}}
	at := resourcesync.Seconds(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	text := func(d resourcesync.Document) string {
		var b bytes.Buffer
		if _, err := d.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for name, content := range map[string]string{
		"cap.xml": text(resourcesync.Document{Capability: resourcesync.CapabilityList, Links: up, Entries: []resourcesync.Entry{
			{Loc: "dump.xml", Metadata: resourcesync.Metadata{Capability: resourcesync.ResourceDump}}}}),
		"dump.xml": text(resourcesync.Document{Capability: resourcesync.ResourceDump, At: at, Links: up, Entries: []resourcesync.Entry{{Loc: "d.zip", Metadata: resourcesync.Metadata{At: at}}}}),
		"d.zip": string(testenv.Zip(testenv.ZipEnd{}, testenv.ZipFile{Name: "r/a", Data: "the bytes of a"}, testenv.ZipFile{Name: resourcesync.ManifestName,
			Data: text(resourcesync.Document{Capability: resourcesync.ResourceDumpManifest, At: at, Links: up, Entries: []resourcesync.Entry{{Loc: "r/a", Metadata: resourcesync.Metadata{Path: "/r/a", Type: "text/plain"}}}})})),
	} {
		if err := os.WriteFile(folder+"/"+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := newFileHarness(t, config.ResourceSync+":"+folder+"/dump.xml")
	r := b.harvest()
	if got := b.events(0); r.Pending > 0 || r.Created != 1 || len(got) != 1 || r.Fetched != 1 {
		t.Errorf("logged %v; %+v", got, r)
	}
}

// noContents is a client for contents that fails.
type noContents struct{ t *testing.T }

func (n noContents) RoundTrip(r *http.Request) (*http.Response, error) {
	n.t.Errorf("%s was asked for", r.URL)
	return nil, errors.New("no content is to be asked for")
}

// A bridge that has nothing but the dumps of another one has the same log and the same
// bytes as one that has its lists and asks for each content.
func TestDumpsOfABridge(t *testing.T) {
	testenv.Heavy(t)
	a := newPublisher(newHarness(t, fixtures.Catalogue(nil), segments(10), func(c *config.Config) { c.Sets[0].Dumps = true }))
	a.harvest()
	const list = "/sets/main/capabilitylist.xml"
	dumped := regexp.MustCompile(`(?s) <url>\s*<loc>[^<]*</loc>\s*<rs:md capability="(resourcedump|changedump)"/>\s*</url>\n`)
	listed := regexp.MustCompile(`(?s) <url>\s*<loc>[^<]*</loc>\s*<rs:md capability="[^"]*list[^"]*"/>\s*</url>\n`)
	eventually(t, "there are both dumps", func() bool { return len(dumped.FindAll(a.get(list).body, -1)) == 2 })
	// only serves the Capability List without some of its entries.
	only := func(without *regexp.Regexp) *harness {
		b := newHarness(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			whole := a.get(list).body
			if len(without.FindAll(whole, -1)) < 2 {
				t.Errorf("%s does not have what is to be left out", whole)
			}
			_, _ = w.Write(without.ReplaceAll(whole, nil))
		}), resourceSync, entry(list))
		b.quick()
		return b
	}
	lists, dumps := only(dumped), only(listed)
	dumps.source().ContentClient = &http.Client{Transport: noContents{t}}
	for _, b := range []*harness{lists, dumps} {
		if r := b.harvest(); r.Partial() || r.Fetched == 0 {
			t.Errorf("%s", said(r))
		}
	}
	x, y := loggedOf(lists), loggedOf(dumps)
	if len(x) == 0 || !slices.Equal(x, y) {
		t.Errorf("%d and %d events:\n%s", len(x), len(y), firstDifference(strings.Join(x, "\n"), strings.Join(y, "\n")))
	}
	for ev := range dumps.eventsOf("main", 0) {
		for _, r := range ev.Representations {
			sum, err := contents.ParseSum(r.SHA256())
			if err != nil {
				t.Fatal(err)
			}
			if has, err := dumps.bridge.Contents.Has(t.Context(), sum); err != nil || !has {
				t.Errorf("%s: its content is missing: %v", r.Href, err)
			}
		}
	}
}

// A dump and an audit that have begun go on when the server of the contents is away for a
// moment.
func TestJobsWaitForBucket(t *testing.T) {
	testenv.Heavy(t)
	s3 := testenv.SharedS3(t)
	s3.Setenv(t)
	var reads, away atomic.Int64 // requests for objects, and of these so many are not answered, from the second on
	endpoint := s3.Proxy(t, func(w http.ResponseWriter, r *http.Request) bool {
		n := int64(0)
		if r.Method == http.MethodGet && !r.URL.Query().Has("list-type") {
			n = reads.Add(1)
		}
		spoilt := n > 1 && n <= 1+away.Load()
		if spoilt {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return spoilt
	})
	b := newHarness(t, fixtures.Catalogue(nil), func(c *config.Config) {
		c.Sets[0].Dumps = true
		c.Store.Contents, c.Store.ContentsCache = "s3://"+s3.NewBucket(t)+"?endpoint="+endpoint, 1
	})
	b.harvest()
	if _, err := b.bridge.Contents.Tidy(t.Context(), contents.TidyOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, job := range map[string]func() error{
		"dump": func() error {
			p, err := b.bridge.Publisher("http://bridge.example.org")
			if err != nil {
				return err
			}
			return p.Dump(t.Context(), "main")
		},
		"audit": func() error {
			_, err := b.bridge.Audit(t.Context(), "main", daemon.AuditOptions{
				Begin: func(string) (func(harvest.Progress), func()) { return func(harvest.Progress) {}, func() {} },
				Found: func(_ context.Context, p *audit.Page) error {
					t.Errorf("%+v", p.Differences)
					return nil
				},
			})
			return err
		},
	} {
		b.reopen() // nothing of the bucket is in memory
		reads.Store(0)
		away.Store(4)
		if err := job(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := reads.Load(); n <= 5 {
			t.Errorf("%s: it has asked %d times: the server was never away", name, n)
		}
	}
}
