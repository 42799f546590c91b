// Package metrics has the metrics of a bridge for Prometheus. What happens in the process
// is counted in the counters and histograms of Metrics; the state of the data folder is
// read when Prometheus asks (state.go).
package metrics

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
)

// Options are the sources of the state.
type Options struct {
	Version string
	// Status returns the state of all sets, redacted.
	Status func(context.Context) (*status.Status, error)
	// Sizes returns the bytes of files in the data folder, by name, and of the log where it
	// is on a server. With an error, which says that the server does not answer, the others
	// are there, and Status is not called.
	Sizes func() (map[string]int64, error)
	// Now is the clock.
	Now func() time.Time
}

// hostsCounted bounds the label of hosts: documents may name any number of them.
const hostsCounted = 500

// Metrics has the counters. Its methods may be called from any goroutine.
type Metrics struct {
	registry *prometheus.Registry
	harvests *prometheus.CounterVec
	events   *prometheus.CounterVec
	problems *prometheus.CounterVec
	asked    *prometheus.CounterVec
	pushes   *prometheus.CounterVec
	pings    *prometheus.CounterVec
	answered *prometheus.HistogramVec
	commits  prometheus.Histogram

	mu    sync.Mutex
	hosts map[string]bool // hosts with a label of their own
}

// New returns Metrics whose counters are zero.
func New(o Options) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bridge_" + name, Help: help}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(), hosts: map[string]bool{},
		harvests: counter("harvests_total", "Harvests that have ended since the start, by result: ok, partial or failed.", "set", "source", "result"),
		events:   counter("events_total", "Events logged by harvests since the start, by kind: created, updated or deleted.", "set", "source", "kind"),
		problems: counter("problems_total", "Broken rules met in harvests since the start, by rule.", "set", "source", "rule"),
		asked:    counter("fetch_requests_total", "Requests sent to hosts since the start, by status code; code 0 is no answer, other is one that is not defined.", "host", "code"),
		pushes:   counter("pushes_total", "Pushes of WebSub hubs since the start, by result: accepted, forged, gone, too_large, unread or failed.", "result"),
		pings:    counter("hub_pings_total", "Times that WebSub hubs were told of a changed document since the start, by result: ok or failed.", "result"),
		answered: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bridge_http_request_duration_seconds", Help: "Time from a request's header to the end of its answer, by route and status code.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 60},
		}, []string{"route", "code"}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "bridge_commit_duration_seconds", Help: "Time that a COMMIT of the log took.",
			Buckets: []float64{.0005, .002, .01, .05, .2, 1, 5},
		}),
	}
	m.registry.MustRegister(m.harvests, m.events, m.problems, m.asked, m.pushes, m.pings, m.answered, m.commits, newState(o),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Harvested counts a harvest of a Source, which is named by set and source.
func (m *Metrics) Harvested(set, source string, r *harvest.Report) {
	m.Logged(set, source, r)
	source = valid(source)
	m.harvests.WithLabelValues(set, source, r.Result().String()).Inc()
	for _, e := range r.Examples {
		m.problems.WithLabelValues(set, source, e.Rule).Add(float64(e.Count))
	}
}

// Logged counts the events of a report alone: those of contents that were fetched after the
// harvest, or of a harvest that was interrupted.
func (m *Metrics) Logged(set, source string, r *harvest.Report) {
	source = valid(source)
	for kind, n := range map[string]int64{"created": r.Created, "updated": r.Updated, "deleted": r.Deleted} {
		if n > 0 {
			m.events.WithLabelValues(set, source, kind).Add(float64(n))
		}
	}
}

// Asked counts a request that was sent to a host. Status 0 means no response. Statuses that
// nobody has defined are counted together: a server may invent a thousand.
func (m *Metrics) Asked(host string, code int) {
	host = valid(host)
	m.mu.Lock()
	if !m.hosts[host] {
		if len(m.hosts) < hostsCounted {
			m.hosts[host] = true
		} else {
			host = "other"
		}
	}
	m.mu.Unlock()
	status := strconv.Itoa(code)
	if code != 0 && http.StatusText(code) == "" {
		status = "other"
	}
	m.asked.WithLabelValues(host, status).Inc()
}

// Pushed counts a push of a hub, by its outcome.
func (m *Metrics) Pushed(result string) { m.pushes.WithLabelValues(result).Inc() }

// Pinged counts a notification of a hub about a document, successful or not.
func (m *Metrics) Pinged(ok bool) {
	result := "failed"
	if ok {
		result = "ok"
	}
	m.pings.WithLabelValues(result).Inc()
}

// valid returns a text as a valid label: the name of a host in a document, or of a Source
// on the command line, may not be UTF-8.
func valid(label string) string { return strings.ToValidUTF8(label, "\uFFFD") }

// Answered counts a request that the server has answered.
func (m *Metrics) Answered(route string, code int, took time.Duration) {
	m.answered.WithLabelValues(route, strconv.Itoa(code)).Observe(took.Seconds())
}

// Committed counts a COMMIT of the log.
func (m *Metrics) Committed(took time.Duration) { m.commits.Observe(took.Seconds()) }

// Handler returns the handler of requests from Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: time.Minute})
}
