package resourcesync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// pack serves a package with a manifest, and its files.
func (s *site) pack(path, manifest string, files ...testenv.ZipFile) []byte {
	body := testenv.Zip(testenv.ZipEnd{}, append([]testenv.ZipFile{{Name: ManifestName, Data: strings.ReplaceAll(manifest, "{}", s.URL), Deflated: true}}, files...)...)
	s.serveBytes(path, body)
	return body
}

func (s *site) serveBytes(path string, body []byte) {
	s.handle(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
}

// inPackage is an entry of a manifest; an empty change is none, as in a Resource Dump.
func inPackage(name, change string, d float64) string {
	md := attrs("datetime", d)
	if change != "" {
		md += attrs("change", change)
	}
	if change != Deleted {
		md += attrs("path", "/r/"+name)
	}
	return fmt.Sprintf("<url><loc>{}/r/%s</loc><rs:md%s/></url>", name, md)
}

// bytesOf are the files of some resources.
func bytesOf(names ...string) (files []testenv.ZipFile) {
	for _, n := range names {
		files = append(files, testenv.ZipFile{Name: "r/" + n, Data: "bytes of " + n})
	}
	return files
}

func dumpManifest(at float64, entries ...string) string {
	return urlset(attrs("capability", "resourcedump-manifest", "at", at), append([]string{ln("up", "{}/cap")}, entries...)...)
}

func changeManifest(from, until float64, entries ...string) string {
	return urlset(attrs("capability", "changedump-manifest", "from", from, "until", until), append([]string{ln("up", "{}/cap")}, entries...)...)
}

// dumpOf names packages; each is an element of inDump.
func dumpOf(at float64, packages ...string) string {
	return urlset(attrs("capability", "resourcedump", "at", at), append([]string{ln("up", "{}/cap")}, packages...)...)
}

func changeDumpOf(from float64, packages ...string) string {
	return urlset(attrs("capability", "changedump", "from", from), append([]string{ln("up", "{}/cap")}, packages...)...)
}

// inDump names a package, and a copy of its manifest unless that is "".
func inDump(path, manifest string, md ...any) string {
	link := ""
	if manifest != "" {
		link = ln(RelContents, "{}"+manifest)
	}
	return fmt.Sprintf("<url><loc>{}%s</loc><rs:md%s/>%s</url>", path, attrs(md...), link)
}

// dumps serves a set that has nothing but dumps: two packages of day 5, and two of the
// changes up to day 10.
func dumps(s *site) {
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rd", "resourcedump"), lists("/cd", "changedump")))
	s.put("/rd", dumpOf(5, inDump("/1.zip", "", "at", 5), inDump("/2.zip", "", "at", 5)))
	s.pack("/1.zip", dumpManifest(5, inPackage("a", "", 0), inPackage("b", "", 0)), bytesOf("a", "b")...)
	s.pack("/2.zip", dumpManifest(5, inPackage("c", "", 0)), bytesOf("c")...)
	s.put("/cd", changeDumpOf(1, inDump("/c1.zip", "", "from", 1, "until", 6), inDump("/c2.zip", "", "from", 6, "until", 10)))
	s.pack("/c1.zip", changeManifest(1, 6, inPackage("a", Updated, 5.5)), bytesOf("a")...)
	s.pack("/c2.zip", changeManifest(6, 10, inPackage("d", Created, 7), inPackage("b", Deleted, 8)), bytesOf("d")...)
}

// D3: a Source with nothing but dumps is followed; so is each dump beside lists of the
// other kind.
func TestOnlyDumps(t *testing.T) {
	for _, tt := range []struct {
		name, first, later string
		change             func(*site)
	}{
		{"dumps alone", "/c2.zip /c1.zip /1.zip* /2.zip*", "/c3.zip", func(*site) {}},
		{"a Resource Dump and a Change List", "/cl /1.zip* /2.zip*", "/cl", func(s *site) {
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rd", "resourcedump"), lists("/cl", "changelist")))
			s.put("/cl", changes(1, 0, change("a", 7)))
		}},
		{"a Resource List and a Change Dump", "/c2.zip /c1.zip /rl*", "/c3.zip", func(s *site) {
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cd", "changedump")))
			s.put("/rl", resources(5, res("a"), res("b"), res("c")))
		}},
		{"an index of Resource Dumps", "/c2.zip /c1.zip /1.zip* /2.zip*", "/c3.zip", func(s *site) {
			s.put("/rd", sitemapindex(attrs("capability", "resourcedump", "at", 5), ln("up", "{}/cap"), named("/rd1", "at", 5), named("/rd2", "at", 5)))
			s.put("/rd1", dumpOf(5, inDump("/1.zip", "", "at", 5)))
			s.put("/rd2", dumpOf(5, inDump("/2.zip", "", "at", 5)))
		}},
		{"a Resource Dump alone", "/1.zip* /2.zip*", "", func(s *site) {
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rd", "resourcedump")))
		}},
		{"copies of manifests", "/c2.zip /c1.zip /1.zip* /2.zip*", "/c3.zip", func(s *site) {
			s.put("/rd", dumpOf(5, inDump("/1.zip", "/1.xml", "at", 5), inDump("/2.zip", "/2.xml", "at", 5)))
			s.put("/1.xml", dumpManifest(5, inPackage("a", "", 0), inPackage("b", "", 0)))
			s.put("/2.xml", dumpManifest(5, inPackage("c", "", 0)))
			s.remove("/1.zip")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.tags = true
			dumps(s)
			tt.change(s)
			w := s.walk("/cap")
			first := s.run(w)
			first.expect(t, tt.first)
			if !first.Complete || !first.At.Equal(day(5)) {
				t.Errorf("complete %v, at %v, problems %v", first.Complete, first.At, first.problems)
			}
			again := s.again(w, first)
			if again.expect(t, ""); !again.NotModified {
				t.Errorf("%+v", again.Result)
			}
			s.put("/cd", changeDumpOf(1, inDump("/c1.zip", "", "from", 1, "until", 6), inDump("/c2.zip", "", "from", 6, "until", 10), inDump("/c3.zip", "", "from", 10, "until", 12)))
			s.pack("/c3.zip", changeManifest(10, 12, inPackage("e", Created, 11)), bytesOf("e")...)
			s.put("/cl", changes(1, 0, change("a", 7), change("b", 11)))
			later := s.again(w, again)
			if last := strings.Join(later.lists, " "); last != tt.later && last != tt.later+" /c2.zip" || later.err != nil {
				t.Errorf("visited %q, want %q; error %v", last, tt.later, later.err)
			}
		})
	}
}

// A manifest that says no at shows the moment that its dump says, of the package or of
// itself; a change that is later than the package is not in it.
func TestManifestWithoutAt(t *testing.T) {
	s := newSite(t)
	both(s, 1)
	s.put("/rd", dumpOf(7, inDump("/1.zip", "", "at", 5), inDump("/2.zip", "")))
	s.pack("/1.zip", dumpManifest(0, inPackage("a", "", 0), inPackage("b", "", 0)), bytesOf("a", "b")...)
	s.pack("/2.zip", dumpManifest(0, inPackage("c", "", 0)), bytesOf("c")...)
	w := s.walk("/cap")
	w.Contents = true
	at, changed := map[string]time.Time{}, ""
	eachEntry(t, w, func(l *List, e *Entry) {
		if name := strings.TrimPrefix(e.Loc, s.URL+"/r/"); l.Baseline {
			at[name] = l.At().Time()
		} else {
			changed += name
		}
	})
	if !at["a"].Equal(day(5)) || !at["c"].Equal(day(7)) {
		t.Errorf("at %v", at)
	}
	if !strings.Contains(changed, "a") {
		t.Errorf("changes of %q, want that of a on day 5.5, which its package of day 5 does not have", changed)
	}
}

// eachEntry walks, and calls do for each entry; none may be bad.
func eachEntry(t *testing.T, w *Walk, do func(l *List, e *Entry)) {
	t.Helper()
	for l, err := range w.Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for e, bad := range l.Entries() {
			if bad != nil {
				t.Fatal(bad)
			}
			do(l, e)
		}
	}
}

