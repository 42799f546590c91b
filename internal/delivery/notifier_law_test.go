package delivery

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// network is a place of hosts whose recipients are what their names say: good, wrong
// (404, 450), ill (Fault Server, 451), unwilling (Fault Client, 550), slow (they
// answer nothing) and busy (503 with Retry-After, 421).
type network struct {
	t     *testing.T
	began time.Time
	away  map[string]time.Duration // how long nobody is there, by host

	mu       sync.Mutex
	inside   map[string]int       // calls under way, by host and by recipient
	silence  map[string]time.Time // that a host has asked for
	arrived  map[string]time.Time // good news, by the identifier in it
	attempts map[string]int
}

const townRest = 20 * time.Minute // that a busy recipient asks for

// call counts a call in.
func (w *network) call(host, recipient string) (out func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside[host]++
	w.inside[recipient]++
	if w.inside[host] > 4 || w.inside[recipient] > 1 {
		w.t.Errorf("%d calls at once to %s, %d to %s", w.inside[host], host, w.inside[recipient], recipient)
	}
	// What was on its way when the host asked for it comes at that very moment.
	if left := time.Until(w.silence[host]); left > 0 && left < townRest {
		w.t.Errorf("%s is called, and wants to be left alone for %v", host, left)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.inside[host]--
		w.inside[recipient]--
	}
}

// tell notes what a recipient was told.
func (w *network) tell(identifier string, good bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts[identifier]++
	if good {
		w.arrived[identifier] = time.Now()
	}
}

// told returns how often a recipient was told.
func (w *network) told(identifier string) int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attempts[identifier]
}

// RoundTrip is the way to recipients over HTTP.
func (w *network) RoundTrip(r *http.Request) (*http.Response, error) {
	host, kind := "http "+r.URL.Host, strings.Split(r.URL.Path, "/")[1]
	defer w.call(host, r.URL.String())()
	if time.Since(w.began) < w.away[host] {
		return nil, errors.New("connection refused")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	m, err := sip.ReadMessage(bytes.NewReader(body), sip.ReadOptions{})
	if err != nil {
		return nil, err
	}
	w.tell(*m.Disposition.Source.Identifier, kind == "good")
	status, text, header := http.StatusAccepted, "", http.Header{}
	fault := func(code sip.Code) {
		header.Set("Content-Type", "text/xml")
		status, text = http.StatusInternalServerError, string(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: code, Text: "no"}}))
	}
	switch kind {
	case "wrong":
		status = http.StatusNotFound
	case "ill":
		fault(sip.Server)
	case "unwilling":
		fault(sip.Client)
	case "slow":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case "busy":
		status = http.StatusServiceUnavailable
		header.Set("Retry-After", fmt.Sprint(int(townRest.Seconds())))
		w.mu.Lock()
		w.silence[host] = time.Now().Add(townRest)
		w.mu.Unlock()
	}
	return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)), Request: r}, nil
}

// dial is the way to the mail servers, by the names of their domains.
func (w *network) dial(_ context.Context, _, address string) (net.Conn, error) {
	domain, _, _ := strings.Cut(address, ":")
	if time.Since(w.began) < w.away["mail "+domain] {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	caller := &mailCaller{Conn: here}
	go w.smtp(there, "mail "+domain, caller)
	return caller, nil
}

// mailCaller is the caller's end of a connection. Its call ends when it hangs up:
// the server learns of that later, when the next call may have begun.
type mailCaller struct {
	net.Conn

	mu    sync.Mutex
	out   func() // nil before there is a recipient
	ended bool
}

func (c *mailCaller) begin(call func() (out func())) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.out = call()
	}
}

// Close is net.Conn.
func (c *mailCaller) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil && !c.ended {
		c.out()
	}
	c.ended = true
	return c.Conn.Close()
}

func (w *network) smtp(c net.Conn, host string, caller *mailCaller) {
	defer c.Close()
	say := func(reply string) { io.WriteString(c, reply+"\r\n") }
	say("220 here")
	for in := bufio.NewScanner(c); in.Scan(); {
		verb, rest, _ := strings.Cut(in.Text(), ":")
		replies := map[string]string{"wrong": "450 not now", "ill": "451 no", "unwilling": "550 never", "busy": "421 go away"}
		switch kind, _, _ := strings.Cut(strings.Trim(rest, "<>"), "."); {
		case verb == "DATA":
			say("354 go on")
			for in.Scan() && in.Text() != "." {
			}
			say("250 thanks")
		case verb != "RCPT TO":
			say("250 fine")
		default:
			caller.begin(func() func() { return w.call(host, rest) })
			identifier := strings.Trim(rest, "<>")
			w.tell(identifier[:strings.IndexByte(identifier, '@')], kind == "good")
			switch {
			case kind == "slow":
				_, _ = io.Copy(io.Discard, c)
			case replies[kind] != "":
				say(replies[kind])
			default:
				say("250 fine")
			}
		}
	}
}

// post is a Notifier in the network, whose clock goes on from the harness's.
func (w *network) post(h *harness, began time.Time) *Notifier {
	return &Notifier{
		Store: h.log, First: 10 * time.Minute, Longest: time.Hour, GiveUp: 4 * time.Hour, Now: func() time.Time { return h.clock.Now().Add(time.Since(began)) },
		HTTP: func(recipient string) *sip.HTTPClient {
			return &sip.HTTPClient{URL: recipient, HTTP: &http.Client{Transport: w}}
		},
		Mail: &mail.Sender{From: "bridge@bridge.example", Dial: w.dial, Timeout: time.Minute, LookupMX: func(_ context.Context, domain string) ([]*net.MX, error) {
			return []*net.MX{{Host: domain}}, nil
		}},
	}
}

