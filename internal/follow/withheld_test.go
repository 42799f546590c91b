package follow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseWaits(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, c := range []struct{ header, want string }{
		{"", ""},
		{"1", ""},
		{"none", "none"},
		{"urn:uuid:a;age=0", "urn:uuid:a;age=0"},
		{" urn:uuid:b;age=599 ,urn:uuid:a;age=3", "urn:uuid:a;age=3, urn:uuid:b;age=599"},
		{"a;age=5, a;age=2, a;age=7", "a;age=2"},
		{"b;age=-1, c;age=x, ;age=1, d, e;age=99999999999", ""},
		{strings.Repeat("x", 201) + ";age=1", ""},
	} {
		got := ""
		if w := ParseWaits(c.header, now); w != nil {
			got = w.Header(now)
		}
		if got != c.want {
			t.Errorf("%.40q: %q, want %q", c.header, got, c.want)
		}
	}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("s%d;age=0", i))
	}
	if n := len(ParseWaits(strings.Join(many, ","), now).Sets); n != maxWaits {
		t.Errorf("%d sets are kept of a long header", n)
	}
}

// A law (D143): whatever bridges harvest each other, none publishes its complete
// lists before all Sources that are no bridges were walked by those that it has
// records from, and in the end all do.
func TestWaitsEnd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type node struct {
			bridges []int // its Sources that are bridges
			said    []*Waits
			walked  []bool
			outside bool // it has another Source, which was not walked yet
			whole   bool
		}
		n := rapid.IntRange(2, 6).Draw(rt, "bridges")
		nodes := make([]node, n)
		for i := range nodes {
			o := &nodes[i]
			for j := range nodes {
				if j != i && rapid.IntRange(0, 2).Draw(rt, "is a Source") == 0 {
					o.bridges = append(o.bridges, j)
				}
			}
			o.said, o.walked = make([]*Waits, len(o.bridges)), make([]bool, len(o.bridges))
			o.outside = len(o.bridges) == 0 || rapid.Bool().Draw(rt, "has another Source")
		}
		var open func(i int, seen []bool) bool
		open = func(i int, seen []bool) bool {
			if seen[i] {
				return false
			}
			seen[i] = true
			for _, j := range nodes[i].bridges {
				if open(j, seen) {
					return true
				}
			}
			return nodes[i].outside
		}
		name := func(i int) string { return fmt.Sprintf("urn:%d", i) }
		now := time.Unix(1e9, 0)
		// waits is for which sets a bridge waits.
		waits := func(i int) *Waits {
			o := &nodes[i]
			var said []*Waits
			for k, w := range o.said {
				if !o.walked[k] || w != nil {
					said = append(said, w)
				}
			}
			if o.outside {
				said = append(said, nil)
			}
			return WaitsOf(name(i), said, now)
		}
		ask := func(i, k int) {
			o := &nodes[i]
			p := &nodes[o.bridges[k]]
			switch w := o.said[k]; {
			case !p.whole:
				o.said[k] = ParseWaits(waits(o.bridges[k]).Header(now), now)
			case !o.walked[k] && w != nil:
				w.Over = now
			}
			o.walked[k] = o.walked[k] || p.whole
		}
		notice := func(i int) {
			o := &nodes[i]
			o.whole = o.whole || len(waits(i).Sets) == 0
			if o.whole && open(i, make([]bool, n)) {
				rt.Fatalf("bridge %d publishes although not all it depends on was walked: %+v", i, nodes)
			}
		}
		for range rapid.IntRange(0, 40).Draw(rt, "harvests") {
			i := rapid.IntRange(0, n-1).Draw(rt, "bridge")
			if k := rapid.IntRange(-1, len(nodes[i].bridges)-1).Draw(rt, "source"); k >= 0 {
				ask(i, k)
			} else {
				nodes[i].outside = false
			}
			notice(i)
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(rt, "seconds")) * time.Second)
		}
		for i := range nodes {
			nodes[i].outside = false
			notice(i)
		}
		for range 70 { // minutes: what goes round has an end after an hour
			for _, i := range rapid.Permutation(seq(n)).Draw(rt, "order") {
				for k := range nodes[i].bridges {
					ask(i, k)
				}
				notice(i)
			}
			now = now.Add(time.Minute)
		}
		for i := range nodes {
			if !nodes[i].whole {
				rt.Fatalf("bridge %d waits for ever: %+v", i, nodes)
			}
		}
	})
}

func seq(n int) (s []int) {
	for i := range n {
		s = append(s, i)
	}
	return s
}
