package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// chartDays is the number of days of a chart.
const chartDays = 30

// sourceRow is a Source as tables show it.
type sourceRow struct {
	*status.Source
	State sourceState
	// Since is when it came into the state, zero when that is not known. Why is the reason
	// for the state.
	Since time.Time
	Why   string
	Days  days
}

// sourceState sums up a Source: the first state that applies.
type sourceState uint8

const (
	stateFailing sourceState = iota
	stateAttention
	stateWaiting
	statePaused
	stateFormer
	stateOK
)

// String returns the word for pages and filters.
func (s sourceState) String() string {
	return [...]string{string(status.Failing), "attention", string(status.Waiting), string(status.Paused), "not configured", string(status.OK)}[s]
}

// Class returns the class in the style sheet.
func (s sourceState) Class() string {
	return [...]string{"bad", "warn", "quiet", "quiet", "quiet", "good"}[s]
}

// Label returns the name of the Source for people.
func (s sourceRow) Label() string { return cmp.Or(s.Name, hostOf(s.URL), s.Kind) }

// hostOf returns a URL without its scheme and a slash at its end.
func hostOf(url string) string {
	_, rest, found := strings.Cut(url, "://")
	if !found {
		rest = url
	}
	return strings.TrimSuffix(rest, "/")
}

// Protocol returns the name of the Source's protocol.
func (s sourceRow) Protocol() string {
	switch s.Kind {
	case harvest.AtomPMH:
		return "Atom-PMH"
	case harvest.ResourceSync:
		return "ResourceSync"
	case harvest.OAIPMH:
		return "OAI-PMH"
	case harvest.Feed:
		return "feed"
	case harvest.Folder:
		return "folder"
	case harvest.CSV:
		return "CSV"
	case harvest.Sitemap:
		return "text sitemap"
	case harvest.Set:
		return "another set"
	case harvest.SIP:
		return "SIP"
	}
	return "kind not known yet"
}

// Waits reports whether records or inputs of the Source are pending, held or quarantined.
func (s sourceRow) Waits() bool { return s.Pending+s.Held+s.Quarantined > 0 }

func rowOf(s *status.Source) sourceRow {
	r := sourceRow{Source: s, State: stateOK}
	switch s.State {
	case status.Former:
		r.State, r.Why = stateFormer, "Its records stay as they are. Configure it again, or end it with bridge source forget."
		return r
	case status.Paused:
		r.State, r.Since, r.Why = statePaused, s.Paused.Since.Time, s.Paused.Reason
		return r
	case status.Failing:
		r.State, r.Since = stateFailing, s.FailingSince.Time
		if s.LastError != nil {
			r.Why = s.LastError.Text
		}
		return r
	case status.Waiting:
		r.State = stateWaiting
	}
	attention := ""
	switch {
	case s.Gap != "":
		attention = "A document is missing: " + s.Gap
	case s.Held > 0:
		attention = counted(s.Held, "deletion is held back.", "deletions are held back.")
	case s.Quarantined > 0:
		attention = counted(s.Quarantined, "bad input is in quarantine.", "bad inputs are in quarantine.")
	case s.Moved != "":
		attention = "It has moved for good to " + s.Moved + ": change url in the configuration."
	case s.Last != nil && len(s.Last.Warnings) > 0:
		attention = s.Last.Warnings[0]
	}
	if attention != "" {
		r.State, r.Why = stateAttention, attention
	}
	return r
}

// matter is one thing that needs a person's attention.
type matter struct {
	Kind  string
	Class string
	Where string // set or Source
	Link  string // to the page of Where, below the console
	Since time.Time
	Why   string
	Do    string // what to do
	DoAt  string // the page for that, below the console; "" means elsewhere
	Retry string // form target of the button to harvest the Source now, "" for none
}

