package ingest

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// The upstream's disposition is relayed on the same connection, and in the log
// before.
func TestGatewayRelays(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	accepted := request("1", "a")
	if got := h.answered(accepted, sip.Accepted).AssignedIdentifier; got != "urn:lib:1" {
		t.Errorf("assigned %q", got)
	}
	s := h.state(accepted, submission.StateAccepted)
	if s.Token != "" || s.Tries != 1 || s.Assigned != "urn:lib:1" || s.SourceIdentifier != "1" || s.Due != 0 {
		t.Errorf("%+v", s)
	}
	if e := h.library.of("1")[0]; e.request.Recipient != "" || string(e.request.Record.XML) != string(accepted.Record.XML) {
		t.Errorf("sent on: %+v", e.request)
	}
	h.library.answers = sip.Rejected
	rejected := h.request("2")
	if got := h.answered(rejected, sip.Rejected).Reason; got != "not wanted: 2" {
		t.Errorf("reason %q", got)
	}
	if e := h.library.of("2")[0]; e.request.Recipient != h.bridgeURL+"/"+h.of(rejected).Token || len(h.of(rejected).Token) != 26 {
		t.Errorf("the recipient that was sent on: %q", e.request.Recipient)
	}
	nothing := request("", "a")
	nothing.Source = &sip.Source{Identifier: new(string)}
	h.answered(nothing, sip.Rejected) // the source is there, and empty

	if got := h.events("1"); len(got) != 1 || got[0] != "created" {
		t.Errorf("events of 1: %v", got)
	}
	if got := h.events("2"); len(got) != 1 || got[0] != "rejected" {
		t.Errorf("events of 2: %v", got)
	}
	if n := h.notices(); len(n) != 0 {
		t.Errorf("the replies were final, and yet there are notices: %+v", n)
	}
	h.verified()
}

// A slow server and few connections: a request that gets no turn is not sent, and what is
// sent has its whole minute. None is in doubt.
func TestGatewayQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &sip.Handler{Backend: &library{answers: sip.Accepted}, Offers: sip.Operations{Ingest: true}}
		var served sync.WaitGroup
		guard := fetch.New(fetch.Options{PerHost: 1, Reach: fetch.Reach{Origin: "http://192.0.2.1/"}, Network: fetch.Network{Dial: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			served.Go(func() {
				defer theirs.Close()
				for in := bufio.NewReader(theirs); ; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					time.Sleep(25 * time.Second)
					w := httptest.NewRecorder()
					slow.ServeHTTP(w, r)
					if w.Result().Write(theirs) != nil {
						return
					}
				}
			})
			return ours, nil
		}}})
		defer served.Wait()
		defer guard.Close()
		h := newHarness(t, Gateway, func(_ *harness, d *Server) {
			d.Upstream = &sip.HTTPClient{URL: "http://192.0.2.1/", HTTP: guard.Client("")}
		})
		var accepted, unsent atomic.Int32
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				disp, err := h.server.Ingest(t.Context(), sip.Caller{}, request(strconv.Itoa(i), ""))
				var fault *sip.Fault
				switch {
				case err == nil && disp.Outcome == sip.Accepted:
					accepted.Add(1)
				case errors.As(err, &fault) && strings.Contains(fault.Text, "send it again later"):
					unsent.Add(1)
				default:
					t.Errorf("request %d: %+v, %v", i, disp, err)
				}
			})
		}
		all.Wait()
		if accepted.Load() != 15 || unsent.Load() != 5 {
			t.Errorf("%d were accepted, and %d were not sent", accepted.Load(), unsent.Load())
		}
	})
}

