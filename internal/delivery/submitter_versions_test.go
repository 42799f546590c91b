package delivery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// A record that changes while its submission is put back into the outbox is not
// sent as it was: not even when the old version would be the second to be tried.
func TestResendDoesNotOvertake(t *testing.T) {
	for _, text := range []string{"old", "new"} { // which one the server would lose once
		inBubble(t, func(t *testing.T, h *harness) {
			var refuse atomic.Bool
			refuse.Store(true)
			lose := true
			h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
				switch {
				case refuse.Load():
					return nil, &sip.Fault{Code: sip.Client, Text: "no"}
				case lose && strings.Contains(string(r.Record.XML), ">"+text+"<"):
					lose = false
					return nil, &sip.StatusError{Status: 503}
				}
				return keep(), nil
			}
			h.keep([2]string{"urn:a", "old"})
			reload := make(chan struct{}, 1)
			o := h.submitter(func(o *Submitter) { o.Reload, o.Workers = reload, 1 })
			stop := h.start(o)
			defer stop()
			synctest.Wait()
			refuse.Store(false)
			if n, err := o.Resend(context.Background(), 0, submission.StateUnsent); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			h.keep([2]string{"urn:a", "new"}) // Run has not been told yet
			synctest.Wait()
			reload <- struct{}{}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if got := h.server.kept["urn:a"]; !strings.Contains(got, ">new<") {
				t.Errorf("the server is left with %s; it got %q", got, h.server.requests())
			}
			h.wantStates("urn:a replaced", "urn:a accepted as library:urn:a")
		})
	}
}

// What is put back is the last word even when its successor has been sent by then.
func TestResendLosesToWhatWasSent(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.keep([2]string{"urn:a", "old"})
		stop := h.start(h.submitter(nil))
		synctest.Wait()
		h.keep([2]string{"urn:a", "new"})
		synctest.Wait()
		stop()
		old := h.rows()[0]
		old.State, old.Assigned, old.ImportPending, old.Due = submission.StateWaiting, "", false, event.MicrosOf(time.Now())
		h.step(old)
		stop = h.start(h.submitter(nil))
		time.Sleep(time.Hour)
		synctest.Wait()
		stop()
		h.server.wantRequests(t, "urn:a old", "urn:a new")
		h.wantStates("urn:a replaced", "urn:a accepted as library:urn:a")
	})
}

// step commits submissions of the target as they are.
func (h *harness) step(all ...submission.Submission) {
	h.t.Helper()
	var steps []submission.Update
	for _, s := range all {
		steps = append(steps, submission.Update{Submission: s})
	}
	out, err := h.log.Write(context.Background(), &submission.Batch{Source: h.target, Updates: steps})
	h.do(err)
	if len(out.Stale) > 0 {
		h.t.Fatalf("late: %d", out.Stale)
	}
}

// An outbox that is full of what was answered by notifications takes in what
// happens from then on, even if one record can never be sent.
func TestSubmitterFullOfAnswered(t *testing.T) {
	testenv.Heavy(t)
	const fresh = 2 * chunkLimit
	for name, lost := range map[string][]event.Observation{"all": nil, "all but one": {found("urn:lost", "application/xml", book("whose content is lost"))}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				var down atomic.Bool
				down.Store(true)
				h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
					if down.Load() {
						return nil, &sip.StatusError{Status: 502}
					}
					return keep(), nil
				}
				h.harvest(lost...)
				for k := range fresh/chunkLimit + 2 {
					all := make([][2]string, chunkLimit)
					for i := range all {
						all[i] = [2]string{fmt.Sprintf("urn:%d:%d", k, i), "x"}
					}
					h.keep(all...)
				}
				h.run(func(o *Submitter) { o.maxFresh = fresh })
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				down.Store(false)
				rows := h.rows()
				answered := slices.Clone(rows[len(lost):])
				for i := range answered {
					s := &answered[i]
					s.State, s.Due, s.Deadline, s.Assigned = submission.StateAccepted, 0, 0, "notified:"+s.Record
				}
				h.step(answered...)
				time.Sleep(submission.MaxRetry + time.Minute)
				synctest.Wait()
				if n := len(h.rows()); n == len(rows) {
					t.Errorf("still no more than %d submissions", n)
				}
			})
		})
	}
}

