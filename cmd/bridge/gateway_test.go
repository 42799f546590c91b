package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// TestGateway lets a bridge submit what it harvests to a second one, a gateway,
// and that one to an ingest server that decides later, and kills each of the
// three with SIGKILL at random moments. Nothing is sent to the ingest server twice,
// and what a crash has caught is shown as in doubt. Where somebody finds out what has
// not arrived, and settles that, every submission ends in exactly one ultimate
// disposition, the same everywhere. Nothing is lost.
func TestGateway(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	rounds := testenv.Rounds(t, 8, 1000)
	t.Run("doubts are settled", func(t *testing.T) {
		t.Parallel()
		k := newChain(t, true)
		k.run(rounds, k.settleAll)
	})
	t.Run("doubts stay", func(t *testing.T) {
		t.Parallel()
		k := newChain(t, false)
		k.run(rounds, k.settleMost)
		k.wait("all that the ingest server has told is known", k.untold)
	})
}

const (
	gatewayFormat   = "http://dublincore.org/schemas/rdf.xsd"
	gatewaySequence = "catalogue"
	// lookEvery is how often a test looks into the logs of others' processes, which
	// tell nobody.
	lookEvery = 25 * time.Millisecond
	// askEvery is how often a test runs a program that looks. Each run may take as much of the
	// processor as what is waited for.
	askEvery = 300 * time.Millisecond
)

func gatewaySubmitter() *sip.Submitter {
	return &sip.Submitter{Name: "Example Bridge", EmailAddress: "metadata@example.org"}
}

// chain is a submitter, a gateway and an ingest server.
type chain struct {
	t           *testing.T
	seed        uint64
	random      *rand.Rand
	provider    *fixtures.Provider
	interceptor *atomic.Pointer[interceptor]

	submitter, gateway *instance
	target, gate       event.SourceID // of the submitter, and of the gateway
	// Of these one is the ingest server.
	reviewer  *instance
	review    event.SourceID
	forgetful *forgetfulServer

	servers []killable
	kills   [3]int
	hits    int             // kills while something passed
	caught  map[string]bool // records whose request was sent again, or in doubt when everything had settled
}

const (
	submitterConfig = `
[[set]]
name = "catalogue"
[[set.source]]
url = "%s"
every = "1s"
[[set.submit]]
url = "%s/sip/gate"
every = "1s"
formats = { "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF" = "` + gatewayFormat + `" }
submitter_name = "Example Bridge"
submitter_email = "metadata@example.org"
sequence = "` + gatewaySequence + `"
`
	gatewayConfig = `
[[set]]
name = "gate"
[[set.source]]
kind = "sip"
mode = "gateway"
upstream = "%s/sip/library"
`
	reviewConfig = `
[[set]]
name = "library"
[[set.source]]
kind = "sip"
mode = "review"
formats = { "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF" = "` + gatewayFormat + `" }
`
)

func newChain(t *testing.T, recognises bool) *chain {
	k := &chain{t: t, seed: uint64(time.Now().UnixNano()), provider: fixtures.New(fixtures.Options{PerArchive: 50}), interceptor: idle(), caught: map[string]bool{}}
	k.random = rand.New(rand.NewPCG(k.seed, 0))
	upstream := httptest.NewServer(k.provider)
	t.Cleanup(upstream.Close)
	s, g, l := newProxy(t, k.interceptor), newProxy(t, k.interceptor), newProxy(t, k.interceptor)
	k.submitter = newStation(t, "the submitter", s, fmt.Sprintf(submitterConfig, upstream.URL+fixtures.Subscription, g.url()))
	k.gateway = newStation(t, "the gateway", g, fmt.Sprintf(gatewayConfig, l.url()))
	k.servers = []killable{k.submitter, k.gateway}
	if recognises {
		k.reviewer = newStation(t, "the ingest server", l, reviewConfig)
		k.servers = append(k.servers, k.reviewer)
	} else {
		k.forgetful = &forgetfulServer{proxy: l}
		k.servers = append(k.servers, k.forgetful)
		t.Cleanup(func() { k.do(k.forgetful.kill()) })
	}
	for _, m := range k.servers {
		k.do(m.launch())
	}
	k.submitter.watch()
	k.gateway.watch()
	k.target, k.gate = k.submitter.peer("catalogue", g.url()+"/sip/gate"), k.gateway.peer("gate", "/sip/gate")
	if recognises {
		k.reviewer.watch()
		k.review = k.reviewer.peer("library", "/sip/library")
	}
	return k
}

