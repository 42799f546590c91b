package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// gatedLog is a log whose commits wait to be let through.
type gatedLog struct {
	Store
	sizes []int      // of the commits that have begun: steps, notifications and notices
	pass  chan error // what becomes of the next one
}

func (g *gatedLog) Append(ctx context.Context, b *event.Batch) (event.Appended, error) {
	g.sizes = append(g.sizes, len(b.Submissions.Updates)+len(b.Submissions.Incoming)+len(b.Submissions.Outgoing))
	if err := <-g.pass; err != nil {
		return event.Appended{}, err
	}
	return g.Store.Append(ctx, b)
}

// gatedDesk is a gateway on a gatedLog, with submissions that wait for their
// dispositions. It is for a bubble.
func gatedDesk(t *testing.T, submissions int) (h *deskHouse, gated *gatedLog, waiting []*event.Submission) {
	h = newDesk(t, Gateway, func(h *deskHouse, d *Server) {
		gated = &gatedLog{Store: h.log, pass: make(chan error)}
		d.Store = gated
	})
	for i := range submissions {
		waiting = append(waiting, h.received(fmt.Sprint(i), event.StateProvisional, nil))
	}
	return h, gated, waiting
}

// tell notifies without waiting for what comes of it.
func (h *deskHouse) tell(ctx context.Context, token, identifier string) <-chan error {
	ended := make(chan error, 1)
	go func() {
		ended <- h.desk.Notify(ctx, sip.Caller{Token: token}, accepted(mapOf(identifier), "urn:lib:"+identifier))
	}()
	synctest.Wait()
	return ended
}

// Those who come while a commit is under way are committed together; each gets what
// is his, and one that has to wait does not hold up the others.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, gated, waiting := gatedDesk(t, 20)
		var ended []<-chan error
		for i, s := range waiting {
			ended = append(ended, h.tell(t.Context(), s.Token, fmt.Sprint(i)))
		}
		ended = append(ended, h.tell(t.Context(), waiting[7].Token, "7"), h.tell(t.Context(), "", "nobody's"))
		for range 3 {
			gated.pass <- nil
			synctest.Wait()
		}
		for _, e := range ended {
			h.do(<-e)
		}
		// The first one alone, the others together, and then the one that had to wait
		// for another of the same source element.
		if want := []int{1, 20, 1}; !slices.Equal(gated.sizes, want) {
			t.Errorf("commits of %d, want %d", gated.sizes, want)
		}
		for i, s := range waiting {
			if s = h.submission(s.ID); s.State != event.StateAccepted || s.Assigned != fmt.Sprint("urn:lib:", i) {
				t.Errorf("submission %d is %v as %q", i, s.State, s.Assigned)
			}
			if e, err := h.log.Record(t.Context(), "maps", event.Key(s.Assigned)); err != nil || e.Origin.SourceIdentifier != fmt.Sprint(i) {
				t.Errorf("its record is %+v, %v", e, err)
			}
		}
		h.verified()
	})
}

// A commit that fails has failed for those that were in it, and no others; who has
// gone away meanwhile is committed with the rest.
func TestTogetherInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, gated, waiting := gatedDesk(t, 5)
		gone, leave := context.WithCancel(t.Context())
		first := h.tell(gone, waiting[0].Token, "0")
		leave()
		second, third := h.tell(t.Context(), waiting[1].Token, "1"), h.tell(t.Context(), waiting[2].Token, "2")
		gated.pass <- nil
		synctest.Wait()
		last := h.tell(t.Context(), waiting[3].Token, "3")
		gated.pass <- errBroken
		gated.pass <- nil
		h.do(errors.Join(<-first, <-last))
		for _, e := range []<-chan error{second, third} {
			if err := <-e; !errors.Is(err, errBroken) {
				t.Errorf("the commit failed, and the answer is %v", err)
			}
		}
		if err := h.desk.Notify(gone, sip.Caller{Token: waiting[4].Token}, accepted(nil, "urn:lib:4")); !errors.Is(err, context.Canceled) {
			t.Errorf("somebody who has left before: %v", err)
		}
		if got := h.events(); !slices.Equal(got, []string{"created urn:lib:0", "created urn:lib:3"}) {
			t.Errorf("events %q", got)
		}
	})
}

// A commit that panics fails for all, and the next one goes on.
func TestTogetherPanics(t *testing.T) {
	h := newDesk(t, Gateway, nil)
	sub := h.received("1", event.StateProvisional, nil)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = h.desk.batcher.append(t.Context(), nil, h.desk.batch(nil, &event.SubmissionBatch{}))
	}()
	h.notify(sub.Token, accepted(mapOf("1"), "urn:lib:1"))
	h.wantEvents("created urn:lib:1")
}
