package daemon_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// The log closes segments, and the window is cut, by an estimate of what lists
// weigh: it must never be too low, or lists grow over 50 MB, and not be far too
// high, or they stay small.
func TestWeightBoundsTheList(t *testing.T) {
	testenv.Heavy(t)
	base := "http://" + strings.Repeat("a", 85) // with the name of the set 99 bytes
	for _, mode := range []string{config.Mirror, config.Redirect, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			p := fixtures.Catalogue(nil)
			b := newHarness(t, p, content(mode))
			b.harvest()
			for i := range 60 {
				p.Evolve()
				if i%10 == 0 {
					p.Create(fixtures.Record{Name: fmt.Sprintf("odd-%d", i), ID: fmt.Sprintf("urn:x:%d?a=1&b=<\">'\t", i), Title: strings.Repeat(`"<&>'`, 40)})
				}
				b.harvest()
			}
			publisher, err := b.bridge.Publisher(base)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := publisher.Document(t.Context(), "/sets/main/changelist/1.xml", false)
			if err != nil {
				t.Fatal(err)
			}
			body, size, err := doc.Open()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, body); err != nil {
				t.Fatal(err)
			}
			if err := body.Close(); err != nil {
				t.Fatal(err)
			}
			segments, err := b.bridge.Log.Segments(t.Context(), "main")
			if err != nil {
				t.Fatal(err)
			}
			const head = 1000
			if w := segments[0].Weight; size > w+head || w > 2*size {
				t.Errorf("the list has %d bytes, its segment of %d entries weighs %d", size, segments[0].Entries, w)
			} else {
				t.Logf("%d bytes, estimated %d", size, w)
			}
		})
	}
}