func TestGatewayProvisional(t *testing.T) {
	for _, outcome := range []sip.Outcome{sip.Accepted, sip.Rejected} {
		t.Run(outcome.String(), func(t *testing.T) {
			posted := 0
			h := newGatewayHarness(t, Gateway, func(d *Server) { d.Notified = func() { posted++ } })
			h.library.answers = sip.ProvisionallyAccepted
			r := h.request("1")
			h.answered(r, sip.ProvisionallyAccepted)
			s := h.state(r, submission.StateProvisional)
			if want := event.MicrosOf(h.clock.Now().Add(48 * time.Hour)); s.Deadline != want || s.Due != want {
				t.Errorf("deadline %v, due %v, want %v", s.Deadline, s.Due, want)
			}
			h.answered(r, sip.ProvisionallyAccepted) // again
			if n := h.library.of("1")[0].times; n != 1 {
				t.Errorf("sent on %d times", n)
			}
			if n := h.library.decide(outcome); n != 0 {
				t.Fatalf("%d notifications were not taken", n)
			}
			h.of(r)
			if posted != 1 {
				t.Errorf("the post was told of %d notices", posted)
			}
			final := h.answered(r, outcome)
			h.deliver()
			got := h.boxes.Of("1")
			if len(got) != 1 || got[0].Outcome != outcome || got[0].AssignedIdentifier != final.AssignedIdentifier || got[0].Reason != final.Reason {
				t.Errorf("the submitter was notified of %+v", got)
			}
			if ev := h.events("1"); len(ev) != 1 {
				t.Errorf("events %v", ev)
			}
			h.verified()
		})
	}
}

// The notification may be faster than the provisional reply. The submitter is notified then, so
// its reply is not the ultimate disposition as well.
func TestGatewayFinalBeforeProvisional(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.answers = sip.ProvisionallyAccepted
	h.library.instead = func(r *sip.Request) (*sip.Disposition, error) {
		d := &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "urn:lib:fast"}
		return nil, plainClient(r.Recipient).Notify(context.Background(), d)
	}
	r := h.request("1")
	h.answered(r, sip.ProvisionallyAccepted)
	if s := h.state(r, submission.StateAccepted); s.Conflicts != 0 || s.Late || s.Due != 0 {
		t.Errorf("%+v", s)
	}
	if ev := h.events("1"); len(ev) != 1 {
		t.Errorf("events %v", ev)
	}
	h.deliver()
	if got := h.boxes.Of("1"); len(got) != 1 || got[0].AssignedIdentifier != "urn:lib:fast" {
		t.Errorf("notified of %+v", got)
	}
	if got := h.answered(r, sip.Accepted).AssignedIdentifier; got != "urn:lib:fast" { // a repeat asks what is known by then
		t.Errorf("assigned %q", got)
	}
	h.verified()
}

// A final reply that contradicts a faster notification changes nothing, and is
// shown.
func TestGatewayContradiction(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.answers = sip.Rejected
	h.library.instead = func(r *sip.Request) (*sip.Disposition, error) {
		d := &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "urn:lib:fast"}
		return nil, plainClient(r.Recipient).Notify(context.Background(), d)
	}
	r := h.request("1")
	h.answered(r, sip.Accepted)
	if s := h.state(r, submission.StateAccepted); s.Conflicts != 1 {
		t.Errorf("%d conflicts", s.Conflicts)
	}
}

// Without a recipient a provisional reply cannot be relayed.
func TestGatewayProvisionalWithoutRecipient(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.answers = sip.ProvisionallyAccepted
	r := request("1", "a")
	for range 2 {
		h.faulted(r, sip.Server, "without a notification-recipient")
	}
	if s := h.state(r, submission.StateProvisional); !strings.Contains(s.Reason, "no notification-recipient was named") {
		t.Errorf("reason %q", s.Reason)
	}
	if n := len(h.library.of("1")); n != 1 {
		t.Errorf("the library has %d records", n)
	}
	h.library.decide(sip.Accepted) // it has nobody to notify
	h.tend(48 * time.Hour)
	h.state(r, submission.StateUnresolved)
	h.faulted(r, sip.Server, "unresolved")
}

func TestGatewayRecipient(t *testing.T) {
	h := newGatewayHarness(t, Gateway, func(d *Server) {
		d.Recipient = func(context.Context, string) error { return errors.New("not a public address") }
	})
	h.faulted(h.request("1"), sip.Client, "not a public address")
	r := request("1", "a")
	r.Recipient = "ftp://maps.example/"
	h.faulted(r, sip.Client, "http:, https:, smtp: or mailto:")
	if n := len(h.library.of("1")); n != 0 {
		t.Errorf("the library has %d records", n)
	}
}

