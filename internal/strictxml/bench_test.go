package strictxml

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// list is like a Change List of n resources.
func list(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">
  <rs:md capability="changelist" from="2026-01-01T00:00:00Z"/>
`)
	for i := range n {
		fmt.Fprintf(&b, `  <url>
    <loc>https://repository.example.org/sets/theses/records/%08d.xml</loc>
    <lastmod>2026-03-0%dT10:20:30.123456Z</lastmod>
    <rs:md change="updated" datetime="2026-03-05T10:20:30.123456Z" hash="sha-256:%064x" length="%d" type="application/xml"/>
  </url>
`, i, 1+i%9, i, 1000+i)
	}
	b.WriteString("</urlset>\n")
	return b.Bytes()
}

// feed is like an archive document of n entries.
func feed(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:feed</id><fh:archive/>
`)
	for i := range n {
		fmt.Fprintf(&b, `<entry><id>oai:repository.example.org:%d</id><title>Zur Überlieferung &amp; Textgestalt, Teil %d</title>
<updated>2026-03-05T10:20:30.%09dZ</updated>
<link rel="alternate" type="application/xml" href="https://repository.example.org/r?id=%d&amp;v=1" length="%d"/></entry>
`, i, i, i, i, 1000+i)
	}
	b.WriteString("</feed>\n")
	return b.Bytes()
}

func BenchmarkScanner(b *testing.B) {
	for _, c := range []struct {
		name string
		doc  []byte
	}{{"list", list(5000)}, {"feed", feed(5000)}} {
		b.Run(c.name+"/ours", func(b *testing.B) {
			b.SetBytes(int64(len(c.doc)))
			b.ReportAllocs()
			for b.Loop() {
				s := New(bytes.NewReader(c.doc), Options{})
				var err error
				for err == nil {
					err = s.Next()
				}
				if err != io.EOF {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/encoding-xml", func(b *testing.B) {
			b.SetBytes(int64(len(c.doc)))
			b.ReportAllocs()
			for b.Loop() {
				d := xml.NewDecoder(bytes.NewReader(c.doc))
				var err error
				for err == nil {
					_, err = d.RawToken()
				}
				if err != io.EOF {
					b.Fatal(err)
				}
			}
		})
	}
}

// resolveAll reads a document and resolves a reference at each of its tags, as the
// readers above do.
func resolveAll(doc []byte) {
	s := New(bytes.NewReader(doc), Options{URL: "http://h.example/d/doc.xml", Limits: Limits{Depth: 1 << 10}})
	for s.Next() == nil {
		if s.Kind == StartTag {
			_, _ = s.Resolve(s.Base(), "a")
		}
	}
}

// D60, D61, D77: whatever is in a document, reading it costs time and memory in
// proportion to its length.
func TestCost(t *testing.T) {
	for name, doc := range testenv.Hostile(2 << 20) {
		t.Run(name, func(t *testing.T) {
			testenv.Affordable(t, len(doc), func() { resolveAll([]byte(doc)) })
		})
	}
}

// FuzzCost: the same of any document.
func FuzzCost(f *testing.F) {
	for _, doc := range testenv.Hostile(16 << 10) {
		f.Add([]byte(doc))
	}
	for _, doc := range append(wellFormed(), declared()...) {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		testenv.Affordable(t, len(doc), func() { resolveAll(doc) })
	})
}
