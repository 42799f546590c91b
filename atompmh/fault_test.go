package atompmh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"github.com/mmcdole/gofeed/atom"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestDocumentFaults(t *testing.T) {
	const root = `<feed xmlns="http://www.w3.org/2005/Atom">`
	tests := []struct{ name, doc, reason string }{
		{"empty", "", "empty"},
		{"white space", " \n", "empty"},
		{"comment only", "<!-- -->", "empty"},
		{"text", "hello", "text outside"},
		{"JSON", `{"version":"https://jsonfeed.org/version/1"}`, "text outside"},
		{"entry document", `<entry xmlns="http://www.w3.org/2005/Atom"/>`, "an Atom Entry Document"},
		{"RSS", `<rss version="2.0"/>`, "RSS 2.0"},
		{"RSS 1.0", `<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>`, "RDF"},
		{"HTML", `<html><body/></html>`, "an HTML page"},
		{"HTML with doctype", `<!doctype HTML><html/>`, "an HTML page"},
		{"Atom 0.3", `<feed xmlns="http://purl.org/atom/ns#" version="0.3"/>`, "Atom 0.3"},
		{"near miss, slash", `<feed xmlns="http://www.w3.org/2005/Atom/"/>`, "nearly"},
		{"near miss, case", `<feed xmlns="http://www.w3.org/2005/atom"/>`, "nearly"},
		{"near miss, https", `<feed xmlns="https://www.w3.org/2005/Atom"/>`, "nearly"},
		{"root in capitals", `<FEED xmlns="http://www.w3.org/2005/Atom"/>`, "nearly"},
		{"no namespace", `<feed/>`, "without a namespace"},
		{"sitemap", `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"/>`, "ResourceSync document <urlset>"},
		{"OAI-PMH", `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"/>`, "an OAI-PMH response"},
		{"something else", `<x xmlns="urn:x"/>`, `<x> in namespace "urn:x"`},
		{"doctype", `<!DOCTYPE feed [<!ENTITY a "b">]>` + root + `</feed>`, "DOCTYPE is refused"},
		{"doctype inside", root + `<!DOCTYPE feed></feed>`, "DOCTYPE is refused"},
		{"entity", root + `<title>&nbsp;</title></feed>`, "&nbsp;"},
		{"entity cut by a line break", root + "<title>&\n</title></feed>", "& (no semicolon)"},
		{"surrogate", root + `<id>a&#xD800;</id></feed>`, "&#xD800; is no character"},
		{"surrogate in an attribute", root + `<link href="&#57343;"/></feed>`, "&#57343; is no character"},
		{"control character", root + `<id>&#1;</id></feed>`, "illegal character"},
		{"not UTF-8", root + "<id>\xff</id></feed>", "invalid UTF-8"},
		{"undeclared element prefix", root + `<x:y/></feed>`, "not declared"},
		{"undeclared attribute prefix", root + `<y x:z=""/></feed>`, "not declared"},
		{"prefix out of scope", root + `<y xmlns:x="urn:x"/><x:y/></feed>`, "not declared"},
		{"prefix of nothing", root + `<y xmlns:x=""/></feed>`, "not allowed"},
		{"xml rebound", root + `<y xmlns:xml="urn:x"/></feed>`, "not allowed"},
		{"colon at the front", root + `<:y/></feed>`, "not declared"},
		{"second root", root + `</feed>` + root + `</feed>`, "second root"},
		{"text after the root", root + `</feed>x`, "text outside"},
		{"CDATA after the root", root + `</feed><![CDATA[ ]]>`, "text outside"},
		{"late declaration", root + `<?xml version="1.0"?></feed>`, "not at the start"},
		{"declaration after white space", ` <?xml version="1.0"?>` + root + `</feed>`, "not at the start"},
		{"duplicate attribute", root + `<y a="1" a="1"/></feed>`, "twice"},
		{"duplicate by namespace", root + `<y xmlns:p="urn:x" xmlns:q="urn:x" p:a="1" q:a="1"/></feed>`, "twice"},
		{"duplicate declaration", `<feed xmlns="http://www.w3.org/2005/Atom" xmlns="http://www.w3.org/2005/Atom"/>`, "twice"},
		{"crossed tags", root + `<a><b></a></b></feed>`, "<b> is closed by </a>"},
		{"other prefix at the end", `<a:feed xmlns:a="http://www.w3.org/2005/Atom" xmlns="http://www.w3.org/2005/Atom"></feed>`, "<a:feed> is closed by </feed>"},
		{"end without start", root + `</feed></feed>`, "closes nothing"},
		{"stray quote", root + `<link href="a"/2012"/></feed>`, "broken XML"},
		{"XML 1.1", `<?xml version="1.1"?>` + root + `</feed>`, "version"},
		{"cut in a tag", root + `<lin`, "cut off"},
		{"cut between tags", root + `<title>`, "cut off inside <title>"},
		{"unknown charset", `<?xml version="1.0" encoding="x-klingon"?>` + root + `</feed>`, "x-klingon"},
		{"replacement charset", `<?xml version="1.0" encoding="iso-2022-kr"?>` + root + `</feed>`, "iso-2022-kr"},
		{"bytes that are not of the charset", `<?xml version="1.0" encoding="shift_jis"?>` + root + "<id>\x81\xff</id></feed>", "no shift_jis"},
		{"UTF-32", "\x00\x00\xfe\xff\x00\x00\x00<", "utf-32"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readString(tt.doc)
			var fault *DocumentError
			if !errors.As(got.err, &fault) {
				t.Fatalf("error %v", got.err)
			}
			if !strings.Contains(fault.Reason, tt.reason) || fault.Cap != "" || fault.URL != docURL || fault.Line < 1 || fault.Column < 1 {
				t.Errorf("%+v", fault)
			}
			if !strings.HasPrefix(fault.Error(), docURL+":") {
				t.Error(fault)
			}
		})
	}
}

