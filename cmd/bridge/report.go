package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// printReport prints what one harvest of a Source was worth.
func printReport(to io.Writer, src *daemon.Source, r *harvest.Report, dry bool) error {
	var w strings.Builder
	url, r := daemon.Redact(src.URL), daemon.RedactReport(r)
	fmt.Fprintf(&w, "%s: %s%s\n", src.Set, strings.TrimSpace(src.Name+" "+url), inBrackets(src.Kind))
	took := r.Ended.Sub(r.Started).Round(time.Millisecond)
	switch {
	case r.NotModified && r.Events() == 0:
		fmt.Fprintf(&w, "  not modified since the last harvest (%s)\n", took)
	case r.Error == "" || r.Documents > 0:
		would := ""
		if dry {
			would = "would log: "
		}
		fmt.Fprintf(&w, "  %s%d created, %d updated, %d deleted (%d unchanged, %d historical)\n", would, r.Created, r.Updated, r.Deleted, r.Unchanged, r.Historical)
		fmt.Fprintf(&w, "  read %s, %s; fetched %s; %s\n", counted(int(r.Documents), "document", "documents"), counted(int(r.Entries), "entry", "entries"), counted(int(r.Fetched), "representation", "representations"), took)
	}
	printFindings(&w, "  ", r)
	if r.Quarantined > 0 {
		fmt.Fprintf(&w, "  quarantined: %s; see bridge quarantine ls\n", counted(int(r.Quarantined), "entry", "entries"))
	}
	if r.Pending > 0 {
		fmt.Fprintf(&w, "  pending: %s whose content could not be had yet; it is asked for again\n", counted(int(r.Pending), "record", "records"))
	}
	if r.Held > 0 {
		fmt.Fprintf(&w, "  HELD: %s\n", counted(int(r.Held), "deletion", "deletions"))
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(&w, "  warning: %s\n", warning)
	}
	if r.Gap != "" {
		fmt.Fprintf(&w, "  GAP: %s\n  %s; when it is gone for good: bridge source accept-gap %s %s\n", dropRepeat(r.Gap), gapMeans(src.Kind), src.Set, quoted(url))
	}
	if r.Error != "" {
		fmt.Fprintf(&w, "  FAILED: %s\n", dropRepeat(r.Error))
	}
	_, err := io.WriteString(to, w.String())
	return err
}

func inBrackets(kind string) string {
	if kind == "" {
		return ""
	}
	return " (" + kind + ")"
}

// gapMeans says what a missing document costs.
func gapMeans(kind string) string {
	if kind == harvest.ResourceSync {
		return "the other lists were taken in, and nothing was deleted because it is listed nowhere"
	}
	return "what is newer was taken in; what is older was not seen"
}

// missingDocument names what is missing in a gap.
func missingDocument(kind string) string {
	if kind == harvest.ResourceSync {
		return "a list is missing"
	}
	return "an archive document is missing"
}

// printFindings prints what a harvest has found out about how the Source says
// things: older forms of its protocol, what was left alone, broken rules with
// the first place of each.
func printFindings(w io.Writer, indent string, r *harvest.Report) {
	if r.Moved != "" {
		fmt.Fprintf(w, "%smoved permanently to %s: change url\n", indent, r.Moved)
	}
	for _, d := range r.Dialects {
		fmt.Fprintf(w, "%swritten as %s\n", indent, dialect(d))
	}
	if r.Skipped > 0 {
		fmt.Fprintf(w, "%sskipped: %s, not selected by prefix or since, or given back by another bridge\n", indent, counted(int(r.Skipped), "entry", "entries"))
	}
	for _, e := range r.Examples {
		first := strings.Replace(e.First, ": "+e.Rule+": ", ": ", 1)
		fmt.Fprintf(w, "%s%s, %s: %s\n", indent, e.Rule, counted(int(e.Count), "place", "places"), first)
	}
}

// dropRepeat drops the URL in front of an error that begins with it as well.
func dropRepeat(text string) string {
	if front, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(rest, front+": ") {
		return rest
	}
	return text
}

// dialect calls a dialect of ResourceSync by its name.
func dialect(d string) string {
	if d == "sitemap" {
		return "a plain sitemap"
	}
	return "ResourceSync " + d
}
