package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/smtp"
	"net/textproto"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// TestKillIngest kills a bridge with SIGKILL at random moments, to which eight
// clients submit records and notify of dispositions over HTTP. They repeat what was
// not acknowledged, and sometimes give it up. What was acknowledged is in the log
// once, and nothing is there twice.
func TestKillIngest(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	rounds := testenv.Rounds(t, 10, 1000)
	a := idle()
	k := newIngestKilling(t, newStation(t, "bridge", newProxy(t, a), ingestConfig), a, nil)
	for n := range 8 {
		client := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		base := k.proxy.url() + "/sip/"
		library, inbox := &sip.HTTPClient{HTTP: client, URL: base + "library"}, &sip.HTTPClient{HTTP: client, URL: base + "inbox"}
		s := k.sender(n)
		s.next = s.anything
		s.do = func(e *message) error {
			if e.body == "" {
				return inbox.Notify(context.Background(), e.disposition())
			}
			d, err := library.Ingest(context.Background(), e.request())
			if err != nil {
				return err
			}
			return e.answered(d)
		}
	}
	k.run(rounds)
}

// TestKillMail is TestKillIngest for notifications that come by mail: 250 is the
// acknowledgement.
func TestKillMail(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	rounds := testenv.Rounds(t, 10, 1000)
	a, inside := idle(), testenv.Nobody(t)
	box := &mailClient{proxy: newProxy(t, a), inside: inside}
	k := newIngestKilling(t, newStation(t, "bridge", newProxy(t, a), fmt.Sprintf(mailConfig, inside)), a, box)
	for n := range 4 {
		s := k.sender(n)
		s.next = s.news
		s.do = box.send
	}
	k.run(rounds)
}

const (
	ingestConfig = `
[[set]]
name = "library"
segment_events = 100
[[set.source]]
kind = "sip"
mode = "library"
formats = { "{urn:r}r" = "http://schemas.example/r.xsd" }
access = "addresses"
access_addresses = ["127.0.0.1", "::1"]
[[set]]
name = "inbox"
[[set.source]]
kind = "sip"
access = "addresses"
access_addresses = ["127.0.0.1", "::1"]
`
	mailConfig = `
[[set]]
name = "inbox"
[[set.source]]
kind = "sip"
smtp_listen = %q
mailbox = "box@bridge.example.org"
access = "addresses"
access_addresses = ["127.0.0.1", "::1"]
`
)

// ingestKilling is a test that kills the bridge that its clients call.
type ingestKilling struct {
	*instance
	t           *testing.T
	seed        uint64
	random      *rand.Rand
	interceptor *atomic.Pointer[interceptor]
	pieces      int64       // that pass at most before it is killed
	box         *mailClient // nil without mail
	senders     []*sender
}

func newIngestKilling(t *testing.T, s *instance, a *atomic.Pointer[interceptor], box *mailClient) *ingestKilling {
	k := &ingestKilling{instance: s, t: t, seed: uint64(time.Now().UnixNano()), interceptor: a, pieces: 200, box: box}
	k.random = rand.New(rand.NewPCG(k.seed, 0))
	return k
}

func (k *ingestKilling) sender(number int) *sender {
	s := &sender{number: number, random: rand.New(rand.NewPCG(k.seed, uint64(number+1)))}
	k.senders = append(k.senders, s)
	return s
}