func TestFaultsSayWhere(t *testing.T) {
	got := readString("<feed xmlns=\"http://www.w3.org/2005/Atom\">\n<id>x</id>\n  <title>\n</id></feed>")
	var fault *DocumentError
	if !errors.As(got.err, &fault) || fault.Line != 4 || fault.Column != 1 {
		t.Errorf("%v", got.err)
	}
}

// TestErrorsStay asks again after the end.
func TestErrorsStay(t *testing.T) {
	r := NewReader(strings.NewReader("<rss/>"), ReadOptions{})
	_, first := r.Head()
	_, second := r.Head()
	_, third := r.Next()
	if first == nil || second != first || third != first {
		t.Error(first, second, third)
	}
	r = NewReader(strings.NewReader(feedOf("")), ReadOptions{})
	for range 3 {
		if _, err := r.Next(); err != io.EOF {
			t.Fatal(err)
		}
		if r.Input() != nil {
			t.Error("input without an entry")
		}
	}
}

func TestCaps(t *testing.T) {
	nested := func(n int) string { return feedOf(strings.Repeat("<x>", n-1) + strings.Repeat("</x>", n-1)) }
	attrs := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(" a" + strings.Repeat("a", i) + `=""`)
		}
		return feedOf("<x" + b.String() + "/>")
	}
	text := func(n int) string { return feedOf("<x>" + strings.Repeat("y", n) + "</x>") }
	whole := int64(len(text(100_000)))
	tests := []struct {
		name, doc string
		limits    Limits
		cap       string
	}{
		{"depth reached", nested(256), Limits{}, ""},
		{"depth", nested(257), Limits{}, "depth"},
		{"depth set", nested(9), Limits{Depth: 8}, "depth"},
		{"attributes reached", attrs(256), Limits{}, ""},
		{"attributes", attrs(257), Limits{}, "attributes"},
		{"declarations", feedOf(`<x xmlns:a="urn:a" xmlns:b="urn:b" c="" d="" e=""/>`), Limits{Attributes: 4}, "attributes"},
		{"attributes of a long tag", feedOf("<x" + strings.Repeat(` a=">'='"`, 50_000) + "/>"), Limits{}, "attributes"},
		{"attributes of a long tag, other quotes", feedOf("<x" + strings.Repeat(` a='"'`, 50_000) + "/>"), Limits{}, "attributes"},
		{"text reached", text(90_000), Limits{Text: 90_000}, ""},
		{"text", text(200_000), Limits{Text: 90_000}, "text"},
		{"text of pieces", feedOf("<entry><id>" + strings.Repeat("<![CDATA[x]]>", 200) + "</id></entry>"), Limits{Text: 150}, "text"},
		{"attribute", feedOf(`<x a="` + strings.Repeat("y", 9<<20) + `"/>`), Limits{}, "text"},
		{"comment", feedOf("<!--" + strings.Repeat("y", 9<<20) + "-->"), Limits{}, "text"},
		{"document reached", text(100_000), Limits{Document: whole}, ""},
		{"document", text(100_000), Limits{Document: whole - 1}, "document"},
		{"document after the root", text(100_000) + strings.Repeat(" ", 100), Limits{Document: whole + 99}, "document"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readAll(strings.NewReader(tt.doc), ReadOptions{Limits: tt.limits})
			if tt.cap == "" {
				if got.err != nil {
					t.Error(got.err)
				}
				return
			}
			var fault *DocumentError
			if !errors.As(got.err, &fault) || fault.Cap != tt.cap || !strings.Contains(fault.Error(), tt.cap) {
				t.Errorf("error %v, want cap %s", got.err, tt.cap)
			}
		})
	}
}

