package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// instance is a bridge in a process of its own, as others see it.
type instance struct {
	*folder
	name    string
	proxy   *proxy
	serve   *child
	log     *daemon.Bridge // read beside the process; nil before watch
	slowest time.Duration  // until ready, where that was waited for
}

// newStation makes a bridge whose configuration goes on with this text.
func newStation(t testing.TB, name string, f *proxy, text string) *instance {
	t.Helper()
	s := &instance{name: name, proxy: f}
	s.folder = newFolder(t, fmt.Sprintf("data = \"data\"\nlisten = \"127.0.0.1:0\"\nbase_url = %q\nallow_hosts = [\"127.0.0.1\"]\n", f.url())+text)
	t.Cleanup(func() {
		if s.serve != nil {
			s.serve.kill()
		}
	})
	return s
}

func (s *instance) config() string  { return filepath.Join(s.path, "bridge.toml") }
func (s *instance) data() string    { return filepath.Join(s.path, "data") }
func (s *instance) address() *proxy { return s.proxy }

// begin starts the process and waits for nothing.
func (s *instance) begin() error {
	c, err := start(s.path, nil, "bridge", "serve", "--config", s.config())
	s.serve = c
	return err
}

func (s *instance) launch() error {
	if err := s.begin(); err != nil {
		return err
	}
	m, err := s.serve.stdout.expect(servingLine)
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", s.name, err, s.serve.stderr.String())
	}
	return s.proxy.forwardTo(m[1])
}

func (s *instance) kill() error {
	err := s.end()
	s.proxy.shut()
	return err
}

// end ends the process, which must not have ended before.
func (s *instance) end() error {
	select {
	case <-s.serve.ended:
		return fmt.Errorf("%s has ended by itself: %s\n%s", s.name, s.serve.cmd.ProcessState, s.serve.stderr.String())
	default:
	}
	s.serve.kill()
	return nil
}

// startAndKill starts it and kills it at once, perhaps before it has come to anything.
// Nobody reaches it.
func (s *instance) startAndKill(r *rand.Rand) error {
	if err := s.begin(); err != nil {
		return err
	}
	select {
	case <-s.serve.ended:
	case <-time.After(time.Duration(r.IntN(150)) * time.Millisecond):
	}
	return s.end()
}

// watch opens the log beside the process, until the test ends.
func (s *instance) watch() {
	s.t.Helper()
	c, err := config.Load(s.config())
	if err != nil {
		s.t.Fatal(err)
	}
	s.log, err = daemon.Open(s.t.Context(), c, daemon.Options{ReadOnly: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := s.log.Close(); err != nil {
			s.t.Error(err)
		}
	})
}

// run runs a command on the data folder beside the process and returns what it
// prints.
func (s *instance) run(command string, args ...string) string {
	s.t.Helper()
	return s.folder.run(exitDone, append([]string{command}, args...)...).stdout
}

// submissions returns those of a Source or target, all of them, by the source's
// identifier.
func (s *instance) submissions(source event.SourceID) map[string][]submission.Submission {
	s.t.Helper()
	out := map[string][]submission.Submission{}
	query := submission.Query{Source: source, Limit: 1000}
	for {
		found, err := s.log.SIP.Submissions(s.t.Context(), query)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, sub := range found {
			out[sub.SourceIdentifier] = append(out[sub.SourceIdentifier], sub)
			query.After = sub.ID
		}
		if len(found) < query.Limit {
			return out
		}
	}
}

// peer returns the number of a SIP Source or target by its URL.
func (s *instance) peer(set, url string) event.SourceID {
	s.t.Helper()
	for _, list := range []func(context.Context, string) ([]eventlog.Source, error){s.log.Log.Sources, s.log.Log.Targets} {
		found, err := list(s.t.Context(), set)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, p := range found {
			if p.URL == url {
				return p.ID
			}
		}
	}
	s.t.Fatalf("%s: set %s has no peer %s", s.name, set, url)
	return 0
}

// history returns the events of the log, which must follow each other.
func (s *instance) history() (all []*event.Event) {
	s.t.Helper()
	last := map[string]event.Micros{}
	for ev, err := range s.log.Log.Events(s.t.Context(), "", event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			s.t.Fatal(err)
		}
		if ev.Seq != event.Seq(len(all)+1) || ev.Observed <= last[ev.Set] {
			s.t.Errorf("%s: event %d of %s, observed %s, follows %d and %s", s.name, ev.Seq, ev.Set, ev.Observed, len(all), last[ev.Set])
		}
		last[ev.Set] = ev.Observed
		own := *ev // whose memory is the iterator's
		own.Representations = slices.Clone(ev.Representations)
		all = append(all, &own)
	}
	return all
}

// forgetfulServer is an ingest server that recognises nothing: it writes down each
// request before it answers, takes it for a new one, and tells its decision later.
// When it is killed, it forgets all but what it has written down.
type forgetfulServer struct {
	proxy  *proxy
	server *http.Server
	life   context.Context
	end    context.CancelFunc
	living sync.WaitGroup

	mu sync.Mutex
	// written are the requests, told how many of them from the first may be decided.
	written []*taken
	told    int
}

// taken is a request that forgetfulServer has written down.
type taken struct {
	identifier, recipient string
	notified              bool
}

var _ sip.Backend = (*forgetfulServer)(nil)

func (l *forgetfulServer) address() *proxy { return l.proxy }

func (l *forgetfulServer) launch() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.server = &http.Server{Handler: &sip.Handler{Backend: l, Offers: sip.Operations{Ingest: true}}}
	l.living.Go(func() { _ = l.server.Serve(listener) })
	l.living.Go(func() { l.notify(l.life) })
	return l.proxy.forwardTo(listener.Addr().String())
}

func (l *forgetfulServer) kill() error {
	l.end()
	err := l.server.Close()
	l.living.Wait()
	l.proxy.shut()
	return err
}

// Admit is sip.Backend.
func (l *forgetfulServer) Admit(context.Context, sip.Caller) error { return nil }

// Notify is sip.Backend.
func (l *forgetfulServer) Notify(context.Context, sip.Caller, *sip.Disposition) error {
	return errors.New("nobody is to be notified here")
}

// GetProperties is sip.Backend.
func (l *forgetfulServer) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return &sip.Properties{Style: sip.Asynchronous, Formats: []string{gatewayFormat}}, nil
}

// Ingest is sip.Backend.
func (l *forgetfulServer) Ingest(_ context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written = append(l.written, &taken{identifier: *r.Source.Identifier, recipient: r.Recipient})
	return &sip.Disposition{Source: r.Source, Outcome: sip.ProvisionallyAccepted}, nil
}

// tell lets it tell its decisions on all that it has.
func (l *forgetfulServer) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = len(l.written)
}

// all returns the requests that were written down, and how many of them from the
// first may be decided.
func (l *forgetfulServer) all() (written []taken, told int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.written {
		written = append(written, *w)
	}
	return written, l.told
}

// due returns the first request whose decision may be told and is not
// acknowledged.
func (l *forgetfulServer) due() *taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.written[:l.told] {
		if !w.notified {
			return w
		}
	}
	return nil
}

// notify tells decisions, each until it is acknowledged.
func (l *forgetfulServer) notify(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		w := l.due()
		if w != nil {
			d := decisionOn(w.identifier)
			d.Source = &sip.Source{Submitter: gatewaySubmitter(), Sequence: new(gatewaySequence), Identifier: &w.identifier}
			err := (&sip.HTTPClient{URL: w.recipient}).Notify(ctx, d)
			l.mu.Lock()
			w.notified = w.notified || err == nil
			l.mu.Unlock()
			if err == nil {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
