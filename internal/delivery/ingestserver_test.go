package delivery

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/sip"
)

// shelf is an ingest server in memory. It identifies records by their
// source-identifier.
type shelf struct {
	formats []string
	// answer, when set, decides instead of accepting; keep is what accepting is.
	answer func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error)
	// broken is what get-properties fails with; nil is not at all.
	broken func() error

	mu        sync.Mutex
	got       []sip.Request
	at        []time.Time // when they came
	asked     int         // for properties
	kept      map[string]string
	underWay  map[string]int
	together  int // the most requests at a time
	sameTwice bool
}

var _ Upstream = (*shelf)(nil)

func (s *shelf) GetProperties(context.Context) (*sip.Properties, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.broken != nil {
		if err := s.broken(); err != nil {
			return nil, err
		}
	}
	return &sip.Properties{Style: sip.Asynchronous, Formats: s.formats}, nil
}

func (s *shelf) Ingest(_ context.Context, r *sip.Request) (*sip.Disposition, error) {
	id := *r.Source.Identifier
	s.mu.Lock()
	s.got, s.at = append(s.got, *r), append(s.at, time.Now())
	n := len(s.got)
	if s.underWay == nil {
		s.underWay, s.kept = map[string]int{}, map[string]string{}
	}
	s.underWay[id]++
	s.sameTwice = s.sameTwice || s.underWay[id] > 1
	s.together = max(s.together, len(s.underWay))
	answer := s.answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.underWay[id]--; s.underWay[id] == 0 {
			delete(s.underWay, id)
		}
	}()
	keep := func() *sip.Disposition {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept[id] = string(r.Record.XML)
		return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "shelf:" + id}
	}
	if answer != nil {
		return answer(n, r, keep)
	}
	return keep(), nil
}

// requests returns what arrived, as "identifier text".
func (s *shelf) requests() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.got {
		_, text, _ := strings.Cut(string(r.Record.XML), ">")
		out = append(out, *r.Source.Identifier+" "+strings.TrimSuffix(text, "</book>"))
	}
	return out
}

func (s *shelf) wantRequests(t testing.TB, want ...string) {
	t.Helper()
	if got := s.requests(); !slices.Equal(got, want) {
		t.Errorf("the library got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
