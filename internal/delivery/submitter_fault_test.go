package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// A log that fails costs no answer: it is logged when the log works again,
// whether or not the failed commit took effect.
func TestSubmitterStoreFails(t *testing.T) {
	for name, fail := range map[string]func(f *testenv.Faults){
		"before": func(f *testenv.Faults) { f.Before.Store(7) },
		"after":  func(f *testenv.Faults) { f.After.Store(7) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
					fail(h.faults)
					if *r.Source.Identifier == "urn:b" {
						return &sip.Disposition{Outcome: sip.Rejected, Reason: "no"}, nil
					}
					return keep(), nil
				}
				fail(h.faults)
				h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
				stop := h.start(h.submitter(func(o *Submitter) { o.ImportTo, o.ImportURL = h.importTo, "/sip/accepted" }))
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				stop()
				h.wantStates("urn:a accepted as library:urn:a", "urn:b rejected: no")
				if set, err := h.log.Set(t.Context(), "accepted"); err != nil || set.Events != 1 || set.Live != 1 {
					t.Errorf("the other set: %+v, %v", set, err)
				}
				if n := len(h.server.requests()); n != 2 || len(h.rejections()) != 1 {
					t.Errorf("%d requests, rejected events %q", n, h.rejections())
				}
			})
		})
	}
}

// Content that cannot be read now is sent when it can be.
func TestSubmitterContentFails(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		folder := t.TempDir()
		empty, err := content.Open(t.Context(), filepath.Join(folder, "content.db"), content.Options{})
		h.do(err)
		defer empty.Close()
		h.keep([2]string{"urn:a", "one"})
		h.run(func(o *Submitter) { o.Contents = empty })
		if s := h.rows()[0]; s.State != submission.StateWaiting || !strings.HasPrefix(s.Reason, "its content cannot be read here: ") || s.Tries != 0 {
			t.Errorf("without the content: %+v", s)
		}
		h.do(keep(t.Context(), empty, []byte(book("one"))))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		h.wantStates("urn:a accepted as library:urn:a")
	})
}

// While contents cannot be read, each record is tried again and again, and logged once.
func TestSubmitterContentFailsForLong(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		empty, err := content.Open(t.Context(), filepath.Join(t.TempDir(), "content.db"), content.Options{})
		h.do(err)
		defer empty.Close()
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"}, [2]string{"urn:c", "three"})
		log := &bytes.Buffer{}
		h.run(func(o *Submitter) { o.Contents, o.Log = empty, slog.New(slog.NewTextHandler(log, nil)) })
		for range 60 {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if n := strings.Count(log.String(), "a record could not be submitted"); n != 3 {
			t.Errorf("%d lines in an hour, want one for each of 3 records", n)
		}
		h.do(keep(t.Context(), empty, []byte(book("one")), []byte(book("two")), []byte(book("three"))))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		h.wantStates("urn:a accepted as library:urn:a", "urn:b accepted as library:urn:b", "urn:c accepted as library:urn:c")
	})
}

// A process that ends between the answer and its commit sends again; there is one
// submission, and one state.
func TestSubmitterCrashBeforeTheCommit(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		crashed := make(chan struct{})
		h.server.answer = func(n int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if n == 1 {
				h.faults.Before.Store(1 << 30) // no commit any more
				close(crashed)
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", "one"})
		stop := h.start(h.submitter(nil))
		<-crashed
		stop()
		h.wantStates("urn:a waiting")
		h.faults.Before.Store(0)
		stop = h.start(h.submitter(nil))
		synctest.Wait()
		stop()
		h.wantStates("urn:a accepted as library:urn:a")
		h.server.wantRequests(t, "urn:a one", "urn:a one")
	})
}

