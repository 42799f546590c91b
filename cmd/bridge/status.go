package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

func statusCommand() *cobra.Command {
	cmd := command("status")
	in := newInputs(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			s, err := b.Status(ctx)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(w, s)
			}
			for _, text := range s.Warnings {
				fmt.Fprintf(w, "WARNING: %s\n", text)
			}
			printStatus(w, s.Sets)
			if text := b.PathWarning(); text != "" {
				fmt.Fprintf(w, "warning: %s\n", text)
			}
			return nil
		})
	}
	return cmd
}

// printPeer prints the submissions of a service, or to one ingest server.
func printPeer(w io.Writer, set string, p *status.Peer) {
	counts, indent := p.States.Words(), "    "
	switch {
	case p.Direction == status.Sent:
		fmt.Fprintf(w, "  submissions to %s: %s\n", p.URL, countsText(counts))
	case len(counts) > 0:
		fmt.Fprintf(w, "  submissions received: %s\n", countsText(counts))
	default: // it may be a notification recipient, which receives none
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

// countsText writes counts in a line, in the order of the alphabet.
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

func printStatus(w io.Writer, sets []status.Set) {
	if len(sets) == 0 {
		fmt.Fprintln(w, "no sets yet: harvest something first, like: bridge harvest https://data.example.org/feed.atom")
	}
	for _, s := range sets {
		last := ""
		if s.Events > 0 {
			last = ", last change " + stamp(s.Newest)
		}
		fmt.Fprintf(w, "%s (%s): %s, %s%s\n", s.Name, s.Content, plural(int(s.Records), "record", "records"), plural(int(s.Events), "event", "events"), last)
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
		for i := range s.Sources {
			printSource(w, &s.Sources[i], len(s.Sources) > 1)
		}
		for i := range s.Submissions {
			printPeer(w, s.Name, &s.Submissions[i])
		}
	}
}

// printSource prints the state of a Source; several: its set has others, so commands
// must name it.
func printSource(w io.Writer, s *status.Source, several bool) {
	fmt.Fprintf(w, "  %s %s\n", cmp.Or(s.Kind, "(kind not known yet)"), strings.TrimSpace(s.Name+" "+s.URL))
	if s.Former {
		fmt.Fprintf(w, "    NO LONGER CONFIGURED: its records stay; end it with: bridge source forget %s %s\n", s.Set, cmp.Or(s.Name, quoted(s.URL)))
	}
	fmt.Fprintf(w, "    %s\n", harvestedText(s))
	which := s.Set
	if several {
		which += " " + cmp.Or(s.Name, quoted(s.URL))
	}
	if r := s.Last; r != nil {
		what := fmt.Sprintf("%s, %s", plural(int(r.Entries), "entry", "entries"), plural(int(r.Events()), "event", "events"))
		if r.NotModified {
			what = "not modified"
		}
		fmt.Fprintf(w, "    last harvest %s, took %s: %s\n", stamp(r.Started), r.Ended.Sub(r.Started).Round(time.Millisecond), what)
		printFindings(w, "    ", &r.Report)
		for _, warning := range r.Warnings {
			fmt.Fprintf(w, "    warning: %s\n", warning)
		}
		if r.Error != "" {
			fmt.Fprintf(w, "    FAILED: %s\n", dropRepeat(r.Error))
		}
	}
	if u := s.Underway; u != nil {
		fmt.Fprintf(w, "    being harvested since %s: %s\n", stamp(u.Started), progressText(&u.Progress)+"; "+doingText(&u.Progress))
	}
	if s.Unfinished && s.Underway == nil {
		fmt.Fprintf(w, "    a harvest was interrupted; the next one continues it\n")
	}
	if p := s.Paused; p != nil {
		until := "it is resumed with bridge source resume " + which
		if !p.Until.IsZero() {
			until = stamp(p.Until.Time)
		}
		fmt.Fprintf(w, "    PAUSED since %s until %s%s\n", stamp(p.Since.Time), until, reasonText(p.Reason))
	}
	if !s.Next.IsZero() && s.Underway == nil && s.Paused == nil {
		after := ""
		switch r := s.Last; {
		case r != nil && r.Error != "" && s.Next.Equal(r.RetryAfter.Truncate(time.Microsecond)):
			after = fmt.Sprintf(" (the Source asks for that with Retry-After; %d failed in a row)", s.Failures)
		case s.Failures > 1:
			after = fmt.Sprintf(" (%d have failed in a row)", s.Failures)
		}
		fmt.Fprintf(w, "    next harvest %s%s\n", stamp(s.Next.Time), after)
	}
	if s.Pending > 0 {
		fmt.Fprintf(w, "    pending: %d (%d of them published without some of their representations)\n", s.Pending, s.PartialRecords)
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
		fmt.Fprintf(w, "    dropped from quarantine: %s, to make room for newer ones\n", plural(s.Dropped, "bad input", "bad inputs"))
	}
	if s.Gap != "" {
		fmt.Fprintf(w, "    GAP: %s\n    if it will not come back: bridge source accept-gap %s\n", dropRepeat(s.Gap), which)
	}
}

// reasonText is the end of a line that has a reason, "" when there is none.
func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + oneLine(reason)
}

// quoted returns a URL as it is typed in a shell.
func quoted(url string) string {
	if strings.ContainsAny(url, "*?&;") {
		return "'" + url + "'"
	}
	return url
}

// harvestedText returns how far a Source was harvested. One that states no times, such
// as a plain sitemap, has no mark.
func harvestedText(s *status.Source) string {
	switch r := s.Last; {
	case s.Kind == harvest.SIP:
		return "it calls bridge; nothing is harvested"
	case s.Mark.Known():
		return "harvested up to " + s.Mark.String()
	case r != nil && r.Error == "" && s.Gap == "" && !s.Unfinished && (r.NotModified || r.Documents > 0):
		return "harvested to its end; it states no times"
	}
	return "never harvested to its end"
}
