package daemon_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// documents asks for every published document but robots.txt and those of a
// snapshot.
func (o *harness) documents() []webReply {
	o.t.Helper()
	all := []webReply{o.get("/.well-known/resourcesync")}
	for _, name := range []string{".well-known/resourcesync", "capabilitylist.xml", "resourcelist.xml", "changelist-index.xml", "changelist.xml"} {
		all = append(all, o.get(o.setURL(name)))
	}
	for _, l := range o.changeLists() {
		all = append(all, o.get(l.url))
	}
	return all
}

// schema checks documents against the joint schema of sitemaps and ResourceSync.
type schema struct{ lint, folder string }

func newSchema(t *testing.T) schema {
	t.Helper()
	return schema{testenv.Need(t, "xmllint", "libxml2-utils"), testenv.Shared(t, "schemas")}
}

// check returns what the schema says of a document, "" when it passes.
func (s schema) check(doc []byte) string {
	driver := "joint-sitemap-11.xsd"
	if bytes.Contains(doc, []byte("<sitemapindex")) {
		driver = "joint-siteindex-11.xsd"
	}
	cmd := exec.Command(s.lint, "--noout", "--nonet", "--huge", "--schema", filepath.Join(s.folder, driver), "-")
	cmd.Stdin = bytes.NewReader(doc)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return ""
}

// onlySays reports whether all errors of a verdict are of one kind.
func onlySays(verdict string, known ...string) bool {
	n := 0
	for line := range strings.Lines(verdict) {
		if strings.Contains(line, ": Schemas validity error") || strings.Contains(line, ": element ") {
			n++
			if !slices.ContainsFunc(known, func(k string) bool { return strings.Contains(line, k) }) {
				return false
			}
		}
	}
	return n > 0
}

// TestSchemaTakesEveryDocument has two known refusals, which are checked to be
// just these: a list without entries, and a media type with a dot.
func TestSchemaTakesEveryDocument(t *testing.T) {
	testenv.Heavy(t)
	s := newSchema(t)
	eachMode(t, func(t *testing.T, o *harness, mode string) {
		docs := o.documents()
		for _, d := range docs {
			if verdict := s.check(d.body); verdict != "" {
				t.Errorf("%s: %s", d.url, verdict)
			}
		}
		t.Logf("%d documents pass", len(docs))
	})
	t.Run("known refusals", func(t *testing.T) {
		p := fixtures.New(fixtures.Options{})
		o := newPublisher(newHarness(t, p, segments(2)))
		o.harvest()
		for _, d := range o.documents() {
			verdict := s.check(d.body)
			if empty := !bytes.Contains(d.body, []byte("<loc>")); empty != (verdict != "") || empty && !onlySays(verdict, "Missing child element(s)") {
				t.Errorf("%s: %s", d.url, verdict)
			}
		}
		p.Create(record("a", fixtures.Format{Ext: "json", Type: "application/vnd.example+json"}))
		p.Create(record("b", fixtures.Format{Ext: "xml", Type: "text/xml; charset=utf-8"}))
		p.Create(record("c"))
		o.harvest()
		refused := 0
		for _, d := range o.documents() {
			verdict := s.check(d.body)
			dotted := bytes.Contains(d.body, []byte("vnd.example")) || bytes.Contains(d.body, []byte("charset"))
			if dotted != (verdict != "") || dotted && !onlySays(verdict, "vnd.example", "charset") {
				t.Errorf("%s: %s", d.url, verdict)
			}
			if dotted {
				refused++
			}
		}
		if refused != 3 {
			t.Errorf("%d documents have such a type, want the Resource List, segment 1 and the window", refused)
		}
	})
}

// readLine is a line that the independent reader prints.
type readLine struct {
	Document string
	Root     string
	Entries  int
	Entry    string
	N        int
	LastMod  *string
	MD       map[string]string
	Links    []map[string]string
}

// readBy is what the independent reader found: documents in the order in which
// it read them, and the entries of each.
type readBy struct {
	documents []readLine
	entries   map[string][]readLine
}

