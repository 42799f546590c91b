package resourcesync

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// hostileLists are lists of about n bytes that ask much of their reader.
func hostileLists(n int) map[string][]byte {
	list := func(root, content string) []byte {
		return []byte(`<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"` + root + ">" + content + "</urlset>")
	}
	fill := func(each string) string { return strings.Repeat(each, max(1, n/len(each))) }
	var declared strings.Builder
	for i := range 250 {
		fmt.Fprintf(&declared, ` xmlns:p%d="urn:%s"`, i, strings.Repeat("n", n/1000))
	}
	var attributes strings.Builder
	for i := 0; attributes.Len() < n; i++ {
		fmt.Fprintf(&attributes, `<rs:md a%d="" b%d="" c%d="" d%d=""/>`, i, i, i, i)
	}
	base := ` xml:base="http://h.example/` + strings.Repeat("b", 8000) + `/"`
	docs := map[string][]byte{
		"entries":                             list("", fill("<url><loc>http://h.example/1</loc></url>")),
		"bad entries under long declarations": list(declared.String(), fill("<url/>")),
		"entries under a long base":           list(base, fill("<url><loc>1</loc></url>")),
		"bad entries under a long base":       list(base, fill("<url/>")),
		"an entry of links":                   list("", "<url><loc>http://h.example/1</loc>"+fill(`<rs:ln rel="alternate" href="http://h.example/2"/>`)+"</url>"),
		"a list of links":                     list("", fill(`<rs:ln rel="up" href="http://h.example/2"/>`)),
		"a list of attributes":                list("", attributes.String()),
		"an entry of attributes":              list("", "<url>"+attributes.String()+"</url>"),
		"an entry of locs":                    list("", "<url>"+fill("<loc>1</loc>")+"</url>"),
		"a long loc":                          list("", "<url><loc>http://h.example/"+fill("x")+"</loc></url>"),
		"a long hash":                         list("", `<url><loc>http://h.example/1</loc><rs:md hash="`+fill("md5:0 ")+`"/></url>`),
		"a long capability":                   list("", `<rs:md capability="`+fill("x")+`"/>`+fill("<url/>")),
		"dates that are none":                 list("", fill("<url><loc>http://h.example/1</loc><lastmod>2020-01-01T00:00:00.0000000000000000000000</lastmod></url>")),
		"namespaces that are nearly right":    list("", fill(`<a xmlns="HTTP://www.openarchives.org/rs/terms"/><a xmlns="urn:x"/>`)),
	}
	// knownNamespace looks at the whole of a name.
	long := ` xmlns:a="URN:` + strings.Repeat("a", 8000) + `" xmlns:b="URN:` + strings.Repeat("b", 8000) + `"`
	docs["elements of long namespaces by turns"] = list(long, fill("<a:x/><b:x/>"))
	docs["attributes of a long namespace"] = list(long, fill(`<url><rs:md a:x=""/></url>`))
	for name, element := range testenv.Hostile(n) {
		docs["in an entry: "+name] = list("", "<url><loc>http://h.example/1</loc>"+element+"</url>")
		docs["in a loc: "+name] = list("", "<url><loc>"+element+"</loc></url>")
	}
	return docs
}

// readWhole reads a document as a harvest does, which keeps what is bad.
func readWhole(doc []byte) {
	r := NewReader(bytes.NewReader(doc), ReadOptions{URL: "http://h.example/list", Report: func(Problem) {}})
	for {
		_, err := r.Next()
		var bad *EntryError
		if err != nil && !errors.As(err, &bad) {
			return
		}
	}
}

// D60, D61, D77, D103: whatever is in a list, reading it costs time and memory in
// proportion to its length.
func TestCost(t *testing.T) { testenv.AffordableAll(t, hostileLists(512<<10), 1, readWhole) }

// FuzzCost: the same of any document.
func FuzzCost(f *testing.F) { testenv.FuzzAffordable(f, hostileLists(16<<10), 1, readWhole) }

// FuzzTimeCost: reading a time costs time and memory in proportion to its length.
func FuzzTimeCost(f *testing.F) {
	for _, s := range []string{"2026-01-02T03:04:05Z", "2026-01-02T03:04:05.", "", strings.Repeat("0", 1<<20), strings.Repeat(" ", 1<<20), "2026-01-02T03:04:05." + strings.Repeat("0", 1<<20) + "Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		testenv.Affordable(t, len(s), func() { readTime(s); readTime([]byte(s)) })
	})
}

// FuzzPageCost: looking for the documents of a Source in a page, in its header or
// in robots.txt costs time and memory in proportion to its length.
func FuzzPageCost(f *testing.F) {
	const n = 16 << 10
	for _, s := range []string{"<link rel=resourcesync href=x>", "<", "<!--", "<script>", "<a ", `<a b="`, "Sitemap: /x\n", `</x>; rel="resourcesync", `, `"\`, "<base href=x>"} {
		f.Add(strings.Repeat(s, n/len(s)))
	}
	f.Fuzz(func(t *testing.T, s string) {
		testenv.Affordable(t, len(s), func() { pageCost(s) })
	})
}

// pageCost looks for links in a text in each of the ways.
func pageCost(s string) {
	const at = "http://h.example/page"
	_, _ = htmlLinks(strings.NewReader(s), at)
	linkHeader(&follow.Answer{URL: at, Header: http.Header{"Link": {s}}})
	_, _ = sitemapLines(strings.NewReader(s), at)
	a := &follow.Answer{Header: http.Header{}}
	isHTML(a, bufio.NewReader(strings.NewReader(s)))
}

// An entry with more links than anybody can use is bad, and the reading goes on
// after it.
func TestManyLinks(t *testing.T) {
	links := strings.Repeat(`<rs:ln rel="describedby" href="http://a.example/x"/>`, maxLinks)
	entry := func(more string) string {
		return `<url><loc>http://a.example/1</loc><rs:ln rel="collection" href="http://a.example/r"/>` + more + `</url>`
	}
	d, bad, err := readDocument(strings.NewReader(listOf(links+links+entry("")+entry(links)+entry(""))), ReadOptions{URL: docURL})
	if err != nil || len(d.Entries) != 2 || len(bad) != 1 || !strings.Contains(bad[0].Reason, "more than 10000 links") {
		t.Errorf("%v, %v", bad, err)
	}
	if n := len(d.Links); n != maxLinks {
		t.Errorf("the list has %d links", n)
	}
}
