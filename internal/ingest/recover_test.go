package ingest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// A request that was cut off is in doubt, and never sent again, whoever asks.
func TestInDoubtIsNotSentAgain(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.recognises = false
	h.start(Gateway, once("upstream", testenv.CutOff))
	r := h.request("1")
	h.faulted(r, sip.Server, "in doubt")
	s := h.state(r, submission.StateInDoubt)
	if want := event.MicrosOf(h.clock.Now().Add(48 * time.Hour)); s.Deadline != want || s.Due != want || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	h.tend(time.Hour)
	h.faulted(r, sip.Server, "in doubt")
	h.start(Gateway, nil)
	h.tend(46 * time.Hour)
	h.faulted(r, sip.Server, "in doubt")
	h.tend(time.Hour)
	s = h.state(r, submission.StateUnresolved)
	if !strings.Contains(s.Reason, "in time") || s.Due != 0 {
		t.Errorf("%+v", s)
	}
	h.faulted(r, sip.Server, "unresolved")
	if e := h.library.of("1"); len(e) != 1 || e[0].times != 1 {
		t.Errorf("sent %d times", len(e))
	}
	h.verified()
}

// A notification settles what is in doubt, and also what is unresolved.
func TestInDoubtIsNotified(t *testing.T) {
	for _, late := range []bool{false, true} {
		h := newGatewayHarness(t, Gateway, nil)
		h.library.recognises, h.library.answers = false, sip.ProvisionallyAccepted
		h.start(Gateway, once("upstream", testenv.CutOff))
		r := h.request("1")
		h.faulted(r, sip.Server, "in doubt")
		if late {
			h.tend(49 * time.Hour)
			h.state(r, submission.StateUnresolved)
		}
		if n := h.library.decide(sip.Accepted); n != 0 {
			t.Fatal("the notification was not taken")
		}
		if s := h.state(r, submission.StateAccepted); s.Late != late || s.Assigned != "urn:lib:1" {
			t.Errorf("%+v", s)
		}
		h.answered(r, sip.Accepted)
		h.deliver()
		if got := h.boxes.Of("1"); len(got) != 1 {
			t.Errorf("notified of %+v", got)
		}
		h.verified()
	}
}

func TestDeadlines(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.answers = sip.ProvisionallyAccepted
	const n = 1003 // more than a page
	var steps []submission.Update
	for i := range n {
		s := submission.Submission{Source: h.source, State: submission.StateProvisional, Request: [32]byte{byte(i), byte(i >> 8), 1}, Recipient: h.boxURL,
			Deadline: event.MicrosOf(h.clock.Now().Add(time.Hour)), Due: event.MicrosOf(h.clock.Now().Add(time.Hour))}
		steps = append(steps, submission.Update{Submission: s})
	}
	_, err := h.log.Write(context.Background(), &submission.Batch{Source: h.source, Updates: steps})
	h.do(err)
	h.clock.Advance(59*time.Minute + 30*time.Second)
	next, err := h.process.Load().doDue(context.Background())
	if err != nil || next.Sub(h.clock.Now()) != 30*time.Second {
		t.Errorf("next at %v, %v; want in 30 s", next, err)
	}
	h.tend(30 * time.Second)
	counts, err := h.log.Counts(context.Background(), h.source)
	h.do(err)
	if counts.Submissions[submission.StateUnresolved] != n || counts.Submissions[submission.StateProvisional] != 0 {
		t.Errorf("%+v", counts.Submissions)
	}
	h.verified()
}

// A submitter repeats a request whose commit has failed, at the moment at which that failure is
// looked after: the request is sent on then.
func TestRequestDuringItsRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Gateway, func(_ *harness, d *Server) {
			d.Upstream = upstreamFunc(func(r *sip.Request) (*sip.Disposition, error) { return accepted(r.Source, "urn:lib:1"), nil })
		})
		h.faults.Before.Store(1)
		if _, err := h.server.Ingest(t.Context(), sip.Caller{}, request("1", "map")); err == nil {
			t.Fatal("the commit did not fail")
		}
		commit, hold, held := h.store.Hook, make(chan struct{}), false
		h.store.Hook = func(query string, call func() error) error {
			if !held && strings.Contains(query, "t.request") {
				held = true
				<-hold
			}
			return commit(query, call)
		}
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := h.server.doDue(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		both.Go(func() {
			if disp, err := h.server.Ingest(t.Context(), sip.Caller{}, request("1", "map")); err != nil || disp.Outcome != sip.Accepted {
				t.Errorf("answered %+v, %v", disp, err)
			}
		})
		synctest.Wait()
		if !held {
			t.Fatal("nothing was looked after")
		}
		close(hold)
		both.Wait()
	})
}