// A change that may be later than the dump, by the form of its datetime, may not be in the dump.
func TestChangesThatADumpMayLack(t *testing.T) {
	s := newSite(t)
	both(s, 1)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist"), lists("/rd", "resourcedump")))
	at := 5.5 + 0.25/(24*60*60)
	s.put("/rd", dumpOf(at, inDump("/1.zip", "", "at", at)))
	s.pack("/1.zip", dumpManifest(at, inPackage("a", "", 0)), bytesOf("a")...)
	var entries []string
	for _, datetime := range []string{"2020-01-03", "2020-01-05", "2020-01-05T11:59Z", "2020-01-05T12:00Z", "2020-01-05T11:59:59Z", "2020-01-05T12:00:00Z", "2020-01-05T12:00:00.2Z", "2020-01-05T14:00:00.1+02:00"} {
		entries = append(entries, fmt.Sprintf("<url><loc>{}/r/%s</loc><rs:md%s/></url>", datetime, attrs("change", "updated", "datetime", datetime)))
	}
	s.put("/cl1", changes(1, 6, entries...))
	w := s.walk("/cap")
	w.Contents = true
	var read []string
	eachEntry(t, w, func(l *List, e *Entry) {
		if l.Requested == s.URL+"/cl1" {
			read = append(read, strings.TrimPrefix(e.Loc, s.URL+"/r/"))
		}
	})
	if got := strings.Join(read, " "); got != "2020-01-05 2020-01-05T12:00Z 2020-01-05T12:00:00Z 2020-01-05T12:00:00.2Z" {
		t.Errorf("read %s", got)
	}
}

