package console

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/pattern"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// sourcePage is the data of the page of a Source.
type sourcePage struct {
	sourceRow
	// Every is the time between two harvests, 0 when the Source is not harvested.
	Every, FullEvery, HoldDeletions time.Duration
	// Planned describes when the next harvest is, and why.
	Planned string
	// Advice describes what to do about the failure.
	Advice   string
	Records  int64 // that the Source has
	Problems []brokenRule
	// History has the harvests with a result, the newest first; others are only counted.
	History []status.HarvestRow
	Older   string // link to those before
	Before  bool   // it does not begin with the newest row
}

// brokenRule is a rule that the last harvest found broken.
type brokenRule struct {
	ruleText
	Count int64
	First string
}

// ruleText is a rule in words.
type ruleText struct{ ID, Title, Clause string }

// ruleOf finds a rule by its ID, first among those of the Source's protocol.
func ruleOf(kind, id string) ruleText {
	found := ruleText{ID: id}
	look := func(of string, r ruleText) {
		if r.ID == id && (found.Title == "" || of == kind) {
			found = r
		}
	}
	for _, r := range atompmh.Rules() {
		look(harvest.AtomPMH, ruleText{r.ID, r.Title, r.Clause})
	}
	for _, r := range resourcesync.Rules() {
		look(harvest.ResourceSync, ruleText{r.ID, r.Title, r.Clause})
	}
	for _, r := range oaipmh.Rules() {
		look(harvest.OAIPMH, ruleText{r.ID, r.Title, "OAI-PMH 2.0, " + r.Clause})
	}
	return found
}

func (c *Console) source(w http.ResponseWriter, r *http.Request) error {
	row, err := c.sourceOf(r)
	if err != nil {
		return err
	}
	p := sourcePage{sourceRow: row}
	if p.Records, err = c.bridge.Log.Has(r.Context(), row.ID); err != nil {
		return err
	}
	for _, s := range c.bridge.Sources() {
		if s.ID == row.ID && s.Kind != harvest.SIP {
			p.Every, p.FullEvery, p.HoldDeletions = s.Every, s.FullEvery, s.HoldDeletions
		}
	}
	p.Planned = planned(&p)
	if row.State == stateFailing {
		p.Advice = advice(row.Why)
	}
	if row.Last != nil {
		for _, x := range row.Last.Examples {
			p.Problems = append(p.Problems, brokenRule{ruleOf(row.Kind, x.Rule), x.Count, x.First})
		}
	}
	from, err := strconv.ParseInt(r.URL.Query().Get("before"), 10, 64)
	p.Before = err == nil && from > 0
	if p.History, err = c.bridge.History(r.Context(), row.ID, max(0, from), harvestsShown+1); err != nil {
		return err
	}
	if len(p.History) > harvestsShown {
		p.History = p.History[:harvestsShown]
		p.Older = query(r, "before", strconv.FormatInt(p.History[harvestsShown-1].Number, 10))
	}
	c.write(w, r, http.StatusOK, "source", &page{Title: row.Label() + " in " + row.Set, Section: "overview", Body: p})
	return nil
}

// harvestsShown is the number of harvests on a page.
const harvestsShown = 30

// planned describes when the next harvest is, and why.
func planned(p *sourcePage) string {
	every := about(p.Every)
	switch {
	case p.Kind == harvest.SIP:
		return "It is not harvested: it sends its records itself."
	case p.Former:
		return "It is not harvested: the configuration does not name it any more."
	case p.Underway != nil:
		return "A harvest is under way; the next one follows " + every + " after it ends."
	case p.Paused != nil:
		return "It is paused, and is harvested when the pause ends."
	case p.Every == 0:
		return "Nothing is planned."
	case !p.RetryAfter.IsZero() && !p.Next.Before(p.RetryAfter.Time):
		return "It is asked every " + every + ". Its server has asked for no request before then (Retry-After)."
	case p.Failures > 0:
		return fmt.Sprintf("It is asked every %s. After %s in a row it is tried again after a minute, then after twice as long each time, up to 24 times that and a day.", every, counted(p.Failures, "failure", "failures"))
	case p.Unfinished:
		return "It is asked every " + every + ". Its last walk was not finished: the next harvest goes on there."
	case p.Last == nil:
		return "It is asked every " + every + ", and for the first time soon."
	}
	return "It is asked every " + every + "."
}

