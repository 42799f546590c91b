package delivery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// unreliable is an ingest server that recognises repeats, on lines that are bad. What
// it decides about a submission it decides once.
type unreliable struct {
	*ingestServer
	notify func(token string, d *sip.Disposition) error
	lost   error
	down   error

	mu      sync.Mutex
	fates   []string // of the next requests; then all goes well
	verdict map[string]*sip.Disposition
	deaf    map[string]bool // has said something, and taken nothing
	mail    sync.WaitGroup  // notifications on their way
}

func (f *unreliable) Ingest(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	f.mu.Lock()
	fate := "well"
	if len(f.fates) > 0 {
		fate, f.fates = f.fates[0], f.fates[1:]
	}
	f.mu.Unlock()
	switch fate {
	case "down":
		return nil, f.down
	case "lost before":
		return nil, f.lost
	case "fault":
		return nil, &sip.Fault{Code: sip.Server, Text: "out of order"}
	case "busy":
		return nil, &sip.StatusError{Status: 503, RetryAfter: 7 * time.Minute}
	case "refused":
		return nil, &sip.Fault{Code: sip.Client, Text: "not this one"}
	case "nonsense before":
		f.mu.Lock()
		f.deaf[tokenOf(r)] = true
		f.mu.Unlock()
		return nil, &sip.StatusError{Status: 202}
	}
	d, err := f.ingestServer.Ingest(ctx, r)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	token := tokenOf(r)
	if known := f.verdict[token]; known != nil {
		d = known
	} else if strings.Contains(string(r.Record.XML), "bad") {
		d = &sip.Disposition{Source: r.Source, Outcome: sip.Rejected, Reason: "bad"}
	}
	f.verdict[token] = d
	f.mu.Unlock()
	switch fate {
	case "lost after":
		return nil, f.lost
	case "provisional", "slow", "late":
		after := map[string]time.Duration{"provisional": time.Hour, "slow": 7 * time.Hour, "late": DefaultDeadline + time.Hour}[fate]
		f.mail.Go(func() { f.deliver(token, d, after) })
		return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
	case "nonsense after":
		f.mail.Go(func() { f.deliver(token, d, time.Hour) })
		return nil, &sip.StatusError{Status: 202}
	case "another":
		f.mail.Go(func() { f.deliver(token, d, time.Hour) })
		id := "urn:another"
		return &sip.Disposition{Source: &sip.Source{Identifier: &id}, Outcome: sip.Rejected, Reason: "not this one"}, nil
	case "faster":
		f.deliver(token, d, 0)
		return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
	}
	return d, nil
}

// deliver notifies until it is acknowledged.
func (f *unreliable) deliver(token string, d *sip.Disposition, after time.Duration) {
	time.Sleep(after)
	for f.notify(token, d) != nil {
		time.Sleep(time.Minute)
	}
}

// Whatever happens to requests, to the log and to the process, and whatever is sent
// again by hand: in the end every record's last submission has the state that the
// server has given it, each rejection is one event, and of the versions of a record
// the server got the latest last and the other set has the latest that was accepted.
func TestSubmitterAgreesWithTheServer(t *testing.T) {
	testenv.Heavy(t)
	down, lost := callFailures(t)
	testenv.Checks(t, 20)
	rapid.Check(t, func(rt *rapid.T) {
		ids := []string{"urn:a", "urn:b", "urn:c", "urn:d"}
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"keep", "keep", "keep bad", "delete", "wait", "wait long", "restart", "resend", "reload", "fail before", "fail after"}), 4, 25).Draw(rt, "steps")
		which := rapid.SliceOfN(rapid.SampledFrom(ids), len(steps), len(steps)).Draw(rt, "records")
		fates := rapid.SliceOfN(rapid.SampledFrom([]string{"well", "well", "down", "lost before", "lost after", "fault", "busy", "nonsense before", "nonsense after", "another", "refused", "provisional", "slow", "late", "faster"}), 0, 30).Draw(rt, "fates")
		workers := rapid.IntRange(1, 4).Draw(rt, "workers")
		var problems []string
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, nil)
			server := &unreliable{ingestServer: h.server, lost: lost, down: down, fates: fates, verdict: map[string]*sip.Disposition{}, deaf: map[string]bool{},
				notify: func(token string, d *sip.Disposition) error {
					return h.notify(token, d)
				}}
			imports, reload := make(chan struct{}, 1), make(chan struct{}, 1)
			h.importPending = func() { poke(imports) }
			outbox := h.submitter(func(o *Submitter) {
				o.Server, o.Workers, o.ImportTo, o.ImportURL, o.ImportPending, o.Reload = server, workers, h.importTo, "/sip/accepted", imports, reload
			})
			begin := func() func() { return h.start(outbox) }
			stop := begin()
			alive := map[string]bool{}
			for i, step := range steps {
				switch id := which[i]; step {
				case "keep", "keep bad":
					h.keep([2]string{id, fmt.Sprintf("%s %d", step, i)})
					alive[id] = true
				case "delete":
					if alive[id] {
						h.harvest(event.Observation{Record: id, Deleted: true})
						alive[id] = false
					}
				case "wait":
					synctest.Wait()
				case "wait long":
					time.Sleep(90 * time.Minute)
				case "restart":
					stop()
					stop = begin()
				case "resend": // and tell Run later, or never
					for _, state := range []submission.State{submission.StateUnsent, submission.StateUnresolved} {
						_, _ = outbox.Resend(context.Background(), 0, state) // the log may fail
					}
				case "reload":
					poke(reload)
				case "fail before":
					h.faults.Before.Store(int32(1 + i%4))
				case "fail after":
					h.faults.After.Store(int32(1 + i%4))
				}
			}
			for n, err := 1, error(nil); n > 0 || err != nil; {
				poke(reload)
				time.Sleep(5 * 24 * time.Hour)
				n, err = outbox.Resend(context.Background(), 0, submission.StateUnsent) // what the server has refused
			}
			server.mail.Wait()
			synctest.Wait()
			stop()
			problems = append(h.disagreements(server, alive), h.disorder()...)
		})
		if len(problems) > 0 {
			rt.Fatal(strings.Join(problems, "\n"))
		}
	})
}

