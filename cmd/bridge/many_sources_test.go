package main

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// collection is records that a Source has, whatever its kind: 1 to n, which only grow.
type collection struct {
	mu   sync.Mutex
	n    int
	made []time.Time // when each came
}

func (c *collection) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *collection) grow() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	c.made = append(c.made, time.Now())
	return c.n
}

// since returns when record i came.
func (c *collection) since(i int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made[i-1]
}

// changedAt is when record i changed.
func changedAt(i int) string {
	return time.Date(2025, 1, 1, 0, 0, i, 0, time.UTC).Format(time.RFC3339)
}

// atom serves a complete Atom-PMH feed.
func (c *collection) atom(w http.ResponseWriter, base string) {
	n := c.size()
	fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>%[1]s/feed</id><title>Maps</title>`+
		`<updated>%[2]s</updated><fh:complete/><author><name>A</name></author><link rel="self" href="%[1]s/feed.atom"/>`, base, changedAt(n))
	for i := n; i > 0; i-- {
		fmt.Fprintf(w, `<entry><id>%s/%d</id><title>Map %[2]d</title><updated>%s</updated><link rel="alternate" type="application/xml" href="%[1]s/%[2]d.xml"/></entry>`, base, i, changedAt(i))
	}
	io.WriteString(w, `</feed>`)
}

// rss serves a legacy feed.
func (c *collection) rss(w http.ResponseWriter, base string) {
	io.WriteString(w, `<rss version="2.0"><channel><title>News</title><link>http://h.example/</link><description>d</description>`)
	for i := c.size(); i > 0; i-- {
		fmt.Fprintf(w, `<item><guid>%s/%d</guid><title>News %[2]d</title><link>%[1]s/%[2]d.html</link></item>`, base, i)
	}
	io.WriteString(w, `</channel></rss>`)
}