var (
	addressInText = pattern.Of(`\S+://\S+`)
	statusInText  = pattern.Of(`http status \d+`)
)

// advice returns what to do about an error of a harvest. It ignores URLs in the error: the
// digits of a status code may be those of a port.
func advice(text string) string {
	text = addressInText().ReplaceAllString(strings.ToLower(text), "")
	if status := statusInText().FindString(text); status != "" {
		text = status
	}
	for _, one := range []struct{ words, say string }{
		{"status 401", "It wants a login, or another one: write user and password_file, or token_file, of this Source in the configuration."},
		{"status 403", "It does not let this machine in: ask its operators, and tell them the contact that is configured here."},
		{"status 404|status 410|no such file", "There is nothing at its address: look whether it has moved, and correct url in the configuration."},
		{"status 429|retry-after|status 503", "Its server asks for patience. bridge waits as long as it says; nothing is to be done unless this goes on for days."},
		{"status 500|status 502|status 504", "Its server fails. If this goes on, tell its operators; bridge tries again by itself."},
		{"certificate|x509|tls", "Its certificate is not accepted: its operators must renew or correct it."},
		{"no such host|lookup", "Its name is not known: look whether url is written correctly, and whether this machine's name server works."},
		{"refused", "Nothing answers at its address: its server may be down. bridge tries again by itself."},
		{"not a public|private|allow_hosts", "Its address is not public: if that is right, name its host in allow_hosts."},
		{"timeout|deadline|too slow|idle|second", "Its server answers too slowly. If this goes on, tell its operators, or raise the limits under [limits]."},
		{"xml|well-formed|syntax|root|element", "Its document cannot be read: tell its operators the place that the error names. bridge validate URL lists all that is wrong with it."},
		{"id has changed|feed id|another feed", "It has become another feed. If that is intended, run bridge source reset."},
		{"bridge ended", "bridge itself ended during the harvest: see its log of that moment."},
	} {
		for word := range strings.SplitSeq(one.words, "|") {
			if strings.Contains(text, word) {
				return one.say
			}
		}
	}
	return "bridge tries again by itself. If this goes on, tell the operators of the Source what the error says."
}

// heldPage is the data of the page of held deletions.
type heldPage struct {
	sourceRow
	Records       []heldRecord
	After         int64        // start of the next page, 0 when there is none
	Until         event.Micros // since when the newest is held: a decision excludes later ones
	ByTime        bool         // some of these are released after a time
	HoldDeletions time.Duration
}

type heldRecord struct {
	Record string
	Title  string
	Since  event.Micros
	Person bool
}

// perPage is the number of rows on a page.
const perPage = 100

func (c *Console) held(w http.ResponseWriter, r *http.Request) error {
	row, err := c.sourceOf(r)
	if err != nil {
		return err
	}
	p := heldPage{sourceRow: row}
	for _, s := range c.bridge.Sources() {
		if s.ID == row.ID {
			p.HoldDeletions = s.HoldDeletions
		}
	}
	if p.Until, err = c.bridge.Log.HeldUntil(r.Context(), row.ID); err != nil {
		return err
	}
	held, err := c.bridge.Log.HeldDeletions(r.Context(), row.ID, after(r), perPage+1)
	if err != nil {
		return err
	}
	if len(held) > perPage {
		held = held[:perPage]
		p.After = held[perPage-1].Number
	}
	for _, h := range held {
		p.ByTime = p.ByTime || !h.Person
		one := heldRecord{Record: h.Record, Since: h.Since, Person: h.Person}
		if ev, err := c.bridge.Log.Record(r.Context(), row.Set, event.Key(h.Record)); err == nil {
			one.Title = ev.Title
		}
		p.Records = append(p.Records, one)
	}
	c.write(w, r, http.StatusOK, "held", &page{Title: "Held deletions of " + row.Label(), Section: "overview", Body: p})
	return nil
}

