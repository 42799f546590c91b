package delivery

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// drive delivers what is due now, in a process of its own.
func drive(p *Notifier) { newNotifyLoop(p).deliverDue() }

// deliverDue delivers what is due now.
func (r *notifyLoop) deliverDue() {
	ctx := context.Background()
	r.mark()
	r.loadedAt = time.Time{}
	for {
		_, err := r.step(ctx)
		r.workers.Wait()
		if err != nil || len(r.done) == 0 {
			return
		}
	}
}

// Damaged rows, be they a whole page, keep no others from being delivered, and are named once.
func TestDamagedNotificationsHoldUpNoOthers(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	box := serve(t, &sip.Handler{Backend: h.boxes, Offers: sip.Operations{Notify: true}})
	const damaged = notifyPage + 20
	for i := range damaged + notifyPage {
		h.owe(box, fmt.Sprint(i+1))
	}
	h.do(h.log.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.Exec(ctx, "UPDATE outgoing_notification SET message = 'other' WHERE id <= ?", notifyPage+10),
			tx.Exec(ctx, "UPDATE outgoing_notification SET state = 300 WHERE id > ? AND id <= ?", notifyPage+10, damaged))
	}))
	said := &testenv.Log{}
	p := h.notifier(&testenv.Life{})
	p.Log = slog.New(slog.NewTextHandler(said, nil))
	r := newNotifyLoop(p)
	for range 3 {
		r.deliverDue()
	}
	var delivered int
	h.do(h.log.Each(t.Context(), "SELECT count(*) FROM outgoing_notification WHERE state = 2", nil, func(rows *sql.Rows) error { return rows.Scan(&delivered) }))
	if delivered != notifyPage {
		t.Errorf("%d were delivered, want %d", delivered, notifyPage)
	}
	for id := range damaged {
		if n := strings.Count(said.String(), fmt.Sprintf("notification=%d\n", id+1)); n != 1 {
			t.Errorf("notification %d is named %d times", id+1, n)
		}
	}
}

// The log of serve, which is JSON, has the words for the states that bridge notification ls has.
func TestUndeliveredInTheLog(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	h.owe(serve(t, http.NotFoundHandler()), "1")
	h.owe(serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: sip.Client, Text: "no"}}))
	})), "2")
	said := &testenv.Log{}
	p := h.notifier(&testenv.Life{})
	p.Log = slog.New(slog.NewJSONHandler(said, nil))
	drive(p)
	for id, state := range map[int]string{1: "waiting", 2: "refused"} {
		if want := fmt.Sprintf(`"notification":%d,"state":%q,"tries":1`, id, state); !strings.Contains(said.String(), want) {
			t.Errorf("the log lacks %s: %s", want, said)
		}
	}
}

// A recipient that is down is asked ever later, and gets its notice in the end.
func TestRecipientIsDownForADay(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	var up atomic.Bool
	var tries atomic.Int32
	box := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tries.Add(1)
		if !up.Load() {
			panic(http.ErrAbortHandler)
		}
		(&sip.Handler{Backend: h.boxes, Offers: sip.Operations{Notify: true}}).ServeHTTP(w, r)
	}))
	h.owe(box, "1")
	p := h.notifier(&testenv.Life{})
	start := h.clock.Now()
	var waits []string
	for h.clock.Now().Sub(start) < 24*time.Hour {
		drive(p)
		n := h.in(submission.DeliveryWaiting)[0]
		wait := n.Due.Time().Sub(h.clock.Now())
		waits = append(waits, wait.String())
		if n.Tries != len(waits) || n.Reason == "" || strings.Contains(n.Reason, box) {
			t.Errorf("%+v", n)
		}
		h.clock.Advance(wait - time.Microsecond)
		drive(p)
		if int(tries.Load()) != len(waits) {
			t.Fatalf("tried before it was due: %d times", tries.Load())
		}
		h.clock.Advance(time.Microsecond)
	}
	if got := strings.Join(waits, " "); got != "1m0s 2m0s 4m0s 8m0s 16m0s 32m0s 1h4m0s 2h8m0s 4h16m0s 6h0m0s 6h0m0s 6h0m0s" {
		t.Errorf("waits %s", got)
	}
	up.Store(true)
	drive(p)
	if n := h.in(submission.DeliveryDone); len(n) != 1 || n[0].Due != 0 || n[0].Reason != "" {
		t.Errorf("%+v", n)
	}
	if got := h.boxes.Of("1"); len(got) != 1 {
		t.Errorf("notified %d times", len(got))
	}
	h.verified()
}

