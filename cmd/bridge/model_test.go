package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// model is what the log of a killed bridge must be: for each record a part of
// its history at the provider, in order.
type model struct {
	seq      event.Seq
	observed map[string][]event.Micros // of each set
	records  map[string]*modelled      // by set and record
}

// modelled is a record in a set.
type modelled struct {
	set, id string // id is the Source's
	source  int
	last    *event.Event
	at      map[string]int // how far in its history it has come, by representation
}

func (m *modelled) alive() bool { return m.last != nil && m.last.Kind != event.Deleted }

// follow reads what the log has got since the last time, checks it, and returns
// its last Seq.
func (m *model) follow(t *testing.T, sources []*source, file string) event.Seq {
	t.Helper()
	if m.records == nil {
		m.observed, m.records = map[string][]event.Micros{}, map[string]*modelled{}
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	h, err := daemon.Open(t.Context(), c, daemon.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources {
		s.learn()
	}
	for ev, err := range h.Log.Events(t.Context(), "", event.Range{After: m.seq, Upto: math.MaxInt64}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := m.event(ev, sources); err != nil {
			t.Errorf("event %d, %s %s in %s: %v", ev.Seq, ev.Kind, ev.Record, ev.Set, err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	return m.seq
}

func (m *model) event(ev *event.Event, sources []*source) error {
	if ev.Seq != m.seq+1 {
		return fmt.Errorf("it follows Seq %d", m.seq)
	}
	m.seq = ev.Seq
	times := m.observed[ev.Set]
	if len(times) > 0 && ev.Observed <= times[len(times)-1] {
		return fmt.Errorf("observed %s, the event before %s", ev.Observed, times[len(times)-1])
	}
	m.observed[ev.Set] = append(times, ev.Observed)
	key := ev.Set + " " + ev.Record
	r := m.records[key]
	if r == nil {
		n := slices.IndexFunc(sources, func(s *source) bool { return s.url == ev.Origin.Source })
		id := ev.Record
		if ev.Origin.SourceIdentifier != "" {
			id = ev.Origin.SourceIdentifier
		}
		r = &modelled{set: ev.Set, id: id, source: n, at: map[string]int{}}
		m.records[key] = r
	}
	err := r.step(ev, sources[r.source].changes[r.id])
	last := *ev // whose memory is the iterator's
	last.Representations = slices.Clone(ev.Representations)
	r.last = &last
	return err
}

// step finds the new state in the history, after the one that the record had.
func (m *modelled) step(ev *event.Event, history []fixtures.Change) error {
	if m.alive() != (ev.Kind != event.Created) {
		return errors.New("that cannot happen to it now")
	}
	furthest := -1
	for _, at := range m.at {
		furthest = max(furthest, at)
	}
	switch {
	case ev.Kind == event.Deleted:
		at := slices.IndexFunc(history[furthest+1:], func(c fixtures.Change) bool { return c.Kind == fixtures.Deleted })
		if at < 0 {
			return fmt.Errorf("it was not deleted after its change %d", furthest)
		}
		m.at[""] = furthest + 1 + at
		return nil
	case len(ev.Representations) == 0 || ev.Representations[0].SHA256() == "":
		at := slices.IndexFunc(history, func(c fixtures.Change) bool { return c.Stamp.Equal(ev.Modified.Time()) && c.Kind != fixtures.Deleted })
		if at <= furthest {
			return fmt.Errorf("its state of %s is change %d at the Source, and the log had change %d", ev.Modified, at, furthest)
		}
		m.at[""] = at
		return nil
	}
	// A representation that does not answer is left out (A13), as when its record
	// is being deleted, and comes back when it does.
	moved := m.last != nil && !slices.Equal(typesOf(m.last), typesOf(ev))
	for _, rep := range ev.Representations {
		at := slices.IndexFunc(history, func(c fixtures.Change) bool {
			return slices.ContainsFunc(c.Alternates, func(a fixtures.Alternate) bool { return a.SHA256 == rep.SHA256() })
		})
		before, ok := m.at[rep.Type]
		if at < 0 || ok && at < before || at < m.at[""] {
			return fmt.Errorf("its %s is of change %d at the Source, and the log had change %d", rep.Type, at, before)
		}
		moved = moved || !ok || at > before
		m.at[rep.Type] = at
	}
	if !moved {
		return errors.New("nothing is new in it")
	}
	return nil
}

func typesOf(ev *event.Event) []string {
	var out []string
	for _, rep := range ev.Representations {
		out = append(out, rep.Type)
	}
	return out
}

// learn sorts what has happened at the provider since the last time.
func (s *source) learn() {
	if s.changes == nil {
		s.changes = map[string][]fixtures.Change{}
	}
	all := s.history()
	for _, c := range all[s.learned:] {
		s.changes[c.ID] = append(s.changes[c.ID], c)
	}
	s.learned = len(all)
}

// wantLive fails unless each set has just what its Sources have.
func (m *model) wantLive(t *testing.T, sources []*source, sets map[string]killSet) {
	t.Helper()
	for set, of := range sets {
		got, want := map[string]string{}, map[string]string{}
		for _, r := range m.records {
			if r.set == set && r.alive() {
				got[fmt.Sprint(r.source, r.id)] = stateOf(r.last)
			}
		}
		for _, n := range of.sources {
			for _, c := range sources[n].live() {
				want[fmt.Sprint(n, c.ID)] = stateAt(&c, of.hashed)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("set %s has %d records, its Sources %d, or their states differ", set, len(got), len(want))
			for key, state := range want {
				if got[key] != state {
					t.Errorf("%s is\n%q, want\n%q", key, got[key], state)
				}
			}
		}
	}
}

func stateOf(ev *event.Event) string {
	text := ev.Title
	for _, r := range ev.Representations {
		if sum := r.SHA256(); sum != "" {
			text += " " + sum
		} else {
			text += " " + ev.Modified.String()
		}
	}
	return text
}

func stateAt(c *fixtures.Change, hashes bool) string {
	text := c.Title
	for _, a := range c.Alternates {
		if hashes {
			text += " " + a.SHA256
		} else if stamp, ok := event.StampOf(c.Stamp); ok {
			text += " " + stamp.String()
		}
	}
	return text
}

// list is a document of ResourceSync, as far as the test reads it.
type list struct {
	Metadata metadata `xml:"http://www.openarchives.org/rs/terms/ md"`
	Lists    []struct {
		Loc string `xml:"loc"`
	} `xml:"sitemap"`
	Resources []struct {
		Loc      string   `xml:"loc"`
		Metadata metadata `xml:"http://www.openarchives.org/rs/terms/ md"`
	} `xml:"url"`
}

type metadata struct {
	Until    string `xml:"until,attr"`
	Datetime string `xml:"datetime,attr"`
	Hash     string `xml:"hash,attr"`
}

// errCut: the server went away.
var errCut = errors.New("the connection was cut")

const killBase = "http://bridge.example.org"

// read gets and parses a document. A closed one must be as it was before.
func (k *killing) read(server, path string) (*list, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, errCut
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, errCut
	}
	if resp.StatusCode == http.StatusServiceUnavailable && k.away.Load() {
		return nil, errCut
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	var l list
	if err := xml.Unmarshal(body, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if l.Metadata.Until == "" {
		return &l, nil
	}
	if before, ok := k.closed[path]; ok && !bytes.Equal(before, body) {
		return nil, fmt.Errorf("%s is closed and has changed from\n%s\nto\n%s", path, before, body)
	}
	k.closed[path] = body
	return &l, nil
}

// changes reads all Change Lists of a set.
func (k *killing) changes(server, set string) ([]string, error) {
	index, err := k.read(server, "/sets/"+set+"/changelist-index.xml")
	if err != nil {
		return nil, err
	}
	var times []string
	for _, in := range index.Lists {
		l, err := k.read(server, strings.TrimPrefix(in.Loc, killBase))
		if err != nil {
			return nil, err
		}
		for _, r := range l.Resources {
			times = append(times, r.Metadata.Datetime)
		}
	}
	return times, nil
}

// readUntilGone reads documents until the server is killed.
func (k *killing) readUntilGone(server string) error {
	for {
		for set := range k.sets {
			_, err := k.changes(server, set)
			for _, name := range []string{"resourcelist.xml", "changelist.xml", "capabilitylist.xml"} {
				if err == nil {
					_, err = k.read(server, "/sets/"+set+"/"+name)
				}
				if name == "resourcelist.xml" && err == nil {
					k.whole[set] = true
				} else if name == "resourcelist.xml" && !k.whole[set] && strings.Contains(err.Error(), "503 Service Unavailable") {
					err = nil // until each Source of the set was walked whole (D143)
				}
			}
			if errors.Is(err, errCut) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
}

// wantDocuments fails unless the documents tell what the log does, and every
// record of a Resource List answers with its bytes.
func (k *killing) wantDocuments() {
	k.t.Helper()
	c, server := k.folder.serve("--data", "data", "--listen", "127.0.0.1:0", "--base-url", killBase)
	defer c.kill()
	for set := range k.sets {
		times, err := k.changes(server, set)
		if err != nil {
			k.t.Fatal(err)
		}
		var want []string
		for _, o := range k.observed[set] {
			want = append(want, o.String())
		}
		if !slices.Equal(times, want) {
			k.t.Errorf("the Change Lists of %s have %d entries, the log has %d events, or their times differ", set, len(times), len(want))
		}
		k.wantResources(server, set)
	}
}

func (k *killing) wantResources(server, set string) {
	k.t.Helper()
	l, err := k.read(server, "/sets/"+set+"/resourcelist.xml")
	if err != nil {
		k.t.Fatal(err)
	}
	live := 0
	for _, r := range k.records {
		if r.set == set && r.alive() {
			live++
		}
	}
	if len(l.Resources) != live {
		k.t.Errorf("the Resource List of %s has %d records, the log %d", set, len(l.Resources), live)
	}
	if !k.sets[set].served {
		return
	}
	for _, r := range l.Resources {
		status, body, _ := answerOf(k.t, server+strings.TrimPrefix(r.Loc, killBase))
		if sum := event.HashOf(sha256.Sum256([]byte(body))); status != http.StatusOK || sum != r.Metadata.Hash {
			k.t.Errorf("%s: %d; its bytes have %s, want %s", r.Loc, status, sum, r.Metadata.Hash)
		}
	}
}
