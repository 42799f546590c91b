package eventlog_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A data folder is held by one process at a time, with a log or without; others are told by
// whom, and may read.
func TestFolderIsHeld(t *testing.T) {
	t.Parallel()
	ctx, folder := t.Context(), t.TempDir()
	release, err := eventlog.Hold(folder, "bridge restore")
	if err != nil {
		t.Fatal(err)
	}
	var locked *eventlog.LockedError
	if _, err := eventlog.Open(ctx, folder, eventlog.Options{}); !errors.As(err, &locked) || !strings.HasPrefix(locked.Holder, "bridge restore (process ") || !strings.Contains(err.Error(), "the data folder "+folder+" is in use by bridge restore") {
		t.Errorf("it is opened: %v", err)
	}
	if !eventlog.Held(folder) || eventlog.Held(filepath.Join(folder, "none")) {
		t.Error("the wrong folder is held")
	}
	if err := release(); err != nil || eventlog.Held(folder) || eventlog.Exists(folder) {
		t.Errorf("it is still held, or has a log: %v", err)
	}

	l, src := filled(t, folder, event.Reference)
	if _, err := eventlog.Hold(folder, "another"); !errors.As(err, &locked) || !strings.HasPrefix(locked.Holder, "bridge harvest (process ") {
		t.Errorf("it is held twice: %v", err)
	}
	must(t, errors.Join(add(l, src, 0, 301), l.MarkSetComplete(ctx, "main"), l.RecordAlive(), l.Clock(), l.Check(ctx)))
	closed(t, l)
	if l, src = filled(t, folder, event.Reference); l.Seen().IsZero() {
		t.Error("it was never seen in use")
	}

	// A copy has what there was at its beginning.
	copied, err := eventlog.TakeSnapshot(ctx, folder)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	must(t, add(l, src, 301, 10))
	if len(copied.Sets) != 1 || copied.Last != 301 || copied.Observed == 0 || copied.Loss != nil {
		t.Errorf("%+v", copied)
	}
	sets, segments, err := l.AtOnce(ctx)
	if err != nil || len(sets) != 1 || sets[0].Last != 311 || sets[0].Partial || len(segments["main"]) != 2 || segments["main"][0].Events != 300 {
		t.Errorf("%+v, %+v, %v", sets, segments, err)
	}
	must(t, os.Rename(folder, folder+".gone"))
	if err := l.Check(ctx); !errors.Is(err, eventlog.ErrStopped) || !strings.Contains(err.Error(), "the data folder was removed, renamed or unmounted") {
		t.Errorf("the folder is gone: %v", err)
	}
	if err := l.RecordAlive(); !errors.Is(err, eventlog.ErrStopped) {
		t.Errorf("it is still written: %v", err)
	}
	_ = l.Close() // of a log that has stopped
	if err := os.RemoveAll(folder + ".gone"); err != nil {
		t.Error(err)
	}
}