// list serves a Resource List.
func (c *collection) list(w http.ResponseWriter, base string) {
	n := c.size()
	fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="%s"/>`, changedAt(n))
	for i := 1; i <= n; i++ {
		fmt.Fprintf(w, `<url><loc>%s/%d.xml</loc><lastmod>%s</lastmod></url>`, base, i, changedAt(i))
	}
	io.WriteString(w, `</urlset>`)
}

// table serves a CSV table, and lines a sitemap in plain text.
func (c *collection) table(w http.ResponseWriter, base string) {
	io.WriteString(w, "url,modified,type\n")
	for i := 1; i <= c.size(); i++ {
		fmt.Fprintf(w, "%s/%d.pdf,%s,application/pdf\n", base, i, changedAt(i))
	}
}

func (c *collection) lines(w http.ResponseWriter, base string) {
	for i := 1; i <= c.size(); i++ {
		fmt.Fprintf(w, "%s/%d.html\n", base, i)
	}
}

// manySource is one of the Sources of the test.
type manySource struct {
	*collection
	set, kind, name, url string
	// state is what status must say of it, and says matches the reason that people must
	// read there.
	state status.State
	says  string

	mu    sync.Mutex
	wrong http.HandlerFunc // answers instead of it; nil once it is mended
}

// ServeHTTP answers as the Source does, or what is wrong with it.
func (s *manySource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	wrong := s.wrong
	s.mu.Unlock()
	base := "http://" + r.Host + "/" + s.name
	switch {
	case wrong != nil:
		wrong(w, r)
	case s.kind == "atompmh":
		s.atom(w, base)
	case s.kind == "feed":
		s.rss(w, base)
	case s.kind == "resourcesync":
		s.list(w, base)
	case s.kind == "oaipmh":
		s.repository(base).ServeHTTP(w, r)
	case s.kind == "csv":
		s.table(w, base)
	case s.kind == "sitemap":
		s.lines(w, base)
	}
}

// another makes one more record; in a folder, another file.
func (s *manySource) another() error {
	n := s.grow()
	if s.kind != "folder" {
		return nil
	}
	return os.WriteFile(filepath.Join(s.url, fmt.Sprint(n, ".xml")), fmt.Appendf(nil, "<scan n='%d'/>", n), 0o600)
}

func (s *manySource) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong, s.state = nil, status.OK
}

// manySources are Sources of all kinds, on loopback and in a folder.
type manySources struct {
	all     []*manySource
	mux     *http.ServeMux
	plain   *httptest.Server
	secure  *httptest.Server // with a certificate that nobody knows
	release func()           // the slow Source answers
}

func newManySources(t *testing.T) *manySources {
	mux := http.NewServeMux()
	m := &manySources{mux: mux, plain: httptest.NewServer(mux), secure: httptest.NewUnstartedServer(mux)}
	m.secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that failed, as they shall
	m.secure.StartTLS()
	t.Cleanup(m.plain.Close)
	t.Cleanup(m.secure.Close)
	ended, slow := make(chan struct{}), make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(ended) }))
	m.release = sync.OnceFunc(func() { close(slow) })
	t.Cleanup(m.release)

	answers := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	add := func(set, kind string, n int, odd ...*manySource) {
		for i := range n {
			s := &manySource{state: status.OK}
			if i < len(odd) {
				s = odd[i]
			}
			s.set, s.kind, s.name = set, kind, fmt.Sprint(set, i+1)
			m.add(t, s, 5)
		}
	}
	add("maps", "atompmh", 8,
		&manySource{state: status.Failing, says: `HTTP status 500`, wrong: answers(http.StatusInternalServerError)},
		&manySource{state: status.Failing, says: `HTTP status 404`, wrong: answers(http.StatusNotFound)},
		&manySource{state: status.Failing, says: `<entry> is closed by </feed>`, wrong: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:x</id><entry></feed>`)
		}},
		&manySource{state: status.Failing, says: `the server did not begin to answer in time`, wrong: func(_ http.ResponseWriter, r *http.Request) {
			select { // it hangs
			case <-ended:
			case <-r.Context().Done():
			}
		}})
	add("data", "resourcesync", 8,
		&manySource{state: status.Failing, says: `HTTP status 401`, wrong: answers(http.StatusUnauthorized)},
		&manySource{state: status.Failing, says: `the server closed the connection`, wrong: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		&manySource{state: status.Waiting, says: `reading`, wrong: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-slow:
				m.named("data3").list(w, "http://"+r.Host+"/data3")
			case <-r.Context().Done():
			}
		}})
	add("articles", "oaipmh", 8,
		&manySource{state: status.Failing, says: `HTTP status 503`, wrong: answers(http.StatusServiceUnavailable)},
		&manySource{state: status.Failing, says: `an HTML page`, wrong: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "<!DOCTYPE html><html><p>Wartungsarbeiten")
		}})
	add("news", "feed", 8,
		&manySource{state: status.Failing, says: `certificate`, url: m.secure.URL},
		&manySource{state: status.OK, says: `moved`, wrong: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/news3", http.StatusMovedPermanently)
		}})
	add("scans", "folder", 4, &manySource{state: status.Failing, says: `the folder cannot be read`})
	add("theses", "csv", 4, &manySource{state: status.Failing, says: `url`, wrong: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "title;author\nA;B\n")
	}})
	add("pages", "sitemap", 4)
	return m
}

// add has a Source with n records.
func (m *manySources) add(t *testing.T, s *manySource, n int) {
	s.collection = &collection{}
	switch {
	case s.kind == "folder" && s.state == status.Failing:
		s.url = filepath.Join(t.TempDir(), "missing")
	case s.kind == "folder":
		s.url = t.TempDir()
	case s.url == "":
		s.url = m.plain.URL
		fallthrough
	default:
		s.url += "/" + s.name
		m.mux.Handle("/"+s.name, s)
		m.mux.Handle("/"+s.name+"/", s)
	}
	for range n {
		if err := s.another(); err != nil && s.state == status.OK {
			t.Fatal(err)
		}
	}
	m.all = append(m.all, s)
}