// run kills, and compares in the end.
func (k *ingestKilling) run(rounds int) {
	k.t.Helper()
	if err := k.launch(); err != nil {
		k.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(k.t.Context())
	var sending sync.WaitGroup
	for _, s := range k.senders {
		sending.Go(func() { s.run(ctx) })
	}
	hits := 0
	for range rounds {
		hit, err := killAtRandom(k.random, k.interceptor, k.pieces, k)
		if hit {
			hits++
		}
		if err == nil {
			err = k.open()
		}
		if err == nil && k.random.IntN(5) == 0 {
			err = k.startAndKill(k.random)
		}
		if err == nil {
			err = k.launch()
		}
		if err != nil {
			k.t.Errorf("seed %d: %v", k.seed, err)
			break
		}
	}
	stop()
	if k.t.Failed() { // who waits would not end
		k.proxy.shut()
		if k.box != nil {
			k.box.proxy.shut()
		}
	}
	sending.Wait()
	if k.t.Failed() {
		k.t.FailNow()
	}
	k.compare()
	k.instance.run("verify", "--data", "data")
	k.t.Logf("%d rounds, while something passed %d; ready after %v at most; %s", rounds, hits, k.slowest, k.tally())
}

// launch starts the bridge, which must be ready in 5 s where nothing else runs; who
// calls it meanwhile waits.
func (k *ingestKilling) launch() error {
	began := time.Now()
	if err := errors.Join(k.open(), k.instance.launch()); err != nil {
		return err
	}
	if _, err := k.serve.ready(); err != nil {
		return err
	}
	k.slowest = max(k.slowest, time.Since(began))
	if overdue(k.slowest, 5*time.Second) {
		return fmt.Errorf("ready after %v, want 5 s at most", k.slowest)
	}
	if k.box != nil {
		return k.box.proxy.forwardTo(k.box.inside)
	}
	return nil
}

// open lets callers wait.
func (k *ingestKilling) open() error {
	err := k.proxy.open()
	if k.box != nil {
		err = errors.Join(err, k.box.proxy.open())
	}
	return err
}

func (k *ingestKilling) kill() error {
	err := k.instance.kill()
	if k.box != nil {
		k.box.proxy.shut()
	}
	return err
}

// sender is a client that sends one thing after the other.
type sender struct {
	number  int
	random  *rand.Rand
	next    func() *message
	do      func(*message) error
	sent    []*message
	repeats int
	wrong   error // what no client should be answered
}

// message is a record that is submitted, or a disposition that is notified.
type message struct {
	identifier string // of the source; "" is none
	body       string // of the record; "" of a disposition
	rejected   bool   // of a disposition
	// acknowledged, and what was assigned; given up otherwise.
	acknowledged bool
	assigned     string
	logged       int // how often
}

// run sends until ctx ends, everything until it is acknowledged or given up.
func (s *sender) run(ctx context.Context) {
	for ctx.Err() == nil {
		e := s.next()
		s.sent = append(s.sent, e)
		for {
			err := s.do(e)
			if err == nil {
				e.acknowledged = true
				break
			}
			if s.wrong = unwanted(err); s.wrong != nil {
				return
			}
			if s.random.IntN(8) == 0 || ctx.Err() != nil {
				break
			}
			s.repeats++
		}
		if e.acknowledged && s.random.IntN(8) == 0 {
			if s.wrong = unwanted(s.do(e)); s.wrong != nil { // as if the acknowledgement had been lost
				return
			}
		}
	}
}

// unwanted returns an error that is an answer, or a wrong one: a client may only
// be left without.
func unwanted(err error) error {
	if errors.As(err, new(*sip.Fault)) || errors.As(err, new(*sip.StatusError)) || errors.As(err, new(*textproto.Error)) || errors.Is(err, errWrongAnswer) {
		return err
	}
	return nil
}

var errWrongAnswer = errors.New("the answer is not what it should be")

// anything is a record with an identifier, of which there will be more, or
// without one, or news.
func (s *sender) anything() *message {
	body := fmt.Sprintf(`<r xmlns="urn:r"><title>number %d of client %d</title></r>`, len(s.sent), s.number)
	switch s.random.IntN(4) {
	case 0:
		return &message{body: body}
	case 1:
		return s.news()
	}
	return &message{identifier: fmt.Sprintf("record %d of client %d", s.random.IntN(10), s.number), body: body}
}

// news is a disposition that nobody has heard of.
func (s *sender) news() *message {
	return &message{identifier: fmt.Sprintf("news %d of client %d", len(s.sent), s.number), rejected: s.random.IntN(2) == 0}
}

func (e *message) request() *sip.Request {
	r := &sip.Request{Record: sip.Record{XML: []byte(e.body)}}
	if e.identifier != "" {
		r.Source = &sip.Source{Identifier: &e.identifier}
	}
	return r
}

// answered takes the answer to a request, which is the same each time.
func (e *message) answered(d *sip.Disposition) error {
	if d.Outcome != sip.Accepted || e.assigned != "" && d.AssignedIdentifier != e.assigned {
		return fmt.Errorf("%w: %+v after %q for %+v", errWrongAnswer, d, e.assigned, e)
	}
	e.assigned = d.AssignedIdentifier
	return nil
}

func (e *message) disposition() *sip.Disposition {
	d := &sip.Disposition{Source: &sip.Source{Identifier: &e.identifier}, Outcome: sip.Accepted, AssignedIdentifier: "urn:" + e.identifier}
	if e.rejected {
		d.Outcome, d.AssignedIdentifier, d.Reason = sip.Rejected, "", "no "+e.identifier
	}
	return d
}

// compare fails unless the log has what the clients were told that it has.
func (k *ingestKilling) compare() {
	k.t.Helper()
	k.watch()
	records, news := map[string]*message{}, map[string]*message{} // by hash, and by identifier
	versions := map[*message]int{}                                // their order, of those with one identifier
	for _, s := range k.senders {
		if s.wrong != nil {
			k.t.Fatalf("seed %d: client %d: %v", k.seed, s.number, s.wrong)
		}
		for n, e := range s.sent {
			if e.body == "" {
				news[e.identifier] = e
			} else {
				records[event.HashOf(sha256.Sum256([]byte(e.body)))] = e
				versions[e] = n
			}
		}
	}
	last := map[string]*message{} // by the record's identifier here
	for _, ev := range k.history() {
		if ev.Kind == event.Rejected {
			if e := news[ev.Origin.SourceIdentifier]; e == nil || !e.rejected || ev.Set != "inbox" || ev.Origin.Reason != e.disposition().Reason {
				k.t.Errorf("nobody has told of event %+v", ev)
			} else {
				e.logged++
			}
			continue
		}
		var e *message
		if len(ev.Representations) == 1 {
			e = records[ev.Representations[0].Hash]
		}
		if e == nil || ev.Set != "library" || e.assigned != "" && e.assigned != ev.Record {
			k.t.Errorf("event %+v is of %+v", ev, e)
			continue
		}
		e.logged++
		before := last[ev.Record]
		last[ev.Record] = e
		if before == nil && ev.Kind != event.Created || before != nil && (ev.Kind != event.Updated || before.identifier != e.identifier || versions[e] <= versions[before]) {
			k.t.Errorf("event %d, %s of %s, is %+v after %+v", ev.Seq, ev.Kind, ev.Record, e, before)
		}
	}
	k.compareNotifications(news)
	for _, s := range k.senders {
		for _, e := range s.sent {
			if e.logged > 1 || e.acknowledged && e.logged == 0 {
				k.t.Errorf("acknowledged %t, and %d times in the log: %+v", e.acknowledged, e.logged, e)
			}
		}
	}
	if k.t.Failed() {
		k.t.Fatalf("seed %d", k.seed)
	}
}

// compareNotifications counts those that are no events.
func (k *ingestKilling) compareNotifications(news map[string]*message) {
	k.t.Helper()
	kept, err := k.log.SIP.Incoming(k.t.Context(), "inbox", 0, 0, 1<<30)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, n := range kept {
		e := news[n.SourceIdentifier]
		switch {
		case e == nil || n.Assigned != e.disposition().AssignedIdentifier || n.Reason != e.disposition().Reason:
			k.t.Errorf("nobody has told %+v", n)
		case n.Verdict == submission.NotificationUncorrelated && !e.rejected:
			e.logged++
		case n.Verdict != submission.NotificationRejected || e.logged != 1:
			k.t.Errorf("%+v is of %+v", n, e)
		}
	}
}

func (k *ingestKilling) tally() string {
	var sent, acknowledged, unsaid, repeats int
	for _, s := range k.senders {
		repeats += s.repeats
		for _, e := range s.sent {
			if sent++; e.acknowledged {
				acknowledged++
			} else if e.logged > 0 {
				unsaid++
			}
		}
	}
	return fmt.Sprintf("%d sent, %d repeated, %d acknowledged, %d logged and given up", sent, repeats, acknowledged, unsaid)
}

// mailClient is where notifications come by mail.
type mailClient struct {
	proxy  *proxy
	inside string // where bridge listens
}

// send delivers a notification; nil is 250.
func (b *mailClient) send(e *message) (err error) {
	c, err := smtp.Dial(b.proxy.address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := errors.Join(c.Mail("library@library.example.org"), c.Rcpt("box@bridge.example.org")); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	mail := "From: library@library.example.org\r\nTo: box@bridge.example.org\r\nContent-Type: text/xml; charset=utf-8\r\n\r\n"
	if _, err := w.Write(sip.AppendMessage([]byte(mail), &sip.Message{Kind: sip.KindDisposition, Disposition: e.disposition()})); err != nil {
		return err
	}
	return w.Close()
}