// A submitter that has lost its connection, and repeated its request before the answer came, is
// answered, and not notified as well. One that has gone away is notified.
func TestRepeatWhileUnderWay(t *testing.T) {
	for _, repeated := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			decide := make(chan struct{})
			h := newHarness(t, Gateway, func(_ *harness, d *Server) {
				d.Endpoint = func() string { return "http://bridge.example/sip/maps" }
				d.Upstream = upstreamFunc(func(r *sip.Request) (*sip.Disposition, error) {
					<-decide
					return accepted(r.Source, "urn:lib:1"), nil
				})
			})
			r := request("1", "map")
			r.Recipient = "http://maps.example/sip"
			first, hangUp := context.WithCancel(t.Context())
			var both sync.WaitGroup
			both.Go(func() { _, _ = h.server.Ingest(first, sip.Caller{}, r) })
			synctest.Wait()
			if repeated {
				both.Go(func() {
					if disp, err := h.server.Ingest(t.Context(), sip.Caller{}, r); err != nil || disp.Outcome != sip.Accepted {
						t.Errorf("answered %+v, %v", disp, err)
					}
				})
			}
			synctest.Wait()
			hangUp()
			synctest.Wait()
			close(decide)
			both.Wait()
			want := 1
			if repeated {
				want = 0
			}
			if n := h.notices(); len(n) != want {
				t.Errorf("repeated: %v; the notifications are %+v", repeated, n)
			}
		})
	}
}

// What a gateway has sent on keeps the deadline that the gateway had, when the set has another
// mode since, or is not configured any more: a shorter one would give it up too early.
func TestDeadlineOfTheGateway(t *testing.T) {
	for _, mode := range []Mode{Review, Library, Recipient} {
		h := newGatewayHarness(t, Gateway, func(d *Server) { d.Deadline = 30 * 24 * time.Hour })
		h.library.answers = sip.ProvisionallyAccepted
		r := h.request("1")
		h.answered(r, sip.ProvisionallyAccepted)
		h.change = nil
		h.start(mode, nil)
		h.tend(29 * 24 * time.Hour)
		h.state(r, submission.StateProvisional)
		h.tend(24 * time.Hour)
		h.state(r, submission.StateUnresolved)
	}
}

// Run recovers before it takes anything in, and tends without being asked.
func TestRunTends(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	r := h.request("1")
	s, err := h.process.Load().newSubmission(context.Background(), r, requestDigest(r))
	h.do(err)
	s.State, s.Tries = submission.StateForwarding, 1
	_, err = h.log.Write(context.Background(), &submission.Batch{Source: h.source, Updates: []submission.Update{{Submission: *s}}})
	h.do(err)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := &Server{Set: "maps", Source: h.source, Mode: Gateway, Store: h.log, Keep: keep(h.contents), Deadline: 90 * time.Minute,
			Now: func() time.Time { return h.clock.Now().Add(time.Since(start)) }}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); d.Run(ctx) }()
		_, err := d.Ingest(ctx, sip.Caller{}, r)
		isFault(t, err, sip.Server, "")
		if s := h.of(r); s.State != submission.StateInDoubt || !strings.Contains(s.Reason, "stopped") {
			t.Errorf("%+v", s)
		}
		time.Sleep(90*time.Minute - time.Nanosecond)
		synctest.Wait()
		if s := h.of(r); s.State != submission.StateInDoubt {
			t.Errorf("before the deadline: %+v", s)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if s := h.of(r); s.State != submission.StateUnresolved {
			t.Errorf("after the deadline: %+v", s)
		}
		cancel()
		<-ended
	})
}

// dueCase is a random crowd of submissions, and what has to become of it by the
// rules alone.
type dueCase struct {
	rt     *rapid.T
	h      *gatewayHarness
	server *Server
	begin  time.Time
	rows   []submission.Submission
}

