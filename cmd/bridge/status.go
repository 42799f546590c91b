package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

func statusCommand() *cobra.Command {
	cmd := command("status")
	in := newInputs(cmd)
	set := addSet(cmd)
	var failing bool
	cmd.Flags().BoolVar(&failing, "failing", false, "only Sources that fail")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			s, err := b.Status(ctx)
			if err != nil {
				return err
			}
			if err := onlySet(s, *set); err != nil {
				return err
			}
			if failing {
				for i := range s.Sets {
					s.Sets[i].Sources = slices.DeleteFunc(s.Sets[i].Sources, func(src status.Source) bool { return src.State != status.Failing })
				}
			}
			if *asJSON {
				err = printJSON(w, s)
			} else {
				printStatus(w, s, failing, b.PathWarning())
			}
			if err == nil && s.Summary.Fails() {
				err = &exitError{status: exitPartly}
			}
			return err
		})
	}
	return cmd
}

// onlySet leaves out all sets except the one with a name; "" keeps all.
func onlySet(s *status.Status, name string) error {
	if name == "" {
		return nil
	}
	s.Sets = slices.DeleteFunc(s.Sets, func(set status.Set) bool { return set.Name != name })
	if len(s.Sets) == 0 {
		return fmt.Errorf("there is no set %q here: see bridge status", name)
	}
	s.Summary = status.Summarize(s.Sets)
	return nil
}

// printStatus prints a summary, a line for each Source, those that fail first, and a line
// for each set. For a single set it prints everything, unless only failing ones are wanted.
func printStatus(w io.Writer, s *status.Status, failing bool, warning string) {
	for _, text := range s.Warnings {
		fmt.Fprintf(w, "WARNING: %s\n", text)
	}
	if warning != "" {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if len(s.Sets) == 0 {
		fmt.Fprintln(w, "no sets yet: harvest something first, like: bridge harvest https://data.example.org/feed.atom")
		return
	}
	printSummary(w, &s.Summary)
	printSourceLines(w, s.Sets)
	if failing {
		return
	}
	fmt.Fprintln(w)
	for i := range s.Sets {
		printSet(w, &s.Sets[i], len(s.Sets) == 1)
	}
}

func printSummary(w io.Writer, s *status.Summary) {
	parts := []string{fmt.Sprintf("%d ok", s.OK)}
	add := func(n int, one, many string) {
		if n > 0 {
			parts = append(parts, plural(n, one, many))
		}
	}
	count := func(n int, what string) { add(n, what, what) }
	count(s.Failing, "failing")
	count(s.Waiting, "waiting")
	count(s.Paused, "paused")
	count(s.Former, "no longer configured")
	line := plural(s.Sources, "Source", "Sources") + ": " + strings.Join(parts, ", ")
	if s.Servers > 0 {
		line += "; " + plural(s.Servers, "ingest server fails", "ingest servers fail")
	}
	if s.Dumps > 0 {
		line += "; the dumps of " + plural(s.Dumps, "set", "sets") + " cannot be made"
	}
	fmt.Fprintln(w, line)
	parts = nil
	add(s.Held, "deletion held", "deletions held")
	add(s.Gaps, "gap", "gaps")
	count(s.Quarantined, "quarantined")
	count(s.Moved, "moved")
	count(s.Former, "no longer configured")
	count(int(s.Reviews), "under review")
	count(int(s.InDoubt), "in doubt")
	count(int(s.Unresolved), "unresolved")
	count(int(s.Conflicts), "contradicted")
	add(int(s.Undelivered), "notification not delivered", "notifications not delivered")
	if len(parts) > 0 {
		fmt.Fprintf(w, "needs a person: %s\n", strings.Join(parts, ", "))
	}
}

// lineWidth is the most characters of a line about a Source, and nameWidth of its name.
const (
	lineWidth = 120
	nameWidth = 44
)

// printSourceLines prints a line for each Source and each failing ingest server, in the
// order of their states.
func printSourceLines(w io.Writer, sets []status.Set) {
	type line struct {
		state      status.State
		name, text string
	}
	var lines []line
	width := 0
	for i := range sets {
		for j := range sets[i].Sources {
			s := &sets[i].Sources[j]
			lines = append(lines, line{s.State, fit(sourceTitle(s), nameWidth), sourceLine(s)})
		}
		for _, p := range sets[i].Submissions {
			if p.Failing != nil && !p.Former {
				lines = append(lines, line{status.Failing, fit(sets[i].Name+" to "+p.URL, nameWidth), fmt.Sprintf("since %s: %s", minute(p.Failing.Since.Time), withoutURL(p.Failing.Reason, p.URL))})
			}
		}
	}
	for _, l := range lines {
		width = max(width, utf8.RuneCountInString(l.name))
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.state.Order(), b.state.Order()) })
	for _, l := range lines {
		text := fmt.Sprintf("%-7s  %-*s  %s", l.state, width, l.name, oneLine(l.text))
		if utf8.RuneCountInString(text) > lineWidth {
			text = string([]rune(text)[:lineWidth-1]) + "…"
		}
		fmt.Fprintln(w, text)
	}
}