func TestNoticeExpires(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	h.owe("http://"+testenv.Nobody(t), "1", "2", "3")
	p := h.notifier(&testenv.Life{})
	start := h.clock.Now()
	for len(h.in(submission.DeliveryWaiting)) > 0 {
		drive(p)
		if left := h.notices(); len(left) > 0 {
			h.clock.Advance(left[0].Due.Time().Sub(h.clock.Now()))
		}
		if h.clock.Now().Sub(start) > 6*24*time.Hour {
			t.Fatal("after six days it still waits")
		}
	}
	if d := h.clock.Now().Sub(start); d != 5*24*time.Hour {
		t.Errorf("given up after %v", d)
	}
	expired := h.in(submission.DeliveryExpired)
	if len(expired) != 3 || expired[2].Tries < 20 || !strings.Contains(expired[0].Reason, "refused") {
		t.Errorf("%+v", expired)
	}
	h.verified()
}

func TestRecipientAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		want  submission.DeliveryState
		after time.Duration
	}{
		{"fault Client", &sip.Fault{Code: sip.Client, Text: "no such submission"}, submission.DeliveryRefused, 0},
		{"fault Server", &sip.Fault{Code: sip.Server, Text: "full"}, submission.DeliveryWaiting, time.Minute},
		{"fault VersionMismatch", &sip.Fault{Code: sip.VersionMismatch, Text: "what"}, submission.DeliveryWaiting, time.Minute},
		{"status 403", &sip.Denied{Status: 403, Reason: "not you"}, submission.DeliveryWaiting, time.Minute},
		{"status 429", &sip.Denied{Status: 429, Reason: "not now"}, submission.DeliveryWaiting, time.Minute},
		{"nothing", nil, submission.DeliveryDone, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, testenv.NewClock())
			h.boxes.Refuse = func(d *sip.Disposition) error {
				if *d.Source.Identifier == "1" {
					return c.err
				}
				return nil
			}
			h.owe(h.boxURL, "1", "2")
			drive(h.notifier(&testenv.Life{}))
			var first submission.OutgoingNotification
			for _, n := range h.in(c.want) {
				if n.Message == "submission-1@maps.bridge" {
					first = n
				}
			}
			if due := first.Due; first.ID == 0 || c.after == 0 && due != 0 || c.after != 0 && due.Time().Sub(h.clock.Now()) != c.after {
				t.Errorf("%+v", first)
			}
			second := h.boxes.Of("2")
			if answered := c.err == nil || errors.As(c.err, new(*sip.Fault)); answered && len(second) != 1 {
				t.Error("the other notice waits too, though the recipient is there")
			} else if !answered && (len(second) != 0 || h.notices()[0].Tries != 0) {
				t.Error("the other notice was tried, though the recipient takes none")
			}
		})
	}
}

// A host that wants to be left alone is, by all notices to it.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		status    int
		after     string
		due, rest time.Duration
	}{
		{503, "30", time.Minute, 30 * time.Second}, {503, "7200", 2 * time.Hour, 2 * time.Hour}, {429, "864000", 6 * time.Hour, 6 * time.Hour},
		{500, "7200", 2 * time.Hour, 0}, {503, "", time.Minute, 0}, {404, "", time.Minute, 0},
	} {
		t.Run(fmt.Sprint(c.status, " ", c.after), func(t *testing.T) {
			h := newHarness(t, testenv.NewClock())
			var calls atomic.Int32
			box := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if r.URL.Path == "/busy" {
					w.Header().Set("Retry-After", c.after)
					w.WriteHeader(c.status)
				}
			}))
			h.owe(box+"/busy", "1")
			p := h.notifier(&testenv.Life{})
			r := newNotifyLoop(p)
			r.deliverDue()
			n := h.in(submission.DeliveryWaiting)[0]
			if got := n.Due.Time().Sub(h.clock.Now()); got != c.due {
				t.Errorf("again in %v, want %v", got, c.due)
			}
			h.owe(box+"/other", "2")
			if c.rest > 0 {
				h.clock.Advance(c.rest - time.Microsecond)
				if r.deliverDue(); calls.Load() != 1 {
					t.Error("the other was tried before the rest was over")
				}
				h.clock.Advance(time.Microsecond)
			}
			r.deliverDue()
			if left := h.in(submission.DeliveryWaiting); len(left) > 1 || len(left) == 1 && left[0].ID != n.ID {
				t.Errorf("waiting: %+v", left)
			}
		})
	}
}

