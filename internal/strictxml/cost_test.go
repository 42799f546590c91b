package strictxml

import (
	"bytes"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

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
