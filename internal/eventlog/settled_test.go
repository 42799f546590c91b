package eventlog_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// Nothing is observed before a time that was settled: neither by a transaction that was
// under way then, nor after the clock was set back.
func TestSettled(t *testing.T) {
	ctx := t.Context()
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var mu sync.Mutex
	set := func(to time.Time) { mu.Lock(); wall = to; mu.Unlock() }
	l, err := eventlog.Open(ctx, t.TempDir(), eventlog.Options{Clock: func() (time.Time, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		return wall, time.Hour
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Redirect, SegmentEvents: 300}))
	src, err := l.EnsureSource(ctx, "main", "atompmh", "https://repository.example/feed.atom", 0)
	if err != nil {
		t.Fatal(err)
	}
	settled := func(want time.Time) {
		t.Helper()
		if got := l.Settled().Time(); !got.Equal(want) {
			t.Errorf("settled is %v, want %v", got, want)
		}
	}
	observed := func() time.Time {
		t.Helper()
		s, err := l.Set(ctx, "main")
		if err != nil {
			t.Fatal(err)
		}
		return s.Newest.Time()
	}

	began := wall
	settled(began)
	begun, commit, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- l.Do(context.Background(), func(ctx context.Context, tx *eventlog.Tx) error {
			close(begun)
			<-commit
			_, err := tx.Append(ctx, &event.Batch{Source: src, Start: true, Next: []byte("1"), Documents: []event.Document{{URL: "https://repository.example/1.atom"}}, Items: items(0, 3)})
			return err
		})
	}()
	<-begun
	set(began.Add(time.Minute))
	settled(began) // the transaction is not committed
	close(commit)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if at := observed(); at.Before(began) || at.After(began.Add(time.Second)) {
		t.Errorf("observed at %v, want the time at which the transaction began", at)
	}
	settled(began.Add(time.Minute))

	set(began.Add(30 * time.Second)) // it is set back
	settled(began.Add(time.Minute))
	must(t, add(l, src, 3, 3))
	if at := observed(); at.Before(began.Add(time.Minute)) {
		t.Errorf("observed at %v, which was settled before", at)
	}
	failure := errors.New("on purpose")
	if err := l.Do(ctx, func(context.Context, *eventlog.Tx) error { return failure }); !errors.Is(err, failure) {
		t.Fatal(err)
	}
	set(began.Add(2 * time.Minute))
	settled(began.Add(2 * time.Minute)) // what has failed is not under way
}
