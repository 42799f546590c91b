package resourcesync

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"testing"
	"time"
)

const benchEntries = 50_000

// plainChangeList is a Change List as a repository of today publishes it.
func plainChangeList(tb testing.TB, n int) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, &Document{Capability: ChangeList, From: Seconds(moment), Links: up()})
	for i := range n {
		at := Seconds(moment.Add(time.Duration(i) * time.Second))
		e := Entry{Loc: fmt.Sprintf("https://repository.example/records/%d/metadata.xml", i), LastMod: at,
			Metadata: Metadata{Change: Updated, Datetime: at, Hash: fmt.Sprintf("sha-256:%064x", i), Length: Bytes(int64(1000 + i)), Type: "application/xml"}}
		if err := w.Entry(&e); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// BenchmarkRead reads a Change List of 50,000 entries; its rival is the loop over
// encoding/xml's tokens that does nothing with them.
func BenchmarkRead(b *testing.B) {
	plain := plainChangeList(b, benchEntries)
	rich := bytes.ReplaceAll(plain, []byte(" </url>"), []byte(`  <rs:ln rel="via" href="https://origin.example/a?b=1&amp;c=2" modified="2026-01-02T03:04:05Z"/>`+"\n </url>"))
	for name, doc := range map[string][]byte{"plain": plain, "with via": rich} {
		b.Run(name+"/ours", func(b *testing.B) { benchmarkRead(b, doc) })
		b.Run(name+"/rival tokens", func(b *testing.B) { benchmarkTokens(b, doc) })
	}
}

func benchmarkRead(b *testing.B, doc []byte) {
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(bytes.NewReader(doc), ReadOptions{})
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
	b.ReportMetric(float64(benchEntries)*float64(b.N)/b.Elapsed().Seconds(), "urls/s")
}

func benchmarkTokens(b *testing.B, doc []byte) {
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
	b.ReportMetric(float64(benchEntries)*float64(b.N)/b.Elapsed().Seconds(), "urls/s")
}
