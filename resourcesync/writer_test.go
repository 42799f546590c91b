package resourcesync

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// go test ./resourcesync -update writes the golden files anew.
var update = flag.Bool("update", false, "write the golden files anew")

var moment = time.Date(2026, 1, 2, 3, 4, 5, 6007, time.UTC)

func up() []Link {
	return []Link{{Rel: RelUp, Href: "http://example.org/sets/main/capabilitylist.xml"}}
}

// samples has a document of each kind that we write, with every attribute.
func samples() map[string]*Document {
	return map[string]*Document{
		"description": {Capability: Description, Entries: []Entry{{
			Loc:      "http://example.org/sets/main/capabilitylist.xml",
			Metadata: Metadata{Capability: CapabilityList},
			Links:    []Link{{Rel: RelDescribedBy, Href: "http://example.org/sets/main/"}}}}},
		"resourcelist": {Capability: ResourceList, At: Micros(moment), Completed: Seconds(moment), Links: up(),
			Entries: []Entry{{Loc: "http://example.org/r/1?a=1&b='2'", LastMod: Seconds(moment),
				Metadata: Metadata{Hash: "sha-256:" + strings.Repeat("0a", 32), Length: Bytes(0), Type: "text/html",
					ID: "urn:x:1", Title: "<\"A\" & 'B'>\tÅ"},
				Links: []Link{{Rel: RelVia, Href: "http://origin.example/1", Modified: Exact(moment),
					Hash: "md5:00", Length: Bytes(12), Type: "text/html", Pri: 3}}}}},
		"resourcelist-index": {Capability: ResourceList, Index: true, At: Micros(moment), Links: up(),
			Entries: []Entry{{Loc: "http://example.org/sets/main/resourcelist/1/1.xml", Metadata: Metadata{At: Micros(moment)}}}},
		"changelist": {Capability: ChangeList, From: Micros(moment), Until: Micros(moment.Add(time.Hour)), Links: up(),
			Entries: []Entry{{Loc: "http://example.org/r/1", LastMod: Seconds(moment),
				Metadata: Metadata{Change: Deleted, Datetime: Micros(moment.Add(time.Minute))}}}},
		"changelist-index": {Capability: ChangeList, Index: true, From: Micros(moment), Links: up(),
			Entries: []Entry{{Loc: "http://example.org/sets/main/changelist/1.xml", LastMod: Seconds(moment),
				Metadata: Metadata{From: Micros(moment), Until: Micros(moment)}}}},
	}
}

func encode(t *testing.T, d *Document) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := d.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(b.Len()) {
		t.Fatalf("WriteTo says %d bytes, wrote %d", n, b.Len())
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	for name, doc := range samples() {
		testenv.Golden(t, *update, filepath.Join("testdata", name+".xml"), encode(t, doc))
	}
}

// The schema of 0.9.1 knows neither attributes of other versions nor foreign
// elements, but it does know ours.
func TestSchema(t *testing.T) {
	lint, err := exec.LookPath("xmllint")
	if err != nil {
		t.Skip("the peer xmllint is not installed (libxml2-utils)")
	}
	schemas := filepath.Join("..", "..", "shared", "schemas")
	if _, err := os.Stat(schemas); err != nil {
		t.Skip("the joint schemas of the sitemap and ResourceSync are not beside this checkout")
	}
	for name, doc := range samples() {
		schema := "joint-sitemap-11.xsd"
		if doc.Index {
			schema = "joint-siteindex-11.xsd"
		}
		cmd := exec.Command(lint, "--noout", "--nonet", "--schema", filepath.Join(schemas, schema), "-")
		cmd.Stdin = bytes.NewReader(encode(t, doc))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestDatetime(t *testing.T) {
	for _, c := range []struct {
		got  Datetime
		want string
	}{
		{Seconds(moment), "2026-01-02T03:04:05Z"},
		{Micros(moment), "2026-01-02T03:04:05.000006Z"},
		{Exact(moment), "2026-01-02T03:04:05.000006007Z"},
		{Exact(moment.Truncate(time.Second)), "2026-01-02T03:04:05Z"},
		{Micros(moment.Truncate(time.Second)), "2026-01-02T03:04:05.000000Z"},
		{Exact(moment.Truncate(time.Second).Add(120 * time.Millisecond)), "2026-01-02T03:04:05.12Z"},
		{Seconds(moment.In(time.FixedZone("", 3600))), "2026-01-02T03:04:05Z"},
		{Seconds(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)), "0001-01-01T00:00:00Z"},
		{Micros(time.Unix(-1, 999999999)), "1969-12-31T23:59:59.999999Z"},
		{Seconds(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), ""},
		{Datetime{}, ""},
	} {
		if got := c.got.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if c.want == "" != c.got.IsZero() {
			t.Errorf("%q: IsZero is %v", c.want, c.got.IsZero())
		}
	}
}

// Datetimes agree with the standard library's for all times.
func TestDatetimeLikeTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC()
		if got, want := Exact(at).String(), at.Format(time.RFC3339Nano); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		if got, want := Micros(at).String(), at.Format("2006-01-02T15:04:05.000000Z"); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		if !Exact(at).Time().Equal(at) {
			t.Fatalf("%v comes back as %v", at, Exact(at).Time())
		}
	})
}