func (k *chain) do(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatalf("seed %d: %v", k.seed, err)
	}
}

// run makes records and kills, and lets everything settle after every tenth round.
func (k *chain) run(rounds int, settle func()) {
	if k.reviewer != nil {
		ctx, stop := context.WithCancel(k.t.Context())
		var deciding sync.WaitGroup
		deciding.Go(func() { k.decide(ctx) })
		defer deciding.Wait()
		defer stop()
	}
	k.catch()
	for i := range rounds {
		for range 1 + k.random.IntN(4) {
			k.provider.Create(fixtures.Record{Name: fmt.Sprintf("r-%d-%d", i, k.random.Uint32()), Formats: []fixtures.Format{fixtures.RDF()}})
		}
		k.round()
		if i%10 == 9 || i == rounds-1 {
			k.restart()
			settle()
			k.verify()
		}
		if k.t.Failed() {
			k.t.Fatalf("in round %d of seed %d", i, k.seed)
		}
	}
	k.t.Logf("%d rounds: killed the submitter %d times, the gateway %d, the ingest server %d, while something passed %d; %d records, of which %d were caught",
		rounds, k.kills[0], k.kills[1], k.kills[2], k.hits, len(k.provider.Live()), len(k.caught))
	if len(k.caught) == 0 {
		k.t.Error("no request was ever caught by a crash: the test kills beside the point")
	}
}

// catch kills the gateway while a request of its own is on the way to the ingest
// server, and loses that: there is one at least that a crash has caught.
func (k *chain) catch() {
	k.t.Helper()
	a := &interceptor{at: k.servers[2].address(), word: "ingest-request", hit: make(chan struct{}), hold: true, lose: true, over: make(chan struct{})}
	a.left.Store(1)
	k.interceptor.Store(a)
	k.provider.Create(fixtures.Record{Name: "caught", Formats: []fixtures.Format{fixtures.RDF()}})
	select {
	case <-a.hit:
	case <-time.After(patience):
		k.t.Fatalf("nothing is sent to the ingest server\nthe submitter:\n%s\nthe gateway:\n%s", k.submitter.serve.stderr.String(), k.gateway.serve.stderr.String())
	}
	k.kills[1]++
	k.hits++
	err := k.gateway.kill()
	close(a.over)
	k.do(err)
	k.do(k.gateway.launch())
}

// round kills one of the three.
func (k *chain) round() {
	k.t.Helper()
	n := k.random.IntN(len(k.servers))
	k.kills[n]++
	victim := k.servers[n]
	hit, err := killAtRandom(k.random, k.interceptor, 30, victim)
	k.do(err)
	if hit {
		k.hits++
	}
	if k.random.IntN(2) == 0 {
		k.do(victim.address().open()) // who calls it waits while it starts
	}
	if s, ok := victim.(*instance); ok && k.random.IntN(5) == 0 {
		k.do(s.startAndKill(k.random))
	}
	k.do(victim.launch())
}

// restart kills all three and starts them together: what waits for its next try is
// tried when a bridge starts, and nobody is down then.
func (k *chain) restart() {
	k.t.Helper()
	for _, m := range k.servers {
		k.do(m.kill())
	}
	for _, m := range k.servers {
		k.do(m.address().open())
	}
	var starting sync.WaitGroup
	errs := make([]error, len(k.servers))
	for i, m := range k.servers {
		starting.Go(func() { errs[i] = m.launch() })
	}
	starting.Wait()
	k.do(errors.Join(errs...))
}

// wait waits until missing finds nothing missing.
func (k *chain) wait(what string, missing func() string) {
	k.t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for limit := time.After(patience); ; {
		lacks := missing()
		if lacks == "" {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			k.t.Fatalf("seed %d: never: %s; %s\nthe submitter:\n%s\nthe gateway:\n%s", k.seed, what, lacks, k.submitter.serve.stderr.String(), k.gateway.serve.stderr.String())
		}
	}
}

// decisionOn is what every ingest server here decides on a record.
func decisionOn(identifier string) *sip.Disposition {
	if lot(identifier)%4 == 0 {
		return &sip.Disposition{Outcome: sip.Rejected, Reason: identifier + " is out of range"}
	}
	return &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "lib:" + identifier}
}

