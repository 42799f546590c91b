package ingest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pmh-bridge/bridge/sip"
)

// Requests wait until the service runs, and go when it ends.
func TestIngestWaitsForRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newDesk(t, Library, nil)
		d := &Server{Set: "maps", Mode: Library, Source: h.desk.Source, Store: h.store, Contents: h.desk.Contents, Formats: h.desk.Formats}
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
