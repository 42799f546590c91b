package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
)

// The documents cost their reader far more than their sender, or did in the past. Their
// links lead nowhere, so that nothing is fetched.

const xmlnsAtom = ` xmlns="http://www.w3.org/2005/Atom"`

// nestedBases returns a base of nearly 3 MiB, which each element inside inherits with a
// copy of its own.
func nestedBases() []byte {
	const deep = 200
	return sipRequest(`<r xml:base="http://h.example/` + strings.Repeat("b", 3<<20-deep*32) + `/">` +
		strings.Repeat(`<a xml:base="x/">`, deep) + strings.Repeat("</a>", deep) + "</r>")
}

// manyBases returns a base of half the request, and short references to it.
func manyBases() []byte {
	return sipRequest(`<r xml:base="http://h.example/` + strings.Repeat("b", 256<<10) + `/">` + strings.Repeat(`<a xml:base="references/12345"/>`, 8000) + "</r>")
}

// sitemapWithBase returns a sitemap whose entries are short for a base of 800 KB.
func sitemapWithBase() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xml:base="http://h.example/%s/">`, strings.Repeat("b", 800<<10))
	for i := range 1650 {
		fmt.Fprintf(&b, "<url><loc>%d</loc></url>", i)
	}
	b.WriteString("</urlset>")
	return b.Bytes()
}

// equalAlternates returns a feed of one entry that names one representation 8,000 times.
func equalAlternates() []byte {
	return feedOf(xmlnsAtom, `<entry><id>urn:example:1</id><title>t</title><updated>2026-01-01T00:00:00Z</updated>`+
		strings.Repeat(`<link type="text/xml" href="http://127.0.0.1/r"/>`, 8000)+"</entry>")
}

// longDeclarations returns 250 namespace declarations of a kilobyte each.
func longDeclarations() string {
	var b strings.Builder
	b.WriteString(xmlnsAtom)
	for i := range 250 {
		fmt.Fprintf(&b, ` xmlns:p%d="urn:%s"`, i, strings.Repeat("n", 1000))
	}
	return b.String()
}

func badEntries(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "<entry><id>urn:example:%d</id></entry>", i)
	}
	return b.String()
}

// feedOf returns a feed with namespaces and content.
func feedOf(namespaces, entries string) []byte {
	return []byte("<feed" + namespaces + "><id>urn:example:feed</id><title>t</title><updated>2026-01-01T00:00:00Z</updated><author><name>n</name></author>" + entries + "</feed>")
}

// longFeed returns a feed of short entries.
func longFeed(size int) []byte {
	var b strings.Builder
	for i := 0; b.Len() < size-1024; i++ {
		fmt.Fprintf(&b, `<entry><id>urn:x:%07d</id><title>t</title><updated>2026-01-01T00:00:00Z</updated><link href="http://127.0.0.1/r/%07d" type="text/xml"/></entry>`+"\n", i, i)
	}
	return feedOf(xmlnsAtom, b.String())
}

// longList returns a Resource List of short entries.
func longList(size int) []byte {
	b := make([]byte, 0, size+1024)
	b = append(b, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/>`...)
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "<url><loc>http://127.0.0.1/r/%07d</loc></url>\n", i)
	}
	return append(b, "</urlset>"...)
}

// sipRequest returns a request to ingest a record.
func sipRequest(record string) []byte {
	return []byte(`<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body><s:ingest-request xmlns:s="http://www.alexandria.ucsb.edu"><s:record>` +
		record + `</s:record></s:ingest-request></soap:Body></soap:Envelope>`)
}

func packed(doc []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	// Writing to a bytes.Buffer cannot fail.
	_, _ = w.Write(doc)
	_ = w.Close()
	return b.Bytes()
}