// The package itself is read where its server does not give the copy of its manifest.
func TestManifestCopyRefused(t *testing.T) {
	for _, status := range []int{401, 403, 500, 503} {
		s := newSite(t)
		dumps(s)
		s.put("/rd", dumpOf(5, inDump("/1.zip", "/1.xml", "at", 5), inDump("/2.zip", "", "at", 5)))
		s.status("/1.xml", status)
		got := s.run(s.walk("/cap"))
		if got.expect(t, "/c2.zip /c1.zip /1.zip* /2.zip*"); !got.Complete {
			t.Errorf("%d: error %v, gap %v", status, got.err, got.Gap)
		}
	}
}

// A walk that is broken off goes on at the package where it was.
func TestDumpsResumed(t *testing.T) {
	s := newSite(t)
	dumps(s)
	want := "/c2.zip /c1.zip /1.zip* /2.zip*"
	for _, stop := range strings.Fields(want)[1:] {
		got := s.runUntil(s.walk("/cap"), strings.TrimSuffix(stop, "*"))
		if !errors.Is(got.err, errStop) || len(got.states) == 0 {
			t.Fatalf("%s: %v", stop, got.err)
		}
		w := s.walk("/cap")
		w.State = stored(t, got.states[len(got.states)-1])
		rest := s.run(w)
		if all := strings.Join(append(got.lists, rest.lists...), " "); all != want || !rest.Complete {
			t.Errorf("stopped at %s: visited %q, complete %v", stop, all, rest.Complete)
		}
	}
}

// both serves lists and dumps of the same resources and changes.
func both(s *site, at float64) {
	dumps(s)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist"), lists("/rd", "resourcedump"), lists("/cd", "changedump")))
	s.put("/rl", resources(9, res("a"), res("c"), res("d")))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", at), ln("up", "{}/cap"), named("/cl1", "from", at, "until", 6), named("/cl2", "from", 6, "until", 10), named("/cl3", "from", 10)))
	s.put("/cl1", changes(at, 6, change("a", 5.5)))
	s.put("/cl2", changes(6, 10, change("d", 7), change("b", 8)))
	s.put("/cl3", changes(10, 0, change("e", 11)))
}