// What has certainly not been taken is sent again with the next repeat; it stays
// one submission.
func TestGatewayUnsent(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error // of the server; nil is no server
		code  sip.Code
		says  string // to the submitter
		shown string
	}{
		{"down", nil, sip.Server, "has not taken the request", "refused"},
		{"fault Client", &sip.Fault{Code: sip.Client, Text: "no such element", Path: "ingest-request/record", Line: 3, Column: 4}, sip.Client, "no such element", "no such element"},
		{"fault Server", &sip.Fault{Code: sip.Server, Text: "the disk is full"}, sip.Server, "the disk is full", "the disk is full"},
		{"fault MustUnderstand", &sip.Fault{Code: sip.MustUnderstand, Text: "your header"}, sip.Server, "has not taken the request", "your header"},
		{"status 403", &sip.Denied{Status: 403, Reason: "not you"}, sip.Server, "has not taken the request", "HTTP 403"},
		{"status 429", &sip.Denied{Status: 429, Reason: "not now"}, sip.Server, "has not taken the request", "HTTP 429"},
	} {
		t.Run(c.name, func(t *testing.T) {
			down := true
			nobody := testenv.Nobody(t)
			h := newGatewayHarness(t, Gateway, func(d *Server) {
				if c.err == nil && down {
					d.Upstream = &sip.HTTPClient{URL: "http://" + nobody}
				}
			})
			h.library.instead = func(*sip.Request) (*sip.Disposition, error) { return nil, c.err }
			r := h.request("1")
			for tries := 1; tries <= 2; tries++ {
				h.faulted(r, c.code, c.says)
				s := h.state(r, submission.StateUnsent)
				if !strings.Contains(s.Reason, c.shown) || s.Tries != tries || s.Due != 0 || s.Deadline != 0 {
					t.Errorf("try %d: %+v", tries, s)
				}
				if strings.Contains(s.Reason, "http://") {
					t.Errorf("the reason shows the URL: %q", s.Reason)
				}
			}
			h.library.instead, down = nil, false
			h.start(Gateway, nil)
			h.answered(r, sip.Accepted)
			if s := h.state(r, submission.StateAccepted); s.Tries != 3 || s.Reason != "" {
				t.Errorf("%+v", s)
			}
			h.verified()
		})
	}
}

// Statuses of which it is not certain that the server itself has spoken leave the
// request in doubt.
func TestGatewayStatus(t *testing.T) {
	for status, want := range map[int]submission.State{
		202: submission.StateInDoubt, 204: submission.StateInDoubt, 301: submission.StateUnsent, 307: submission.StateUnsent, 404: submission.StateUnsent, 413: submission.StateUnsent, 501: submission.StateUnsent, 503: submission.StateUnsent,
		500: submission.StateInDoubt, 502: submission.StateInDoubt, 504: submission.StateInDoubt, 200: submission.StateInDoubt,
	} {
		h := newGatewayHarness(t, Gateway, func(d *Server) {
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				w.Write([]byte("<html>no message</html>"))
			}))
			d.Upstream = &sip.HTTPClient{URL: url, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		})
		r := h.request("1")
		if _, err := h.submit(r); err == nil {
			t.Fatalf("status %d: there is an answer", status)
		}
		if s := h.of(r); s.State != want {
			t.Errorf("status %d: %v (%s), want %v", status, s.State, s.Reason, want)
		}
	}
}

