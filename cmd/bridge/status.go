package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

func statusCommand() *cobra.Command {
	cmd := command("status")
	var in inputs
	var asJSON bool
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		sets, err := h.Status(cmd.Context())
		warnings, werr := h.Warnings(cmd.Context())
		if err = errors.Join(err, werr); err == nil && asJSON {
			err = printJSON(cmd.OutOrStdout(), statusObject(sets, warnings))
		} else if err == nil {
			for _, text := range warnings {
				fmt.Fprintf(cmd.OutOrStdout(), "WARNING: %s\n", text)
			}
			printStatus(cmd.OutOrStdout(), sets)
			if w := h.PathWarning(); w != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "warning: %s\n", w)
			}
		}
		return errors.Join(err, h.Close())
	}
	return cmd
}

// The object of bridge status --json.
type (
	jsonStatus struct {
		Warnings []string  `json:"warnings,omitempty"`
		Sets     []jsonSet `json:"sets"`
	}
	jsonSet struct {
		Name        string       `json:"name"`
		Records     int64        `json:"records"`
		Events      int64        `json:"events"`
		LastSeq     event.Seq    `json:"last_seq"`
		SnapshotSeq event.Seq    `json:"snapshot_seq"`
		Partial     bool         `json:"partial,omitempty"` // its complete lists answer 503
		Sources     []jsonSource `json:"sources"`
		Submissions []jsonPeer   `json:"submissions,omitempty"`
	}
	// jsonPeer counts the submissions that the set's own service has received, or
	// that went to one ingest server.
	jsonPeer struct {
		Direction     string           `json:"direction"` // received or sent
		URL           string           `json:"url"`
		States        map[string]int64 `json:"states"`
		UnderReview   int64            `json:"under_review,omitempty"`  // of those that are provisional
		Notices       map[string]int64 `json:"notices,omitempty"`       // dispositions that we owe
		Notifications map[string]int64 `json:"notifications,omitempty"` // dispositions that we were told
		Dropped       int64            `json:"dropped,omitempty"`       // rejections and notifications of strangers that are not kept any more
		Through       event.Seq        `json:"through,omitempty"`       // the last event that is in the outbox
		Former        bool             `json:"former,omitempty"`        // the configuration does not name it any more
		Failing       *jsonTrouble     `json:"failing,omitempty"`
	}
	jsonTrouble struct {
		Since  string `json:"since"`
		Reason string `json:"reason"`
		Again  string `json:"again,omitempty"` // absent: within an hour
	}
	jsonSource struct {
		Name        string     `json:"name,omitempty"`
		Former      bool       `json:"former,omitempty"` // not configured any more
		Kind        string     `json:"kind"`
		URL         string     `json:"url"`
		Mark        string     `json:"mark,omitempty"`
		Last        *jsonLast  `json:"last,omitempty"`
		Pending     int        `json:"pending"`
		Held        int        `json:"held"`
		Quarantined int        `json:"quarantined"`
		Dropped     int        `json:"dropped,omitempty"` // bad inputs that have made room for newer ones
		Gap         string     `json:"gap,omitempty"`
		Next        string     `json:"next,omitempty"`
		Failures    int        `json:"failures,omitempty"` // in a row
		Underway    *jsonDoing `json:"underway,omitempty"`
	}
	// jsonDoing is a harvest under way.
	jsonDoing struct {
		Started   string `json:"started"`
		Doing     string `json:"doing,omitempty"`
		Until     string `json:"until,omitempty"` // absent: it is not known
		Documents int64  `json:"documents"`
		Entries   int64  `json:"entries"`
		Events    int64  `json:"events"`
		Fetched   int64  `json:"fetched"`
		Wanted    int64  `json:"wanted"`
	}
	jsonLast struct {
		Started   string   `json:"started"`
		Ended     string   `json:"ended"`
		Documents int64    `json:"documents"`
		Entries   int64    `json:"entries"`
		Events    int64    `json:"events"`
		Problems  int64    `json:"problems"`
		Skipped   int64    `json:"skipped,omitempty"`
		Dialects  []string `json:"dialects,omitempty"`
		Moved     string   `json:"moved,omitempty"`
		Error     string   `json:"error,omitempty"`
		Warnings  []string `json:"warnings,omitempty"`
	}
)

