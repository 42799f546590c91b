package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// trouble returns what the log keeps of how the target fails, and how often that
// was written.
func (h *harness) trouble() (*Failure, int64) {
	h.t.Helper()
	p, err := h.log.Progress(h.t.Context(), h.target)
	h.do(err)
	t, err := StoredFailure(&p)
	h.do(err)
	return t, p.Cursor.Version
}

// A server that cannot even be asked for its properties is told of where another
// process sees it: once, however long that lasts and whoever goes on with it, once
// for another reason, and once when it answers.
func TestSubmitterTellsOfTrouble(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		began := time.Now()
		fail := func(err error) {
			h.server.mu.Lock()
			defer h.server.mu.Unlock()
			h.server.broken = func() error { return err }
		}
		fail(errors.New("nobody is there"))
		h.keep([2]string{"urn:a", "one"})
		stop := h.start(h.submitter(nil))
		synctest.Wait()
		want := Failure{Since: began.UTC(), Reason: "nobody is there", Again: began.Add(time.Minute).UTC(), Properties: true}
		if got, n := h.trouble(); got == nil || *got != want || n != 1 {
			t.Errorf("after the first failure: %+v, written %d times; want %+v, once", got, n, want)
		}
		time.Sleep(6 * time.Hour)
		stop()
		stop = h.start(h.submitter(nil))
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if got, n := h.trouble(); got == nil || *got != want || n != 1 {
			t.Errorf("half a day later: %+v, written %d times; want %+v, once", got, n, want)
		}
		fail(errors.New("it is no SIP server"))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got, n := h.trouble(); got == nil || !got.Since.Equal(began) || got.Reason != "it is no SIP server" || n != 2 {
			t.Errorf("with another reason: %+v, written %d times", got, n)
		}
		if s := h.rows()[0]; s.State != submission.StateWaiting || s.Reason != "" {
			t.Errorf("the row: %+v", s)
		}
		fail(nil)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		stop()
		if got, n := h.trouble(); got != nil || n != 3 {
			t.Errorf("when it answers: %+v, written %d times", got, n)
		}
		h.wantStates("urn:a accepted as library:urn:a")
	})
}

// That a server answers get-properties does not end what it does to records.
func TestSubmitterTellsOfFaults(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		var healed atomic.Bool
		h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if !healed.Load() {
				return nil, &sip.Fault{Code: sip.Server, Text: "out of order"}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", ""}, [2]string{"urn:b", ""}, [2]string{"urn:c", ""})
		h.run(func(o *Submitter) { o.Workers = 1 })
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if got, n := h.trouble(); got == nil || got.Reason != "SOAP fault Server: out of order" || got.Properties || n != 1 {
			t.Errorf("while it answers with faults: %+v, written %d times", got, n)
		}
		healed.Store(true)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got, n := h.trouble(); got != nil || n != 2 {
			t.Errorf("when it takes them: %+v, written %d times", got, n)
		}
	})
}

// A password that a server refuses with a fault (SOAP 1.1, 4.4.1) is the target's trouble, as with
// status 401: few requests are made until it is right, and then all records are taken.
func TestSubmitterTellsOfAPassword(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		var right atomic.Bool
		var refused atomic.Int32
		h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if !right.Load() {
				refused.Add(1)
				return nil, &sip.Fault{Code: sip.ClientAuthentication, Text: "who are you?"}
			}
			return keep(), nil
		}
		var records [][2]string
		for i := range 30 {
			records = append(records, [2]string{fmt.Sprintf("urn:%02d", i), ""})
		}
		h.keep(records...)
		h.run(func(o *Submitter) { o.Workers = 1 })
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if got, _ := h.trouble(); got == nil || got.Reason != "SOAP fault Client.Authentication: who are you?" || refused.Load() > 20 {
			t.Errorf("while the password is wrong: %+v, %d requests", got, refused.Load())
		}
		right.Store(true)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		for _, s := range h.rows() {
			if s.State != submission.StateAccepted {
				t.Errorf("%s is %v: %s", s.Record, s.State, s.Reason)
			}
		}
	})
}

// D32: the success that ends the trouble of a server ends its pause: a call may have
// been under way when the others failed.
func TestSuccessEndsThePause(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		const failing = 3
		server := beforehand{h.server, func(r *sip.Request) error {
			switch id := *r.Source.Identifier; {
			case id < fmt.Sprintf("urn:%02d", failing):
				time.Sleep(time.Second)
				return &sip.StatusError{Status: 503}
			case id == fmt.Sprintf("urn:%02d", failing):
				time.Sleep(2 * time.Second)
			default:
				time.Sleep(time.Second)
			}
			return nil
		}}
		var records [][2]string
		for i := range failing + 1 + 25 {
			records = append(records, [2]string{fmt.Sprintf("urn:%02d", i), ""})
		}
		h.keep(records...)
		h.run(func(o *Submitter) { o.Workers, o.Server = failing+1, server })
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if got, _ := h.trouble(); got == nil {
			t.Fatal("three failures are no trouble")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		waiting := 0
		for _, s := range h.rows() {
			if s.State == submission.StateWaiting {
				waiting++
			}
		}
		if got, _ := h.trouble(); got != nil || waiting != failing {
			t.Errorf("when it answers %d wait, %d have failed; trouble: %+v", waiting, failing, got)
		}
	})
}

// beforehand is an ingest server that may fail, or take its time, before it looks at
// a request; at several at a time.
type beforehand struct {
	*ingestServer
	do func(*sip.Request) error
}

func (b beforehand) Ingest(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	if err := b.do(r); err != nil {
		return nil, err
	}
	return b.ingestServer.Ingest(ctx, r)
}
