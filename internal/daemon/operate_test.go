package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// TestOperatorEndsHarvest: a harvest that hangs does not keep an operator waiting. It is no
// failure, and goes on afterwards.
func TestOperatorEndsHarvest(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	answer := make(chan bool, 4)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
			fmt.Fprint(w, smallFeed)
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	b := openFeeds(t, t.TempDir(), server, "/")
	defer closeBridge(t, b)
	ctx, cancel := context.WithCancelCause(t.Context())
	done, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		b.schedule(ctx, cancel, func(_ *Source, _ harvest.Report, err error) { done <- err })
	}()
	b.stop.Store(&cancel)
	defer func() { cancel(nil); <-ended }()

	<-asked
	if _, err := b.Pause(ctx, "main", "", "a test", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if said, err := b.Release(ctx, "main", "", 0); err != nil || said != "main: 0 held deletions applied" {
		t.Errorf("%q, %v", said, err)
	}
	if wait, err := b.DueIn(ctx, b.Sources()[0]); err != nil || wait != forever {
		t.Errorf("paused, it is due in %s, %v", wait, err)
	}
	if _, err := b.HarvestNow(ctx, "main", ""); err == nil {
		t.Error("it is harvested while it is paused")
	}
	if _, err := b.Resume(ctx, "main", ""); err != nil {
		t.Fatal(err)
	}
	<-asked // the harvest begins anew
	if _, err := b.Forget(ctx, "main", "", false, true); err == nil {
		t.Error("it is forgotten, and goes on being harvested")
	}
	<-asked // which has ended the harvest too
	if _, err := b.Reset(ctx, "main", ""); err != nil {
		t.Fatal(err)
	}
	<-asked // and once more
	answer <- true
	if err := <-done; err != nil {
		t.Error(err)
	}
	s, err := b.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if src := s.Sets[0].Sources[0]; src.Failures != 0 || src.Paused != nil || s.Sets[0].Events != 1 {
		t.Errorf("%d failures, paused %v, %d events", src.Failures, src.Paused, s.Sets[0].Events)
	}
	if _, err := b.HarvestNow(ctx, "main", ""); err != nil {
		t.Error(err)
	}
	<-asked
	answer <- true
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestReplayEndsHarvest: bad input can be replayed beside a harvest of its Source, which does
// not fail because of that.
func TestReplayEndsHarvest(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
			fmt.Fprint(w, smallFeed)
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	b := openFeeds(t, t.TempDir(), server, "/")
	defer closeBridge(t, b)
	ctx, src := t.Context(), b.Sources()[0]
	if _, err := b.Log.Append(ctx, &event.Batch{Source: src.ID, Quarantine: []event.Quarantined{{URL: server.URL + "/", Rule: "a-rule", Input: []byte(strings.ReplaceAll(smallFeed, ">a<", ">b<"))}}}); err != nil {
		t.Fatal(err)
	}
	all, err := b.Log.Quarantined(ctx, "main")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	q, err := b.Log.QuarantinedInput(ctx, all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	harvested := make(chan error, 1)
	go func() {
		_, err := b.Harvest(ctx, src, harvest.Options{})
		harvested <- err
	}()
	<-asked
	report, err := b.Replay(ctx, &q)
	close(answer)
	if err != nil || report.Created != 1 {
		t.Errorf("replay: %d created, %v", report.Created, err)
	}
	if err := <-harvested; !errors.Is(err, errInterrupted) {
		t.Errorf("the harvest under way: %v", err)
	}
}

// TestPauseEndsByItself: a pause with an end is over then, and a Source is asked neither for
// documents nor for contents until then.
func TestPauseEndsByItself(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	b := openFeeds(t, t.TempDir(), server, "/", "/other")
	defer closeBridge(t, b)
	ctx := t.Context()
	src := b.Sources()[0]
	if _, err := b.Pause(ctx, "", server.URL+"/", "", b.now().Add(-time.Second)); err == nil {
		t.Error("a pause that has ended is accepted")
	}
	if _, err := b.Pause(ctx, "main", server.URL+"/", "why", b.now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if wait, err := b.DueIn(ctx, src); err != nil || wait < 59*time.Minute || wait > time.Hour {
		t.Errorf("due in %s, %v", wait, err)
	}
	// It may have been due before, and have had its turn since.
	if _, err := b.harvestSource(ctx, src, src.Every, harvest.Options{}); !errors.Is(err, errInterrupted) {
		t.Errorf("paused, it is harvested: %v", err)
	}
	later := b.now().Add(2 * time.Hour)
	b.opt.Now = func() time.Time { return later }
	wait, err := b.DueIn(ctx, src)
	pauses, perr := b.pauseStatus(ctx)
	if err := errors.Join(err, perr); err != nil || wait > 0 || len(pauses) != 0 {
		t.Errorf("after the pause it is due in %s, %v; %v", wait, pauses, err)
	}
	if _, err := b.Lookup(ctx, "", ""); err == nil {
		t.Error("nothing names a Source")
	}
}