func statusObject(sets []daemon.SetStatus, warnings []string) jsonStatus {
	out := jsonStatus{Warnings: warnings, Sets: []jsonSet{}}
	for _, s := range sets {
		set := jsonSet{Name: s.Name, Records: s.Live, Events: s.Events, LastSeq: s.Last, SnapshotSeq: s.SnapshotSeq, Partial: s.Partial, Sources: []jsonSource{}}
		for _, src := range s.Sources {
			j := jsonSource{Name: src.Name, Former: src.Former, Kind: src.Kind, URL: src.URL, Mark: src.Mark.String(), Pending: src.Pending, Held: src.Held, Quarantined: src.Quarantined, Dropped: src.Dropped, Gap: src.GapText, Failures: src.Failures}
			if u := src.Underway; u != nil {
				j.Underway = &jsonDoing{Started: u.Started.UTC().Format(time.RFC3339), Doing: u.Doing, Documents: u.Documents, Entries: u.Entries, Events: u.Events, Fetched: u.Fetched, Wanted: u.Wanted}
				if !u.Until.IsZero() {
					j.Underway.Until = u.Until.UTC().Format(time.RFC3339)
				}
			}
			if !src.Next.IsZero() {
				j.Next = src.Next.UTC().Format(time.RFC3339)
			}
			if r := src.Last; r != nil {
				j.Last = &jsonLast{Started: r.Started.UTC().Format(time.RFC3339), Ended: r.Ended.UTC().Format(time.RFC3339),
					Documents: r.Documents, Entries: r.Entries, Events: r.Events(), Problems: r.Problems, Skipped: r.Skipped, Dialects: r.Dialects, Moved: r.Moved, Error: r.Error, Warnings: r.Warnings}
			}
			set.Sources = append(set.Sources, j)
		}
		for i := range s.Peers {
			set.Submissions = append(set.Submissions, peerObject(&s.Peers[i]))
		}
		out.Sets = append(out.Sets, set)
	}
	return out
}

func peerObject(p *daemon.PeerStatus) jsonPeer {
	j := jsonPeer{Direction: "received", URL: p.URL, States: words(p.States()), UnderReview: p.UnderReview, Notices: words(p.Outgoing), Notifications: words(p.Incoming), Dropped: p.Dropped, Through: p.Through}
	if p.Sent {
		j.Direction, j.Former = "sent", p.Former
	}
	if t := p.Trouble; t != nil {
		j.Failing = &jsonTrouble{Since: t.Since.Format(time.RFC3339), Reason: t.Reason}
		if !t.Again.IsZero() {
			j.Failing.Again = t.Again.Format(time.RFC3339)
		}
	}
	return j
}

// words names what was counted.
func words[K interface {
	comparable
	fmt.Stringer
}](counts map[K]int64) map[string]int64 {
	out := map[string]int64{}
	for k, n := range counts {
		if n != 0 {
			out[k.String()] = n
		}
	}
	return out
}

// printPeer prints the submissions that went one way.
func printPeer(w io.Writer, set string, p *daemon.PeerStatus) {
	counts, indent := words(p.States()), "    "
	switch {
	case p.Sent:
		fmt.Fprintf(w, "  submissions to %s: %s\n", p.URL, listed(counts))
	case len(counts) > 0:
		fmt.Fprintf(w, "  submissions received: %s\n", listed(counts))
	default: // it may be a notification recipient, which receives none
		indent = "  "
	}
	if p.UnderReview > 0 {
		fmt.Fprintf(w, "    %d under review: they wait for bridge submission accept or reject; see: bridge submission ls --review --set %s\n", p.UnderReview, set)
	}
	if p.Former {
		fmt.Fprintf(w, "    not configured any more: nothing is sent there, and what waits is when it is configured again\n")
	} else if t := p.Trouble; t != nil {
		again := "within an hour"
		if !t.Again.IsZero() {
			again = "at " + t.Again.Format("2006-01-02 15:04:05Z")
		}
		fmt.Fprintf(w, "    FAILING since %s: %s\n    asked again %s\n", t.Since.Format("2006-01-02 15:04:05Z"), oneLine(dropRepeat(t.Reason)), again)
	}
	if p.Sent && p.Through > 0 {
		fmt.Fprintf(w, "    taken from the log up to Seq %d\n", p.Through)
	}
	if n := words(p.Outgoing); len(n) > 0 {
		fmt.Fprintf(w, "%snotifications to submitters: %s\n", indent, listed(n))
	}
	if n := words(p.Incoming); len(n) > 0 {
		fmt.Fprintf(w, "%snotifications from ingest servers: %s; see: bridge submission notifications --set %s\n", indent, listed(n), set)
	}
	if p.Dropped > 0 {
		fmt.Fprintf(w, "%s%s of strangers not kept any more, since newer ones have taken their place\n", indent, counted(int(p.Dropped), "rejection or notification", "rejections and notifications"))
	}
	for _, s := range []event.State{event.StateInDoubt, event.StateUnresolved, event.StateRejected, event.StateUnsent} {
		if p.Submissions[s] > 0 {
			fmt.Fprintf(w, "    see why: bridge submission ls --set %s --state \"rejected,unresolved,in doubt,unsent\"\n", set)
			break
		}
	}
}

// listed writes counts in a line, in the order of the alphabet.
func listed(counts map[string]int64) string {
	var parts []string
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[word], word))
	}
	if len(parts) == 0 {
		return "none yet"
	}
	return strings.Join(parts, ", ")
}