// Killed at any point, or with a log that fails at any point, it delivers at least
// once, and knows it in the end.
func TestNotifierFaults(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	for f := testenv.Fails; f <= testenv.KilledAfter; f++ {
		for n, reached := 1, true; reached; n++ {
			reached = false
			id := fmt.Sprintf("%d-%d", f, n)
			h.owe(h.boxURL, id)
			l := &testenv.Life{Plan: func(at int, _ string) testenv.Fate {
				if at != n {
					return testenv.GoesWell
				}
				reached = true
				return f
			}}
			p := h.notifier(l)
			p.HTTP = func(recipient string) *sip.HTTPClient {
				return &sip.HTTPClient{URL: recipient, HTTP: &http.Client{Transport: testenv.Wire{RoundTripper: &http.Transport{DisableKeepAlives: true}, Life: l, Point: "post"}}}
			}
			drive(p)
			drive(p)
			h.clock.Advance(time.Minute)
			drive(h.notifier(&testenv.Life{}))
			if got := len(h.boxes.Of(id)); got < 1 || got > 2 {
				t.Errorf("%s at %d: notified %d times", f, n, got)
			}
			if left := h.notices(); len(left) != 0 {
				t.Fatalf("%s at %d: %+v", f, n, left)
			}
		}
	}
	h.verified()
}

// While the log fails nothing is sent twice by one process.
func TestNotifierWaitsForTheLog(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	l := &testenv.Life{Plan: func(_ int, point string) testenv.Fate {
		if point == "commit" {
			return testenv.Fails
		}
		return testenv.GoesWell
	}}
	h.owe(h.boxURL, "1", "2")
	ctx := context.Background()
	r := newNotifyLoop(h.notifier(l))
	for n := range 5 {
		r.mark()
		r.loadedAt = time.Time{}
		if _, err := r.step(ctx); n > 0 && err == nil {
			t.Error("a step does not fail, though the log takes nothing")
		}
		r.workers.Wait()
	}
	l.Calm()
	r.deliverDue()
	if a, b := len(h.boxes.Of("1")), len(h.boxes.Of("2")); a != 1 || b != 1 || len(h.in(submission.DeliveryDone)) != 2 {
		t.Errorf("notified %d and %d times", a, b)
	}
}

// A notice that it was not told of is found within a minute; one that it was told
// of, at once.
func TestNotifierWakes(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		got := make(chan string, 10)
		sent := func() (all []string) {
			for synctest.Wait(); len(got) > 0; {
				all = append(all, <-got)
			}
			return all
		}
		p := &Notifier{Store: h.log, Mail: mailerFunc(func(_ context.Context, m *mail.Mail) error { got <- m.ID; return nil }),
			Now: func() time.Time { return h.clock.Now().Add(time.Since(start)) }}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); p.Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		h.owe("mailto:maps@maps.example", "1")
		time.Sleep(notifyPoll - 2*time.Second)
		if got := sent(); len(got) != 0 {
			t.Errorf("sent %v", got)
		}
		time.Sleep(2 * time.Second)
		if got := sent(); !slices.Equal(got, []string{"submission-1@maps.bridge"}) {
			t.Errorf("sent %v", got)
		}
		time.Sleep(time.Second)
		h.owe("mailto:maps@maps.example", "2")
		p.Wake()
		p.Wake()
		if got := sent(); !slices.Equal(got, []string{"submission-2@maps.bridge"}) {
			t.Errorf("sent %v", got)
		}
		cancel()
		<-ended
	})
}

type mailerFunc func(context.Context, *mail.Mail) error

func (f mailerFunc) Send(ctx context.Context, m *mail.Mail) error { return f(ctx, m) }

// What is under way when the process is stopped is broken off and not counted;
// what was delivered is committed.
func TestNotifierEnds(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Add(2)
	p := &Notifier{Store: h.log, Now: h.clock.Now, Mail: mailerFunc(func(ctx context.Context, m *mail.Mail) error {
		wait.Done()
		<-ctx.Done()
		if m.ID == "submission-1@maps.bridge" {
			return nil // it was quick enough
		}
		return ctx.Err()
	})}
	h.owe("mailto:one@maps.example", "1")
	h.owe("mailto:two@maps.example", "2")
	ended := make(chan struct{})
	go func() { defer close(ended); p.Run(ctx) }()
	wait.Wait()
	cancel()
	<-ended
	delivered, waiting := h.in(submission.DeliveryDone), h.in(submission.DeliveryWaiting)
	if len(delivered) != 1 || delivered[0].Tries != 1 || len(waiting) != 1 || waiting[0].Tries != 0 || waiting[0].Reason != "" {
		t.Errorf("delivered %+v, waiting %+v", delivered, waiting)
	}
}

