package oaipmh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testserver"
)

// harvester keeps what walks over a repository tell, as a program does that stores
// documents one by one.
type harvester struct {
	t      testing.TB
	repo   *testserver.Repository
	server *httptest.Server
	walk   Walk
	now    time.Time

	has map[string]*Record
	bad []*RecordError
	// problems has what was reported, by rule.
	problems map[string][]Problem
	// stop ends a loop after so many documents; 0 does not.
	stop int
	// saved is the State of the last document.
	saved State
	// named has the records of a walk that has begun at begun, through its breaks.
	named map[string]bool
	begun time.Time
}

// newHarvester serves a repository with n records, whose clock is that of the walk.
func newHarvester(t testing.TB, n int) *harvester {
	h := &harvester{t: t, repo: testserver.NewRepository(), now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), has: map[string]*Record{}}
	clock := func() time.Time { return h.now }
	h.repo.Now, h.repo.PageSize = clock, 10
	h.repo.Fill(n)
	h.walk.Now = clock
	h.serve()
	t.Cleanup(func() { h.server.Close() })
	return h
}

// serve makes a server of the repository, and the walk go to it.
func (h *harvester) serve() {
	h.server = httptest.NewServer(h.repo)
	h.walk.Client, h.walk.URL = h.server.Client(), h.server.URL+"/oai"
}

// restart ends the server, so that no request that a walk broken off has sent ahead can
// still arrive, and makes another one, which knows no token of the first.
func (h *harvester) restart() {
	h.server.Close()
	h.repo.Restart()
	h.repo.Calls()
	h.serve()
}

// run walks once, and leaves the State for the next time.
func (h *harvester) run() (Result, error) {
	h.t.Helper()
	h.problems, h.bad = map[string][]Problem{}, nil
	ids := map[string]bool{}
	for _, r := range Rules() {
		ids[r.ID] = true
	}
	h.walk.Report = func(p Problem) {
		if !ids[p.Rule] {
			h.t.Errorf("a rule that is none: %s", p)
		}
		h.problems[p.Rule] = append(h.problems[p.Rule], p)
	}
	if h.saved = h.walk.State; !h.saved.Unfinished() {
		h.named, h.begun = map[string]bool{}, h.now
	}
	var failed error
	documents := 0
	for doc, err := range h.walk.Documents(context.Background()) {
		if err != nil {
			failed = err
			break
		}
		var records []*Record
		var bad []*RecordError
		for rec, no := range doc.Entries() {
			if no != nil {
				bad = append(bad, no)
				continue
			}
			records = append(records, rec)
		}
		state, ok := doc.State()
		if ok != doc.Whole() {
			h.t.Errorf("%s is whole: %t, and has a State: %t", doc.URL, doc.Whole(), ok)
		}
		if !ok {
			continue
		}
		for _, rec := range records {
			h.named[rec.Identifier] = true
			if old := h.has[rec.Identifier]; old == nil || !rec.Datestamp.Before(old.Datestamp) {
				h.has[rec.Identifier] = rec
			}
		}
		h.bad = append(h.bad, bad...)
		h.saved = h.stored(state)
		if documents++; documents == h.stop {
			break
		}
	}
	r := h.walk.Result()
	h.walk.State = h.stored(r.State)
	return r, failed
}

// stored returns a State as it comes back from a store.
func (h *harvester) stored(s State) (back State) {
	h.t.Helper()
	text, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return back
}

// differs returns what is not as the repository has it.
func (h *harvester) differs() (wrong []string) {
	there := map[string]bool{}
	for _, it := range h.repo.Items() {
		there[it.Identifier] = true
		rec := h.has[it.Identifier]
		switch {
		case it.Deleted && (rec == nil || rec.Deleted):
		case it.Deleted:
			wrong = append(wrong, it.Identifier+" is deleted there")
		case rec == nil:
			wrong = append(wrong, it.Identifier+" is missing")
		case rec.Deleted:
			wrong = append(wrong, it.Identifier+" is not deleted there")
		case string(rec.Metadata) != it.Metadata[DC]:
			wrong = append(wrong, it.Identifier+" is another there")
		}
	}
	for id, rec := range h.has {
		if !there[id] && !rec.Deleted {
			wrong = append(wrong, id+" is not there")
		}
	}
	slices.Sort(wrong)
	return wrong
}

