package metrics

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pmh-bridge/bridge/internal/status"
)

// stateTime bounds one reading of the state.
const stateTime = 30 * time.Second

// state reads the state of the data folder when Prometheus asks.
type state struct {
	o     Options
	descs map[string]*prometheus.Desc
}

// measures are the metrics of state, each with its name, help and labels.
var measures = []struct {
	name, help string
	labels     []string
}{
	{"build_info", "Always 1, with the version.", []string{"version"}},
	{"state_readable", "1 when the state of the data folder could be read.", nil},
	{"source_info", "Always 1, with what a Source is.", []string{"set", "source", "kind", "url"}},
	{"source_failing", "1 while the last harvest of a Source has failed.", sourceLabels},
	{"source_consecutive_failures", "Harvests that have failed in a row.", sourceLabels},
	{"source_last_success_timestamp_seconds", "When a Source was last harvested without failing.", sourceLabels},
	{"source_failing_since_timestamp_seconds", "When the first of the failures in a row was; absent while there is none.", sourceLabels},
	{"source_lag_seconds", "Time since a Source was last harvested without failing.", sourceLabels},
	{"source_next_harvest_timestamp_seconds", "When the next harvest is planned.", sourceLabels},
	{"source_paused", "1 while an operator has paused a Source.", sourceLabels},
	{"source_gap", "1 while a document of a Source is missing.", sourceLabels},
	{"source_pending", "Records of a Source whose contents are still to be fetched.", sourceLabels},
	{"source_held_deletions", "Deletions of a Source that are held for an operator.", sourceLabels},
	{"source_quarantined", "Bad inputs of a Source in quarantine.", sourceLabels},
	{"set_records", "Records of a set that are alive.", []string{"set"}},
	{"set_events", "Events of a set.", []string{"set"}},
	{"set_last_event_timestamp_seconds", "When the last event of a set was observed.", []string{"set"}},
	{"set_partial", "1 while a set's complete lists wait for its Sources.", []string{"set"}},
	{"set_dumps_failing", "1 while the newest dumps of a set cannot be made.", []string{"set"}},
	{"hub_failing", "1 while a hub cannot be told of a set's changes.", []string{"set", "hub"}},
	{"submissions", "Submissions by state, received by the set's own service or sent to an ingest server.", []string{"set", "direction", "peer", "state"}},
	{"submissions_under_review", "Submissions that wait for a reviewer.", []string{"set", "direction", "peer"}},
	{"notifications_sent", "Notifications to submitters by state.", []string{"set", "direction", "peer", "state"}},
	{"ingest_server_failing", "1 while an ingest server fails.", []string{"set", "direction", "peer"}},
	{"file_bytes", "Size of a file in the data folder, or of the log on its PostgreSQL server.", []string{"file"}},
}

var sourceLabels = []string{"set", "source"}

func newState(o Options) *state {
	s := &state{o: o, descs: map[string]*prometheus.Desc{}}
	for _, m := range measures {
		s.descs[m.name] = prometheus.NewDesc("bridge_"+m.name, m.help, m.labels, nil)
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *state) Describe(to chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector. It may be called from any goroutine.
func (s *state) Collect(to chan<- prometheus.Metric) {
	tell := func(name string, value float64, labels ...string) {
		for i := range labels {
			labels[i] = valid(labels[i])
		}
		to <- prometheus.MustNewConstMetric(s.descs[name], prometheus.GaugeValue, value, labels...)
	}
	tell("build_info", 1, s.o.Version)
	sizes, err := s.o.Sizes()
	for file, n := range sizes {
		tell("file_bytes", float64(n), file)
	}
	var all *status.Status
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), stateTime)
		defer cancel()
		all, err = s.o.Status(ctx)
	}
	tell("state_readable", truth(err == nil))
	if err != nil {
		return
	}
	for i := range all.Sets {
		set := &all.Sets[i]
		tell("set_records", float64(set.Records), set.Name)
		tell("set_events", float64(set.Events), set.Name)
		tell("set_partial", truth(set.Partial), set.Name)
		if !set.Newest.IsZero() && set.Events > 0 {
			tell("set_last_event_timestamp_seconds", seconds(set.Newest), set.Name)
		}
		if set.Dumps != nil {
			tell("set_dumps_failing", truth(len(set.Dumps.Faults) > 0), set.Name)
		}
		names := status.Names{}
		for j := range set.Hubs {
			h := &set.Hubs[j]
			tell("hub_failing", truth(!h.FailingSince.IsZero()), set.Name, names.Add("hub", valid(h.URL)))
		}
		for j := range set.Sources {
			src := &set.Sources[j]
			if src.Former { // it is not harvested any more
				continue
			}
			s.source(tell, set.Name, names.Add("source", valid(Label(src.Name, src.URL))), src)
		}
		for j := range set.Submissions {
			p := &set.Submissions[j]
			peer(tell, set.Name, names.Add(p.Direction, valid(p.URL)), p)
		}
	}
}

// source reports the metrics of a Source.
func (s *state) source(tell func(name string, value float64, labels ...string), set, name string, src *status.Source) {
	tell("source_info", 1, set, name, src.Kind, src.URL)
	tell("source_failing", truth(!src.FailingSince.IsZero()), set, name)
	tell("source_consecutive_failures", float64(src.Failures), set, name)
	tell("source_paused", truth(src.Paused != nil), set, name)
	tell("source_gap", truth(src.Gap != ""), set, name)
	tell("source_pending", float64(src.Pending), set, name)
	tell("source_held_deletions", float64(src.Held), set, name)
	tell("source_quarantined", float64(src.Quarantined), set, name)
	if !src.LastSuccess.IsZero() {
		tell("source_last_success_timestamp_seconds", seconds(src.LastSuccess.Time), set, name)
		tell("source_lag_seconds", s.o.Now().Sub(src.LastSuccess.Time).Seconds(), set, name)
	}
	if !src.FailingSince.IsZero() {
		tell("source_failing_since_timestamp_seconds", seconds(src.FailingSince.Time), set, name)
	}
	if !src.Next.IsZero() {
		tell("source_next_harvest_timestamp_seconds", seconds(src.Next.Time), set, name)
	}
}

// peer reports the metrics of the submissions with one peer.
func peer(tell func(name string, value float64, labels ...string), set, url string, p *status.Peer) {
	for state, n := range p.States.Words() {
		tell("submissions", float64(n), set, p.Direction, url, state)
	}
	tell("submissions_under_review", float64(p.UnderReview), set, p.Direction, url)
	for state, n := range p.NotificationsSent.Words() {
		tell("notifications_sent", float64(n), set, p.Direction, url, state)
	}
	tell("ingest_server_failing", truth(p.Failing != nil), set, p.Direction, url)
}

// Label returns the label of a Source: its name in the configuration, or its redacted URL
// if it has none.
func Label(name, url string) string { return cmp.Or(name, url) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