// What is delivered while a commit is under way is committed together.
func TestDeliveriesShareACommit(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	synctest.Test(t, func(t *testing.T) {
		deliver := map[string]chan struct{}{}
		for i := range 4 {
			id := fmt.Sprint(i)
			deliver["submission-"+id+"@maps.bridge"] = make(chan struct{})
			h.owe("mailto:"+id+"@maps.example", id)
		}
		pass, done := make(chan struct{}), []int{}
		h.store.Hook = func(query string, call func() error) error {
			if query != "" {
				return call()
			}
			<-pass
			err := call()
			done = append(done, len(h.in(submission.DeliveryDone)))
			return err
		}
		p := &Notifier{Store: h.store, Now: h.clock.Now, Mail: mailerFunc(func(_ context.Context, m *mail.Mail) error { <-deliver[m.ID]; return nil })}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); p.Run(ctx) }()
		for i := range 4 {
			close(deliver[fmt.Sprintf("submission-%d@maps.bridge", i)])
			synctest.Wait() // the first is being committed, the others wait for that
		}
		close(pass)
		synctest.Wait()
		cancel()
		<-ended
		if !slices.Equal(done, []int{1, 4}) {
			t.Errorf("delivered after each commit: %d", done)
		}
	})
}

// By mail, to a real server.
func TestNoticeByMail(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	h.do(err)
	receiver := &mail.Receiver{Domain: "maps.example", Mailbox: func(local, _ string) sip.Backend {
		if local == "maps" {
			return h.boxes
		}
		return nil
	}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- receiver.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	h.owe("smtp:maps@maps.example", "1")
	h.owe("mailto:nobody@maps.example", "2")
	p := h.notifier(&testenv.Life{})
	drive(p) // without a Mailer
	for _, n := range h.in(submission.DeliveryWaiting) {
		if !strings.Contains(n.Reason, "no mail can be sent") {
			t.Errorf("%+v", n)
		}
	}
	h.clock.Advance(time.Minute)
	p.Mail = &mail.Sender{From: "bridge@bridge.example", Relay: l.Addr().String()}
	drive(p)
	if got := h.boxes.Of("1"); len(got) != 1 || got[0].AssignedIdentifier != "urn:lib:1" {
		t.Errorf("notified of %+v", got)
	}
	refused := h.in(submission.DeliveryRefused)
	if len(refused) != 1 || !strings.Contains(refused[0].Reason, "550") || strings.Contains(refused[0].Reason, "nobody@") {
		t.Errorf("%+v", refused)
	}
}

// A mail server that insists on encryption has none for a moment: the notification waits.
func TestNoticeWaitsForEncryption(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	h.owe("smtp:maps@maps.example", "1")
	replies := map[string]string{"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "454 4.7.0 TLS not available", "MAIL": "530 5.7.0 Must issue a STARTTLS command first"}
	p := h.notifier(&testenv.Life{})
	p.Mail = &mail.Sender{From: "bridge@bridge.example", Relay: "mx.maps.example:25", Dial: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			fmt.Fprint(there, "220 mx\r\n")
			for in := bufio.NewScanner(there); in.Scan(); {
				verb, _, _ := strings.Cut(in.Text(), " ")
				fmt.Fprint(there, replies[verb]+"\r\n")
			}
		}()
		return here, nil
	}}
	drive(p)
	n := h.notices()
	if len(n) != 1 || n[0].State != submission.DeliveryWaiting || n[0].Reason != "STARTTLS: answered 454 4.7.0 TLS not available; without encryption: MAIL: answered 530 5.7.0 Must issue a STARTTLS command first" {
		t.Errorf("%+v", n)
	}
}

// What waits for its next try is tried once when the process starts.
func TestNotifierStarts(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	h.owe("mailto:maps@maps.example", "1", "2")
	h.owe("mailto:maps@down.example", "3")
	down := errors.New("nobody answers")
	p := h.notifier(&testenv.Life{})
	p.Mail = mailerFunc(func(context.Context, *mail.Mail) error { return down })
	drive(p)
	drive(p)
	for _, n := range h.in(submission.DeliveryWaiting) {
		if n.Due <= event.MicrosOf(h.clock.Now()) || n.Tries > 1 {
			t.Fatalf("%+v", n)
		}
	}
	tried := make(chan string)
	p.Mail = mailerFunc(func(_ context.Context, m *mail.Mail) error {
		tried <- m.ID
		if m.ID == "submission-3@maps.bridge" {
			return down
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Run(ctx) }()
	times := map[string]int{}
	for range 3 {
		times[<-tried]++
	}
	cancel()
	<-ended
	if len(times) != 3 || len(h.in(submission.DeliveryDone)) != 2 {
		t.Errorf("tried %v", times)
	}
}