// Whatever is due at a time is done then, and nothing else: deadlines end the
// waiting, and the next time is the next Due. However many there are, and whatever
// else is in the log.
func TestDueIsDone(t *testing.T) {
	testenv.Heavy(t)
	h := newGatewayHarness(t, Gateway, nil)
	record := request("x", "map").Record.XML
	h.do(keep(h.contents)(context.Background(), record))
	n := 0
	testenv.Checks(t, 20)
	rapid.Check(t, func(rt *rapid.T) {
		n++
		c := &dueCase{rt: rt, h: h, begin: h.clock.Now()}
		many := rapid.IntRange(1, 30).Draw(rt, "submissions")
		if rapid.IntRange(0, 9).Draw(rt, "a crowd") == 0 {
			many += 2 * pageLimit
		}
		var err error
		c.server = &Server{Set: "maps", Feed: h.feed, Mode: Gateway, Store: h.log, Keep: keep(h.contents), Now: h.clock.Now}
		c.server.URL = fmt.Sprint("/sip/maps/", n)
		c.server.Source, err = h.log.EnsureSource(context.Background(), "maps", "sip", c.server.URL, n)
		h.do(err)
		other, err := h.log.EnsureSource(context.Background(), "maps", "sip", c.server.URL+"/other", n)
		h.do(err)
		c.fill(many, other, sha256.Sum256(record), int64(len(record)))
		for _, minute := range slices.Sorted(slices.Values(rapid.SliceOfN(rapid.IntRange(0, 12), 1, 4).Draw(rt, "minutes"))) {
			c.tendAt(time.Duration(minute) * time.Minute)
		}
	})
	h.verified()
}

// at is the moment so many minutes after the beginning; 0 is never.
func (c *dueCase) at(minutes int) event.Micros {
	if minutes == 0 {
		return 0
	}
	return event.MicrosOf(c.begin.Add(time.Duration(minutes) * time.Minute))
}

// fill puts submissions into the log, in every state that a received one can have, most
// of them such as come due.
func (c *dueCase) fill(many int, other event.SourceID, content [32]byte, length int64) {
	states := append(submission.States(), submission.StateInDoubt, submission.StateProvisional, submission.StateInDoubt, submission.StateProvisional)
	states = slices.DeleteFunc(states, func(s submission.State) bool {
		return s == submission.StateWaiting || s == submission.StateForwarding || s == submission.StateAccepted
	})
	kinds := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) submission.Submission {
		s := submission.Submission{State: rapid.SampledFrom(states).Draw(rt, "state"), Content: content, Length: length, Source: c.server.Source}
		deadline := rapid.IntRange(0, 10).Draw(rt, "deadline")
		s.Deadline, s.Due = c.at(deadline), c.at(deadline)
		if s.State == submission.StateInDoubt {
			s.Deadline = c.at(deadline + 1)
			s.Due = c.at(rapid.IntRange(1, deadline+1).Draw(rt, "due"))
			s.Tries = rapid.IntRange(1, 3).Draw(rt, "tries")
		}
		if rapid.IntRange(0, 7).Draw(rt, "of another") == 0 {
			s.Source = other
		}
		return s
	}), min(many, 30), min(many, 30)).Draw(c.rt, "kinds")
	var steps []submission.Update
	for i := range many {
		s := kinds[i%len(kinds)]
		if s.Source != c.server.Source {
			s.Source = other
		}
		id := fmt.Sprint(c.server.URL, "-", i)
		s.SourceXML, s.SourceIdentifier = sip.AppendSource(nil, &sip.Source{Identifier: &id}), id
		binary.BigEndian.PutUint64(s.Request[:], uint64(i+1))
		steps = append(steps, submission.Update{Submission: s})
	}
	for _, source := range []event.SourceID{c.server.Source, other} {
		own := slices.Clone(steps)
		own = slices.DeleteFunc(own, func(s submission.Update) bool { return s.Submission.Source != source })
		out, err := c.h.log.Write(context.Background(), &submission.Batch{Source: source, Updates: own})
		c.h.do(err)
		for i := range own {
			own[i].Submission.ID = out.IDs[i]
			c.rows = append(c.rows, own[i].Submission)
		}
	}
}