// disagreements compares the log with what the server has decided.
func (h *harness) disagreements(server *unreliable, alive map[string]bool) (out []string) {
	last := map[string]submission.Submission{}
	rejected := 0
	for _, s := range h.rows() {
		last[s.Record] = s
		if s.State == submission.StateRejected {
			rejected++
		}
		verdict := server.verdict[s.Token]
		agrees := false
		switch s.State {
		case submission.StateAccepted:
			agrees = verdict != nil && verdict.Outcome == sip.Accepted && verdict.AssignedIdentifier == s.Assigned
		case submission.StateRejected:
			agrees = verdict != nil && verdict.Outcome == sip.Rejected && verdict.Reason == s.Reason
		case submission.StateUnsent:
			agrees = s.Reason == "a deletion: SIP has none" || strings.Contains(s.Reason, "not this one")
		case submission.StateReplaced:
			agrees = true
		case submission.StateUnresolved:
			agrees = server.deaf[s.Token]
		}
		if !agrees {
			out = append(out, fmt.Sprintf("submission %d of %s is %v (%s), the server says %+v", s.ID, s.Record, s.State, s.Reason, verdict))
		}
	}
	for id, there := range alive {
		if s := last[id]; there && !s.State.Final() && !server.deaf[s.Token] || !there && s.State != submission.StateUnsent {
			out = append(out, fmt.Sprintf("the last submission of %s is %v (%s); is the record there: %v", id, s.State, s.Reason, there))
		}
	}
	if n := len(h.rejections()); n != rejected {
		out = append(out, fmt.Sprintf("%d rejected events for %d rejected submissions", n, rejected))
	}
	slices.Sort(out)
	return out
}

// disorder returns where an old version has won.
func (h *harness) disorder() (out []string) {
	h.t.Helper()
	row := map[string]*submission.Submission{} // by token
	wins := map[string]*submission.Submission{}
	rows := h.rows()
	for i := range rows {
		s := &rows[i]
		row[s.Token] = s
		if s.ImportPending {
			out = append(out, fmt.Sprintf("submission %d was accepted, and not passed on", s.ID))
		}
		if s.State == submission.StateAccepted {
			wins[s.Assigned] = s
		}
	}
	last := map[string]int64{}
	for i := range h.server.got {
		s := row[tokenOf(&h.server.got[i])]
		if s.ID < last[s.Record] {
			out = append(out, fmt.Sprintf("of %s the server got submission %d after %d", s.Record, s.ID, last[s.Record]))
		}
		last[s.Record] = s.ID
	}
	has := map[string]string{}
	for e, err := range h.log.Events(context.Background(), "accepted", event.Range{Upto: 1 << 40}) {
		h.do(err)
		has[e.Record] = e.Representations[0].Hash
	}
	for assigned, s := range wins {
		if has[assigned] != event.HashOf(s.Content) {
			out = append(out, fmt.Sprintf("the other set has of %s %q, submission %d is %s", assigned, has[assigned], s.ID, event.HashOf(s.Content)))
		}
		delete(has, assigned)
	}
	for assigned := range has {
		out = append(out, fmt.Sprintf("the other set has %s, which was not accepted", assigned))
	}
	return out
}
