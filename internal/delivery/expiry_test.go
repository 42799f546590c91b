package delivery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// Of what waits for a target that is not configured any more, that ends which may
// have arrived, at its deadline; the rest is sent when the target is back. A log
// that fails is waited for.
func TestExpiry(t *testing.T) {
	down, lost := callFailures(t)
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			switch *r.Source.Identifier {
			case "urn:a":
				return nil, lost
			case "urn:b":
				return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
			}
			return nil, down
		}
		h.keep([2]string{"urn:a", "1"})
		h.keep([2]string{"urn:b", "1"})
		h.keep([2]string{"urn:c", "1"})
		stop := h.start(h.submitter(func(o *Submitter) { o.Workers = 1 }))
		synctest.Wait()
		stop()
		states := func() (out [3]submission.State) {
			for i, s := range h.rows() {
				out[i] = s.State
			}
			return out
		}
		f := &Expiry{Store: h.store, Targets: []event.SourceID{h.target}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); f.Run(ctx) }()
		time.Sleep(DefaultDeadline - time.Hour)
		synctest.Wait()
		if got, want := states(), [3]submission.State{submission.StateWaiting, submission.StateProvisional, submission.StateWaiting}; got != want {
			t.Errorf("before the deadline: %v, want %v", got, want)
		}
		h.faults.Before.Store(3)
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got, want := states(), [3]submission.State{submission.StateUnresolved, submission.StateUnresolved, submission.StateWaiting}; got != want {
			t.Errorf("after it: %v, want %v", got, want)
		}
		if s := h.rows()[0]; s.Due != 0 || s.Deadline != 0 || s.Tries != 1 {
			t.Errorf("%+v", s)
		}
		cancel()
		<-ended
		h.server.answer = nil
		stop = h.start(h.submitter(nil))
		synctest.Wait()
		stop()
		if got := states(); got[2] != submission.StateAccepted {
			t.Errorf("when the target is back: %v", got)
		}
	})
}
