package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/metrics"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func noSizes() (map[string]int64, error) { return nil, nil }

// some returns Metrics that have counted one thing of each sort.
func some() *metrics.Metrics {
	at := func(hours int) status.Time { return status.Time{Time: now.Add(time.Duration(hours) * time.Hour)} }
	m := metrics.New(metrics.Options{
		Version: "1.2.3", Now: func() time.Time { return now }, Sizes: func() (map[string]int64, error) { return map[string]int64{"log.db": 4096}, nil },
		Status: func(context.Context) (*status.Status, error) {
			return &status.Status{Sets: []status.Set{{
				Name: "maps", Records: 12, Events: 17, Newest: now.Add(-time.Hour),
				Hubs:  []status.Hub{{URL: "https://hub.example/", FailingSince: at(-2)}, {URL: "https://hub.example/"}},
				Dumps: &status.Dumps{Faults: []string{"the disk is full"}},
				Sources: []status.Source{
					{URL: "https://good.example/feed?a=\"b\"\n", Kind: "feed", LastSuccess: at(-2), Next: at(1), Pending: 3},
					{Name: "bad", URL: "https://bad.example/", Failures: 4, FailingSince: at(-30), Held: 5, Quarantined: 6, Gap: "page 3"},
					{Name: "former", Former: true},
				},
				Submissions: []status.Peer{{
					Direction: status.Sent, URL: "https://library.example/sip", UnderReview: 2, States: status.Counts[submission.State]{submission.States()[0]: 9},
					Failing: &status.Failure{}, NotificationsSent: status.Counts[submission.DeliveryState]{submission.DeliveryWaiting: 1},
				}},
			}}}, nil
		},
	})
	m.Harvested("maps", "bad", &harvest.Report{Error: "answers 500"})
	m.Harvested("maps", "good", &harvest.Report{Created: 2, Deleted: 1, Examples: []harvest.Example{{Rule: "date", Count: 7}}})
	m.Harvested("maps", "good", &harvest.Report{Updated: 1, Pending: 1})
	m.Harvested("maps", "good", &harvest.Report{Unchanged: 4})
	m.Asked("bad.example", 500)
	m.Asked("gone.example", 0)
	m.Answered("/sets/:set/*", 200, 3*time.Millisecond)
	m.Committed(4 * time.Millisecond)
	return m
}

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// TestMetrics: each metric says what has happened.
func TestMetrics(t *testing.T) {
	text := scrape(t, some())
	for _, line := range []string{
		`bridge_build_info{version="1.2.3"} 1`,
		`bridge_state_readable 1`,
		`bridge_source_failing{set="maps",source="bad"} 1`,
		`bridge_source_failing{set="maps",source="https://good.example/feed?a=\"b\"\n"} 0`,
		`bridge_source_lag_seconds{set="maps",source="https://good.example/feed?a=\"b\"\n"} 7200`,
		`bridge_source_held_deletions{set="maps",source="bad"} 5`,
		`bridge_source_gap{set="maps",source="bad"} 1`,
		`bridge_set_records{set="maps"} 12`,
		`bridge_submissions_under_review{direction="sent",peer="https://library.example/sip",set="maps"} 2`,
		`bridge_ingest_server_failing{direction="sent",peer="https://library.example/sip",set="maps"} 1`,
		`bridge_hub_failing{hub="https://hub.example/",set="maps"} 1`,
		`bridge_hub_failing{hub="https://hub.example/*",set="maps"} 0`,
		`bridge_set_dumps_failing{set="maps"} 1`,
		`bridge_harvests_total{result="failed",set="maps",source="bad"} 1`,
		`bridge_harvests_total{result="ok",set="maps",source="good"} 2`,
		`bridge_harvests_total{result="partial",set="maps",source="good"} 1`,
		`bridge_events_total{kind="created",set="maps",source="good"} 2`,
		`bridge_problems_total{rule="date",set="maps",source="good"} 7`,
		`bridge_fetch_requests_total{code="0",host="gone.example"} 1`,
		`bridge_http_request_duration_seconds_count{code="200",route="/sets/:set/*"} 1`,
		`bridge_commit_duration_seconds_count 1`,
		`bridge_file_bytes{file="log.db"} 4096`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
	for _, part := range []string{"former", `bridge_source_failing_since_timestamp_seconds{set="maps",source="https://good`} {
		if strings.Contains(text, part) {
			t.Errorf("there is %s", part)
		}
	}
}

// TestSameNames: Sources that are called the same do not spoil the whole answer.
func TestSameNames(t *testing.T) {
	m := metrics.New(metrics.Options{Now: time.Now, Sizes: noSizes, Status: func(context.Context) (*status.Status, error) {
		one := status.Source{URL: "https://a.example/?***"}
		return &status.Status{Sets: []status.Set{{Name: "s", Sources: []status.Source{one, one, {ID: 3, Name: one.URL}}}}}, nil
	}})
	if n := strings.Count(scrape(t, m), "\nbridge_source_pending{"); n != 3 {
		t.Errorf("%d Sources", n)
	}
}

// TestAnyNames: a host that is not UTF-8, as any document may name one, ends nothing; nor
// do two ingest servers whose URLs are the same without their secrets.
func TestAnyNames(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{Now: time.Now, Sizes: noSizes, Status: func(context.Context) (*status.Status, error) {
		peer := status.Peer{Direction: status.Sent, URL: "https://a.example/?***"}
		return &status.Status{Sets: []status.Set{{Name: "s", Sources: []status.Source{{URL: "file:///\xff"}}, Submissions: []status.Peer{peer, peer}}}}, nil
	}})
	m.Asked("\xff.example", 0)
	m.Harvested("s", "file:///\xff", &harvest.Report{Created: 1})
	text := scrape(t, m)
	for _, line := range []string{
		`bridge_fetch_requests_total{code="0",host="\uFFFD.example"} 1`,
		`bridge_events_total{kind="created",set="s",source="file:///\uFFFD"} 1`,
		`bridge_source_pending{set="s",source="file:///\uFFFD"} 0`,
		`bridge_submissions_under_review{direction="sent",peer="https://a.example/?***",set="s"} 0`,
		`bridge_submissions_under_review{direction="sent",peer="https://a.example/?****",set="s"} 0`,
	} {
		if line = strings.ReplaceAll(line, `\uFFFD`, "\uFFFD"); !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
}

// TestUnreadable: a state that cannot be read is a metric, and the others are there.
func TestUnreadable(t *testing.T) {
	m := metrics.New(metrics.Options{Now: time.Now, Sizes: noSizes,
		Status: func(context.Context) (*status.Status, error) { return nil, errors.New("the disk is gone") }})
	if text := scrape(t, m); !strings.Contains(text, "\nbridge_state_readable 0\n") || !strings.Contains(text, "\ngo_goroutines ") {
		t.Error(text)
	}
}

// TestServerAway: while the server with the log does not answer, nobody waits for the state,
// and what needs no server is there.
func TestServerAway(t *testing.T) {
	m := metrics.New(metrics.Options{Now: time.Now, Sizes: func() (map[string]int64, error) {
		return map[string]int64{"content.db": 4096}, context.DeadlineExceeded
	}, Status: func(context.Context) (*status.Status, error) {
		t.Error("it was asked for the state")
		return nil, context.DeadlineExceeded
	}})
	text := scrape(t, m)
	for _, line := range []string{"bridge_state_readable 0", `bridge_file_bytes{file="content.db"} 4096`} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
	if strings.Contains(text, `file="log`) {
		t.Error("the log has a size that nobody knows")
	}
}

// TestManyHosts: documents may name any number of hosts, and each costs no line forever.
func TestManyHosts(t *testing.T) {
	m := metrics.New(metrics.Options{Now: time.Now, Sizes: noSizes,
		Status: func(context.Context) (*status.Status, error) { return &status.Status{}, nil }})
	for i := range 2000 {
		m.Asked(strings.Repeat("a", i%50+1)+"."+strings.Repeat("b", i/50+1), 200)
	}
	text := scrape(t, m)
	if n := strings.Count(text, "\nbridge_fetch_requests_total{"); n != 501 {
		t.Errorf("%d hosts", n)
	}
	if !strings.Contains(text, `bridge_fetch_requests_total{code="200",host="other"} 1500`) {
		t.Error("the others are not counted together")
	}
}

// TestInventedStatuses: a server that answers with ever other statuses costs no line for each.
func TestInventedStatuses(t *testing.T) {
	m := metrics.New(metrics.Options{Now: time.Now, Sizes: noSizes,
		Status: func(context.Context) (*status.Status, error) { return &status.Status{}, nil }})
	for code := range 1000 {
		m.Asked("a.example", code)
	}
	text := scrape(t, m)
	if n := strings.Count(text, "\nbridge_fetch_requests_total{"); n > 70 {
		t.Errorf("%d statuses", n)
	}
	for _, line := range []string{`code="0",host="a.example"} 1`, `code="503",host="a.example"} 1`, `code="other",host="a.example"} 9`} {
		if !strings.Contains(text, "\nbridge_fetch_requests_total{"+line) {
			t.Errorf("there is no %s", line)
		}
	}
}

// TestPromtool: Prometheus' own parser takes the metrics and the rules.
func TestPromtool(t *testing.T) {
	promtool := testenv.Need(t, "promtool", "prometheus")
	for _, x := range []struct {
		in   io.Reader
		args []string
	}{
		{strings.NewReader(scrape(t, some())), []string{"check", "metrics"}},
		{nil, []string{"check", "rules", filepath.Join(testenv.Root(t), "deploy", "prometheus-rules.yml")}},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, x.args...)
		cmd.Stdin = x.in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", x.args, err, out)
		}
	}
}

// TestDeploy: rules and dashboard ask for metrics that there are.
func TestDeploy(t *testing.T) {
	text := scrape(t, some())
	for _, name := range []string{"prometheus-rules.yml", "grafana-dashboard.json"} {
		data, err := os.ReadFile(filepath.Join(testenv.Root(t), "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid(data) {
			t.Errorf("%s is no JSON", name)
		}
		asked := regexp.MustCompile(`bridge_[a-z_]+`).FindAll(data, -1)
		if len(asked) < 10 {
			t.Fatalf("%s asks for %d metrics", name, len(asked))
		}
		for _, metric := range asked {
			if !bytes.Contains([]byte(text), append([]byte("\n"), metric...)) {
				t.Errorf("%s asks for %s, which there is not", name, metric)
			}
		}
	}
}