// Where a Source has lists and dumps, dumps are read by those who want the contents, and
// only as long as they are of use.
func TestListsOrDumps(t *testing.T) {
	broken := func(paths ...string) func(*site) {
		return func(s *site) {
			for _, p := range paths {
				s.serveBytes(p, []byte("no ZIP file"))
			}
		}
	}
	for _, tt := range []struct {
		name     string
		contents bool
		from     float64
		change   func(*site)
		want     string
		complete bool
	}{
		{"no contents wanted", false, 1, nil, "/cl3 /cl2 /rl*", true},
		{"contents wanted", true, 1, nil, "/cl3 /cl2 /cl1 /1.zip* /2.zip*", true},
		{"a dump that no change follows", true, 5.2, nil, "/cl3 /cl2 /rl*", true},
		{"a Resource Dump without at", true, 1, func(s *site) {
			s.put("/rd", urlset(attrs("capability", "resourcedump"), ln("up", "{}/cap"), inDump("/1.zip", "")))
		}, "/cl3 /cl2 /rl*", true},
		{"no Resource Dump", true, 1, func(s *site) { s.remove("/rd") }, "/cl3 /cl2 /rl*", true},
		{"a Resource Dump that may not be read", true, 1, func(s *site) { s.status("/rd", 403) }, "/cl3 /cl2 /rl*", true},
		{"a Resource Dump that fails", true, 1, func(s *site) { s.status("/rd", 503) }, "/cl3 /cl2 /rl*", true},
		{"a failing Resource Dump", true, 1, func(s *site) { s.status("/1.zip", 503) }, "/cl3 /cl2 /cl1 /rl*", true},
		{"a package that is refused", true, 1, broken("/1.zip"), "/cl3 /cl2 /cl1 /rl*", true},
		{"a later package that is refused", true, 1, broken("/2.zip"), "/cl3 /cl2 /cl1 /1.zip* /rl*", false},
		{"packages of changes that are refused", true, 1, broken("/c1.zip", "/c2.zip"), "/cl3 /cl2 /cl1 /1.zip* /2.zip*", true},
		{"no Change Dump", true, 1, func(s *site) { s.remove("/cd") }, "/cl3 /cl2 /cl1 /1.zip* /2.zip*", true},
		{"no Change Dump that may be read", true, 1, func(s *site) { s.status("/cd", 403) }, "/cl3 /cl2 /cl1 /1.zip* /2.zip*", true},
		{"no Change Dump without too many requests", true, 1, func(s *site) { s.status("/cd", 429) }, "/cl3 /cl2 /cl1 /1.zip* /2.zip*", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			both(s, tt.from)
			if tt.change != nil {
				tt.change(s)
			}
			w := s.walk("/cap")
			w.Contents = tt.contents
			got := s.run(w)
			if got.expect(t, tt.want); got.Complete != tt.complete || got.Gap != nil || got.Lost != "" {
				t.Errorf("%+v", got.Result)
			}
			packages := slices.Contains(strings.Fields(s.requests()), "/c2.zip")
			if packages != tt.contents && !strings.HasPrefix(tt.name, "no Change Dump") {
				t.Errorf("packages of changes were asked for: %v", packages)
			}
			if w.State = stored(t, got.State); !tt.complete {
				if got = s.run(w); !got.Complete || !strings.HasSuffix(strings.Join(got.lists, " "), "/rl*") {
					t.Errorf("the next walk: %v, %+v", got.lists, got.Result)
				}
			}
			s.requests()
			s.run(w)
			if asked := s.requests(); strings.Contains(asked, ".zip") && tt.complete {
				t.Errorf("later: %s", asked)
			}
		})
	}
}

// Where a dump cannot be had, changes between the Resource List in its place and the first Change
// List are not taken as read.
func TestListInsteadOfADumpIsOld(t *testing.T) {
	for _, status := range []int{403, 404, 500} {
		s := newSite(t)
		both(s, 10)
		s.put("/cl", changes(10, 0, change("e", 11)))
		s.status("/rd", status)
		w := s.walk("/cap")
		w.Contents = true
		first := s.run(w)
		if first.expect(t, "/cl /rl*"); !first.reported(ruleReach) {
			t.Errorf("%d: %v", status, first.problems)
		}
		s.put("/rl", resources(12, res("a"), res("e")))
		if got := s.again(w, first); !got.Complete {
			t.Errorf("%d: the newer list: %v, %+v", status, got.lists, got.Result)
		}
	}
}