// endless repeats a piece of a document.
type endless struct {
	front, piece string
	at           int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if e.at < len(e.front) {
			m := copy(p[n:], e.front[e.at:])
			n, e.at = n+m, e.at+m
			continue
		}
		m := copy(p[n:], e.piece[(e.at-len(e.front))%len(e.piece):])
		n, e.at = n+m, e.at+m
	}
	return n, nil
}

// TestEndlessInput ends each kind of endless document at a cap, in memory that
// has to do with the cap and not with the document.
func TestEndlessInput(t *testing.T) {
	const root = `<feed xmlns="http://www.w3.org/2005/Atom">`
	for name, in := range map[string]*endless{
		"entries":    {front: root, piece: "<entry><id>a:1</id>" + goodRest + "</entry>"},
		"bad ones":   {front: root, piece: "<entry/>"},
		"elements":   {front: root, piece: "<x>"},
		"attributes": {front: root + "<x", piece: ` b=''`},
		"text":       {front: root + "<id>", piece: "x"},
		"cdata":      {front: root + "<id>", piece: "<![CDATA[xxxxxxxxxx]]>"},
		"comment":    {front: root + "<!--", piece: "x"},
		"doctype":    {front: "<!DOCTYPE x [", piece: "<!ENTITY a 'b'>"},
		"spaces":     {front: "", piece: " "},
		"links":      {front: root + "<entry>", piece: `<link href="a"/>`},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := NewReader(in, ReadOptions{Limits: Limits{Document: 2 << 20, Text: 1 << 19}})
			var fault *DocumentError
			for fault == nil {
				_, err := r.Next()
				var bad *EntryError
				if !errors.As(err, &fault) && !errors.As(err, &bad) && err != nil {
					t.Fatal(err)
				}
			}
			runtime.ReadMemStats(&after)
			if fault.Cap == "" {
				t.Error(fault)
			}
			if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 128<<20 {
				t.Errorf("the heap grew by %d MB", grown>>20)
			}
		})
	}
}

// TestCut reads every prefix of a document: none of them may seem whole.
func TestCut(t *testing.T) {
	testenv.Heavy(t)
	whole := func(doc []byte) []byte { return doc[:bytes.LastIndexByte(doc, '>')+1] }
	t.Run("UTF-8", func(t *testing.T) { cutEverywhere(t, whole(plainFeed(33)), 8<<10) })
	t.Run("UTF-16", func(t *testing.T) {
		cutEverywhere(t, utf16Of(string(whole(plainFeed(5))), binary.BigEndian), 2<<10)
	})
	t.Run("64 KiB", func(t *testing.T) {
		testenv.Soak(t)
		cutEverywhere(t, whole(plainFeed(265)), 64<<10)
	})
}

func cutEverywhere(t *testing.T, doc []byte, atLeast int) {
	if len(doc) < atLeast {
		t.Fatalf("%d bytes are too few", len(doc))
	}
	if got := readAll(bytes.NewReader(doc), ReadOptions{}); got.err != nil || len(got.entries) == 0 || len(got.bad) != 0 {
		t.Fatal(got.err, got.bad)
	}
	for n := range doc {
		got := readAll(bytes.NewReader(doc[:n]), ReadOptions{})
		var fault *DocumentError
		if !errors.As(got.err, &fault) {
			t.Fatalf("cut at %d: %v", n, got.err)
		}
	}
}