// Rows that were made when no recipient was named get a token before they are sent
// with one, or are sent without.
func TestSubmitterNamesNoRecipientWithoutToken(t *testing.T) {
	for name, change := range map[string]func(*Submitter){"named": nil, "none": func(o *Submitter) { o.Recipient = nil }} {
		inBubble(t, func(t *testing.T, h *harness) {
			down := true
			var known atomic.Int32 // two are sent at the same time
			h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
				if down {
					return nil, &sip.StatusError{Status: 503}
				}
				if _, err := h.log.SubmissionByToken(context.Background(), tokenOf(r)); err == nil {
					known.Add(1)
				}
				return keep(), nil
			}
			h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
			stop := h.start(h.submitter(func(o *Submitter) { o.Recipient = nil }))
			synctest.Wait()
			stop()
			down = false
			stop = h.start(h.submitter(change))
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			stop()
			h.wantStates("urn:a accepted as library:urn:a", "urn:b accepted as library:urn:b")
			for i := range h.server.got {
				if r := &h.server.got[i]; r.Recipient != "" && tokenOf(r) == "" {
					t.Errorf("%s: a recipient without token was named: %q", name, r.Recipient)
				}
			}
			if want := map[string]int32{"named": 2, "none": 0}[name]; known.Load() != want {
				t.Errorf("%s: %d tokens were in the log when they were sent, want %d", name, known.Load(), want)
			}
		})
	}
}

// What was put off, or is awaited, by a clock that was years ahead comes in its
// time once the clock is right.
func TestSubmitterAfterAWrongClock(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		var down atomic.Bool
		down.Store(true)
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			switch {
			case *r.Source.Identifier == "urn:b":
				return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
			case down.Load():
				return nil, &sip.StatusError{Status: 503}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
		stop := h.start(h.submitter(func(o *Submitter) { o.Now = func() time.Time { return time.Now().AddDate(10, 0, 0) } }))
		synctest.Wait()
		stop()
		rows := h.rows()
		rows[0].Deadline = event.MicrosOf(time.Now().AddDate(11, 0, 0))
		h.step(rows[0])
		stop = h.start(h.submitter(nil))
		defer stop()
		synctest.Wait()
		for _, s := range h.rows() {
			if s.Deadline > event.MicrosOf(time.Now().Add(DefaultDeadline)) || s.Due > s.Deadline {
				t.Errorf("%s is %v, due %v, deadline %v", s.Record, s.State, s.Due.Time(), s.Deadline.Time())
			}
		}
		down.Store(false)
		time.Sleep(2 * submission.MaxRetry)
		synctest.Wait()
		h.wantStates("urn:a accepted as library:urn:a", "urn:b provisional")
		time.Sleep(DefaultDeadline)
		synctest.Wait()
		if s := h.rows()[1]; s.State != submission.StateUnresolved {
			t.Errorf("a week later: %v", s.State)
		}
	})
}

// taking runs a Submitter that passes records on.
func (h *harness) taking() (stop func()) {
	imports := make(chan struct{}, 1)
	h.importPending = func() { poke(imports) }
	return h.start(h.submitter(func(o *Submitter) {
		o.ImportTo, o.ImportURL, o.ImportPending, o.Workers = h.importTo, "/sip/accepted", imports, 1
	}))
}

// decides notifies of the nth request.
func (h *harness) decides(n int, d *sip.Disposition) {
	h.t.Helper()
	h.do(h.notify(tokenOf(&h.server.got[n]), d))
}