// Without a list in its place a package that cannot be used is missing, and nothing is
// complete.
func TestRefusedPackages(t *testing.T) {
	whole := func(s *site) []byte {
		return s.pack("/2.zip", dumpManifest(5, inPackage("c", "", 0)), bytesOf("c")...)
	}
	dump := func(s *site, md ...any) {
		s.put("/rd", dumpOf(5, inDump("/1.zip", "", "at", 5), inDump("/2.zip", "", append([]any{"at", 5}, md...)...)))
	}
	for _, tt := range []struct {
		name  string
		serve func(*site)
		want  string
	}{
		{"no ZIP file", func(s *site) { s.serveBytes("/2.zip", []byte("a page")) }, "no ZIP file"},
		{"cut off", func(s *site) { b := whole(s); s.serveBytes("/2.zip", b[:len(b)-9]) }, "no ZIP file"},
		{"another length", func(s *site) { dump(s, "length", "7") }, "more bytes than the 7"},
		{"a greater length", func(s *site) { dump(s, "length", "70000") }, "the dump says 70000"},
		{"a length beyond the cap", func(s *site) { dump(s, "length", "5000000") }, "want at most 1000000"},
		{"another hash", func(s *site) { dump(s, "hash", sha256Of("x")) }, "its SHA-256 is"},
		{"a manifest of changes", func(s *site) { s.pack("/2.zip", changeManifest(1, 5)) }, "want a resourcedump-manifest"},
		{"a slip", func(s *site) {
			s.pack("/2.zip", dumpManifest(5, inPackage("c", "", 0)), testenv.ZipFile{Name: "../r/c"})
		}, "leads out of the package"},
		{"a damaged manifest", func(s *site) {
			b := whole(s)
			b[len("PK")+40+len(ManifestName)] ^= 0x55
			s.serveBytes("/2.zip", b)
		}, ManifestName},
		{"gone", func(s *site) { s.remove("/2.zip") }, "404"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			dumps(s)
			tt.serve(s)
			w := s.walk("/cap")
			w.MaxPackage, w.Folder = 1_000_000, t.TempDir()
			got := s.run(w)
			if got.err != nil || got.Gap == nil || got.Gap.URL != s.URL+"/2.zip" || !strings.Contains(got.Gap.Reason, tt.want) || got.Complete || !got.reported(ruleMissing) {
				t.Errorf("error %v, gap %v, complete %v", got.err, got.Gap, got.Complete)
			}
			w.Accepted = []string{s.URL + "/2.zip"}
			if got = s.run(w); got.err != nil || got.Gap != nil || got.Complete {
				t.Errorf("accepted: %+v", got.Result)
			}
		})
	}
}

// load reads the only package of a Source, of size bytes, whose manifest has a copy, and loads it.
func load(t *testing.T, s *site, size int) (read string, err error) {
	t.Helper()
	w := s.walk("/rd")
	_, failed := visitAll(t.Context(), w, func(_ context.Context, l *List) error {
		p := l.Package()
		if p.Loaded() || p.URL() != s.URL+"/1.zip" {
			t.Errorf("package %s, loaded %v", p.URL(), p.Loaded())
		}
		if p.Load() == nil {
			t.Error("loaded before the manifest was read")
		}
		if n, known := p.Length().Bytes(); known && n != int64(size) || p.Memory() != 0 {
			t.Errorf("before it is loaded: %d bytes, known %t, %d of memory", n, known, p.Memory())
		}
		if _, err := p.Open(&Metadata{Path: "/r/a"}); err == nil {
			t.Error("opened before it was loaded")
		}
		var entries []*Entry
		for e, bad := range l.Entries() {
			if bad == nil {
				entries = append(entries, e)
			}
		}
		if err = p.Load(); err != nil {
			return nil
		}
		if n, _ := p.Length().Bytes(); n != int64(size) || p.Memory() <= 0 || !p.Loaded() || p.Load() != nil {
			t.Errorf("once it is loaded: %d bytes, %d of memory, loaded %t", n, p.Memory(), p.Loaded())
		}
		for _, e := range entries {
			in, err := p.Open(&e.Metadata)
			if err != nil {
				return err
			}
			b, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			read += string(b) + ";"
		}
		return nil
	})
	if failed != nil {
		t.Errorf("the walk: %v", failed)
	}
	return read, err
}

// The bytes of a package are taken only where its own manifest says what the copy says.
func TestManifestCopies(t *testing.T) {
	for _, tt := range []struct{ name, copied, want string }{
		{"the same", dumpManifest(5, inPackage("a", "", 0), inPackage("b", "", 0)), ""},
		{"other white space", dumpManifest(5, inPackage("a", "", 0), "\n", inPackage("b", "", 0)), ""},
		{"another resource", dumpManifest(5, inPackage("a", "", 0), inPackage("x", "", 0)), "does not say what the copy"},
		{"paths exchanged", dumpManifest(5, strings.Replace(inPackage("a", "", 0), "/r/a\"", "/r/b\"", 1), inPackage("b", "", 0)), "does not say what the copy"},
		{"another length of a patch", dumpManifest(5, strings.Replace(inPackage("a", "", 0), "</url>", `<rs:ln rel="`+RelPatch+`" href="{}/p" path="/p" length="2"/></url>`, 1), inPackage("b", "", 0)), "does not say what the copy"},
		{"one less", dumpManifest(5, inPackage("a", "", 0)), "does not say what the copy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.put("/rd", dumpOf(5, inDump("/1.zip", "/1.xml", "at", 5)))
			body := s.pack("/1.zip", dumpManifest(5, inPackage("a", "", 0), inPackage("b", "", 0)), bytesOf("a", "b")...)
			s.put("/1.xml", tt.copied)
			read, err := load(t, s, len(body))
			if tt.want == "" && (err != nil || read != "bytes of a;bytes of b;") || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("read %q, error %v", read, err)
			}
		})
	}
}

