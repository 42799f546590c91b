package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
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

// caller is a connection to a bridge.
type caller struct {
	net.Conn
	lines *bufio.Reader
}

func (h *sipBridge) dial() *caller {
	h.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.base, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		h.t.Fatal(err)
	}
	return &caller{c, bufio.NewReader(c)}
}

// begin sends the head of a message of some length.
func (c *caller) begin(path string, length int, header string) {
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nContent-Length: %d\r\n%s\r\n", path, length, header)
}

// answer reads one; its status is 0 when the connection was closed without.
func (c *caller) answer(t testing.TB) webReply {
	t.Helper()
	res, err := http.ReadResponse(c.lines, &http.Request{Method: http.MethodPost})
	if err != nil {
		return webReply{}
	}
	defer res.Body.Close()
	return webReply{"", res.StatusCode, res.Header, readAll(t, res.Body)}
}

// TestSIPLimits_Crowd: of one address 256 requests are answered at a time; who
// comes above that is told so, comes again, and nothing is lost.
func TestSIPLimits_Crowd(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", libraryMode, "")+sipSet("box"))
	const gate, crowd = 256, 600
	inside := make([]*caller, gate)
	for i := range inside {
		c := h.dial()
		defer c.Close()
		inside[i] = c
		message := ingestOf(fmt.Sprintf("inside %d", i), "x")
		c.begin("/sip/main", len(message), "Expect: 100-continue\r\n")
		// It is asked for its message, so it has passed the gate.
		if r := c.answer(t); r.status != http.StatusContinue {
			t.Fatalf("request %d was answered %d", i, r.status)
		}
	}
	r := h.curl("/sip/main", ingestOf("outside", "x")).want(t, http.StatusTooManyRequests)
	r.field(t, "Retry-After", "1")
	r.field(t, "Content-Type", "text/plain; charset=utf-8")
	h.curl("/sip/box", notifyOf(acceptedAs("1"))).want(t, http.StatusTooManyRequests)
	if h.last() != 0 || len(h.notifications("box")) != 0 {
		t.Error("what was refused was taken")
	}

	// Who was refused comes again when those inside are done, as many at a time as there
	// is room for: each refusal costs a connection, and an address has 1,024.
	freed, again := make(chan struct{}), make(chan struct{}, gate/4)
	var refused, all sync.WaitGroup
	refused.Add(crowd)
	for i := range crowd {
		all.Go(func() {
			ask := func() int {
				r, err := h.post("/sip/main", ingestOf(fmt.Sprintf("outside %d", i), "x"))
				if err != nil {
					t.Error(err)
				}
				return r.status
			}
			if status := ask(); status != http.StatusTooManyRequests {
				t.Errorf("while the gate is full: answered %d", status)
			}
			refused.Done()
			<-freed
			again <- struct{}{}
			defer func() { <-again }()
			status := ask()
			for status == http.StatusTooManyRequests { // one of those inside has its answer, and is about to leave
				status = ask()
			}
			if status != http.StatusOK {
				t.Errorf("then: answered %d", status)
			}
		})
	}
	refused.Wait()
	for i, c := range inside {
		io.WriteString(c, ingestOf(fmt.Sprintf("inside %d", i), "x"))
	}
	for i, c := range inside {
		if r := c.answer(t); r.status != http.StatusOK || r.soap(t).Body.Disposition == nil {
			t.Errorf("request %d: %d %s", i, r.status, r.body)
		}
	}
	close(freed)
	all.Wait()
	if got := len(h.told("main")); got != gate+crowd {
		t.Errorf("%d events, want %d", got, gate+crowd)
	}
	seen := map[string]bool{}
	for _, ev := range h.logged(allAfter(0)) {
		seen[ev.Origin.SourceIdentifier] = true
	}
	if len(seen) != gate+crowd {
		t.Errorf("%d records, want %d", len(seen), gate+crowd)
	}
	h.verified()
}

// TestSIPLimits_CutAnywhere: of a message that is not whole nothing is taken,
// wherever it ends, and whether the connection ends there or the message.
func TestSIPLimits_CutAnywhere(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", libraryMode)+sipSet("box"))
	for path, message := range map[string]string{
		"/sip/main": ingestOf("1", strings.Repeat("<a b='c'>d</a>", 50)),
		"/sip/box":  notifyOf(sourceOf("1") + rejectedFor(strings.Repeat("no room; ", 80))),
	} {
		if len(message) < 900 || len(message) > 1200 {
			t.Fatalf("a message of %d bytes", len(message))
		}
		before := h.state()
		steady := h.dial()
		defer steady.Close()
		for n := range message {
			c := h.dial()
			c.begin(path, len(message), "")
			io.WriteString(c, message[:n])
			if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			// The server may find that nobody is there to be answered.
			if r := c.answer(t); r.status != 0 && r.status != http.StatusInternalServerError {
				t.Fatalf("%s broken off after %d bytes: %d %s", path, n, r.status, r.body)
			}
			c.Close()
			steady.begin(path, n, "")
			io.WriteString(steady, message[:n])
			r := steady.answer(t)
			if r.status != http.StatusInternalServerError || r.soap(t).Body.Fault.Code != "soap:Client" {
				t.Fatalf("%s of %d bytes: %d %s", path, n, r.status, r.body)
			}
		}
		if after := h.state(); after != before {
			t.Errorf("the log was\n%sand is\n%s", before, after)
		}
		steady.begin(path, len(message), "")
		io.WriteString(steady, message)
		if r := steady.answer(t); r.status/100 != 2 || h.state() == before {
			t.Errorf("whole: %d %s", r.status, r.body)
		}
	}
	h.verified()
}

// TestSIPLimits_SlowBody: a message of which a byte comes now and then is given up
// after its time.
func TestSIPLimits_SlowBody(t *testing.T) {
	testenv.Soak(t) // half a minute; internal/server does it in no time, on a clock of its own
	h := newSIPBridge(t, sipSet("main", libraryMode))
	message := ingestOf("1", strings.Repeat("x", 1000))
	c := h.dial()
	defer c.Close()
	c.begin("/sip/main", len(message), "")
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for i := range message {
			<-tick.C
			if _, err := io.WriteString(c, message[i:i+1]); err != nil {
				return
			}
		}
	}()
	r := c.answer(t)
	if took := time.Since(began); r.status != http.StatusRequestTimeout || took < 29*time.Second || took > 40*time.Second || h.last() != 0 {
		t.Errorf("after %v: %d %s", took, r.status, r.body)
	}
	c.Close()
	<-ended
}