// sourcesByID returns all Sources by their ID.
func (c *Console) sourcesByID(r *http.Request) (map[event.SourceID]sourceRow, error) {
	s, err := c.status(r.Context())
	if err != nil {
		return nil, err
	}
	all := map[event.SourceID]sourceRow{}
	for src := range s.Sources() {
		all[src.ID] = rowOf(src)
	}
	return all, nil
}

// quarantinePage is the data of the page of the quarantine.
type quarantinePage struct {
	Inputs            []quarantineRow
	More              string
	Set, Rule, Source string
	Sets, Rules       []string
	Replayed          bool // replayed ones are shown too
}

type quarantineRow struct {
	event.Quarantined
	Source sourceRow
	Rule   ruleText
}

// Shown returns the value of a form that identifies the input, so that a decision cannot
// apply to another one.
func (q quarantineRow) Shown() string { return shownAs(&q.Quarantined) }

// Place returns where the input was found, redacted.
func (q quarantineRow) Place() string {
	url := daemon.Redact(q.URL)
	if q.Line == 0 {
		return url
	}
	return fmt.Sprintf("%s, line %d, column %d", url, q.Line, q.Column)
}

func (c *Console) quarantine(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	p := quarantinePage{Set: argument(q, "set"), Rule: argument(q, "rule"), Source: argument(q, "source"), Replayed: argument(q, "replayed") != ""}
	which := event.QuarantineQuery{Set: p.Set, Rule: p.Rule, Waiting: !p.Replayed, Newest: true, After: after(r), Limit: perPage + 1}
	if p.Source != "" {
		id, err := number64(p.Source)
		if err != nil {
			return err
		}
		which.Source = event.SourceID(id)
	}
	found, err := c.bridge.Log.QuarantinePage(r.Context(), which)
	if err != nil {
		return err
	}
	if p.Sets, p.Rules, err = c.bridge.Log.QuarantineKinds(r.Context()); err != nil {
		return err
	}
	sources, err := c.sourcesByID(r)
	if err != nil {
		return err
	}
	if len(found) > perPage {
		found = found[:perPage]
		p.More = query(r, "after", fmt.Sprint(found[perPage-1].ID))
	}
	for _, in := range found {
		row := sources[in.Source]
		p.Inputs = append(p.Inputs, quarantineRow{in, row, ruleOf(row.kind(), in.Rule)})
	}
	c.write(w, r, http.StatusOK, "quarantine", &page{Title: "Quarantine", Section: "quarantine", Body: p})
	return nil
}

// kind returns the kind of the Source, "" when the Source does not exist any more.
func (s sourceRow) kind() string {
	if s.Source == nil {
		return ""
	}
	return s.Kind
}

// inputShown is the number of bytes of an input on a page.
const inputShown = 64 << 10

// quarantinedPage is the data of the page of one bad input.
type quarantinedPage struct {
	quarantineRow
	Text   string
	Binary bool
	Cut    bool
	Length int64
}

// input returns the bad input that a request names.
func (c *Console) input(r *http.Request) (event.Quarantined, error) {
	id, err := number64(r.PathValue("id"))
	if err != nil {
		return event.Quarantined{}, err
	}
	return c.bridge.Log.QuarantinedInput(r.Context(), id)
}

func (c *Console) quarantined(w http.ResponseWriter, r *http.Request) error {
	in, err := c.input(r)
	if err != nil {
		return err
	}
	sources, err := c.sourcesByID(r)
	if err != nil {
		return err
	}
	row := sources[in.Source]
	p := quarantinedPage{quarantineRow: quarantineRow{in, row, ruleOf(row.kind(), in.Rule)}, Length: int64(len(in.Input)), Cut: len(in.Input) > inputShown}
	p.Text, p.Binary = shown(in.Input[:min(len(in.Input), inputShown)])
	c.write(w, r, http.StatusOK, "quarantined", &page{Title: fmt.Sprintf("Bad input %d", in.ID), Section: "quarantine", Body: p})
	return nil
}

// quarantinedInput serves the bytes of the input for download.
func (c *Console) quarantinedInput(w http.ResponseWriter, r *http.Request) error {
	in, err := c.input(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="quarantined-%d"`, in.ID))
	_, _ = w.Write(in.Input) // the client may have disconnected
	return nil
}
