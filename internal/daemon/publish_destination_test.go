package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// mostUsed runs a client that works as the most used Destination does: it reads
// resourcelist.xml and changelist.xml below one base URL and keeps a stamp of its
// own in whole seconds.
type mostUsed struct {
	o              *harness
	python, script string
	state, folder  string
}

func newMostUsed(t *testing.T, o *harness) *mostUsed {
	t.Helper()
	dir := t.TempDir()
	m := &mostUsed{o: o, python: testenv.Need(t, "python3", "python3"), script: filepath.Join(testenv.Root(t), "testdata", "resync_client.py"),
		state: filepath.Join(dir, "state.json"), folder: filepath.Join(dir, "files")}
	if err := os.Mkdir(m.folder, 0o777); err != nil {
		t.Fatal(err)
	}
	return m
}

// run makes one pass, which must end well and without a word of warning.
func (m *mostUsed) run(t *testing.T, command string) map[string]int {
	t.Helper()
	cmd := exec.Command(m.python, m.script, "--state", m.state, "--dir", m.folder, command, m.o.base+"/sets/main")
	var wrong strings.Builder
	cmd.Stderr = &wrong
	out, err := cmd.Output()
	if err != nil || wrong.Len() > 0 {
		t.Fatalf("%s: %v\n%.3000s", command, err, wrong.String())
	}
	summary := map[string]int{}
	if err := json.Unmarshal(out, &summary); err != nil {
		t.Fatalf("%s: %v in %s", command, err, out)
	}
	t.Logf("%s: %v", command, summary)
	return summary
}

// wantFiles fails unless the client has the bytes that the provider has, record
// by record, and no other file.
func (m *mostUsed) wantFiles(t *testing.T) {
	t.Helper()
	live := m.o.provider.Live()
	for _, e := range m.o.resources() {
		relative := strings.TrimPrefix(e.Loc, m.o.base+"/sets/main/")
		body, err := os.ReadFile(filepath.Join(m.folder, filepath.FromSlash(relative)))
		if err != nil {
			t.Error(err)
			continue
		}
		want := m.o.alternatesAt(t, linked(e.Links, "via")[0].Href)[0].SHA256
		if got := (webReply{body: body}).sum(); got != want {
			t.Errorf("%s: the client has other bytes than the provider", relative)
		}
	}
	files, err := filepath.Glob(filepath.Join(m.folder, "records", "*"))
	if err != nil || len(files) != len(live) {
		t.Errorf("the client has %d files, the provider %d records: %v", len(files), len(live), err)
	}
}

// untilClosed lets the catalogue change until the next segment has closed.
func (o *harness) untilClosed() {
	o.t.Helper()
	for n := len(o.changeLists()); len(o.changeLists()) == n; {
		o.evolve(1)
	}
}

// TestMostUsedDestinationMissesNothing: a baseline, three segments that close, an
// incremental pass after each or one after all, the Resource List again, an
// audit.
func TestMostUsedDestinationMissesNothing(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	for mode, every := range map[string]bool{config.Mirror: true, config.Redirect: false} {
		t.Run(fmt.Sprintf("%s, a pass after each close %t", mode, every), func(t *testing.T) {
			t.Parallel()
			o := newPublisher(newHarness(t, fixtures.Catalogue(nil), content(mode), segments(10)))
			o.harvest()
			m := newMostUsed(t, o)
			if got := m.run(t, "baseline")["created"]; got != 27 {
				t.Errorf("the baseline has %d resources, want 27", got)
			}
			for range 3 {
				o.untilClosed()
				if every {
					m.run(t, "incremental")
				}
			}
			o.evolve(3)
			m.run(t, "incremental")
			m.wantFiles(t)
			if mode == config.Mirror { // by redirect we state no hash, which an audit asks for
				got := m.run(t, "audit")
				if got["differences"] != 0 || got["listed"] != len(o.provider.Live()) || got["held"] != got["listed"] {
					t.Errorf("audit: %v", got)
				}
			}
		})
	}
}

// awkward has records whose names are as bad as a provider can make them.
func awkward() *fixtures.Provider {
	p := fixtures.New(fixtures.Options{})
	for i, id := range []string{"urn:x:plain", "https://example.org/a b/", "https://example.org/a/b?c=d&e=<f>#g", "UPPER", "upper", "..", "records/a", "ÄÖ 字", strings.Repeat("long-", 60), "%2e%2e/"} {
		name := fmt.Sprintf("r%d", i)
		r := record(name, fixtures.Atom(), fixtures.Format{Ext: "w", Type: "Text/Plain; charset=\"utf-8\""}, fixtures.Format{Ext: "x", Type: "text/plain"},
			fixtures.Format{Ext: "y", Type: "text/plain", Body: []byte{}}, fixtures.Format{Ext: "z", Type: "text/\u00f6", Href: "/records/" + name + " \u00f6.z"})
		r.ID = id
		r.Title = id + " <&>\" "
		p.Create(r)
	}
	p.Delete("r3")
	return p
}

var (
	wholeSecond = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`)
	microsecond = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`)
	hexHash     = regexp.MustCompile(`^sha-256:[0-9a-f]{64}$`)
)

