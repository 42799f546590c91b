package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
)

// hostileDocument is one document that costs its reader far more than its sender,
// or did once. Its links lead nowhere: nothing need be fetched.
type hostileDocument struct {
	name   string
	defect string // the row of the list of defects that it is about
	// kind says how it reaches a bridge: "sip" is posted, "atom", "list" and
	// "sitemap" are a Source's only document.
	kind            string
	contentType     string
	contentEncoding string        // "" or "gzip", which body is packed in then
	body            func() []byte // as it goes over the wire
}

// hostileDocuments are those that the defects were seen with.
func hostileDocuments() []hostileDocument {
	const xml, atom = "application/xml", "application/atom+xml"
	return []hostileDocument{
		{"3 MiB of SIP request, a long xml:base inherited 200 times", "D60", "sip", "text/xml; charset=utf-8", "", nestedBases},
		{"512 KiB of SIP request, 8,000 references to a long xml:base", "D60", "sip", "text/xml; charset=utf-8", "", manyBases},
		{"sitemap of 1,650 relative references to a long xml:base", "D60", "sitemap", xml, "gzip", func() []byte { return packed(sitemapWithBase()) }},
		{"2 MiB of SIP request, 200 elements of 250 declarations each", "D61", "sip", "text/xml; charset=utf-8", "", func() []byte { return sipRequest(manyPrefixes(200, 2<<20)) }},
		{"2 MiB of Atom feed, 250 elements of 250 declarations each", "D61", "atom", atom, "", func() []byte { return feedOf(xmlnsAtom, manyPrefixes(250, 2<<20)) }},
		{"entry of 8,000 equal alternates", "D102", "atom", atom, "", equalAlternates},
		{"4,000 bad entries under 256 KB of declarations", "D103", "atom", atom, "", func() []byte { return feedOf(longDeclarations(), badEntries(4000)) }},
		{"8 MiB of empty entries", "D103", "atom", atom, "", func() []byte { return feedOf(xmlnsAtom, strings.Repeat("<entry/>", 1<<20)) }},
		{"300,000 bad entries, each of another record", "D103", "atom", atom, "gzip", func() []byte { return packed(feedOf(xmlnsAtom, badEntries(300_000))) }},
		{"64 MiB of Resource List, 1.3 million entries", "D64", "list", xml, "gzip", func() []byte { return packed(longList(64 << 20)) }},
		{"64 MiB of Atom feed, 450,000 entries", "D64", "atom", atom, "gzip", func() []byte { return packed(longFeed(64 << 20)) }},
	}
}

const xmlnsAtom = ` xmlns="http://www.w3.org/2005/Atom"`

// nestedBases is a base of nearly 3 MiB, which each element inside of it inherits
// with a copy of its own.
func nestedBases() []byte {
	const deep = 200
	return sipRequest(`<r xml:base="http://h.example/` + strings.Repeat("b", 3<<20-deep*32) + `/">` +
		strings.Repeat(`<a xml:base="x/">`, deep) + strings.Repeat("</a>", deep) + "</r>")
}

// manyBases is a base of half the request, and short references to it.
func manyBases() []byte {
	return sipRequest(`<r xml:base="http://h.example/` + strings.Repeat("b", 256<<10) + `/">` + strings.Repeat(`<a xml:base="references/12345"/>`, 8000) + "</r>")
}

// sitemapWithBase is a sitemap whose entries are short for a base of 800 KB.
func sitemapWithBase() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xml:base="http://h.example/%s/">`, strings.Repeat("b", 800<<10))
	for i := range 1650 {
		fmt.Fprintf(&b, "<url><loc>%d</loc></url>", i)
	}
	b.WriteString("</urlset>")
	return b.Bytes()
}

// manyPrefixes nests elements, each of which declares 250 prefixes of its own, and
// fills the innermost up to a size with elements whose prefix was declared first.
func manyPrefixes(deep, size int) string {
	var b strings.Builder
	b.WriteString(`<p:r xmlns:p="urn:p">`)
	for i := range deep {
		b.WriteString("<p:d")
		for j := range 250 {
			fmt.Fprintf(&b, ` xmlns:p%x="u"`, i*250+j)
		}
		b.WriteByte('>')
	}
	for b.Len() < size-deep*6 {
		b.WriteString("<p:e/>")
	}
	b.WriteString(strings.Repeat("</p:d>", deep) + "</p:r>")
	return b.String()
}

// equalAlternates is a feed of one entry that names one representation 8,000 times.
func equalAlternates() []byte {
	return feedOf(xmlnsAtom, `<entry><id>urn:example:1</id><title>t</title><updated>2026-01-01T00:00:00Z</updated>`+
		strings.Repeat(`<link type="text/xml" href="http://127.0.0.1/r"/>`, 8000)+"</entry>")
}

// longDeclarations are 250 namespaces of a kilobyte each.
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

// feedOf is a feed with namespaces and content.
func feedOf(namespaces, entries string) []byte {
	return []byte("<feed" + namespaces + "><id>urn:example:feed</id><title>t</title><updated>2026-01-01T00:00:00Z</updated><author><name>n</name></author>" + entries + "</feed>")
}

// longFeed is a feed of short entries.
func longFeed(size int) []byte {
	var b strings.Builder
	for i := 0; b.Len() < size-1024; i++ {
		fmt.Fprintf(&b, `<entry><id>urn:x:%07d</id><title>t</title><updated>2026-01-01T00:00:00Z</updated><link href="http://127.0.0.1/r/%07d" type="text/xml"/></entry>`+"\n", i, i)
	}
	return feedOf(xmlnsAtom, b.String())
}

// longList is a Resource List of short entries.
func longList(size int) []byte {
	b := make([]byte, 0, size+1024)
	b = append(b, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/>`...)
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "<url><loc>http://127.0.0.1/r/%07d</loc></url>\n", i)
	}
	return append(b, "</urlset>"...)
}

// sipRequest is a request to ingest a record.
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