// named returns the Source of a name.
func (m *manySources) named(name string) *manySource {
	return m.all[slices.IndexFunc(m.all, func(s *manySource) bool { return s.name == name })]
}

// repository is an OAI-PMH repository of the records.
func (c *collection) repository(base string) *testserver.Repository {
	r := testserver.NewRepository()
	for i := 1; i <= c.size(); i++ {
		r.Put(testserver.Item{Identifier: fmt.Sprint(base, "/", i), Datestamp: c.since(i), Metadata: map[string]string{"oai_dc": testserver.DublinCore(fmt.Sprint("Article ", i))}})
	}
	return r
}

// config returns the configuration of all of them.
func (m *manySources) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "data = \"data\"\nlisten = \"127.0.0.1:0\"\nconsole_listen = \"127.0.0.1:0\"\nallow_hosts = [\"127.0.0.1\"]\n[defaults]\nevery = \"2s\"\n[limits]\nheader_timeout = \"1s\"\n")
	set := ""
	for _, s := range m.all {
		if s.set != set {
			set = s.set
			content := "reference"
			if s.kind == "oaipmh" || s.kind == "folder" {
				content = "mirror"
			}
			fmt.Fprintf(&b, "\n[[set]]\nname = %q\ncontent = %q\n", set, content)
		}
		fmt.Fprintf(&b, "[[set.source]]\nname = %q\nkind = %q\nurl = %q\n", s.name, s.kind, s.url)
	}
	return b.String()
}

// TestManySources is a day of a person who runs bridge with Sources of all kinds, some of
// which fail: what status and console say of each, and that one is added, paused, removed,
// and tried again, and a set renamed, without a restart and without a lost event. The
// same walk is written in docs/many-sources.md.
func TestManySources(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	m := newManySources(t)
	f := newFolder(t, m.config())
	serve, server := f.serve()
	console, err := serve.stdout.expect(regexp.MustCompile(`(?m)^console: (http\S+)$`))
	if err != nil {
		t.Fatal(err)
	}

	// What fails, since when and why.
	f.until("every Source was asked", func(all map[string]*status.Source) (missing []string) {
		for _, s := range m.all {
			if got := all[s.set+"/"+s.name]; got == nil || got.State != s.state {
				missing = append(missing, s.name)
			}
		}
		return missing
	})
	text := f.run(exitPartly, "status").stdout
	page := f.page(console[1])
	last := status.Failing
	for _, line := range strings.Split(text, "\n")[2 : 2+len(m.all)] {
		state, rest, _ := strings.Cut(line, " ")
		name, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
		_, name, _ = strings.Cut(name, "/")
		s := m.named(name)
		if got := status.State(state); got != s.state || got.Order() < last.Order() {
			t.Errorf("%s is %s, after %s; want %s:\n%s", name, got, last, s.state, text)
		} else {
			last = got
		}
		if !strings.Contains(rest, s.says) || s.state == status.Failing && !regexp.MustCompile(`^ *since \d{4}-\d\d-\d\d \d\d:\d\dZ: `).MatchString(rest) {
			t.Errorf("of %s status says %q, want since when, and %q", name, rest, s.says)
		}
		if s.state != status.OK && !strings.Contains(page, html.EscapeString(s.says)) {
			t.Errorf("the console does not say %q of %s", s.says, name)
		}
	}

	// All goes on while the person works.
	ctx, stop := context.WithCancel(t.Context())
	var growing sync.WaitGroup
	grown := slices.Clone(m.all)
	growing.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if s := grown[i%len(grown)]; s.name != "scans1" && s.another() != nil {
					t.Error("cannot write a file of", s.name)
				}
			}
		}
	})
	defer growing.Wait()
	defer stop()

	added := &manySource{set: "maps", kind: "atompmh", name: "added", state: status.OK}
	m.add(t, added, 7)
	f.run(exitDone, "source", "add", added.url, "--set", "maps", "--name", "added")
	f.run(exitDone, "source", "pause", "maps", "maps5", "--reason", "they move to a new machine")
	f.run(exitDone, "source", "rm", "maps/maps6")
	f.run(exitDone, "set", "rename", "news", "latest")
	for _, s := range m.all {
		if s.set == "news" {
			s.set = "latest"
		}
	}
	m.named("maps5").state, m.named("maps6").state = status.Paused, status.Former
	for _, name := range []string{"maps1", "articles1"} {
		m.named(name).mend()
		f.run(exitDone, "source", "harvest", m.named(name).set, name)
	}
	m.release()
	m.named("data3").state = status.OK
	stop()
	growing.Wait()

	// Each Source is as it shall be, and each record of those that answer is in the log once.
	f.until("all is as it shall be", func(all map[string]*status.Source) (missing []string) {
		for _, s := range m.all {
			if got := all[s.set+"/"+s.name]; got == nil || got.State != s.state {
				missing = append(missing, s.name)
			}
		}
		if len(missing) > 0 {
			return missing
		}
		logged := f.logged()
		for _, s := range m.all {
			if s.state == status.OK && s.says != "moved" && logged[s.name] != s.size() {
				missing = append(missing, s.name)
			}
		}
		return missing
	})
	if page := f.page(server + "/sets/news/"); !strings.Contains(page, "/sets/latest/") {
		t.Errorf("the former address of the set shows %s", page)
	}
	if got := f.run(exitDone, "source", "show", "maps", "maps5").stdout; !strings.Contains(got, "they move to a new machine") {
		t.Errorf("source show says %s", got)
	}
	f.end(serve, os.Interrupt)
	f.run(exitDone, "verify")
}