// TestWhatTheMostUsedDestinationNeeds checks field by field what that client
// works with, in a bridge with two sets.
func TestWhatTheMostUsedDestinationNeeds(t *testing.T) {
	testenv.Heavy(t)
	second := func(c *config.Config) {
		other := c.Sets[0]
		other.Name = "second"
		c.Sets = append(c.Sets, other)
	}
	for _, mode := range []string{config.Mirror, config.Redirect} {
		t.Run(mode, func(t *testing.T) {
			o := newPublisher(newHarness(t, awkward(), content(mode), segments(4), second))
			o.harvest()
			o.provider.Delete("r5")
			o.provider.Update(record("r6"))
			o.harvest()
			if n := len(o.list("/.well-known/resourcesync", "urlset", "description").URLs); n != 2 {
				t.Errorf("the description of all sets has %d entries, want 2", n)
			}
			alone := o.list(o.setURL(".well-known/resourcesync"), "urlset", "description")
			if len(alone.URLs) != 1 || alone.URLs[0].Loc != o.setURL("capabilitylist.xml") {
				t.Errorf("the set's own Source Description: %+v, want one entry of its own", alone.URLs)
			}
			resources := o.list(o.setURL("resourcelist.xml"), "urlset", "resourcelist")
			window := o.list(o.setURL("changelist.xml"), "urlset", "changelist") // no index
			if len(resources.URLs) != 8 || len(window.URLs) != 11 {
				t.Errorf("%d resources and %d changes, want 8 and 11", len(resources.URLs), len(window.URLs))
			}
			o.checkResources(t, mode, resources)
			for i, e := range window.URLs {
				o.checkLocForm(t, e)
				if !wholeSecond.MatchString(e.LastMod) || !microsecond.MatchString(e.Meta.Datetime) {
					t.Errorf("change %d: lastmod %q, datetime %q", i+1, e.LastMod, e.Meta.Datetime)
				}
				if e.LastMod[:19] != e.Meta.Datetime[:19] {
					t.Errorf("change %d: lastmod %s is not the second of datetime %s", i+1, e.LastMod, e.Meta.Datetime)
				}
				if h := e.Meta.Hash; h != "" && !hexHash.MatchString(h) {
					t.Errorf("change %d: hash %q", i+1, h)
				}
			}
			o.checkFileNames(t, append(resources.URLs, window.URLs...))
		})
	}
}

func (o *harness) checkResources(t *testing.T, mode string, resources *listDoc) {
	t.Helper()
	seen := map[string]bool{}
	for i, e := range resources.URLs {
		o.checkLocForm(t, e)
		if seen[e.Loc] {
			t.Errorf("%s stands twice in the Resource List", e.Loc)
		}
		seen[e.Loc] = true
		if !wholeSecond.MatchString(e.LastMod) {
			t.Errorf("resource %d: lastmod %q", i+1, e.LastMod)
		}
		r := o.ask(http.MethodGet, e.Loc)
		if mode == config.Redirect {
			o.get(r.want(t, http.StatusTemporaryRedirect).header.Get("Location"))
			continue
		}
		// Of a record that may still change within its second none is stated (D20).
		eventually(t, "Last-Modified of "+e.Loc, func() bool {
			r = o.ask(http.MethodGet, e.Loc).want(t, 200)
			return r.header.Get("Last-Modified") != ""
		})
		if !hexHash.MatchString(e.Meta.Hash) || e.Meta.Hash != "sha-256:"+r.sum() {
			t.Errorf("%s: hash %q", e.Loc, e.Meta.Hash)
		}
		if last, err := http.ParseTime(r.header.Get("Last-Modified")); err != nil || last.Format("2006-01-02T15:04:05Z") != e.LastMod {
			t.Errorf("%s: lastmod %s, Last-Modified %s", e.Loc, e.LastMod, r.header.Get("Last-Modified"))
		}
	}
}

// checkLocForm checks what must hold for every loc.
func (o *harness) checkLocForm(t *testing.T, e listEntry) {
	t.Helper()
	u, err := url.Parse(e.Loc)
	switch {
	case err != nil:
		t.Error(err)
	case !strings.HasPrefix(e.Loc, o.base+"/sets/main/records/"):
		t.Errorf("%s is not below %s", e.Loc, o.base+"/sets/main/records/")
	case strings.ContainsFunc(e.Loc, func(c rune) bool { return c <= ' ' || c > '~' }):
		t.Errorf("%q has characters that are no URL's", e.Loc)
	case strings.HasSuffix(e.Loc, "/") || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" || u.User != nil:
		t.Errorf("%s does not name a file", e.Loc)
	}
}

// checkFileNames has every URL below the set's base become a file, as the client
// does: none may be a folder of another, nor differ from another by case alone.
func (o *harness) checkFileNames(t *testing.T, entries []listEntry) {
	t.Helper()
	files := map[string]bool{}
	for _, d := range o.documents()[1:] {
		files[d.url] = true
	}
	for _, e := range entries {
		files[e.Loc] = true
		for _, l := range linked(e.Links, "alternate") {
			files[l.Href] = true
		}
	}
	lower := map[string]string{}
	for f := range files {
		for dir := f; len(dir) > len(o.base); {
			if dir = dir[:strings.LastIndexByte(dir, '/')]; files[dir] {
				t.Errorf("%s is a file and the folder of %s", dir, f)
			}
		}
		if other, ok := lower[strings.ToLower(f)]; ok {
			t.Errorf("%s and %s are one file where case does not count", f, other)
		}
		lower[strings.ToLower(f)] = f
	}
	if len(files) < 40 {
		t.Errorf("only %d names were compared", len(files))
	}
}