// readIndependently runs the reader, which must find nothing wrong.
func (o *harness) readIndependently(t *testing.T, args ...string) readBy {
	t.Helper()
	python := testenv.Need(t, "python3", "python3")
	script := filepath.Join(testenv.Root(t), "testdata", "independent_reader.py")
	cmd := exec.Command(python, append([]string{script}, args...)...)
	var out, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil || wrong.Len() > 0 {
		t.Fatalf("independent reader %v: %v\n%.4000s", args, err, wrong.String())
	}
	read := readBy{entries: map[string][]readLine{}}
	lines := bufio.NewScanner(&out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l readLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		if l.N > 0 {
			read.entries[l.Document] = append(read.entries[l.Document], l)
		} else {
			read.documents = append(read.documents, l)
		}
	}
	for _, d := range read.documents {
		if len(read.entries[d.Document]) != d.Entries {
			t.Errorf("%s: %d entries were told, %d counted", d.Document, len(read.entries[d.Document]), d.Entries)
		}
	}
	return read
}

// ours is the namespace of the attributes that only another bridge reads.
const ours = "{urn:x-bridge:terms:1}"

// wantEntry writes down from the event alone what a list has to say of it. It
// shares nothing with the code that publishes.
func (o *harness) wantEntry(mode string, e *event.Event, change bool) readLine {
	loc := o.base + "/sets/main/records/" + event.Key(e.Record)
	lastmod := e.Observed.Time()
	if mode == config.Reference {
		loc, lastmod = e.Loc, e.Modified.Time()
	}
	stamp := lastmod.Truncate(time.Second).Format(time.RFC3339)
	l := readLine{Entry: loc, LastMod: &stamp, MD: map[string]string{ours + "id": e.Record, ours + "title": e.Title}}
	if change {
		l.MD["change"], l.MD["datetime"] = e.Kind.String(), e.Observed.String()
	}
	via := map[string]string{"rel": "via", "href": e.Via.Href, "modified": e.Modified.String()}
	l.Links = append(l.Links, via)
	for i, r := range e.Representations {
		if !strings.Contains(r.Type, "/") || strings.ContainsFunc(r.Type, func(c rune) bool { return c > '~' }) {
			r.Type = "" // it is none
		}
		if i == e.Preferred {
			state(via, r)
		}
		if mode == config.Mirror && r.Type == "" {
			r.Type = "application/octet-stream" // what we serve it as
		}
		if i == e.Preferred {
			state(l.MD, r)
			continue
		}
		href := loc + "." + r.Name
		if mode == config.Reference {
			href = r.Href
		}
		link := map[string]string{"rel": "alternate", "href": href}
		state(link, r)
		l.Links = append(l.Links, link)
	}
	return l
}

func state(of map[string]string, r event.Representation) {
	if r.Hash != "" {
		of["hash"] = r.Hash
	}
	if r.Length >= 0 {
		of["length"] = strconv.FormatInt(r.Length, 10)
	}
	if r.Type != "" {
		of["type"] = r.Type
	}
}

// same compares entries wherever they stand.
func same(a, b readLine) bool {
	if a.Entry != b.Entry || (a.LastMod == nil) != (b.LastMod == nil) || a.LastMod != nil && *a.LastMod != *b.LastMod {
		return false
	}
	return maps.Equal(a.MD, b.MD) && slices.EqualFunc(a.Links, b.Links, maps.Equal)
}

// wantRead compares the entries of one document.
func (r *readBy) wantRead(t *testing.T, url string, want []readLine) {
	t.Helper()
	got := r.entries[url]
	if len(got) != len(want) {
		t.Errorf("%s: the independent reader found %d entries, want %d", url, len(got), len(want))
		return
	}
	for i := range want {
		if !same(got[i], want[i]) {
			t.Errorf("%s, entry %d:\n got %+v\nwant %+v", url, i+1, got[i], want[i])
			return
		}
	}
}