// published returns the events of the other set, as "kind identifier text".
func (h *harness) published() (out []string) {
	h.t.Helper()
	texts := map[string]string{}
	for _, text := range []string{"one", "two", "three"} {
		texts[found("", "application/xml", book(text)).Representations[0].Hash] = text
	}
	for e, err := range h.log.Events(context.Background(), "accepted", event.Range{Upto: 1 << 40}) {
		h.do(err)
		out = append(out, e.Kind.String()+" "+e.Record+" "+texts[e.Representations[0].Hash])
	}
	return out
}

func (h *harness) wantPublished(want ...string) {
	h.t.Helper()
	if got := h.published(); !slices.Equal(got, want) {
		h.t.Errorf("the other set has %q, want %q", got, want)
	}
}

func (h *harness) importsPending() (n int) {
	h.t.Helper()
	found, err := h.log.Submissions(context.Background(), submission.Query{Source: h.target, ImportPending: true})
	h.do(err)
	return len(found)
}

func withImport(t *testing.T, test func(t *testing.T, h *harness)) {
	inBubble(t, func(t *testing.T, h *harness) {
		test(t, h)
		h.verified()
	})
}

func provisionally(int, *sip.Request, func() *sip.Disposition) (*sip.Disposition, error) {
	return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
}

// The reply says accepted, and a notification is faster that says rejected: what is
// in force is rejected, and nothing is published.
func TestImportTakesNothingRejected(t *testing.T) {
	withImport(t, func(t *testing.T, h *harness) {
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			h.decides(0, &sip.Disposition{Outcome: sip.Rejected, Reason: "no"})
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "one"})
		stop := h.taking()
		synctest.Wait()
		stop()
		h.wantStates("urn:a rejected: no, 1 conflicts")
		h.wantPublished()
	})
}

// What is accepted while nobody takes it, since the target or its other set is
// not configured, is taken when somebody does.
func TestImportCatchesUp(t *testing.T) {
	withImport(t, func(t *testing.T, h *harness) {
		h.server.answer = provisionally
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
		stop := h.taking()
		synctest.Wait()
		stop()
		h.importPending = nil
		h.decides(0, accepted(nil, "lib:a"))
		stop = h.start(h.submitter(nil)) // without another set
		synctest.Wait()
		h.decides(1, accepted(nil, "lib:b"))
		synctest.Wait()
		stop()
		h.wantPublished()
		stop = h.taking()
		synctest.Wait()
		stop()
		h.wantPublished("created lib:a one", "created lib:b two")
		if n := h.importsPending(); n != 0 {
			t.Errorf("%d are to be imported still", n)
		}
	})
}

// A notification's record is taken at once: nobody waits for a clock.
func TestImportIsAtOnce(t *testing.T) {
	withImport(t, func(t *testing.T, h *harness) {
		h.server.answer = provisionally
		h.keep([2]string{"urn:a", "one"})
		stop := h.taking()
		defer stop()
		synctest.Wait()
		began := time.Now()
		h.decides(0, accepted(nil, "lib:a"))
		synctest.Wait()
		h.wantPublished("created lib:a one")
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// Dispositions come in any order: an old version that is accepted last changes
// nothing, unless it is another record there.
func TestImportOldVersionLast(t *testing.T) {
	for identifier, want := range map[string][]string{
		"lib:a": {"created lib:a two"},
		"lib:b": {"created lib:a two", "created lib:b one"},
	} {
		withImport(t, func(t *testing.T, h *harness) {
			h.server.answer = provisionally
			stop := h.taking()
			defer stop()
			h.keep([2]string{"urn:a", "one"})
			synctest.Wait()
			h.keep([2]string{"urn:a", "two"})
			synctest.Wait()
			h.decides(1, accepted(nil, "lib:a"))
			synctest.Wait()
			h.decides(0, accepted(nil, identifier))
			synctest.Wait()
			h.wantPublished(want...)
			h.wantStates("urn:a accepted as "+identifier, "urn:a accepted as lib:a")
			if n := h.importsPending(); n != 0 {
				t.Errorf("%d are to be imported still", n)
			}
		})
	}
}
