package harvest_test

import (
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// For whom a set waits follows from what its Sources said last (D143).
func TestWaits(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	const (
		asked = `{"waits":{"asked":"2026-11-22T11:59:00Z","sets":{"urn:us":"2026-11-22T11:59:00Z","urn:b":"2026-11-22T11:58:00Z"}}}`
		ring  = `{"waits":{"asked":"2026-11-22T11:59:00Z","sets":{"urn:us":"2026-11-22T11:59:00Z"}}}`
		long  = `{"waits":{"asked":"2026-11-22T10:59:00Z","sets":{"urn:us":"2026-11-22T10:59:00Z"}}}`
		over  = `"waits":{"asked":"2026-11-22T11:00:00Z","sets":{"urn:b":"2026-11-22T11:00:00Z"},"over":"2026-11-22T11:58:30Z"}}`
	)
	for _, c := range []struct {
		name    string
		sources []string
		want    string
	}{
		{"never asked", []string{""}, "urn:us;age=0"},
		{"walked", []string{`{"whole":"urn:us"}`}, "none"},
		{"walked in another epoch", []string{`{"whole":"urn:before"}`}, "urn:us;age=0"},
		{"waits for another", []string{asked}, "urn:b;age=120"},
		{"waits for us only", []string{ring}, "none"},
		{"was asked long ago", []string{long}, "urn:us;age=0"},
		{"what it waits for was walked since", []string{asked, `{"whole":"urn:us",` + over}, "none"},
		{"and that in another epoch", []string{asked, `{"whole":"urn:before",` + over}, "urn:b;age=120, urn:us;age=0"},
		{"cannot be read", []string{`{`}, "urn:us;age=0"},
	} {
		var sources []event.Progress
		for _, memory := range c.sources {
			sources = append(sources, event.Progress{Memory: []byte(memory)})
		}
		if got := harvest.AwaitedSets("urn:us", sources, now).Header(now); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