// matters returns all that needs attention, the most urgent kind first.
func matters(s *status.Status, rows []sourceRow) (all []matter) {
	for _, w := range s.Warnings {
		all = append(all, matter{Kind: "log", Class: "bad", Where: "the data folder", Why: w, Do: "Look it up in docs/messages.md"})
	}
	for _, r := range rows {
		if r.State == stateFailing {
			all = append(all, matter{"failing", "bad", r.Set + " / " + r.Label(), sourceLink(r.ID), r.Since, r.Why, "See what to do", sourceLink(r.ID), sourceLink(r.ID) + "/harvest"})
		}
	}
	for i := range s.Sets {
		set := &s.Sets[i]
		if d := set.Dumps; d != nil && len(d.Faults) > 0 {
			all = append(all, matter{"dumps", "bad", set.Name, setLink(set.Name), time.Time{}, "The newest dumps cannot be made: " + d.Faults[0], "See why", setLink(set.Name), ""})
		}
		for j := range set.Hubs {
			if h := &set.Hubs[j]; !h.FailingSince.IsZero() {
				all = append(all, matter{"hub", "warn", set.Name + " / " + cmp.Or(hostOf(h.URL), "hub"), setLink(set.Name), h.FailingSince.Time, "It is not told of changes: " + h.Error, "Ask its operators", "", ""})
			}
		}
		for j := range set.Submissions {
			p := &set.Submissions[j]
			where, link := set.Name+" / "+cmp.Or(hostOf(p.URL), "SIP"), setLink(set.Name)
			if p.Failing != nil {
				all = append(all, matter{"delivery", "bad", where, link, p.Failing.Since.Time, p.Failing.Reason, "Ask its operators", "", ""})
			}
			if n := p.States[submission.StateInDoubt]; n > 0 {
				all = append(all, matter{"in doubt", "warn", where, link, time.Time{}, counted(n, "submission", "submissions") + " may have arrived or not", "Ask there, then bridge submission settle", "", ""})
			}
			if n := p.States[submission.StateUnresolved]; n > 0 {
				all = append(all, matter{"unresolved", "warn", where, link, time.Time{}, counted(n, "submission has", "submissions have") + " no answer at the deadline", "Ask the ingest server", "", ""})
			}
			if n := p.Conflicts; n > 0 {
				all = append(all, matter{"contradiction", "warn", where, link, time.Time{}, counted(n, "submission has", "submissions have") + " contradicting answers", "Ask which is right, then bridge submission settle", "", ""})
			}
			if n := p.Undelivered(); n > 0 {
				all = append(all, matter{"not delivered", "warn", where, link, time.Time{}, counted(n, "notification", "notifications") + " could not be delivered to submitters", "Tell them, then bridge submission settle --told; or resend", "", ""})
			}
			if n := p.UnderReview; n > 0 {
				all = append(all, matter{"review", "warn", where, link, time.Time{}, counted(n, "submission waits", "submissions wait") + " for a decision", "Decide", "reviews?set=" + set.Name, ""})
			}
		}
	}
	for _, r := range rows {
		where, link := r.Set+" / "+r.Label(), sourceLink(r.ID)
		if r.Held > 0 {
			all = append(all, matter{"held", "warn", where, link, time.Time{}, counted(r.Held, "deletion is held back", "deletions are held back"), "Release or keep", link + "/held", ""})
		}
		if r.Gap != "" {
			all = append(all, matter{"gap", "warn", where, link, time.Time{}, r.Gap, "Wait, or accept it", link, ""})
		}
		if r.Quarantined > 0 {
			all = append(all, matter{"quarantine", "warn", where, link, time.Time{}, counted(r.Quarantined, "bad input is kept", "bad inputs are kept"), "Look at it", "quarantine?source=" + strconv.FormatInt(int64(r.ID), 10), ""})
		}
		if r.Moved != "" {
			all = append(all, matter{"moved", "warn", where, link, time.Time{}, "It has moved for good to " + r.Moved, "Change url in the configuration", "", ""})
		}
	}
	return all
}

func sourceLink(id event.SourceID) string { return "sources/" + strconv.FormatInt(int64(id), 10) }

func setLink(set string) string { return "sets/" + set }

// overviewPage is the data of the page.
type overviewPage struct {
	Status   *status.Status
	Matters  []matter
	More     int         // matters that are not shown
	Sources  []sourceRow // of this page
	Rows     rowsPart
	All      int // number of Sources, whatever the filter
	Columns  []column
	Filter   filter
	Days     days
	Records  int64
	Harvests int // number of harvests under way
}

// column is a column of the table by which it can be sorted.
type column struct {
	Name, Title string
	Link        string // sorts by it, or reverses the order
	Order       string // ascending, descending, or "": another column sorts
}

// filter is the form above the table.
type filter struct {
	Text, Set, State string
	Sort, Order      string
	Sets, States     []string
}

// mattersShown bounds the table of what needs attention.
const mattersShown = 40

func (c *Console) overview(w http.ResponseWriter, r *http.Request) error {
	s, err := c.status(r.Context())
	if err != nil {
		return err
	}
	rows, err := c.rows(r.Context(), s)
	if err != nil {
		return err
	}
	p := overviewPage{Status: s, All: len(rows), Days: sum(rows), Matters: matters(s, rows)}
	p.More = max(0, len(p.Matters)-mattersShown)
	p.Matters = p.Matters[:len(p.Matters)-p.More]
	for i := range s.Sets {
		p.Records += s.Sets[i].Records
	}
	for i := range rows {
		if rows[i].Underway != nil {
			p.Harvests++
		}
	}
	p.Filter = filterOf(r, s)
	p.Sources, p.Rows = part(r, p.Filter.apply(rows))
	p.Columns = p.Filter.columns(r)
	c.write(w, r, http.StatusOK, "overview", &page{Title: "Overview", Section: "overview", Body: p})
	return nil
}

