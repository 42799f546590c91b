package ingest

import (
	"context"
	"encoding/xml"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// Requests wait until the service runs, and go when it ends.
func TestIngestWaitsForRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, contents := &slowStore{}, nothingKept{}
		d := &Server{Set: "maps", Mode: Library, Store: store, Contents: contents, Formats: map[xml.Name]string{{Space: "urn:maps", Local: "map"}: deskFormat}}
		hurried, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			if _, err := d.Ingest(hurried, sip.Caller{}, request("1", "")); !errors.Is(err, context.Canceled) {
				t.Errorf("whoever hung up before the service ran was answered %v", err)
			}
		})
		wait.Go(func() {
			if disp, err := d.Ingest(t.Context(), sip.Caller{}, request("2", "")); err != nil || disp.Outcome != sip.Accepted {
				t.Errorf("whoever waited was answered %v, %v", disp, err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		running, stop := context.WithCancel(t.Context())
		wait.Go(func() {
			if err := d.Run(running); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		synctest.Wait()
		stop()
		wait.Wait()
		if _, err := d.Ingest(t.Context(), sip.Caller{}, request("3", "")); !errors.Is(err, errEnded) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// slowStore is a Store in memory that remembers the sizes of its batches. A
// channel in hold makes the next commit wait for it.
type slowStore struct {
	Store
	mu     sync.Mutex
	groups []int
	hold   chan struct{}
}

func (s *slowStore) Append(_ context.Context, b *event.Batch) (event.Appended, error) {
	s.mu.Lock()
	s.groups = append(s.groups, len(b.Items))
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return event.Appended{Outcomes: make([]event.Outcome, len(b.Items))}, nil
}

func (s *slowStore) StoredReply(context.Context, event.SourceID, [32]byte) ([]byte, error) {
	return nil, nil
}

func (s *slowStore) SubmissionsDue(context.Context, event.SourceID, event.State, event.Micros, *event.Submission, int) ([]event.Submission, error) {
	return nil, nil
}

func (s *slowStore) Submissions(context.Context, event.SubmissionQuery) ([]event.Submission, error) {
	return nil, nil
}

type nothingKept struct{ Contents }

func (nothingKept) Put(context.Context, ...[]byte) error { return nil }

// The first request is committed at once, those that come meanwhile together, no
// more than fit in a group. When the service ends, what was taken is answered.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{hold: make(chan struct{})}
		d := &Server{Set: "maps", Mode: Library, Store: store, Contents: nothingKept{}, Formats: map[xml.Name]string{{Space: "urn:maps", Local: "map"}: deskFormat}}
		running, stop := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			if err := d.Run(running); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		var answered, ended atomic.Int32
		ingest := func(n int) {
			for range n {
				wait.Go(func() {
					switch _, err := d.Ingest(t.Context(), sip.Caller{}, request("1", "")); {
					case err == nil:
						answered.Add(1)
					case errors.Is(err, errEnded):
						ended.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		commit := func(want int32) {
			store.hold <- struct{}{}
			synctest.Wait()
			if got := answered.Load(); got != want {
				t.Fatalf("%d are answered, want %d", got, want)
			}
		}
		ingest(1)
		ingest(groupLimit + 44)
		commit(1)
		commit(1 + groupLimit)
		ingest(3)
		stop()
		synctest.Wait()
		close(store.hold)
		wait.Wait()
		if want := []int{1, groupLimit, 44}; !slices.Equal(store.groups, want) {
			t.Errorf("groups of %v, want %v", store.groups, want)
		}
		if answered.Load() != 1+groupLimit+44 || ended.Load() != 3 {
			t.Errorf("%d answered, %d sent away, want %d and 3", answered.Load(), ended.Load(), 1+groupLimit+44)
		}
	})
}