// A download that breaks off goes on where it was, if that is still the same file.
func TestDownloadResumed(t *testing.T) {
	for _, tt := range []struct {
		name         string
		tag          bool // it has an ETag
		ranges       bool // the server knows ranges
		every        int  // bytes after which an answer breaks off
		want         string
		times, least int // requests at the most and at the least
	}{
		{"resumed", true, true, 100, "", 20, 4},
		{"without ranges", true, false, 100, "broke off", 6, 4},
		{"without an ETag", false, true, 100, "broke off", 6, 4},
		{"whole", true, true, 1 << 20, "", 1, 1},
		{"no bytes at all", true, true, 0, "broke off", 6, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.put("/rd", dumpOf(5, inDump("/1.zip", "/1.xml", "at", 5)))
			body := s.pack("/1.zip", dumpManifest(5, inPackage("a", "", 0)), bytesOf("a")...)
			s.put("/1.xml", dumpManifest(5, inPackage("a", "", 0)))
			asked := 0
			s.handle("/1.zip", func(w http.ResponseWriter, r *http.Request) {
				asked++
				if tt.tag {
					w.Header().Set("ETag", `"1"`)
				}
				from := 0
				if rng := r.Header.Get("Range"); tt.ranges && rng != "" && r.Header.Get("If-Range") == `"1"` {
					if _, err := fmt.Sscanf(rng, "bytes=%d-", &from); err != nil {
						t.Error(err)
					}
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body)))
				}
				w.Header().Set("Content-Length", strconv.Itoa(len(body)-from))
				if from > 0 {
					w.WriteHeader(http.StatusPartialContent)
				}
				_, _ = w.Write(body[from:min(len(body), from+tt.every)])
			})
			read, err := load(t, s, len(body))
			if tt.want == "" && (err != nil || read != "bytes of a;") || tt.want != "" && err == nil {
				t.Errorf("read %q, error %v", read, err)
			}
			if asked < tt.least || asked > tt.times {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// A package that was replaced while it was downloaded is downloaded anew, also from a server that
// ignores If-Range, and so is one whose rest the server does not have.
func TestDownloadOfReplacedPackage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int // of the answer to the request for the rest
		tag    string
	}{
		{"another ETag", http.StatusPartialContent, `"2"`},
		{"not satisfiable", http.StatusRequestedRangeNotSatisfiable, `"1"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.put("/rd", dumpOf(5, inDump("/1.zip", "/1.xml", "at", 5)))
			body := s.pack("/1.zip", dumpManifest(5, inPackage("a", "", 0)), bytesOf("a")...)
			s.put("/1.xml", dumpManifest(5, inPackage("a", "", 0)))
			asked := 0
			s.handle("/1.zip", func(w http.ResponseWriter, r *http.Request) {
				switch asked++; {
				case asked == 1: // a longer one, of other bytes
					w.Header().Set("ETag", `"1"`)
					w.Header().Set("Content-Length", strconv.Itoa(2*len(body)))
					_, _ = w.Write(bytes.Repeat([]byte("x"), len(body)/2))
				case r.Header.Get("Range") != "":
					w.Header().Set("ETag", tt.tag)
					if tt.status == http.StatusPartialContent {
						w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", len(body)/2, len(body)-1, len(body)))
					}
					w.WriteHeader(tt.status)
					_, _ = w.Write(body[len(body)/2:])
				default:
					w.Header().Set("ETag", `"2"`)
					_, _ = w.Write(body)
				}
			})
			if read, err := load(t, s, len(body)); err != nil || read != "bytes of a;" || asked != 3 {
				t.Errorf("read %q after %d requests, error %v", read, asked, err)
			}
		})
	}
}