// rows returns all Sources with their days.
func (c *Console) rows(ctx context.Context, s *status.Status) (rows []sourceRow, err error) {
	for src := range s.Sources() {
		rows = append(rows, rowOf(src))
	}
	all, err := c.bridge.Activity(ctx, chartDays)
	if err != nil {
		return nil, err
	}
	none := make([]status.Day, chartDays)
	for i := range none {
		none[i].Date = all[0][i].Date
	}
	for i := range rows {
		if rows[i].Days = all[rows[i].ID]; rows[i].Days == nil {
			rows[i].Days = none
		}
	}
	return rows, nil
}

func filterOf(r *http.Request, s *status.Status) filter {
	q := r.URL.Query()
	f := filter{Text: argument(q, "q"), Set: argument(q, "set"), State: argument(q, "state"), Sort: argument(q, "sort"), Order: argument(q, "order")}
	for i := range s.Sets {
		f.Sets = append(f.Sets, s.Sets[i].Name)
	}
	for state := stateFailing; state <= stateOK; state++ {
		f.States = append(f.States, state.String())
	}
	return f
}

// On reports whether the filter hides any rows.
func (f filter) On() bool { return f.Text != "" || f.Set != "" || f.State != "" }

// apply returns the rows that the filter selects, in its order.
func (f filter) apply(all []sourceRow) (rows []sourceRow) {
	text := strings.ToLower(f.Text)
	for _, r := range all {
		if f.Set != "" && r.Set != f.Set || f.State != "" && r.State.String() != f.State ||
			text != "" && !strings.Contains(strings.ToLower(r.Label()+" "+r.URL+" "+r.Set+" "+r.Why), text) {
			continue
		}
		rows = append(rows, r)
	}
	by := compareRows[f.Sort]
	if by == nil {
		by = compareRows["state"]
	}
	slices.SortStableFunc(rows, by)
	if f.Order == "desc" {
		slices.Reverse(rows)
	}
	return rows
}

// compareRows are the orders of the table. Numbers and times are in descending order.
var compareRows = map[string]func(a, b sourceRow) int{
	"state": func(a, b sourceRow) int { return cmp.Compare(a.State, b.State) },
	"name":  func(a, b sourceRow) int { return cmp.Compare(strings.ToLower(a.Label()), strings.ToLower(b.Label())) },
	"set":   func(a, b sourceRow) int { return cmp.Compare(a.Set, b.Set) },
	"last": func(a, b sourceRow) int {
		ended := func(r sourceRow) time.Time {
			if r.Last == nil {
				return time.Time{}
			}
			return r.Last.Ended
		}
		return ended(b).Compare(ended(a))
	},
	"next":   func(a, b sourceRow) int { return a.Next.Compare(b.Next.Time) },
	"events": func(a, b sourceRow) int { return cmp.Compare(b.Days.Events(), a.Days.Events()) },
	"waiting": func(a, b sourceRow) int {
		return cmp.Compare(b.Pending+b.Held+b.Quarantined, a.Pending+a.Held+a.Quarantined)
	},
}

func (f filter) columns(r *http.Request) (all []column) {
	for _, one := range []struct{ name, title string }{{"state", "State"}, {"name", "Source"}, {"set", "Set"}, {"last", "Last harvest"}, {"next", "Next"}, {"events", "30 days"}, {"waiting", "Waiting"}} {
		col := column{Name: one.name, Title: one.title}
		order := ""
		if cmp.Or(f.Sort, "state") == one.name {
			if col.Order = "ascending"; f.Order == "desc" {
				col.Order = "descending"
			} else {
				order = "desc"
			}
		}
		col.Link = query(r, "sort", one.name, "order", order, "from", "")
		all = append(all, col)
	}
	return all
}

// sets serves the page of all sets.
func (c *Console) sets(w http.ResponseWriter, r *http.Request) error {
	s, err := c.status(r.Context())
	if err != nil {
		return err
	}
	var p setsPage
	p.Sets, p.Rows = part(r, s.Sets)
	c.write(w, r, http.StatusOK, "sets", &page{Title: "Sets", Section: "sets", Body: p})
	return nil
}

// setsPage is the data of the page.
type setsPage struct {
	Sets []status.Set // of this page
	Rows rowsPart
}

// sourceOf returns the Source whose number is in the path.
func (c *Console) sourceOf(r *http.Request) (sourceRow, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return sourceRow{}, errNotFound
	}
	s, err := c.status(r.Context())
	if err != nil {
		return sourceRow{}, err
	}
	rows, err := c.rows(r.Context(), s)
	for _, row := range rows {
		if row.ID == event.SourceID(id) {
			return row, err
		}
	}
	return sourceRow{}, cmp.Or(err, errNotFound)
}
