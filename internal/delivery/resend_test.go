package delivery

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// What the server would not have is sent again when a person says so: not a
// deletion, and not what a later change has replaced.
func TestResend(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		refused := true
		h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if refused {
				return nil, &sip.Fault{Code: sip.Client, Text: "the recipient is not allowed"}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "1"}, [2]string{"urn:b", "1"}, [2]string{"urn:c", "1"})
		reload := make(chan struct{}, 1)
		o := h.submitter(func(o *Submitter) { o.Reload = reload })
		stop := h.start(o)
		defer stop()
		synctest.Wait()
		h.keep([2]string{"urn:b", "2"})
		gone := found("urn:c", "", "")
		gone.Deleted, gone.Representations = true, nil
		h.harvest(gone)
		synctest.Wait()
		rows := h.rows()
		for _, s := range rows {
			if s.State != submission.StateUnsent {
				t.Fatalf("%s: %v", s.Record, s.State)
			}
		}
		h.server.mu.Lock()
		refused = false
		h.server.mu.Unlock()

		n, err := o.Resend(context.Background(), rows[0].ID, submission.StateUnsent)
		if n != 1 || err != nil {
			t.Fatalf("one of them: %d, %v", n, err)
		}
		reload <- struct{}{}
		synctest.Wait()
		if _, err := o.Resend(context.Background(), rows[0].ID, submission.StateUnsent); err == nil {
			t.Error("what was accepted was sent again")
		}
		if n, err := o.Resend(context.Background(), 0, submission.StateUnsent); n != 1 || err != nil {
			t.Fatalf("all: %d, %v", n, err)
		}
		reload <- struct{}{}
		synctest.Wait()
		var accepted []string
		for _, s := range h.rows() {
			if s.State == submission.StateAccepted {
				accepted = append(accepted, s.Record)
			}
		}
		if len(accepted) != 2 || accepted[0] != "urn:a" || accepted[1] != "urn:b" || len(h.rows()) != 5 {
			t.Errorf("accepted: %v of %d", accepted, len(h.rows()))
		}
	})
}