// tendAt lets the Server do what is due, and compares every row with the rules.
func (c *dueCase) tendAt(after time.Duration) {
	c.h.clock.Advance(c.begin.Add(after).Sub(c.h.clock.Now()))
	now := event.MicrosOf(c.h.clock.Now())
	next, err := c.server.doDue(context.Background())
	c.h.do(err)
	c.follow(now)
	var soonest event.Micros
	for i := range c.rows {
		s := &c.rows[i]
		got, err := c.h.log.Submission(context.Background(), s.ID)
		c.h.do(err)
		if got.State != s.State || got.Due != s.Due || got.Deadline != s.Deadline || got.Tries != s.Tries {
			c.rt.Fatalf("%v after the beginning submission %d of %d is %v, due %v, deadline %v, after %d tries; want %v, %v, %v, %d", after, i, len(c.rows),
				got.State, got.Due, got.Deadline, got.Tries, s.State, s.Due, s.Deadline, s.Tries)
		}
		if c.waits(s) && s.Due > now && (soonest == 0 || s.Due < soonest) {
			soonest = s.Due
		}
	}
	if soonest == 0 != next.IsZero() || soonest != 0 && event.MicrosOf(next) != soonest {
		c.rt.Fatalf("%v after the beginning the next is due at %v, want %v", after, next, soonest)
	}
}

func (c *dueCase) waits(s *submission.Submission) bool {
	return s.Source == c.server.Source && s.Due > 0 && (s.State == submission.StateInDoubt || s.State == submission.StateProvisional)
}

// follow is what the rules make of the rows at a time.
func (c *dueCase) follow(now event.Micros) {
	for i := range c.rows {
		s := &c.rows[i]
		switch {
		case !c.waits(s) || s.Due > now:
		case s.Deadline <= now:
			s.State, s.Due = submission.StateUnresolved, 0
		default:
			s.Due = s.Deadline
		}
	}
}