func TestRules(t *testing.T) {
	list := func(e Entry) *Document {
		return &Document{Capability: ChangeList, From: Micros(moment), Until: Micros(moment.Add(time.Hour)), Links: up(), Entries: []Entry{e}}
	}
	at := func(d time.Duration) Metadata { return Metadata{Change: Created, Datetime: Micros(moment.Add(d))} }
	backwards := list(Entry{Loc: "http://a", Metadata: at(2)})
	backwards.Entries = append(backwards.Entries, Entry{Loc: "http://a", Metadata: at(-time.Minute + time.Hour)}, Entry{Loc: "http://a", Metadata: at(time.Second)})
	for name, doc := range map[string]*Document{
		"no capability":         {},
		"unknown capability":    {Capability: "list"},
		"no at":                 {Capability: ResourceList, Links: up()},
		"at on changes":         {Capability: ChangeList, At: Micros(moment), From: Micros(moment), Links: up()},
		"from on resources":     {Capability: ResourceList, At: Micros(moment), From: Micros(moment), Links: up()},
		"no from":               {Capability: ChangeList, Links: up()},
		"no up":                 {Capability: ResourceList, At: Micros(moment)},
		"until before from":     {Capability: ChangeList, From: Micros(moment), Until: Micros(moment.Add(-1000)), Links: up()},
		"capability list index": {Capability: CapabilityList, Index: true, Links: up()},
		"at on description":     {Capability: Description, At: Micros(moment)},
		"link without href":     {Capability: Description, Links: []Link{{Rel: RelUp}}},
		"entry without loc":     list(Entry{Metadata: at(0)}),
		"no change":             list(Entry{Loc: "http://a"}),
		"unknown change":        list(Entry{Loc: "http://a", Metadata: Metadata{Change: "moved"}}),
		"before from":           list(Entry{Loc: "http://a", Metadata: at(-time.Second)}),
		"after until":           list(Entry{Loc: "http://a", Metadata: at(time.Hour + time.Second)}),
		"backwards":             backwards,
		"entry link":            list(Entry{Loc: "http://a", Metadata: at(0), Links: []Link{{Href: "http://b"}}}),
		"entry link's pri":      list(Entry{Loc: "http://a", Metadata: at(0), Links: []Link{{Rel: RelDuplicate, Href: "http://b", Pri: 1_000_000}}}),
		"no entry capability":   {Capability: CapabilityList, Links: up(), Entries: []Entry{{Loc: "http://a"}}},
	} {
		_, err := doc.WriteTo(io.Discard)
		var rule *RuleError
		if !errors.As(err, &rule) || rule.Clause == "" || rule.Place == "" || rule.Broken == "" {
			t.Errorf("%s: got %v, want a RuleError", name, err)
		}
	}
}