// logged returns how many records of each Source the log has. Each must have been created,
// once, and nothing else: none lacks that was there before another.
func (f *folder) logged() map[string]int {
	f.t.Helper()
	count, seen := map[string]int{}, map[string]bool{}
	record := regexp.MustCompile(`[/:]([a-z]+\d?)[/:](\d+)(\.[a-z]+)?$`)
	for line := range strings.Lines(f.run(exitDone, "log", "--json").stdout) {
		var e struct{ Set, Kind, Record string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			f.t.Fatalf("%v in %s", err, line)
		}
		at := record.FindStringSubmatch(e.Record)
		if at == nil || e.Kind != "created" || seen[e.Set+" "+e.Record] {
			f.t.Fatalf("the log has %s", line)
		}
		seen[e.Set+" "+e.Record] = true
		count[at[1]]++
	}
	return count
}

// page returns a page of the console.
func (f *folder) page(url string) string {
	f.t.Helper()
	status, body, _ := answerOf(f.t, url)
	if status != http.StatusOK {
		f.t.Fatalf("%s: %d", url, status)
	}
	return body
}

// until waits until nothing is missing of the Sources, by SET/NAME.
func (f *folder) until(what string, missing func(map[string]*status.Source) []string) {
	f.t.Helper()
	for limit := time.Now().Add(patience); ; <-time.After(askEvery) {
		c := f.runEnding([]int{exitDone, exitPartly}, "status", "--json")
		var got status.Status
		if err := json.Unmarshal([]byte(c.stdout), &got); err != nil {
			f.t.Fatalf("%v in %s%s", err, c.stdout, c.stderr)
		}
		all := map[string]*status.Source{}
		for i := range got.Sets {
			for j := range got.Sets[i].Sources {
				s := &got.Sets[i].Sources[j]
				all[got.Sets[i].Name+"/"+s.Name] = s
			}
		}
		if left := missing(all); len(left) == 0 {
			return
		} else if time.Now().After(limit) {
			f.t.Fatalf("%s: not %q in\n%s", what, left, c.stdout)
		}
	}
}