// BenchmarkDeadlines looks for what is due among 320,000 submissions that wait for
// a week, as a gateway does at least once a minute, when nothing is, and when a
// thousand are. Its rival is the same without the index on what is due, so that
// all that wait are read, as it was once.
func BenchmarkDeadlines(b *testing.B) {
	const many, week = 320_000, 7 * 24 * time.Hour
	ctx := context.Background()
	folder, clock := b.TempDir(), testenv.NewClock()
	l, err := eventlog.Open(ctx, folder, eventlog.Options{Clock: clock.Both})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	d := &Server{Set: "maps", Mode: Gateway, Store: store.New(l), Now: clock.Now}
	err = l.EnsureSet(ctx, eventlog.SetConfig{Name: "maps", Content: event.Mirror})
	if err == nil {
		d.Source, err = l.EnsureSource(ctx, "maps", "sip", "/sip/maps", 0)
	}
	if err != nil {
		b.Fatal(err)
	}
	for from := 0; from < many; from += 10_000 {
		steps := make([]submission.Update, 10_000)
		for i := range steps {
			// A thousand to a second, from a week ahead on.
			due := event.MicrosOf(clock.Now().Add(week + time.Duration(from+i)/1000*time.Second))
			s := submission.Submission{Source: d.Source, State: submission.StateProvisional, Token: fmt.Sprint("token ", from+i), Recipient: "https://recipient.example/box", Due: due, Deadline: due}
			s.SourceXML = fmt.Appendf(nil, "<source><source-identifier>%d</source-identifier></source>", from+i)
			s.Request = sha256.Sum256(s.SourceXML)
			steps[i].Submission = s
		}
		if _, err := d.Store.Write(ctx, &submission.Batch{Source: d.Source, Updates: steps}); err != nil {
			b.Fatal(err)
		}
	}
	tend := func(b *testing.B) {
		for b.Loop() {
			if _, err := d.doDue(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("nothing is due", tend)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(folder, eventlog.FileName))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("DROP INDEX submission_due"); err != nil {
		b.Fatal(err)
	}
	b.Run("nothing is due, without the index", tend)
	if _, err := db.Exec("CREATE INDEX submission_due ON submission (source, state, due) WHERE due > 0"); err != nil {
		b.Fatal(err)
	}
	clock.Advance(week - time.Second)
	ended := int64(0)
	b.Run("1000 are due", func(b *testing.B) {
		for range b.N {
			clock.Advance(time.Second)
			if _, err := d.doDue(ctx); err != nil {
				b.Fatal(err)
			}
		}
		ended += 1000 * int64(b.N)
	})
	if c, err := store.New(l).Counts(ctx, d.Source); err != nil || c.Submissions[submission.StateUnresolved] != ended {
		b.Errorf("%d are unresolved, want %d of %d: choose a -benchtime of fewer rounds; %v", c.Submissions[submission.StateUnresolved], ended, many, err)
	}
}

// A damaged submission, whatever its state, keeps neither the service from starting nor the others
// from ending; it is named once.
func TestDamagedSubmissionHoldsUpNoOthers(t *testing.T) {
	for _, damaged := range []string{"title = 'other'", "late = 300", "due = 1"} {
		for first, state := range []submission.State{submission.StateForwarding, submission.StateInDoubt, submission.StateProvisional} {
			h := newGatewayHarness(t, Gateway, nil)
			due := event.MicrosOf(h.clock.Now().Add(time.Hour))
			var updates []submission.Update
			for i := range 6 { // two of each state
				s := submission.Submission{Source: h.source, State: []submission.State{submission.StateForwarding, submission.StateInDoubt, submission.StateProvisional}[i%3],
					Request: [32]byte{byte(i), 1}, Recipient: h.boxURL}
				if s.State != submission.StateForwarding {
					s.Deadline, s.Due = due, due
				}
				updates = append(updates, submission.Update{Submission: s})
			}
			_, err := h.log.Write(t.Context(), &submission.Batch{Source: h.source, Updates: updates})
			h.do(err)
			h.do(h.log.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				return tx.Exec(ctx, "UPDATE submission SET "+damaged+" WHERE id = ?", first+1)
			}))
			said := &testenv.Log{}
			h.change = func(d *Server) { d.Log = slog.New(slog.NewTextHandler(said, nil)) }
			h.start(Gateway, nil)
			r := h.request("1")
			h.answered(r, sip.Accepted)
			h.tend(50 * time.Hour)
			left := 0
			h.do(h.log.Each(t.Context(), "SELECT count(*) FROM submission WHERE state <> ? AND recipient <> ''", []any{int64(submission.StateUnresolved)}, func(rows *sql.Rows) error { return rows.Scan(&left) }))
			if n := strings.Count(said.String(), fmt.Sprintf("submission=%d\n", first+1)); left != 2 || n != 1 { // the damaged one, and that which was accepted
				t.Errorf("%s, %s: %d have not ended, and it is named %d times:\n%s", state, damaged, left, n, said)
			}
		}
	}
}

// The reply to a request whose submission is damaged while it is sent cannot be stored; it is in
// the log of the process, once, and keeps no other submission from ending at its deadline.
func TestReplyToADamagedSubmission(t *testing.T) {
	said := &testenv.Log{}
	h := newGatewayHarness(t, Gateway, func(d *Server) { d.Log = slog.New(slog.NewTextHandler(said, nil)) })
	h.library.instead = func(r *sip.Request) (*sip.Disposition, error) {
		if *r.Source.Identifier == "1" {
			return nil, h.log.Do(context.Background(), func(ctx context.Context, tx *store.Tx) error {
				return tx.Exec(ctx, "UPDATE submission SET title = 'other' WHERE id = 1")
			})
		}
		return &sip.Disposition{Source: r.Source, Outcome: sip.ProvisionallyAccepted}, nil
	}
	h.faulted(h.request("1"), sip.Server, "")
	second := h.request("2")
	h.answered(second, sip.ProvisionallyAccepted)
	h.tend(50 * time.Hour)
	h.tend(time.Minute)
	if _, s := h.requests(second); s.State != submission.StateUnresolved {
		t.Errorf("the other one is %s\n%s", s.State, said)
	}
	if n := strings.Count(said.String(), "assigned=urn:lib:1 "); n != 1 || !strings.Contains(said.String(), "submission 1: damaged") {
		t.Errorf("the reply is named %d times:\n%s", n, said)
	}
	h.faulted(h.request("1"), sip.Server, "")
	if n := h.library.of("1")[0].times; n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}