// TestReadErrorsPassThrough tells a fault of the network from one of the
// document.
func TestReadErrorsPassThrough(t *testing.T) {
	doc := plainFeed(3)
	for _, n := range []int{0, 1, 60, len(doc) / 2, len(doc)} {
		got := readAll(io.MultiReader(bytes.NewReader(doc[:n]), iotest.ErrReader(io.ErrUnexpectedEOF)), ReadOptions{})
		var fault *DocumentError
		if !errors.Is(got.err, io.ErrUnexpectedEOF) || errors.As(got.err, &fault) {
			t.Errorf("after %d bytes: %v", n, got.err)
		}
	}
}

func utf16Of(s string, order binary.AppendByteOrder) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, u)
	}
	return b
}

func TestCharsets(t *testing.T) {
	doc := strings.Replace(feedOf(`<entry><id>urn:x:grün-€</id>`+goodRest+`</entry>`), `"1.0"`, `"1.0" encoding="ENC"`, 1)
	as := func(enc string) string { return strings.Replace(doc, "ENC", enc, 1) }
	latin := strings.NewReplacer("ü", "\xfc", "€", "\x80").Replace
	const bom = "\ufeff"
	tests := []struct {
		name        string
		doc         []byte
		contentType string
		rules       string
	}{
		{"UTF-8", []byte(as("utf-8")), "", ""},
		{"UTF-8 by name of Content-Type", []byte(as("utf-8")), "application/atom+xml; charset=UTF-8", ""},
		{"byte order mark", []byte(bom + as("UTF-8")), "", ""},
		{"mark against declaration and Content-Type", []byte(bom + as("iso-8859-1")), "text/xml; charset=iso-8859-1", ""},
		{"declared", []byte(latin(as("windows-1252"))), "application/atom+xml", ""},
		{"Content-Type", []byte(latin(as("windows-1252"))), `text/xml; charset="windows-1252"`, ""},
		{"Content-Type against declaration", []byte(latin(as("utf-8"))), "text/xml; charset=windows-1252", "7303-charset"},
		{"declared UTF-16, is UTF-8", []byte(as("utf-16")), "", ""},
		{"Content-Type UTF-16, is UTF-8", []byte(as("utf-8")), "text/xml; charset=utf-16", ""},
		{"UTF-16BE with mark", utf16Of(bom+as("utf-16"), binary.BigEndian), "", ""},
		{"UTF-16LE with mark", utf16Of(bom+as("utf-16"), binary.LittleEndian), "", ""},
		{"UTF-16BE", utf16Of(as("utf-16be"), binary.BigEndian), "", ""},
		{"UTF-16LE", utf16Of(as("utf-16le"), binary.LittleEndian), "application/atom+xml", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readAll(bytes.NewReader(tt.doc), ReadOptions{ContentType: tt.contentType})
			if got.err != nil || len(got.entries) != 1 || got.entries[0].ID != "urn:x:grün-€" {
				t.Fatal(got.err, got.bad, got.entries)
			}
			if rules := strings.Join(got.rules(), " "); rules != tt.rules {
				t.Errorf("reported %v", got.problems)
			}
			again := readAll(bytes.NewReader(got.inputs[0]), ReadOptions{})
			if again.err != nil || again.entries[0].ID != got.entries[0].ID {
				t.Errorf("input: %v", again.err)
			}
		})
	}
}

// TestSecondOpinion compares with gofeed where gofeed can be believed: plain
// identifiers, absolute links.
func TestSecondOpinion(t *testing.T) {
	doc := plainFeed(50)
	got := readAll(bytes.NewReader(doc), ReadOptions{URL: docURL})
	other, err := (&atom.Parser{}).Parse(bytes.NewReader(doc))
	if err != nil || got.err != nil || len(got.entries) != len(other.Entries) {
		t.Fatal(err, got.err, len(got.entries))
	}
	if got.feed.ID != other.ID || got.feed.Title != other.Title || !got.feed.Updated.Equal(*other.UpdatedParsed) {
		t.Errorf("%+v", got.feed)
	}
	for i, e := range got.entries {
		o := other.Entries[i]
		if e.ID != o.ID || e.Title != o.Title || !e.Updated.Equal(*o.UpdatedParsed) || len(e.Links) != len(o.Links) {
			t.Fatalf("%+v\n%+v", e, o)
		}
		for j, l := range e.Links {
			if m := o.Links[j]; l.Href != m.Href || l.Rel != m.Rel || l.Type != m.Type {
				t.Errorf("%+v\n%+v", l, m)
			}
		}
	}
}