// Whoever stops the outbox lets what is under way be answered; what takes longer
// is cut off.
func TestSubmitterStops(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		want  string
	}{
		"answered": {3 * time.Second, "urn:a accepted as library:urn:a"},
		"cut off":  {time.Hour, "urn:a waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
				stop := h.start(h.submitter(func(o *Submitter) { o.Workers, o.Server = 1, &slow{h.server, c.takes} }))
				synctest.Wait()
				began := time.Now()
				stop()
				if took := time.Since(began); took > shutdownGrace {
					t.Errorf("it took %v to stop", took)
				}
				h.wantStates(c.want, "urn:b waiting")
			})
		})
	}
}

// Who asks for it is told of each error of the log, in reading too; what waits is
// submitted when it is over.
func TestSubmitterTellsOfErrors(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.keep([2]string{"urn:a", "one"})
		broken, failing := errors.New("broken"), true
		h.store.Hook = func(query string, call func() error) error {
			if failing && query != "" {
				return broken
			}
			return call()
		}
		told := 0
		stop := h.start(h.submitter(func(o *Submitter) {
			o.Failed = func(err error) {
				if told++; !errors.Is(err, broken) {
					t.Errorf("told of %v", err)
				}
				failing = told < 3
			}
		}))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		stop()
		if told != 3 {
			t.Errorf("told %d times, want 3", told)
		}
		h.wantStates("urn:a accepted as library:urn:a")
	})
}

// No request begins once the outbox is to stop, even if a commit holds up its end.
func TestSubmitterBeginsNothingAtItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		for i := range 10 {
			h.keep([2]string{fmt.Sprint("urn:", i), "text"})
		}
		pass := make(chan struct{})
		h.store.Hook = func(query string, call func() error) error {
			if query == "" {
				<-pass
			}
			return call()
		}
		stop := h.start(h.submitter(func(o *Submitter) { o.Workers, o.Server = 1, &slow{h.server, time.Second} }))
		pass <- struct{}{} // the new submissions
		time.Sleep(1500 * time.Millisecond)
		go func() {
			time.Sleep(10 * time.Second)
			close(pass)
		}()
		stop()
		h.server.wantRequests(t, "urn:0 text", "urn:1 text")
		if states := h.states(); !slices.Equal(states[:3], []string{"urn:0 accepted as library:urn:0", "urn:1 accepted as library:urn:1", "urn:2 waiting"}) {
			t.Errorf("submissions %q", states)
		}
	})
}

// slow takes its time, but ends with the context, as sip.HTTPClient does.
type slow struct {
	*ingestServer
	takes time.Duration
}

func (s *slow) Ingest(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.takes):
		return s.ingestServer.Ingest(ctx, r)
	}
}

// Whichever commit has happened although it seems to have failed: the submitter goes on, and
// what is there and what comes later arrives.
func TestSubmitterGoesOnAfterAnyCommit(t *testing.T) {
	down, lost := callFailures(t)
	for nth := range int32(8) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, nil)
			server := &unreliable{ingestServer: h.server, lost: lost, down: down, fates: slices.Repeat([]string{"down"}, 6), verdict: map[string]*sip.Disposition{}, deaf: map[string]bool{}}
			commit, commits := h.store.Hook, atomic.Int32{}
			var failures []error
			h.store.Hook = func(query string, call func() error) error {
				err := commit(query, call)
				if query == "" && err == nil && commits.Add(1) == nth+1 {
					return testenv.ErrBroken
				}
				return err
			}
			stop := h.start(h.submitter(func(o *Submitter) { o.Server, o.Failed = server, func(err error) { failures = append(failures, err) } }))
			for _, record := range []string{"urn:a", "urn:b"} {
				h.keep([2]string{record, "a record"})
				time.Sleep(24 * time.Hour)
			}
			synctest.Wait()
			stop()
			rows := h.rows()
			if len(rows) != 2 || rows[0].State != submission.StateAccepted || rows[1].State != submission.StateAccepted {
				t.Errorf("after commit %d: %+v", nth+1, rows)
			}
			if len(failures) != 1 { // the one above, and no other because of it
				t.Errorf("after commit %d of %d: it failed %d times: %v", nth+1, commits.Load(), len(failures), failures[:min(3, len(failures))])
			}
		})
	}
}
