package daemon_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// TestFault_RetryAfterLongerThanWeWait: the host is left alone altogether.
func TestFault_RetryAfterLongerThanWeWait(t *testing.T) {
	b := newHarness(t, fixtures.New(fixtures.Options{}))
	b.quick()
	b.provider.Create(record("a", fixtures.Atom()))
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Status: 503, Header: http.Header{"Retry-After": {"3600"}}})
	b.want("logged", b.wantError("503"))
	b.provider.ForgetRequests()
	b.want("logged", b.wantError("not to be asked"))
	b.wantAsked(map[string]int{})
	b.provider.ClearHook(fixtures.Subscription)
	b.quick() // as after a restart
	b.harvest()
	b.wantLive()
}

// TestFault_StepThatCannotBeStored: whatever fails, a harvest says so,
// and the next one takes in what is missing, once.
func TestFault_StepThatCannotBeStored(t *testing.T) {
	const onFire = "the disk is on fire"
	// breakTable lets the nth change of a table fail.
	breakTable := func(file, change string) func(b *harness, n int) (context.Context, harvest.Options, func()) {
		return func(b *harness, n int) (context.Context, harvest.Options, func()) {
			path := filepath.Join(b.config.Data, file)
			tamper(b.t, path, fmt.Sprintf("CREATE TABLE allowed (n INTEGER); INSERT INTO allowed VALUES (%d); "+
				"CREATE TRIGGER broken BEFORE %s BEGIN UPDATE allowed SET n = n - 1; SELECT RAISE(ABORT, '%s') FROM allowed WHERE n <= 0; END", n, change, onFire))
			return b.t.Context(), harvest.Options{}, func() { tamper(b.t, path, "DROP TRIGGER broken; DROP TABLE allowed") }
		}
	}
	for _, c := range []struct {
		name string
		want string
		fail func(b *harness, n int) (context.Context, harvest.Options, func())
	}{
		{"contents fail", onFire, breakTable("content.db", "INSERT ON content")},
		{"the log fails once contents are stored", onFire, breakTable("log.db", "UPDATE ON source")},
		{"the harvest ends once the log has events", context.Canceled.Error(), func(b *harness, n int) (context.Context, harvest.Options, func()) {
			ctx, cancel := context.WithCancel(b.t.Context())
			events := int64(0)
			return ctx, harvest.Options{Progress: func(p harvest.Progress) {
				if p.Events > events {
					events = p.Events
					if n--; n == 0 {
						cancel()
					}
				}
			}}, cancel
		}},
	} {
		t.Run(c.name, func(t *testing.T) { failEverywhere(t, c.want, c.fail) })
	}
}

// failEverywhere lets every single step fail in turn, until a harvest gets through.
func failEverywhere(t *testing.T, want string, fail func(b *harness, n int) (context.Context, harvest.Options, func())) {
	for n := 1; ; n++ {
		p := fixtures.New(fixtures.Options{PerArchive: 3})
		b := newHarness(t, p, content(config.Mirror))
		b.bridge.Harvester().BatchSize = 2
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			p.Create(record(name, fixtures.Atom()))
		}
		ctx, options, undo := fail(b, n)
		_, err := b.bridge.Harvest(ctx, b.source(), options)
		undo()
		if err == nil {
			if n < 4 {
				t.Errorf("only %d steps", n)
			}
			return
		}
		if !strings.Contains(err.Error(), want) {
			t.Fatalf("step %d: %v", n, err)
		}
		if mark := b.stored().Mark; mark.Known() {
			b.wantLive() // the walk had ended; only the report was lost
		}
		b.harvest()
		b.wantLive()
		b.wantBytes()
		if got := len(b.events(0)); got != 7 {
			t.Errorf("call %d: %d events, want 7: %q", n, got, b.events(0))
		}
		b.close()
	}
}
