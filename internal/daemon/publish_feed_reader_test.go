package daemon_test

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// The documents of Atom-PMH as this test reads them, with encoding/xml and
// nothing of ours.
type (
	feedDoc struct {
		webReply
		XMLName  xml.Name
		ID       []string    `xml:"http://www.w3.org/2005/Atom id"`
		Title    []string    `xml:"http://www.w3.org/2005/Atom title"`
		Updated  []string    `xml:"http://www.w3.org/2005/Atom updated"`
		Author   []string    `xml:"http://www.w3.org/2005/Atom author>name"`
		Archive  *struct{}   `xml:"http://purl.org/syndication/history/1.0 archive"`
		Complete *struct{}   `xml:"http://purl.org/syndication/history/1.0 complete"`
		Links    []feedLink  `xml:"http://www.w3.org/2005/Atom link"`
		Entries  []feedEntry `xml:"http://www.w3.org/2005/Atom entry"`
	}
	feedEntry struct {
		Carried  string        `xml:"urn:x-bridge:terms:1 id,attr"`
		Modified string        `xml:"urn:x-bridge:terms:1 modified,attr"`
		ID       []string      `xml:"http://www.w3.org/2005/Atom id"`
		Title    []string      `xml:"http://www.w3.org/2005/Atom title"`
		Updated  []string      `xml:"http://www.w3.org/2005/Atom updated"`
		Links    []feedLink    `xml:"http://www.w3.org/2005/Atom link"`
		Content  []feedContent `xml:"http://www.w3.org/2005/Atom content"`

		Published string   `xml:"http://www.w3.org/2005/Atom published"`
		Authors   []string `xml:"http://www.w3.org/2005/Atom author>name"`
		Rights    struct {
			Language string `xml:"http://www.w3.org/XML/1998/namespace lang,attr"`
			Text     string `xml:",chardata"`
		} `xml:"http://www.w3.org/2005/Atom rights"`
		Categories []struct {
			Term   string `xml:"term,attr"`
			Scheme string `xml:"scheme,attr"`
		} `xml:"http://www.w3.org/2005/Atom category"`
		Source *struct {
			ID      string `xml:"http://www.w3.org/2005/Atom id"`
			Title   string `xml:"http://www.w3.org/2005/Atom title"`
			Updated string `xml:"http://www.w3.org/2005/Atom updated"`
		} `xml:"http://www.w3.org/2005/Atom source"`
	}
	feedLink struct {
		Rel      string `xml:"rel,attr"`
		Href     string `xml:"href,attr"`
		Type     string `xml:"type,attr"`
		Lang     string `xml:"hreflang,attr"`
		Length   string `xml:"length,attr"`
		Hash     string `xml:"urn:x-bridge:terms:1 hash,attr"`
		Modified string `xml:"urn:x-bridge:terms:1 modified,attr"`
		Original string `xml:"urn:x-bridge:terms:1 length,attr"`
	}
	feedContent struct {
		Attrs []xml.Attr `xml:",any,attr"`
		Inner string     `xml:",innerxml"`
	}
)

// faults is where a check tells what is wrong: a testing.T or a rapid.T.
type faults interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// feed reads a feed document.
func (o *harness) readFeed(url string) *feedDoc {
	o.t.Helper()
	doc := &feedDoc{webReply: o.get(url)}
	doc.field(o.t, "Content-Type", "application/atom+xml")
	if err := xml.Unmarshal(doc.body, doc); err != nil {
		o.t.Fatalf("%s: %v", url, err)
	}
	if doc.XMLName != (xml.Name{Space: "http://www.w3.org/2005/Atom", Local: "feed"}) {
		o.t.Fatalf("%s is a %v", url, doc.XMLName)
	}
	return doc
}

// chain reads the feed from its subscription document to its oldest one.
func (o *harness) chain() []*feedDoc {
	o.t.Helper()
	var docs []*feedDoc
	for url := o.setURL("feed.atom"); url != ""; url = docs[len(docs)-1].to("prev-archive") {
		if docs = append(docs, o.readFeed(url)); len(docs) > 1000 {
			o.t.Fatalf("the chain has no end")
		}
	}
	return docs
}