// sourceTitle returns the name of a Source as commands accept it: SET/NAME, or SET and URL.
func sourceTitle(s *status.Source) string {
	if s.Name != "" {
		return s.Set + "/" + s.Name
	}
	return s.Set + " " + s.URL
}

// fit cuts the middle out of a text that has more than most characters.
func fit(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most/2]) + "…" + string(runes[len(runes)-(most-most/2-1):])
}

// minute formats a time for a table to the minute; the zero time is "never".
func minute(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04Z")
}

// sourceLine describes the state of a Source in a line.
func sourceLine(s *status.Source) string {
	next := ""
	if !s.Next.IsZero() && s.Underway == nil {
		next = ", next " + minute(s.Next.Time)
	}
	attention := needs(s)
	switch s.State {
	case status.Failing:
		text := "since " + minute(s.FailingSince.Time)
		if s.Failures > 1 {
			text += fmt.Sprintf(", %d in a row", s.Failures)
		}
		return text + attention + ": " + request.ReplaceAllString(failureText(s), "")
	case status.Paused:
		until := ""
		if !s.Paused.Until.IsZero() {
			until = ", until " + minute(s.Paused.Until.Time)
		}
		return "since " + minute(s.Paused.Since.Time) + until + attention + reasonText(s.Paused.Reason)
	case status.Former:
		return "no longer configured; end it with bridge source forget" + attention
	}
	switch r := s.Last; {
	case s.Underway != nil:
		return "harvested since " + minute(s.Underway.Started) + attention + ": " + progressText(&s.Underway.Progress)
	case s.Kind == harvest.SIP:
		return "it calls bridge" + attention
	case r != nil && r.Withheld:
		return "the Source has not harvested all its own Sources yet" + next + attention
	case r == nil && s.LastSuccess.IsZero():
		return "not harvested yet" + next + attention
	case s.LastSuccess.IsZero():
		return "not harvested to its end yet" + next + attention
	case r != nil && r.Events() > 0:
		return minute(s.LastSuccess.Time) + ", " + plural(int(r.Events()), "event", "events") + next + attention
	}
	return minute(s.LastSuccess.Time) + next + attention
}

// needs lists what is waiting in a Source, and for whom.
func needs(s *status.Source) string {
	text := ""
	count := func(n int, what string) {
		if n > 0 {
			text += fmt.Sprintf("; %d %s", n, what)
		}
	}
	count(s.Held, "HELD")
	if s.Gap != "" {
		text += "; GAP"
	}
	count(s.Quarantined, "quarantined")
	count(s.Pending, "pending")
	if s.Moved != "" {
		text += "; moved"
	}
	if s.Last != nil {
		for _, w := range s.Last.Warnings {
			if !harvest.IsAboutHeld(w) {
				text += "; " + w
			}
		}
	}
	return text
}

// request is what an error may begin with that the line of a Source has no room for: its cause
// stands behind.
var request = regexp.MustCompile(`^(Get "[^"]*": )?(tried \d+ times: )?(dial tcp )?`)

// failureText returns the newest error of a Source.
func failureText(s *status.Source) string {
	if s.LastError == nil {
		return "it fails"
	}
	return withoutURL(s.LastError.Text, s.URL)
}

// withoutURL removes from an error the URL that its line already has.
func withoutURL(text, url string) string {
	return strings.NewReplacer("Get \""+url+"\": ", "", "Post \""+url+"\": ", "", " at "+url+": ", ": ", url+": ", "", url+"?***: ", "", url+":", "").Replace(text)
}