// asked returns the requests for lists since it was called last, as their arguments.
func (h *harvester) asked() (all []string) {
	for _, c := range h.repo.Calls() {
		if c.Verb() == "Identify" {
			continue
		}
		switch {
		case c.Args.Has("resumptionToken"):
			all = append(all, fmt.Sprintf("page %d", c.Page))
		case c.Args.Has("from") || c.Args.Has("until"):
			all = append(all, c.Args.Get("from")+".."+c.Args.Get("until"))
		default:
			all = append(all, "all")
		}
	}
	return all
}

// must walks, and wants it to end whole with what the repository has.
func (h *harvester) must() Result {
	h.t.Helper()
	r, err := h.run()
	if err != nil || !r.Whole {
		h.t.Fatalf("%+v, %v", r, err)
	}
	if wrong := h.differs(); wrong != nil {
		h.t.Fatal(wrong)
	}
	return r
}

// TestLies: what comes of each lie of a repository with 25 records in pages of 10, one of
// them deleted.
func TestLies(t *testing.T) {
	type outcome struct {
		rule   string // that is reported; "" is none
		err    error  // the walk ends with it
		bad    int    // records that cannot be taken
		mended int
		wrong  int // records that are not as they are there
	}
	lies := map[testserver.Lie]outcome{
		testserver.TokenTwice:          {err: ErrLoop, wrong: 4},
		testserver.TokenLoop:           {err: ErrLoop},
		testserver.EndlessTokens:       {err: ErrTooManyDocuments, wrong: 470},
		testserver.StalePages:          {err: ErrLoop},
		testserver.LastPageRepeats:     {},
		testserver.EmptyLastPage:       {rule: ruleEmpty},
		testserver.NoLastToken:         {},
		testserver.TokenAlways:         {},
		testserver.TokenOnce:           {},
		testserver.OffsetTokens:        {},
		testserver.OddTokens:           {},
		testserver.TokenNotExclusive:   {rule: ruleLost},
		testserver.SizeZero:            {},
		testserver.SizeWrong:           {},
		testserver.DoubledHeaders:      {},
		testserver.EmptyList:           {},
		testserver.SecondsRefused:      {},
		testserver.LateFromRefused:     {},
		testserver.FromIgnored:         {},
		testserver.FromExclusive:       {},
		testserver.FinerStamps:         {},
		testserver.FractionStamps:      {rule: ruleDatestamp},
		testserver.CoarserStamps:       {rule: ruleGranularity},
		testserver.OffsetStamps:        {rule: ruleDatestamp},
		testserver.NaiveStamps:         {rule: ruleDatestamp},
		testserver.FutureStamps:        {rule: ruleFuture},
		testserver.NoStamps:            {rule: ruleDatestamp},
		testserver.SlowClock:           {rule: ruleFuture},
		testserver.DayResponse:         {rule: ruleResponseDate},
		testserver.EmptyIdentifier:     {bad: 1},
		testserver.HiddenDeletion:      {rule: ruleSize},
		testserver.DeletedWithMetadata: {rule: ruleDeleted},
		testserver.HeaderOnly:          {bad: 24, wrong: 24},
		testserver.HeaderForFormat:     {},
		testserver.NoElement:           {bad: 24, wrong: 24},
		testserver.TwoElements:         {bad: 24, wrong: 24},
		testserver.OnlyText:            {bad: 24, wrong: 24},
		testserver.RootNamespaces:      {wrong: 24}, // the declarations are in another order
		testserver.WrongSchemaLocation: {wrong: 24},
		testserver.ForbiddenCharacter:  {rule: ruleCharacters, mended: 24, wrong: 24},
		testserver.ForbiddenReference:  {rule: ruleCharacters, mended: 24, wrong: 24},
		testserver.Latin1Bytes:         {rule: ruleCharset, mended: 24, wrong: 24},
		testserver.HTMLEntity:          {rule: ruleCharacters, mended: 24, wrong: 24},
		testserver.BareAmpersand:       {rule: ruleCharacters, mended: 24, wrong: 24},
		testserver.OpenTag:             {bad: 24, wrong: 24},
		testserver.UndeclaredPrefix:    {bad: 24, wrong: 24},
		testserver.SpaceAround:         {rule: ruleIdentifier},
		testserver.WrongCharset:        {rule: ruleCharset},
		testserver.LeadingSpace:        {rule: ruleCharacters},
		testserver.TrailingGarbage:     {rule: ruleTrailing},
		testserver.GzipAlways:          {},
		testserver.HTMLType:            {},
		testserver.Redirected:          {rule: ruleRedirect},
		testserver.OtherBaseURL:        {rule: ruleBaseURL},
		testserver.NoIdentify:          {err: &StatusError{}, wrong: 24},
		testserver.NoListIdentifiers:   {},
	}
	for _, lie := range testserver.Lies() {
		t.Run(string(lie), func(t *testing.T) {
			want, ok := lies[lie]
			if !ok {
				t.Fatal("nothing is known of it")
			}
			h := newHarvester(t, 25)
			h.repo.Put(testserver.Item{Identifier: "oai:repository.example:7", Deleted: true, Metadata: map[string]string{DC: testserver.DublinCore("x")}})
			h.repo.Lie(lie)
			h.walk.MaxDocuments = 50
			r, err := h.run()
			var status *StatusError
			if !errors.Is(err, want.err) && (!errors.As(want.err, &status) || !errors.As(err, &status)) {
				t.Errorf("error %v", err)
			}
			if r.Whole != (want.err == nil) || r.Whole == r.State.Mark().IsZero() {
				t.Errorf("%+v", r)
			}
			if want.rule != "" && h.problems[want.rule] == nil || want.rule == "" && len(h.problems) > 0 && want.err == nil && want.bad == 0 {
				t.Errorf("reported %v", h.problems)
			}
			mended := 0
			for _, rec := range h.has {
				if rec.Mended {
					mended++
				}
			}
			if wrong := h.differs(); len(wrong) != want.wrong || len(h.bad) != want.bad || mended != want.mended {
				t.Errorf("%d are wrong, %d bad, %d mended: %v, %v", len(wrong), len(h.bad), mended, wrong, h.bad)
			}
			if err != nil || want.wrong > 0 {
				return
			}
			// What changes later is found, and what does not is not asked for again.
			h.now = h.now.Add(48 * time.Hour)
			h.repo.Put(testserver.Item{Identifier: "oai:repository.example:3", Metadata: map[string]string{DC: testserver.DublinCore("New")}})
			if lie != testserver.EmptyIdentifier && lie != testserver.HiddenDeletion { // ListRecords cannot tell
				h.repo.Delete("oai:repository.example:4")
			}
			h.now = h.now.Add(time.Minute)
			h.must()
			h.now = h.now.Add(time.Hour)
			h.repo.Calls()
			h.must()
			if asked := h.asked(); len(asked) > 1 && lie != testserver.FromIgnored && lie != testserver.SecondsRefused && lie != testserver.Redirected {
				t.Errorf("asked %q", asked)
			}
		})
	}
	if known := slices.Collect(maps.Keys(lies)); len(known) != len(testserver.Lies()) {
		t.Errorf("%d lies, and %d are known", len(testserver.Lies()), len(known))
	}
}