// TestIndependentReaderReadsTheLog compares what a reader that shares nothing
// with us finds in the documents with the events of the log.
func TestIndependentReaderReadsTheLog(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	testenv.Need(t, "python3", "python3")
	eachMode(t, func(t *testing.T, o *harness, mode string) {
		args := []string{"--window", o.base + "/.well-known/resourcesync"}
		if mode == config.Mirror {
			args = append([]string{"--content"}, args...) // it compares every content too
		}
		o.compareRead(t, mode, o.readIndependently(t, args...))
		// A client that can follow only one set finds the same from its own
		// description.
		alone := o.readIndependently(t, o.setURL(".well-known/resourcesync"))
		alone.wantRead(t, o.setURL(".well-known/resourcesync"), []readLine{{Entry: o.setURL("capabilitylist.xml"),
			MD: map[string]string{"capability": "capabilitylist"}, Links: []map[string]string{{"rel": "describedby", "href": o.setURL("")}}}})
		if len(alone.documents) < 4 {
			t.Errorf("from the set's own description only %d documents are found", len(alone.documents))
		}
	})
}

// compareRead compares all documents that the reader found with the log.
func (o *harness) compareRead(t *testing.T, mode string, read readBy) {
	t.Helper()
	entry := func(loc string, md map[string]string, links ...map[string]string) readLine {
		return readLine{Entry: loc, MD: md, Links: links}
	}
	read.wantRead(t, o.base+"/.well-known/resourcesync", []readLine{entry(o.setURL("capabilitylist.xml"),
		map[string]string{"capability": "capabilitylist"}, map[string]string{"rel": "describedby", "href": o.setURL("")})})
	read.wantRead(t, o.setURL("capabilitylist.xml"), []readLine{
		entry(o.setURL("resourcelist.xml"), map[string]string{"capability": "resourcelist"}),
		entry(o.setURL("changelist-index.xml"), map[string]string{"capability": "changelist"})})

	stored, err := o.bridge.Log.Segments(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	var index []readLine
	for _, s := range stored {
		md := map[string]string{"from": s.From.String()}
		l := entry(o.setURL(fmt.Sprintf("changelist/%d.xml", s.N)), md)
		if !s.Open() {
			md["until"] = s.Until.String()
			lastmod := s.Until.Time().Truncate(time.Second).Format(time.RFC3339)
			l.LastMod = &lastmod
		}
		index = append(index, l)
		read.wantRead(t, l.Entry, o.wantChanges(mode, o.logged(s.Range())))
	}
	read.wantRead(t, o.setURL("changelist-index.xml"), index)

	window := read.entries[o.setURL("changelist.xml")]
	all := o.wantChanges(mode, o.logged(event.Range{Upto: o.last()}))
	read.wantRead(t, o.setURL("changelist.xml"), all[len(all)-len(window):])
	o.compareResources(t, mode, read)
	t.Logf("%d documents, %d changes and %d window entries are as the log says", len(read.documents), len(all), len(window))
}

func (o *harness) wantChanges(mode string, events []event.Event) []readLine {
	var out []readLine
	for i := range events {
		out = append(out, o.wantEntry(mode, &events[i], true))
	}
	return out
}

// compareResources plays the log up to what the Resource List shows, and compares
// the list with what lives then.
func (o *harness) compareResources(t *testing.T, mode string, read readBy) {
	t.Helper()
	url := o.setURL("resourcelist.xml")
	at := slices.IndexFunc(read.documents, func(d readLine) bool { return d.Document == url })
	if at < 0 {
		t.Fatal("no Resource List was read")
	}
	list := read.documents[at]
	last := map[string]*event.Event{}
	for _, e := range o.logged(event.Range{Upto: o.last()}) {
		if e.Observed.String() > list.MD["at"] {
			break
		}
		last[e.Record] = &e
		if !e.Live() {
			delete(last, e.Record)
		}
	}
	live := slices.SortedFunc(maps.Values(last), func(a, b *event.Event) int { return int(a.Seq - b.Seq) })
	var want []readLine
	for _, e := range live {
		want = append(want, o.wantEntry(mode, e, false))
	}
	if list.Root == "sitemapindex" {
		var parts []readLine
		for _, p := range read.entries[url] {
			parts = append(parts, read.entries[p.Entry]...)
		}
		read.entries[url] = parts
	}
	read.wantRead(t, url, want)
	t.Logf("Resource List: %s with %d records", list.Root, len(want))
}