// Equal requests at once are sent on once, and all get the answer.
func TestGatewayEqualRequests(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.recognises = false
	const n = 50
	arrived, answer := make(chan struct{}, n), make(chan struct{})
	h.library.instead = func(*sip.Request) (*sip.Disposition, error) {
		arrived <- struct{}{}
		<-answer
		return nil, nil
	}
	r := h.request("1")
	var wait sync.WaitGroup
	var entered atomic.Int32
	all := make(chan struct{})
	for range n {
		wait.Go(func() {
			if entered.Add(1) == n {
				close(all)
			}
			disp, err := h.process.Load().Ingest(context.Background(), sip.Caller{}, r)
			if err != nil || disp.AssignedIdentifier != "urn:lib:1" {
				t.Errorf("%+v, %v", disp, err)
			}
		})
	}
	<-all
	<-arrived
	gave, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.process.Load().Ingest(gave, sip.Caller{}, r); !errors.Is(err, context.Canceled) {
		t.Errorf("who no longer waits gets %v", err)
	}
	close(answer)
	wait.Wait()
	if e := h.library.of("1"); len(e) != 1 || e[0].times != 1 {
		t.Errorf("the library was sent %d records", len(e))
	}
	if s := h.state(r, submission.StateAccepted); s.Tries != 1 {
		t.Errorf("%d tries", s.Tries)
	}
}

// A submitter that hangs up does not stop what was begun: his repeat gets the
// disposition, and so does his notification recipient.
func TestGatewaySubmitterHangsUp(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	r := h.request("1")
	ctx, hangUp := context.WithCancel(context.Background())
	h.library.instead = func(*sip.Request) (*sip.Disposition, error) { hangUp(); return nil, nil }
	if _, err := h.process.Load().Ingest(ctx, sip.Caller{}, r); err != nil {
		t.Fatal(err)
	}
	h.state(r, submission.StateAccepted)
	h.deliver()
	if got := h.boxes.Of("1"); len(got) != 1 || got[0].AssignedIdentifier != "urn:lib:1" {
		t.Errorf("notified of %+v", got)
	}
	h.answered(r, sip.Accepted)
	if n := h.library.of("1")[0].times; n != 1 {
		t.Errorf("sent on %d times", n)
	}
}

// The same request is the same submission for a day after it was answered, and as
// long as its answer is awaited.
func TestGatewayRepeatsForADay(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.recognises = false
	r := request("1", "a")
	h.answered(r, sip.Accepted)
	h.clock.Advance(24 * time.Hour)
	h.answered(r, sip.Accepted)
	if n := len(h.library.of("1")); n != 1 {
		t.Fatalf("after a day the library has %d records", n)
	}
	h.clock.Advance(time.Microsecond)
	h.answered(r, sip.Accepted)
	if n := len(h.library.of("1")); n != 2 {
		t.Errorf("after more than a day the library has %d records", n)
	}
	h.library.answers = sip.ProvisionallyAccepted
	waiting := h.request("2")
	h.answered(waiting, sip.ProvisionallyAccepted)
	h.clock.Advance(47 * time.Hour)
	h.answered(waiting, sip.ProvisionallyAccepted)
	if n := len(h.library.of("2")); n != 1 {
		t.Errorf("the library has %d records", n)
	}
}

func TestGatewayProperties(t *testing.T) {
	asked := 0
	up := &asking{library: &library{}, ask: func() error { asked++; return nil }}
	h := newGatewayHarness(t, Gateway, nil)
	up.url = serve(t, &sip.Handler{Backend: up, Offers: sip.Operations{Ingest: true}})
	server := h.process.Load().Server
	server.Upstream = plainClient(up.url)
	get := func() (*sip.Properties, error) { return server.GetProperties(context.Background(), sip.Caller{}) }
	for range 3 {
		p, err := get()
		h.do(err)
		if p.Style != sip.Asynchronous || len(p.Formats) != 1 || p.Formats[0] != mapFormat {
			t.Errorf("%+v", p)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times within a minute", asked)
	}
	h.clock.Advance(time.Minute)
	up.ask = func() error { asked++; return errors.New("not now") }
	_, err := get()
	isFault(t, err, sip.Server, "")
	up.ask = func() error { asked++; return nil }
	if _, err := get(); err != nil || asked != 3 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

// asking is a library that tells how often it was asked for its properties.
type asking struct {
	*library
	url string
	ask func() error
}

func (a *asking) GetProperties(ctx context.Context, c sip.Caller) (*sip.Properties, error) {
	if err := a.ask(); err != nil {
		return nil, err
	}
	return a.library.GetProperties(ctx, c)
}
