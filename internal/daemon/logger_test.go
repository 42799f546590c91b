package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// linesOf takes the lines out of a log, without their times.
func linesOf(t *testing.T, l *testenv.Log) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(l.Take()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		delete(fields, "time")
		lines = append(lines, fields)
	}
	return lines
}

// TestHarvestLines: serve logs one line for a harvest that changed something or has failed,
// none for one that found nothing new; the lines of one harvest have an id in common.
func TestHarvestLines(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	answers := []int{http.StatusServiceUnavailable, 0}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) > 0 && answers[0] != 0 {
			w.WriteHeader(answers[0])
			answers = answers[1:]
			return
		}
		fmt.Fprint(w, smallFeed)
	}))
	t.Cleanup(server.Close)
	b := openFeeds(t, t.TempDir(), server, "/feed?token=secret-of-the-source")
	said := &testenv.Log{}
	b.opt.Logger = NewLogger(said, slog.LevelInfo, true)
	src := b.Sources()[0]
	g := fetch.New(fetch.Options{Backoff: time.Millisecond, Log: b.opt.Logger, Reach: fetch.Reach{Origin: server.URL, Allowed: []string{"127.0.0.1"}}})
	t.Cleanup(g.Close)
	src.Client = g.Client("")

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	harvested, served := make(chan error), make(chan error, 1)
	go func() {
		served <- b.Serve(ctx, listener, func(_ *Source, _ harvest.Report, err error) { harvested <- err })
	}()
	again := func(status int) {
		t.Helper()
		mu.Lock()
		answers = []int{status}
		mu.Unlock()
		if _, err := b.HarvestNow(ctx, "main", ""); err != nil {
			t.Fatal(err)
		}
	}
	of := func(lines []map[string]any) (texts []string) {
		for _, l := range lines {
			if l["harvest"] != nil {
				texts = append(texts, fmt.Sprint(l["level"], " ", l["msg"], " ", l["source"]))
			}
		}
		return texts
	}

	if err := <-harvested; err != nil {
		t.Fatal(err)
	}
	lines := linesOf(t, said)
	want := "INFO trying again <nil>|INFO harvested " + server.URL + "/feed?***"
	if got := strings.Join(of(lines), "|"); got != want {
		t.Errorf("the first harvest logged\n%s, want\n%s", got, want)
	}
	ids := map[any]bool{}
	for _, l := range lines {
		if l["harvest"] != nil {
			ids[l["harvest"]] = true
		}
		if text := fmt.Sprint(l); strings.Contains(text, "secret-of-the-source") {
			t.Error("a secret is in", text)
		}
	}
	if len(ids) != 1 {
		t.Errorf("the lines of one harvest have the ids %v", ids)
	}

	again(0)
	if err := <-harvested; err != nil {
		t.Fatal(err)
	}
	if got := of(linesOf(t, said)); len(got) != 0 {
		t.Errorf("a harvest without news logged %q", got)
	}

	again(http.StatusNotFound)
	if err := <-harvested; err == nil {
		t.Fatal("404 is a success")
	}
	lines = linesOf(t, said)
	if got := of(lines); len(got) != 1 || !strings.HasPrefix(got[0], "ERROR harvest failed") || ids[lines[0]["harvest"]] {
		t.Errorf("a failed harvest logged %q", lines)
	}

	again(0)
	if err := <-harvested; err != nil {
		t.Fatal(err)
	}
	lines = linesOf(t, said)
	if got := of(lines); len(got) != 1 || !strings.HasPrefix(got[0], "INFO harvested") || lines[0]["failed_since"] == nil {
		t.Errorf("the harvest after a failure logged %q", lines)
	}
	end()
	if err := <-served; err != nil {
		t.Error(err)
	}
	closeBridge(t, b)
}