func printStatus(w io.Writer, sets []daemon.SetStatus) {
	if len(sets) == 0 {
		fmt.Fprintln(w, "no sets yet: harvest something first, like: bridge harvest https://data.example.org/feed.atom")
	}
	for _, s := range sets {
		last := ""
		if s.Events > 0 {
			last = ", last change " + s.Newest.Time().Format("2006-01-02 15:04:05Z")
		}
		fmt.Fprintf(w, "%s (%s): %s, %s%s\n", s.Name, s.Content, counted(int(s.Live), "record", "records"), counted(int(s.Events), "event", "events"), last)
		switch {
		case s.Partial:
			fmt.Fprintf(w, "  PARTIAL: not all of its Sources were read to the end yet; Resource List and complete feed answer 503 until then\n")
		case s.SnapshotSeq == s.Last:
			fmt.Fprintf(w, "  Resource List: up to date (Seq %d)\n", s.Last)
		case s.SnapshotSeq == 0:
			fmt.Fprintf(w, "  Resource List: none yet; bridge serve makes it\n")
		default:
			fmt.Fprintf(w, "  Resource List: Seq %d of %d\n", s.SnapshotSeq, s.Last)
		}
		for i := range s.Sources {
			printSource(w, &s.Sources[i], len(s.Sources) > 1)
		}
		for i := range s.Peers {
			printPeer(w, s.Name, &s.Peers[i])
		}
	}
}

// printSource prints how far a Source has come; several tells that its set has
// others, so that commands must name it.
func printSource(w io.Writer, s *daemon.SourceStatus, several bool) {
	fmt.Fprintf(w, "  %s %s\n", cmp.Or(s.Kind, "(kind not known yet)"), strings.TrimSpace(s.Name+" "+s.URL))
	if s.Former {
		fmt.Fprintf(w, "    NOT CONFIGURED ANY MORE: its records stay; end it with: bridge source forget %s %s\n", s.Set, cmp.Or(s.Name, quoted(s.URL)))
	}
	fmt.Fprintf(w, "    %s\n", extent(s))
	which := s.Set
	if several {
		which += " " + cmp.Or(s.Name, quoted(s.URL))
	}
	if r := s.Last; r != nil {
		what := fmt.Sprintf("%s, %s", counted(int(r.Entries), "entry", "entries"), counted(int(r.Events()), "event", "events"))
		if r.NotModified {
			what = "not modified"
		}
		fmt.Fprintf(w, "    last harvest %s, took %s: %s\n", r.Started.UTC().Format("2006-01-02 15:04:05Z"), r.Ended.Sub(r.Started).Round(time.Millisecond), what)
		printFindings(w, "    ", r)
		for _, warning := range r.Warnings {
			fmt.Fprintf(w, "    warning: %s\n", warning)
		}
		if r.Error != "" {
			fmt.Fprintf(w, "    FAILED: %s\n", dropRepeat(r.Error))
		}
	}
	if u := s.Underway; u != nil {
		fmt.Fprintf(w, "    being harvested since %s: %s\n", u.Started.UTC().Format("2006-01-02 15:04:05Z"), progressText(&u.Progress)+"; "+doingText(&u.Progress))
	}
	if s.Cursor.Data != nil && s.Underway == nil {
		fmt.Fprintf(w, "    a walk is unfinished; the next harvest goes on with it\n")
	}
	if !s.Next.IsZero() && s.Underway == nil {
		after := ""
		if s.Failures > 1 {
			after = fmt.Sprintf(" (%d have failed in a row)", s.Failures)
		}
		fmt.Fprintf(w, "    next harvest %s%s\n", s.Next.UTC().Format("2006-01-02 15:04:05Z"), after)
	}
	if s.Pending > 0 {
		fmt.Fprintf(w, "    pending: %d (%d of them published without some of their representations)\n", s.Pending, s.Partial)
		for _, why := range s.Waits {
			fmt.Fprintf(w, "      %s\n", oneLine(dropRepeat(why)))
		}
		if more := s.Pending - len(s.Waits); more > 0 {
			fmt.Fprintf(w, "      and %d more\n", more)
		}
	}
	if s.Held > 0 {
		fmt.Fprintf(w, "    HELD deletions: %d; apply them with: bridge source release %s\n", s.Held, which)
	}
	if s.Quarantined > 0 {
		fmt.Fprintf(w, "    quarantined: %d; see: bridge quarantine ls --set %s\n", s.Quarantined, s.Set)
	}
	if s.Dropped > 0 {
		fmt.Fprintf(w, "    not kept in quarantine any more: %s, since newer ones have taken their place\n", counted(s.Dropped, "bad input", "bad inputs"))
	}
	if s.GapText != "" {
		fmt.Fprintf(w, "    GAP: %s\n    when it is gone for good: bridge source accept-gap %s\n", dropRepeat(s.GapText), which)
	}
}

// quoted returns a URL as it is typed in a shell.
func quoted(url string) string {
	if strings.ContainsAny(url, "*?&;") {
		return "'" + url + "'"
	}
	return url
}

// extent says how far a Source was harvested. One that states no times, such as
// a plain sitemap, has no mark.
func extent(s *daemon.SourceStatus) string {
	switch r := s.Last; {
	case s.Kind == harvest.SIP:
		return "it calls us; nothing is harvested"
	case s.Mark.Known():
		return "harvested up to " + s.Mark.String()
	case r != nil && r.Error == "" && s.GapText == "" && s.Cursor.Data == nil && (r.NotModified || r.Documents > 0):
		return "harvested to its end; it states no times"
	}
	return "never harvested to its end"
}
