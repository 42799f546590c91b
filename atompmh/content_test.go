package atompmh

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// With ReadOptions.Content an entry's content is its record (RFC 4287 4.1.3.3).
func TestContent(t *testing.T) {
	const alt = `<link type="a/b" href="x"/>`
	const xhtml = "http://www.w3.org/1999/xhtml"
	tests := []struct {
		name, rest string
		kind       Kind // 0: the entry is bad
		data, typ  string
		rules      string
	}{
		{"text", `<content> a &lt;b&gt; &amp;amp; </content>`, Active, " a <b> &amp; ", "text/plain; charset=utf-8", ""},
		{"text by its name", "<content type='text'><![CDATA[<a>]]>\u00fc</content>", Active, "<a>\u00fc", "text/plain; charset=utf-8", ""},
		{"HTML", `<content type="html">&lt;script>alert(1)&lt;/script></content>`, Active, "<script>alert(1)</script>", "text/html; charset=utf-8", ""},
		{"XHTML", `<content type="xhtml"> <x:div xmlns:x="` + xhtml + `" xmlns:y="urn:y"><x:p>a</x:p></x:div> </content>`, Active,
			`<x:div xmlns:x="` + xhtml + `" xmlns:y="urn:y"><x:p>a</x:p></x:div>`, "application/xhtml+xml", ""},
		{"XML with namespaces of the feed", `<content type="application/rdf+xml; charset=utf-16"><p:a xmlns=""><b c="q:d"/><!-- e --></p:a></content>`, Active,
			`<p:a xmlns:p="urn:p" xmlns:q="urn:q" xmlns=""><b c="q:d"/><!-- e --></p:a>`, "application/rdf+xml", ""},
		{"XML in the namespace of the feed", `<content type="TEXT/XML"><a/></content>`, Active, `<a xmlns="http://www.w3.org/2005/Atom"/>`, "text/xml", ""},
		{"other text", `<content type="text/csv; charset=latin1; header=present">a,b</content>`, Active, "a,b", "text/csv; charset=utf-8; header=present", ""},
		{"Base64", "<content type='image/png'>\n aGVs\n bG8= </content>", Active, "hello", "image/png", ""},
		{"content beside alternates", alt + `<content>c</content>`, Active, "c", "text/plain; charset=utf-8", ""},
		{"empty beside alternates", alt + `<content/>`, Active, "", "", "S10"},
		{"at src", `<content src="y" type=" a/b "/>`, Active, "", "a/b", ""},
		{"an empty one deletes", `<content> </content>`, Deletion, "", "", ""},
		{"white space in Base64", `<content type="a/b">Cg==</content>`, Active, "\n", "a/b", ""},
		{"two empty ones delete", `<content/><content> </content>`, Deletion, "", "", "4287-entry"},
		{"an empty one and another", `<content/><content>b</content>`, 0, "", "", "S10"},
		{"an empty one and one at src", `<content/><content src="y"/>`, 0, "", "", "S10"},
		{"an empty one and XML", `<content/><content type="text/xml"><a/></content>`, 0, "", "", "S10"},
		{"the first counts", `<content>a</content><content type="html">b</content>`, Active, "a", "text/plain; charset=utf-8", "4287-entry"},
		{"no Base64", `<content type="image/png">not base64!</content>`, 0, "", "", "S10"},
		{"no Base64 beside an alternate", alt + `<content type="image/png">*</content>`, Active, "", "", "S10"},
		{"text with elements", `<content>a<b/></content>`, 0, "", "", "S10"},
		{"XML with text", `<content type="text/xml">a<b/></content>`, 0, "", "", "S10"},
		{"two elements", `<content type="text/xml"><a/><b/></content>`, 0, "", "", "S10"},
		{"XHTML without its div", `<content type="xhtml"><p xmlns="` + xhtml + `"/></content>`, 0, "", "", "S10"},
		{"a type that is none", `<content type="pdf">a</content>`, 0, "", "", "S10"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc := strings.Replace(feedOf(`<entry xml:lang="de"><id>urn:x:1</id><title>T</title><updated>2020-01-01T00:00:00Z</updated>`+tt.rest+`</entry>`), "<feed", `<feed xmlns:p="urn:p" xmlns:q="urn:q"`, 1)
			got := readAll(strings.NewReader(doc), ReadOptions{URL: docURL, Content: true})
			if got.err != nil || len(got.entries)+len(got.bad) != 1 {
				t.Fatal(got.err)
			}
			if tt.kind == 0 {
				if len(got.bad) != 1 || got.bad[0].Rule != tt.rules || !strings.Contains(got.bad[0].Reason, "atom:content") {
					t.Fatalf("bad %v", got.bad)
				}
				return
			}
			if len(got.bad) > 0 {
				t.Fatal(got.bad)
			}
			e := got.entries[0]
			if rules := strings.Join(got.rules(), " "); e.Kind != tt.kind || rules != tt.rules {
				t.Errorf("kind %v, reported %v", e.Kind, got.problems)
			}
			if c := e.Content; string(c.Data) != tt.data || c.MediaType != tt.typ || c.Taken() != (tt.data != "" || c.Src != "") || c.Language != "de" {
				t.Errorf("got %q %+v", c.Data, c)
			}
		})
	}
}

// FuzzContent: whatever a content is, it is taken or not without a panic, and one that is
// XML is a document by itself.
func FuzzContent(f *testing.F) {
	f.Add("xhtml", `<div xmlns="http://www.w3.org/1999/xhtml"/>`)
	f.Add("text/xml", `<p:a b='p:c' xmlns:p="urn:x&amp;"><![CDATA[]]></p:a>`)
	f.Add("image/png", "aGVsbG8=")
	f.Add("a/b+xml; x", "<a/>")
	f.Fuzz(func(t *testing.T, kind, inner string) {
		doc := string(strictxml.AppendAttr([]byte(`<feed xmlns="`+Namespace+`" xmlns:q="urn:q"><entry><id>urn:x</id><updated>2020-01-01T00:00:00Z</updated><content`), ` type="`, kind)) +
			">" + inner + "</content></entry></feed>"
		r := NewReader(strings.NewReader(doc), ReadOptions{Content: true, Limits: Limits{Depth: 20}})
		for {
			e, err := r.Next()
			if errors.As(err, new(*EntryError)) {
				continue
			}
			if err != nil {
				return
			}
			c := e.Content
			if c == nil || c.Data == nil || !strings.HasSuffix(strings.Split(c.MediaType, ";")[0], "xml") {
				continue
			}
			for s := strictxml.New(bytes.NewReader(c.Data), strictxml.Options{}); ; {
				if err := s.Next(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%v\n%s", err, c.Data)
				}
			}
		}
	})
}
