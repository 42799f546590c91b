package submit

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
	"github.com/pmh-bridge/bridge/sip"
)

// fickle is an ingest server that recognises repeats, on lines that are bad. What
// it decides about a submission it decides once.
type fickle struct {
	*shelf
	notify func(token string, d *sip.Disposition) error
	lost   error
	down   error

	mu      sync.Mutex
	fates   []string // of the next requests; then all goes well
	verdict map[string]*sip.Disposition
	mail    sync.WaitGroup // notifications on their way
}

func (f *fickle) Ingest(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
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
	}
	d, err := f.shelf.Ingest(ctx, r)
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
	case "provisional":
		f.mail.Go(func() { f.deliver(token, d, time.Hour) })
		return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
	case "faster":
		f.deliver(token, d, 0)
		return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
	}
	return d, nil
}

// deliver notifies until it is acknowledged.
func (f *fickle) deliver(token string, d *sip.Disposition, after time.Duration) {
	time.Sleep(after)
	for f.notify(token, d) != nil {
		time.Sleep(time.Minute)
	}
}

// Whatever happens to requests, to the log and to the process: in the end every
// record's last submission has the state that the server has given it, and each
// rejection is one event.
func TestOutboxAgreesWithTheServer(t *testing.T) {
	if testing.Short() || raced {
		t.Skip("a hundred logs")
	}
	down, lost := callFailures(t)
	rapid.Check(t, func(rt *rapid.T) {
		ids := []string{"urn:a", "urn:b", "urn:c", "urn:d"}
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"keep", "keep", "keep bad", "delete", "wait", "wait long", "restart", "fail before", "fail after"}), 4, 25).Draw(rt, "steps")
		which := rapid.SliceOfN(rapid.SampledFrom(ids), len(steps), len(steps)).Draw(rt, "records")
		fickleFates := rapid.SliceOfN(rapid.SampledFrom([]string{"well", "well", "down", "lost before", "lost after", "fault", "busy", "provisional", "faster"}), 0, 30).Draw(rt, "fates")
		workers := rapid.IntRange(1, 4).Draw(rt, "workers")
		var problems []string
		synctest.Test(t, func(t *testing.T) {
			h := newOutboxHouse(t)
			server := &fickle{shelf: h.library, lost: lost, down: down, fates: fickleFates, verdict: map[string]*sip.Disposition{},
				notify: func(token string, d *sip.Disposition) error {
					return h.desk.Notify(context.Background(), sip.Caller{Token: token}, d)
				}}
			begin := func() func() { return h.start(h.outbox(func(o *Outbox) { o.Server, o.Workers = server, workers })) }
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
				case "fail before":
					h.store.before.Store(int32(1 + i%4))
				case "fail after":
					h.store.after.Store(int32(1 + i%4))
				}
			}
			time.Sleep(5 * 24 * time.Hour)
			server.mail.Wait()
			stop()
			problems = h.disagreements(server, alive)
		})
		if len(problems) > 0 {
			rt.Fatal(strings.Join(problems, "\n"))
		}
	})
}

// disagreements compares the log with what the server has decided.
func (h *outboxHouse) disagreements(server *fickle, alive map[string]bool) (out []string) {
	last := map[string]event.Submission{}
	rejected := 0
	for _, s := range h.rows() {
		last[s.Record] = s
		if s.State == event.StateRejected {
			rejected++
		}
		verdict := server.verdict[s.Token]
		agrees := false
		switch s.State {
		case event.StateAccepted:
			agrees = verdict != nil && verdict.Outcome == sip.Accepted && verdict.AssignedIdentifier == s.Assigned
		case event.StateRejected:
			agrees = verdict != nil && verdict.Outcome == sip.Rejected && verdict.Reason == s.Reason
		case event.StateUnsent:
			agrees = s.Reason == "a deletion: SIP has none"
		case event.StateReplaced:
			agrees = true
		}
		if !agrees {
			out = append(out, fmt.Sprintf("submission %d of %s is %v (%s), the server says %+v", s.ID, s.Record, s.State, s.Reason, verdict))
		}
	}
	for id, there := range alive {
		if s := last[id]; there && !s.State.Final() || !there && s.State != event.StateUnsent {
			out = append(out, fmt.Sprintf("the last submission of %s is %v (%s); is the record there: %v", id, s.State, s.Reason, there))
		}
	}
	if n := len(h.rejections()); n != rejected {
		out = append(out, fmt.Sprintf("%d rejected events for %d rejected submissions", n, rejected))
	}
	slices.Sort(out)
	return out
}