// Whatever the other recipients of its host are like, a good one gets its notice
// within as many rounds as there are notices to the host; and none is given up
// that was not tried.
func TestNotifierLaw(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 25)
	h := newHarness(t, testenv.NewClock())
	rapid.Check(t, func(rt *rapid.T) {
		kinds := rapid.SampledFrom([]string{"good", "good", "good", "wrong", "ill", "unwilling", "slow", "busy"})
		hosts := rapid.SliceOfN(rapid.SliceOfN(kinds, 1, 6), 1, 3).Draw(rt, "hosts")
		byMail := rapid.SliceOfN(rapid.Bool(), 3, 3).Draw(rt, "by mail")
		away := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 0, 30 * time.Minute}), 3, 3).Draw(rt, "away")
		w := &network{away: map[string]time.Duration{}, inside: map[string]int{}, silence: map[string]time.Time{}, arrived: map[string]time.Time{}, attempts: map[string]int{}}
		bound := map[string]time.Duration{}
		for i, recipients := range hosts {
			most := time.Duration(len(recipients))*(townRest+2*time.Minute) + time.Minute
			if away[i] > 0 {
				most += away[i] + time.Hour
			}
			for j, kind := range recipients {
				id := fmt.Sprintf("%s.%d.%d", kind, i, j)
				host, recipient := fmt.Sprintf("http h%d.example", i), fmt.Sprintf("http://h%d.example/%s/%d", i, kind, j)
				if byMail[i] {
					host, recipient = fmt.Sprintf("mail h%d.example", i), fmt.Sprintf("mailto:%s@h%d.example", id, i)
				}
				bound[id], w.away[host] = most, away[i]
				h.owe(recipient, id)
			}
		}
		var last []submission.OutgoingNotification
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			w.t, w.began = t, began
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { defer close(ended); w.post(h, began).Run(ctx) }()
			for len(h.in(submission.DeliveryWaiting)) > 0 && time.Since(began) < 24*time.Hour {
				time.Sleep(time.Hour)
				synctest.Wait()
			}
			cancel()
			<-ended
			for id, most := range bound {
				switch at, ok := w.arrived[id]; {
				case !strings.HasPrefix(id, "good"):
				case !ok || at.Sub(began) > most:
					t.Errorf("%s got its notice after %v (%v); it is to be within %v", id, at.Sub(began), ok, most)
				case w.told(id) != 1:
					t.Errorf("%s was told %d times", id, w.told(id))
				}
			}
			last, _ = h.log.Outgoing(context.Background(), "maps", 0, 0, len(bound))
		})
		h.clock.Advance(25 * time.Hour)
		for _, n := range last {
			want := map[string]submission.DeliveryState{"good": submission.DeliveryDone, "unwilling": submission.DeliveryRefused, "wrong": submission.DeliveryExpired,
				"ill": submission.DeliveryExpired, "slow": submission.DeliveryExpired, "busy": submission.DeliveryExpired}[strings.Split(strings.TrimPrefix(n.Message, "submission-"), ".")[0]]
			if n.State != want || n.Tries == 0 || n.Due != 0 {
				rt.Errorf("%s is %v after %d tries, want %v: %s", n.Message, n.State, n.Tries, want, n.Reason)
			}
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
	h.verified()
}

// Who answers delays nobody but himself; where nobody answers, the others wait.
func TestOneRecipientDelaysItself(t *testing.T) {
	for kind, waits := range map[string]bool{"wrong": false, "ill": false, "unwilling": false, "slow": true, "busy": true} {
		for _, form := range []string{"http://h.example/%[1]s/%[2]s", "mailto:%[1]s.%[2]s@h.example"} {
			name := fmt.Sprintf(form, kind, "1")
			t.Run(name, func(t *testing.T) {
				h := newHarness(t, testenv.NewClock())
				h.owe(name, "1")
				h.clock.Advance(time.Second)
				h.owe(fmt.Sprintf(form, "good", "2"), "good.2")
				synctest.Test(t, func(t *testing.T) {
					w := &network{t: t, began: time.Now(), inside: map[string]int{}, silence: map[string]time.Time{}, arrived: map[string]time.Time{}, attempts: map[string]int{}}
					p := w.post(h, w.began)
					r := newNotifyLoop(p)
					r.perHost = 1
					r.deliverDue()
					if told := w.told("good.2"); told != 1 && !waits || told != 0 && waits {
						t.Errorf("the good one was told %d times", told)
					}
					time.Sleep(townRest)
					r.deliverDue()
					if told := w.told("good.2"); told != 1 {
						t.Errorf("later the good one was told %d times", told)
					}
				})
			})
		}
	}
}

// What was tried least goes first, and what was tried before leaves half of the
// senders alone.
func TestLeastTriedFirst(t *testing.T) {
	q := newQueue(&queue[int]{now: time.Now, calls: 4, perHost: 2, retries: 2})
	for id, tries := range []int{3, 1, 0, 1, 0} {
		q.add(item[int]{id: int64(id), tries: tries, host: key{byte(id % 2)}, subject: key{byte(id % 2), 1}})
	}
	q.add(item[int]{id: 5, tries: 9, host: key{2}, subject: key{2, 1}})
	q.sort()
	var order []int64
	for {
		it, ok := q.begin()
		if !ok {
			break
		}
		order = append(order, it.id)
	}
	// 4 and 0 are for the subject of 2, 3 for that of 1; 5 is the second one that
	// was tried before.
	if !slices.Equal(order, []int64{2, 1, 5}) || q.retrying != 2 {
		t.Errorf("the order is %d; %d were tried before", order, q.retrying)
	}
}