// stateOn is the state that it leads to.
func stateOn(identifier string) submission.State {
	if decisionOn(identifier).Outcome == sip.Accepted {
		return submission.StateAccepted
	}
	return submission.StateRejected
}

// lot is a number that an identifier has drawn.
func lot(identifier string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(identifier))
	return h.Sum32() >> 8
}

// byHand tells that a record is decided on by somebody with the command line, who
// can do so only while the ingest server is not just being started.
func byHand(identifier string) bool { return lot(identifier)/4%8 == 0 }

// decide is the program that reviews: it decides on what it finds, once on each.
func (k *chain) decide(ctx context.Context) {
	var decisions sync.WaitGroup
	defer decisions.Wait()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	query := submission.Query{Source: k.review}
	for {
		found, err := k.reviewer.log.SIP.Submissions(ctx, query)
		if err != nil && ctx.Err() == nil {
			k.t.Error(err)
			return
		}
		for _, s := range found {
			query.After = s.ID
			if byHand(s.SourceIdentifier) {
				continue
			}
			on := decisionOn(s.SourceIdentifier)
			d := daemon.Decision{ID: s.ID, Accept: on.Outcome == sip.Accepted, Assigned: on.AssignedIdentifier, Reason: on.Reason}
			decisions.Go(func() {
				tick := time.NewTicker(lookEvery)
				defer tick.Stop()
				for ctx.Err() == nil { // it may be killed at any time; the same decision twice is one
					if daemon.SendDecisions(ctx, k.reviewer.data(), []daemon.Decision{d}, func(_ int, done daemon.DecisionResult) {
						if done.Error != "" {
							k.t.Error(done.Error)
						}
					}) == nil {
						return
					}
					<-tick.C
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// settleAll waits until everything is decided, and compares the three.
func (k *chain) settleAll() {
	k.t.Helper()
	live := k.provider.Live()
	k.wait("all records are with the ingest server", func() string {
		k.settleDoubts()
		if n := len(k.reviewer.submissions(k.review)); n < len(live) {
			return fmt.Sprintf("%d of %d are", n, len(live))
		}
		return ""
	})
	k.decideByHand()
	k.wait("all is decided, and everybody knows", k.undecided)
	for _, s := range []struct {
		*instance
		source event.SourceID
		set    string
	}{{k.submitter, k.target, "catalogue"}, {k.gateway, k.gate, "gate"}, {k.reviewer, k.review, "library"}} {
		k.wantDecided(s.instance, s.submissions(s.source), live)
		k.wantQuiet(s.instance, s.set)
		k.wantEvents(s.instance, s.set, live)
	}
	sent, taken := k.gateway.submissions(k.gate), k.reviewer.submissions(k.review)
	for id := range taken {
		if len(sent[id]) != 1 {
			continue // said already
		}
		if sent[id][0].Content != taken[id][0].Content {
			k.t.Errorf("%s: the ingest server has other bytes than the gateway", id)
		}
		if sent[id][0].Tries > 1 {
			k.caught[id] = true
		}
	}
}

// settleDoubts says of what is in doubt at the gateway, and never arrived at the
// ingest server, that it did not: then it is sent when the submitter repeats it.
func (k *chain) settleDoubts() {
	k.t.Helper()
	taken := k.reviewer.submissions(k.review)
	for id, all := range k.gateway.submissions(k.gate) {
		if s := all[0]; s.State == submission.StateInDoubt && len(taken[id]) == 0 {
			d := daemon.Decision{ID: s.ID, Settle: &daemon.Settlement{Outcome: submission.StateUnsent}}
			err := daemon.SendDecisions(k.t.Context(), k.gateway.data(), []daemon.Decision{d}, func(_ int, done daemon.DecisionResult) {
				if done.Error != "" {
					k.t.Errorf("%s: %s", id, done.Error)
				}
			})
			if errors.Is(err, daemon.ErrNotServing) {
				return // the gateway has not started again yet
			}
			k.do(err)
		}
	}
}

// decideByHand decides on what the program leaves.
func (k *chain) decideByHand() {
	k.t.Helper()
	var commands sync.WaitGroup
	defer commands.Wait()
	for id, all := range k.reviewer.submissions(k.review) {
		if !byHand(id) || all[0].State.Final() {
			continue
		}
		args := []string{"reject", "--config", "bridge.toml", "--reason", decisionOn(id).Reason}
		if stateOn(id) == submission.StateAccepted {
			args = []string{"accept", "--config", "bridge.toml", "--identifier", decisionOn(id).AssignedIdentifier}
		}
		commands.Go(func() {
			c, err := start(k.reviewer.path, nil, "bridge", append(append([]string{"submission"}, args...), strconv.FormatInt(all[0].ID, 10))...)
			if err != nil {
				k.t.Error(err)
				return
			}
			defer c.kill()
			if status, err := c.status(); err != nil || status != exitDone {
				k.t.Errorf("bridge submission %q: exit status %d, %v\n%s", args, status, err, c.stderr.String())
			}
		})
	}
}

// undecided says what is not at its end.
func (k *chain) undecided() string {
	live := int64(len(k.provider.Live()))
	for _, s := range []struct {
		*instance
		source event.SourceID
	}{{k.submitter, k.target}, {k.gateway, k.gate}, {k.reviewer, k.review}} {
		counts, err := s.log.SIP.Counts(k.t.Context(), s.source)
		k.do(err)
		if ends := counts.Submissions[submission.StateAccepted] + counts.Submissions[submission.StateRejected]; ends < live || counts.Outgoing[submission.DeliveryWaiting] > 0 {
			return fmt.Sprintf("%s has %v of %d records, and notices %v", s.name, counts.Submissions, live, counts.Outgoing)
		}
	}
	return ""
}

// settleMost waits until every record is with the ingest server that recognises
// nothing, or in doubt at the gateway, and compares.
func (k *chain) settleMost() {
	k.t.Helper()
	k.wait("every record is with the ingest server, or in doubt", k.underWay)
	k.wait("all that the ingest server has told is known", k.untold)
	written, _ := k.forgetful.all()
	requests, records := map[string]int{}, map[string]int{}
	for _, w := range written {
		if requests[w.recipient]++; requests[w.recipient] > 1 {
			k.t.Errorf("the request of %s was sent %d times", w.identifier, requests[w.recipient])
		}
		if records[w.identifier]++; records[w.identifier] > 1 {
			k.t.Errorf("%s was sent %d times", w.identifier, records[w.identifier])
		}
	}
	gate := k.gateway.submissions(k.gate)
	var doubted []string
	for _, r := range k.provider.Live() {
		all := gate[r.ID]
		if len(all) != 1 {
			k.t.Errorf("the gateway has %d submissions of %s", len(all), r.ID)
			continue
		}
		if s := all[0]; s.State == submission.StateInDoubt {
			doubted = append(doubted, r.ID)
			k.caught[r.ID] = true
		} else if records[r.ID] != 1 || s.State.Final() && s.State != stateOn(r.ID) || s.Conflicts != 0 || s.Assigned != "" && s.Assigned != decisionOn(r.ID).AssignedIdentifier {
			k.t.Errorf("the ingest server has %s %d times, and at the gateway it is %+v", r.ID, records[r.ID], s)
		}
		delete(records, r.ID)
	}
	if len(records) > 0 {
		k.t.Errorf("the ingest server has what nobody has sent: %v", records)
	}
	slices.Sort(doubted)
	if shown := k.shownInDoubt(); !slices.Equal(shown, doubted) {
		k.t.Errorf("bridge submission ls shows as in doubt\n%q, want\n%q", shown, doubted)
	}
	k.wantQuiet(k.submitter, "catalogue")
	k.wantQuiet(k.gateway, "gate")
	k.forgetful.tell() // from now on: late
}

// underWay says which record is neither with the ingest server nor in doubt, or of
// which the submitter does not know.
func (k *chain) underWay() string {
	sent, gate := k.submitter.submissions(k.target), k.gateway.submissions(k.gate)
	for _, r := range k.provider.Live() {
		if len(sent[r.ID]) == 0 || len(gate[r.ID]) == 0 {
			return "nobody has " + r.ID
		}
		s, g := sent[r.ID][0], gate[r.ID][0]
		switch {
		case s.State == g.State:
		case g.State == submission.StateInDoubt && s.State == submission.StateWaiting:
		default:
			return fmt.Sprintf("%s is %s (%s) at the submitter and %s (%s) at the gateway", r.ID, s.State, s.Reason, g.State, g.Reason)
		}
	}
	counts, err := k.gateway.log.SIP.Counts(k.t.Context(), k.gate)
	k.do(err)
	if counts.Outgoing[submission.DeliveryWaiting] > 0 {
		return fmt.Sprintf("the gateway owes %v", counts.Outgoing)
	}
	return ""
}

// untold says which decision has been told and is not in force at the gateway and
// at the submitter.
func (k *chain) untold() string {
	sent, gate := k.submitter.submissions(k.target), k.gateway.submissions(k.gate)
	written, told := k.forgetful.all()
	for _, w := range written[:told] {
		for _, all := range [][]submission.Submission{sent[w.identifier], gate[w.identifier]} {
			if len(all) != 1 || all[0].State != stateOn(w.identifier) {
				return fmt.Sprintf("%s: %+v", w.identifier, all)
			}
		}
	}
	return ""
}

// wantDecided fails unless each record has exactly one submission, which was
// decided as it must be.
func (k *chain) wantDecided(s *instance, got map[string][]submission.Submission, live []fixtures.Change) {
	k.t.Helper()
	if len(got) != len(live) {
		k.t.Errorf("%s has submissions of %d records, want %d", s.name, len(got), len(live))
	}
	for _, r := range live {
		want := decisionOn(r.ID)
		if all := got[r.ID]; len(all) != 1 || all[0].State != stateOn(r.ID) || all[0].Assigned != want.AssignedIdentifier || all[0].Reason != want.Reason ||
			all[0].Conflicts != 0 || all[0].Late {
			k.t.Errorf("%s has of %s\n%+v, want\n%+v once", s.name, r.ID, all, want)
		}
	}
}

// wantQuiet fails unless every notice was delivered, one of a submission, and
// every notification belongs to a submission.
func (k *chain) wantQuiet(s *instance, set string) {
	k.t.Helper()
	const many = 1 << 20
	notices, err := s.log.SIP.Outgoing(k.t.Context(), set, 0, 0, many)
	k.do(err)
	owed := map[int64]int{}
	for _, n := range notices {
		if owed[n.Submission]++; n.State != submission.DeliveryDone || owed[n.Submission] > 1 {
			k.t.Errorf("%s has %d notices of a submission: %+v", s.name, owed[n.Submission], n)
		}
	}
	if s == k.reviewer && len(owed) != len(k.provider.Live()) {
		k.t.Errorf("%s has notified of %d records", s.name, len(owed))
	}
	for v := submission.NotificationRecord; v <= submission.NotificationConflict; v++ {
		strays, err := s.log.SIP.Incoming(k.t.Context(), set, v, 0, many)
		k.do(err)
		for _, n := range strays {
			k.t.Errorf("%s has a notification that is %s: %+v", s.name, v, n)
		}
	}
}

// wantEvents fails unless the log has each record and each rejection exactly
// once.
func (k *chain) wantEvents(s *instance, set string, live []fixtures.Change) {
	k.t.Helper()
	want := map[string]int{}
	for _, r := range live {
		switch {
		case stateOn(r.ID) == submission.StateRejected:
			want["rejected "+r.ID] = 1
		case s != k.submitter:
			want["created "+decisionOn(r.ID).AssignedIdentifier] = 1
		}
		if s == k.submitter {
			want["created "+r.ID] = 1
		}
	}
	got := map[string]int{}
	for _, ev := range s.history() {
		id := ev.Record
		if ev.Kind == event.Rejected {
			id = ev.Origin.SourceIdentifier
		}
		if got[ev.Kind.String()+" "+id]++; ev.Set != set {
			k.t.Errorf("%s has event %d in set %s", s.name, ev.Seq, ev.Set)
		}
	}
	if !maps.Equal(got, want) {
		k.t.Errorf("%s has the events\n%v, want\n%v", s.name, got, want)
	}
}

// verify lets bridge verify look at every data folder.
func (k *chain) verify() {
	k.t.Helper()
	for _, s := range []*instance{k.submitter, k.gateway, k.reviewer} {
		if s != nil {
			s.run("verify", "--data", "data")
		}
	}
}

// shownInDoubt returns what the command line shows as in doubt at the gateway,
// sorted.
func (k *chain) shownInDoubt() (shown []string) {
	k.t.Helper()
	for line := range strings.Lines(k.gateway.run("submission", "ls", "--data", "data", "--state", "in doubt", "--limit", "0", "--json")) {
		var s api.Submission
		k.do(json.Unmarshal([]byte(line), &s))
		shown = append(shown, s.SourceIdentifier)
	}
	slices.Sort(shown)
	return shown
}
