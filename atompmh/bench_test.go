package atompmh

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/mmcdole/gofeed/atom"
)

// plainFeed writes a document of n entries such as a repository would.
func plainFeed(n int) []byte {
	var b bytes.Buffer
	at := time.Date(2012, 11, 1, 0, 0, 0, 0, time.UTC)
	fmt.Fprintf(&b, `<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
<link rel="current" href="http://example.org/feed"/>
<link rel="prev-archive" href="http://example.org/feed/1"/>
<updated>%s</updated>
<id>urn:uuid:3ce05531-b9c0-4a7d-8966-4d9a9a3a0695</id>
<title>Benchmark</title>
<author><name>Nobody</name></author>
`, at.Add(time.Duration(n)*time.Second).Format(time.RFC3339))
	for i := range n {
		fmt.Fprintf(&b, `<entry>
<title>Record %d of the collection</title>
<id>urn:uuid:177d5415-c443-410f-a5b6-%012d</id>
<updated>%s</updated>
<link rel="alternate" type="application/rdf+xml" href="http://example.org/entry/%d.rdf"/>
</entry>
`, i, i, at.Add(time.Duration(i)*time.Second).Format(time.RFC3339Nano), i)
	}
	b.WriteString("</feed>\n")
	return b.Bytes()
}

const benchEntries = 10_000

func perSecond(b *testing.B) {
	b.ReportMetric(float64(benchEntries)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

func BenchmarkReader(b *testing.B) {
	doc := plainFeed(benchEntries)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(bytes.NewReader(doc), ReadOptions{URL: "http://example.org/feed"})
		n := 0
		for ; ; n++ {
			if _, err := r.Next(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
		if n != benchEntries {
			b.Fatalf("%d entries", n)
		}
	}
	perSecond(b)
}

// BenchmarkGofeed is the rival: gofeed's Atom parser on the same document.
func BenchmarkGofeed(b *testing.B) {
	doc := plainFeed(benchEntries)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		f, err := (&atom.Parser{}).Parse(bytes.NewReader(doc))
		if err != nil || len(f.Entries) != benchEntries {
			b.Fatal(err)
		}
	}
	perSecond(b)
}

// BenchmarkTokens is the floor: encoding/xml's tokens and nothing else.
func BenchmarkTokens(b *testing.B) {
	doc := plainFeed(benchEntries)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		d := xml.NewDecoder(bytes.NewReader(doc))
		for {
			if _, err := d.RawToken(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
	perSecond(b)
}