// What is carried in a namespace of its own is written with its prefix declared once, on the
// root, when the first entry has any of it, or else on each element that has.
func TestWriterDeclares(t *testing.T) {
	plain := Entry{Loc: "http://example.org/1"}
	carrying := Entry{Loc: "http://example.org/2", Metadata: Metadata{Title: "T", CarriedModified: Seconds(moment)}, Links: []Link{{Rel: RelVia, Href: "urn:x", ID: "urn:x:1"}}}
	for _, c := range []struct {
		name    string
		entries []Entry
		want    int
	}{
		{"none", []Entry{plain}, 0},
		{"the first", []Entry{carrying, plain, carrying}, 1},
		{"the others", []Entry{plain, carrying, carrying}, 4},
	} {
		doc := encode(t, &Document{Capability: ResourceList, At: Micros(moment), Links: up(), Entries: c.entries})
		if n := strings.Count(string(doc), `xmlns:b="`+CarriedNamespace+`"`); n != c.want {
			t.Errorf("%s: %d declarations, want %d\n%s", c.name, n, c.want, doc)
		}
		got := readAll(t, doc)
		for i := range c.entries {
			if e := placeless(got.doc).Entries[i]; e.Metadata.Title != c.entries[i].Metadata.Title || e.Metadata.CarriedModified != c.entries[i].Metadata.CarriedModified ||
				len(e.Links) > 0 && e.Links[0].ID != c.entries[i].Links[0].ID {
				t.Errorf("%s: entry %d is read as %+v", c.name, i, e)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	head := &Document{Capability: ResourceList, At: Micros(moment), Links: up()}
	entry := &Entry{Loc: "http://example.org/r/1"}
	var b bytes.Buffer
	w := NewWriter(&b, head)
	w.MaxEntries = 2
	for i, want := range []error{nil, nil, ErrFull, ErrFull} {
		if err := w.Entry(entry); err != want {
			t.Fatalf("entry %d: got %v, want %v", i, err, want)
		}
	}
	empty := NewWriter(io.Discard, head)
	before := empty.Size()
	if n, err := head.WriteTo(io.Discard); err != nil || empty.Close() != nil || before != n || empty.Size() != n {
		t.Errorf("without entries: size %d before and %d after, wrote %d bytes, %v", before, empty.Size(), n, err)
	}
	size := w.Size()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if size != int64(b.Len()) || w.Size() != size || w.Entries() != 2 {
		t.Errorf("size %d before and %d after, %d entries; wrote %d bytes", size, w.Size(), w.Entries(), b.Len())
	}
	if err := w.Entry(entry); err == nil {
		t.Error("a closed document took an entry")
	}

	var c bytes.Buffer
	w = NewWriter(&c, head)
	w.MaxBytes = size
	for i, want := range []error{nil, nil, ErrFull} {
		if err := w.Entry(entry); err != want {
			t.Fatalf("entry %d: got %v, want %v", i, err, want)
		}
	}
	if err := w.Close(); err != nil || !bytes.Equal(b.Bytes(), c.Bytes()) {
		t.Errorf("a refused entry left something behind: %v\n%s", err, c.Bytes())
	}

	w = NewWriter(io.Discard, head)
	w.MaxBytes = 1
	if err := w.Entry(entry); err != nil {
		t.Errorf("the first entry was refused: %v", err)
	}
}

// failing takes n bytes and then fails.
type failing struct{ n int }

var errFailing = errors.New("no room")

func (f *failing) Write(p []byte) (int, error) {
	if len(p) > f.n {
		return f.n, errFailing
	}
	f.n -= len(p)
	return len(p), nil
}

func TestWriterFails(t *testing.T) {
	for _, room := range []int{0, 100, strictxml.PieceSize + 10} {
		w := NewWriter(&failing{room}, &Document{Capability: ResourceList, At: Micros(moment), Links: up()})
		for range 2000 {
			_ = w.Entry(&Entry{Loc: "http://example.org/" + strings.Repeat("x", 100)}) // Close tells
		}
		if err := w.Close(); !errors.Is(err, errFailing) {
			t.Errorf("room %d: got %v", room, err)
		}
		if err := w.Close(); !errors.Is(err, errFailing) {
			t.Errorf("room %d: the second time got %v", room, err)
		}
	}
}

// BenchmarkWriter writes 50,000 entries; its rival is the standard library's escaping
// with a buffer.
func BenchmarkWriter(b *testing.B) {
	e := samples()["resourcelist"].Entries[0]
	e.Loc, e.Metadata.Title = "https://bridge.example/sets/main/records/urn-example-abcdefghijklmnopqrstuvwxyz", "A title of usual length & <kind>"
	head := Document{Capability: ResourceList, At: Micros(moment), Links: up()}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			w := NewWriter(io.Discard, &head)
			for range 50_000 {
				if err := w.Entry(&e); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(w.Size())
		}
	})
	b.Run("rival/escapetext", func(b *testing.B) {
		for range b.N {
			w := bufio.NewWriter(io.Discard)
			text := func(s string) { _ = xml.EscapeText(w, []byte(s)) }
			for range 50_000 {
				w.WriteString(" <url>\n  <loc>")
				text(e.Loc)
				fmt.Fprintf(w, "</loc>\n  <lastmod>%s</lastmod>\n  <rs:md hash=\"", e.LastMod)
				text(e.Metadata.Hash)
				fmt.Fprintf(w, "\" length=\"%d\" type=\"", e.Metadata.Length.n)
				text(e.Metadata.Type)
				w.WriteString("\" b:title=\"")
				text(e.Metadata.Title)
				w.WriteString("\"/>\n  <rs:ln rel=\"via\" href=\"")
				text(e.Links[0].Href)
				fmt.Fprintf(w, "\" modified=\"%s\"/>\n </url>\n", e.Links[0].Modified)
			}
		}
	})
}
