package daemon_test

import (
	"net/http"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// A new bridge that harvests new bridges does not publish a part of what they will
// have as all of it (D143): it waits for those that wait, but for those that wait for
// nobody but itself.
func TestBridgesWaitForBridges(t *testing.T) {
	o := newAtomOrigin(t, fixtures.Options{})
	o.Create(fixtures.Record{Name: "a", ID: "urn:a", Title: "v1"})
	for _, c := range []struct {
		name    string
		sources func(a, b, c *relay) [3][]string
		asks    string // which bridge asks which of its Sources, before the origin is asked
		rounds  int    // in which all publish, then
	}{
		{"a chain", func(a, b, c *relay) [3][]string {
			return [3][]string{{o.source()}, {a.lists()}, {b.lists()}}
		}, "b0 c0 b0 c0", 1},
		{"a cycle", func(a, b, c *relay) [3][]string {
			return [3][]string{{o.source(), c.lists()}, {a.lists()}, {b.lists()}}
		}, "a1 b0 c0 b0 c0 a1 c0 a1 b0", 3},
		{"two that harvest a third and each other", func(a, b, c *relay) [3][]string {
			return [3][]string{{o.source()}, {c.lists(), a.lists()}, {b.lists(), a.lists()}}
		}, "b0 b1 c0 c1 b0 c0 c1 b0", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			row := []*relay{newRelay(t), newRelay(t), newRelay(t)}
			sources := c.sources(row[0], row[1], row[2])
			for i, r := range row {
				r.run(pool{sources: sources[i]})
				defer r.end()
			}
			// publishes asks all for their lists: what is there is whole.
			publishes := func(when string) (n int) {
				t.Helper()
				for _, r := range row {
					switch a := r.ask(http.MethodGet, r.setURL("resourcelist.xml")); a.status {
					case http.StatusServiceUnavailable:
					case http.StatusOK:
						n++
						if got := r.titles(); len(got) != 1 || len(r.resources()) != 1 {
							t.Errorf("%s: %s publishes %q as all that it has", when, r.base, got)
						}
					default:
						t.Errorf("%s: %s answers %d", when, r.base, a.status)
					}
				}
				return n
			}
			for i := 0; i < len(c.asks); i += 3 {
				r := row[c.asks[i]-'a']
				if report := r.take(t, r.bridge.Sources[c.asks[i+1]-'0'], harvest.Options{}); !report.Withheld {
					t.Errorf("%s: nothing was withheld: %+v", c.asks[i:i+2], report)
				}
				if n := publishes(c.asks[:i+2]); n != 0 {
					t.Errorf("%d bridges publish before the origin was asked", n)
				}
			}
			for range c.rounds {
				passAround(t, row)
				if publishes("then") == len(row) {
					return
				}
			}
			t.Errorf("not all publish after %d rounds", c.rounds)
		})
	}
}