// to is where the document links with a relation, "" when it does not.
func (d *feedDoc) to(rel string) (href string) {
	for _, l := range d.Links {
		if l.Rel == rel {
			href += l.Href
		}
	}
	return href
}

// of returns the links of an entry with one of some relations, in order.
func (e *feedEntry) of(rels ...string) (links []feedLink) {
	for _, l := range e.Links {
		for _, rel := range rels {
			if l.Rel == rel {
				links = append(links, l)
			}
		}
	}
	return links
}

func (e *feedEntry) alternates() []feedLink {
	return e.of("alternate", "urn:x-bridge:terms:1:alternate")
}

// record is what the bridge calls the record.
func (e *feedEntry) record() string {
	if e.Carried != "" {
		return e.Carried
	}
	return e.ID[0]
}

func (d *feedDoc) updated() time.Time { return stampIn(d.Updated) }

func (e *feedEntry) updated() time.Time { return stampIn(e.Updated) }

// stampIn is the zero time when there is not just one.
func stampIn(s []string) time.Time {
	if len(s) != 1 {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s[0])
	if err != nil {
		return time.Time{}
	}
	return t
}

// newest returns each record's newest entry in a chain.
func newest(docs []*feedDoc) map[string]*feedEntry {
	state := map[string]*feedEntry{}
	for i := len(docs) - 1; i >= 0; i-- {
		for j := range docs[i].Entries {
			e := &docs[i].Entries[j]
			if old := state[e.record()]; old == nil || !e.updated().Before(old.updated()) {
				state[e.record()] = e
			}
		}
	}
	return state
}

// checkChain applies the rules that a chain of documents can break.
func (o *harness) checkChain(t faults, docs []*feedDoc) {
	t.Helper()
	first := docs[0]
	if first.Archive != nil || first.Complete != nil {
		t.Errorf("the subscription document is an archive or complete")
	}
	seen := map[string]time.Time{}
	for i, d := range docs {
		d.checkSelf(t)
		if d.Complete != nil || i > 0 && d.Archive == nil || d.to("current") != first.url || d.ID[0] != first.ID[0] {
			t.Errorf("%s: complete %v, archive %v, current %s, id %s", d.url, d.Complete != nil, d.Archive != nil, d.to("current"), d.ID[0])
		}
		next := "" // an archive leads on once the next one has closed too
		if i > 1 {
			next = docs[i-1].url
		}
		if d.to("next-archive") != next {
			t.Errorf("%s: next-archive is %q, want %q", d.url, d.to("next-archive"), next)
		}
		for j := range d.Entries {
			e := &d.Entries[j]
			if i+1 < len(docs) && e.updated().Before(docs[i+1].updated()) {
				t.Errorf("S2: %s has an entry of %v, and the document before is of %v", d.url, e.updated(), docs[i+1].updated())
			}
			if later, ok := seen[e.record()]; ok && e.updated().After(later) {
				t.Errorf("S4: %s has an entry of %v, and a newer document one of %v", d.url, e.updated(), later)
			}
		}
		for j := range d.Entries {
			e := &d.Entries[j]
			if e.updated().After(seen[e.record()]) {
				seen[e.record()] = e.updated()
			}
		}
	}
}

