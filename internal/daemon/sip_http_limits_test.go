package daemon_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// TestSIPLimits: what is just within a limit is taken whole, what exceeds it by
// one is refused, and nothing is kept of it.
func TestSIPLimits(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode))
	const most = 4 << 20
	long := func(length int) string {
		empty := ingestOf(strconv.Itoa(length), "")
		return ingestOf(strconv.Itoa(length), strings.Repeat("x", length-len(empty)))
	}
	deep := func(n int) string { return strings.Repeat("<a>", n-1) + strings.Repeat("</a>", n-1) } // inside of r
	attributes := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, " a%d=''", i)
		}
		return "<x" + b.String() + "/>"
	}
	for _, c := range []struct {
		name, message string
		status        int
		says          string // of what is refused
	}{
		{"a message as long as may be", long(most), 200, ""},
		{"one byte more", long(most + 1), 413, "4194304 bytes"},
		{"much more", long(3 * most), 413, "4194304 bytes"},
		{"as deep as may be", ingestOf("deep", deep(252)), 200, ""},
		{"deeper", ingestOf("deeper", deep(253)), 500, "nested deeper than 256"},
		{"as many attributes as may be", ingestOf("attributes", attributes(256)), 200, ""},
		{"one more", ingestOf("more", attributes(257)), 500, "more than 256 attributes"},
	} {
		// Who expects to be asked for the message waits for that: curl would send it
		// after a second, to a server that has answered without it.
		for _, args := range [][]string{nil, {"-H", "Transfer-Encoding: chunked"}, {"-H", "Expect: 100-continue", "--expect100-timeout", "60"}} {
			before, taken := h.state(), h.last()
			r := h.curl("/sip/main", c.message, args...).want(t, c.status)
			if c.status != 200 {
				if !strings.Contains(string(r.body), c.says) || h.state() != before {
					t.Errorf("%s: %s; the log was\n%sand is\n%s", c.name, r.body, before, h.state())
				}
				continue
			}
			d := r.disposition(t)
			if d.Assigned == "" || args == nil && h.last() != taken+1 || args != nil && h.last() != taken {
				t.Errorf("%s: %+v, events %d, then %d", c.name, d, taken, h.last())
			}
			changes := h.changes()
			served := h.get(changes[len(changes)-1].Loc)
			sent := c.message[strings.Index(c.message, "<r "):strings.Index(c.message, "</i:record>")]
			if string(served.body) != sent {
				t.Errorf("%s: %d bytes are served, %d were sent", c.name, len(served.body), len(sent))
			}
		}
	}
	h.verified()
}

// TestSIPLimits_Fetched: a record that a library is asked for may be as long as the
// limit of records.
func TestSIPLimits_Fetched(t *testing.T) {
	const most = 100 << 10
	l := newLibrary(t)
	h := newSIPBridge(t, fmt.Sprintf("[limits]\nrecord = \"%d\"\n", most)+sipSet("main", l.records()))
	exact := "<r>" + strings.Repeat("x", most-7) + "</r>"
	l.put("exact", exact)
	l.put("longer", exact+"\n")
	h.notify("/sip/main", acceptedAs("longer"))
	l.wasAsked("/records/longer")
	h.notify("/sip/main", acceptedAs("exact"))
	h.await(1)
	if changes := h.changes(); len(changes) != 1 || string(h.get(changes[0].Loc).body) != exact {
		t.Errorf("Change List %+v", changes)
	}
	h.settle()
	h.want("logged", h.told("main"), "created exact")
	h.verified()
}