// printSet prints the numbers of a set: in a line, or with whole in full.
func printSet(w io.Writer, s *status.Set, whole bool) {
	last := ""
	if s.Events > 0 {
		last = ", last change " + stamp(s.Newest)
	}
	line := fmt.Sprintf("%s (%s): %s, %s%s", s.Name, s.Content, plural(int(s.Records), "record", "records"), plural(int(s.Events), "event", "events"), last)
	if !whole && s.Partial {
		line += "; PARTIAL"
	}
	if !whole && slices.ContainsFunc(s.Hubs, func(h status.Hub) bool { return h.Error != "" }) {
		line += "; HUB FAILED"
	}
	if !whole && s.Dumps != nil && len(s.Dumps.Faults) > 0 {
		line += "; DUMP FAILED"
	}
	fmt.Fprintln(w, line)
	if !whole {
		return
	}
	switch {
	case s.Partial:
		fmt.Fprintf(w, "  PARTIAL: not all of its Sources were read to the end yet; Resource List and complete feed answer 503 until then\n")
	case s.SnapshotSeq == s.LastSeq:
		fmt.Fprintf(w, "  Resource List: up to date (Seq %d)\n", s.LastSeq)
	case s.SnapshotSeq == 0:
		fmt.Fprintf(w, "  Resource List: none yet; bridge serve makes it\n")
	default:
		fmt.Fprintf(w, "  Resource List: Seq %d of %d\n", s.SnapshotSeq, s.LastSeq)
	}
	if d := s.Dumps; d != nil {
		if d.Seq == 0 {
			fmt.Fprintf(w, "  Resource Dump: none yet; bridge serve makes it\n")
		} else {
			fmt.Fprintf(w, "  Resource Dump: Seq %d of %d\n", d.Seq, s.LastSeq)
		}
		fmt.Fprintf(w, "  Change Dump: %d of %s\n", d.Packed, plural(d.Segments, "closed segment", "closed segments"))
		for _, fault := range d.Faults {
			fmt.Fprintf(w, "  DUMP FAILED: %s\n", fault)
		}
	}
	for i := range s.Hubs {
		fmt.Fprintf(w, "  hub: %s\n", hubText(&s.Hubs[i]))
	}
	for i := range s.Submissions {
		printPeer(w, s.Name, &s.Submissions[i])
	}
}

// hubText describes the state of a hub of a set.
func hubText(h *status.Hub) string {
	text := h.URL + ", last told " + stamp(h.Told.Time)
	if h.Told.IsZero() {
		text = h.URL + ", not told of anything yet"
	}
	if h.Error != "" {
		text += ", FAILING since " + stamp(h.FailingSince.Time) + ": " + oneLine(h.Error)
	}
	return text
}

// printPeer prints the submissions of a service, or to one ingest server.
func printPeer(w io.Writer, set string, p *status.Peer) {
	counts, indent := p.States.Words(), "    "
	switch {
	case p.Direction == status.Sent:
		fmt.Fprintf(w, "  submissions to %s: %s\n", p.URL, countsText(counts))
	case len(counts) > 0:
		fmt.Fprintf(w, "  submissions received: %s\n", countsText(counts))
	default: // a notification recipient may receive no submissions
		indent = "  "
	}
	if p.UnderReview > 0 {
		fmt.Fprintf(w, "    %d under review: they wait for bridge submission accept or reject; see: bridge submission ls --review --set %s\n", p.UnderReview, set)
	}
	if p.Former {
		fmt.Fprintf(w, "    no longer configured: nothing is sent there until it is configured again\n")
	} else if t := p.Failing; t != nil {
		again := "within an hour"
		if !t.Again.IsZero() {
			again = "at " + stamp(t.Again.Time)
		}
		fmt.Fprintf(w, "    FAILING since %s: %s\n    next attempt %s\n", stamp(t.Since.Time), oneLine(dropRepeat(t.Reason)), again)
	}
	if p.Through > 0 {
		fmt.Fprintf(w, "    read from the log up to Seq %d\n", p.Through)
	}
	if n := p.NotificationsSent.Words(); len(n) > 0 {
		fmt.Fprintf(w, "%snotifications to submitters: %s\n", indent, countsText(n))
	}
	if p.Undelivered() > 0 {
		fmt.Fprintf(w, "%s  tell those submitters, and settle --told; or send them again with bridge submission resend; see: bridge notification ls --sent --set %s\n", indent, set)
	}
	if n := p.NotificationsReceived.Words(); len(n) > 0 {
		fmt.Fprintf(w, "%snotifications from ingest servers: %s; see: bridge notification ls --received --set %s\n", indent, countsText(n), set)
	}
	if p.Dropped > 0 {
		fmt.Fprintf(w, "%s%s from anonymous callers dropped to make room for newer ones\n", indent, plural(int(p.Dropped), "rejection or notification", "rejections and notifications"))
	}
	for _, s := range []submission.State{submission.StateInDoubt, submission.StateUnresolved, submission.StateRejected, submission.StateUnsent} {
		if p.Stored[s] > 0 {
			fmt.Fprintf(w, "    see why: bridge submission ls --set %s --state \"rejected,unresolved,in doubt,unsent\"\n", set)
			break
		}
	}
}

// countsText writes counts in a line, in alphabetical order.
func countsText(counts map[string]int64) string {
	var parts []string
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[word], word))
	}
	if len(parts) == 0 {
		return "none yet"
	}
	return strings.Join(parts, ", ")
}