// checkSelf applies the rules that one document can break: S1, S7, S10, S11 and
// those of RFC 4287.
func (d *feedDoc) checkSelf(t faults) {
	t.Helper()
	if len(d.ID) != 1 || len(d.Title) != 1 || d.Title[0] == "" || len(d.Author) != 1 || d.Author[0] == "" || d.updated().IsZero() || d.to("self") != d.url {
		t.Fatalf("%s: id %q, title %q, author %q, updated %q, self %s", d.url, d.ID, d.Title, d.Author, d.Updated, d.to("self"))
	}
	if d.Complete != nil && d.to("prev-archive") != "" {
		t.Errorf("S11: %s is complete and has prev-archive", d.url)
	}
	for i := range d.Entries {
		e := &d.Entries[i]
		at := fmt.Sprintf("%s, entry %d", d.url, i+1)
		if len(e.ID) != 1 || !strings.Contains(e.ID[0], ":") || len(e.Title) != 1 || e.Title[0] == "" || e.updated().IsZero() {
			t.Fatalf("%s: id %q, title %q, updated %q", at, e.ID, e.Title, e.Updated)
		}
		if e.updated().After(d.updated()) {
			t.Errorf("S1: %s is of %v, the feed of %v", at, e.updated(), d.updated())
		}
		switch active := len(e.of("alternate")) > 0; {
		case active && len(e.Content) > 0:
			t.Errorf("S10: %s has an alternate and content", at)
		case !active && (len(e.Content) != 1 || len(e.Content[0].Attrs) > 0 || e.Content[0].Inner != "" || len(e.alternates()) > 0):
			t.Errorf("S10: %s is no bare deletion entry", at)
		case !active && d.Complete != nil:
			t.Errorf("S7: %s is a deletion entry in a complete feed", at)
		}
		kinds := map[string]bool{}
		for _, l := range e.of("alternate") {
			if kind := strings.ToLower(l.Type) + " " + l.Lang; kinds[kind] {
				t.Errorf("%s has two alternates of %s", at, kind)
			} else {
				kinds[kind] = true
			}
		}
		for _, l := range append(e.Links, d.Links...) {
			if !strings.HasPrefix(l.Href, "http://") {
				t.Errorf("%s links to %q", at, l.Href)
			}
		}
	}
}

// checkHeader compares what HTTP says of a document with what the document is:
// only an archive that leads on is in its last form (P2, P7).
func (d *feedDoc) checkHeader(t *testing.T, o *harness) {
	t.Helper()
	control, modified := "no-cache", ""
	if d.to("next-archive") != "" {
		control = "public, max-age=86400"
		modified = o.readFeed(d.to("next-archive")).updated().UTC().Format(http.TimeFormat)
	}
	d.field(t, "Cache-Control", control)
	d.field(t, "Last-Modified", modified)
	o.ask(http.MethodGet, d.url, "If-None-Match", d.header.Get("ETag")).want(t, http.StatusNotModified)
	if modified == "" {
		o.get(d.url, "If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	}
}

// atomSchema checks documents against the schema of RFC 4287, all at once: to
// start jing takes longer than to check a document.
type atomSchema struct {
	t            *testing.T
	jing, schema string
	folder       string
	names        map[string]string // of documents, by file
}

func newAtomSchema(t *testing.T) *atomSchema {
	t.Helper()
	return &atomSchema{t: t, jing: testenv.Need(t, "jing", "jing"), schema: filepath.Join(testenv.Shared(t, "schemas"), "atom-rfc4287.rnc"),
		folder: t.TempDir(), names: map[string]string{}}
}

func (s *atomSchema) add(docs ...*feedDoc) {
	s.t.Helper()
	for _, d := range docs {
		file := filepath.Join(s.folder, fmt.Sprintf("%d.atom", len(s.names)))
		if err := os.WriteFile(file, d.body, 0o666); err != nil {
			s.t.Fatal(err)
		}
		s.names[file] = d.url
	}
}

// check fails unless the schema takes all documents.
func (s *atomSchema) check(atLeast int) {
	s.t.Helper()
	if len(s.names) < atLeast {
		s.t.Fatalf("%d documents, want at least %d", len(s.names), atLeast)
	}
	args := []string{"-c", s.schema}
	for file := range s.names {
		args = append(args, file)
	}
	out, err := exec.CommandContext(s.t.Context(), s.jing, args...).CombinedOutput()
	if err != nil {
		s.t.Errorf("%v\n%.3000s", err, out)
	}
	s.t.Logf("%d documents pass", len(s.names))
}
