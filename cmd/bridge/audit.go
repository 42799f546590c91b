package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/audit"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func auditCommand() *cobra.Command {
	cmd := command("audit")
	in, asJSON, set := newAsking(cmd), addJSON(cmd), addSet(cmd)
	p := &auditPrinter{}
	cmd.Flags().BoolVar(&p.repair, "repair", false, "repair what differs, and nothing else")
	cmd.Flags().BoolVar(&p.report, "report", false, "print a report with all counts, the proof of a migration")
	origin := cmd.Flags().Bool("origin", false, "also ask for originals on other servers than the Source")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p.cmd, p.json = cmd, *asJSON
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			p.out, p.config = w, *b.Config()
			p.bar = newMeter(cmd.ErrOrStderr(), *asJSON)
			defer p.bar.stop()
			err := eachSet(ctx, b, *set, func(set string) error {
				done, err := b.Audit(ctx, set, daemon.AuditOptions{Origin: *origin, Repair: p.repair, Begin: p.bar.source, Found: p.found})
				if err != nil {
					return err
				}
				return p.set(done)
			})
			if err == nil && *set == "" {
				err = p.neverHarvested(ctx, b)
			}
			return errors.Join(err, p.outcome())
		})
	}
	return cmd
}

// auditPrinter prints the findings of an audit, and requests repairs with --repair.
type auditPrinter struct {
	cmd                  *cobra.Command
	out                  io.Writer
	config               config.Config // as it was read
	bar                  *meter
	json, repair, report bool
	left, unchecked      int64
}

// found prints a page of differences. With --repair they are repaired first: by the process
// that serves from the data folder, or by this one with the lock of the folder.
func (p *auditPrinter) found(_ context.Context, page *audit.Page) error {
	if p.repair {
		for some := range slices.Chunk(page.Differences, daemon.RepairedAtOnce) {
			part := *page
			part.Differences = some
			if err := p.repairPage(&part); err != nil {
				return err
			}
		}
	}
	p.bar.clear()
	for i := range page.Differences {
		for _, f := range page.Differences[i].Findings {
			f.Source, f.URL, f.Repair = daemon.Redact(f.Source), daemon.Redact(f.URL), daemon.Redact(f.Repair)
			f.Found, f.Expected = daemon.Redact(f.Found), daemon.Redact(f.Expected)
			if f.Repair != audit.Done {
				p.left++
			}
			if err := p.finding(&f); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *auditPrinter) repairPage(page *audit.Page) error {
	r, of, err := daemon.NewRepair(page)
	if err != nil {
		return err
	}
	var left []string
	if r != nil {
		var refused error
		err = applyOrSend(p.cmd, &p.config, []daemon.Decision{{Repair: r}}, func(_ int, done daemon.DecisionResult) {
			if left = done.Left; done.Error != "" {
				refused = errors.New(done.Error)
			}
		})
		if err := errors.Join(err, refused); err != nil {
			return err
		}
	}
	daemon.SettleRepair(page, of, left)
	return nil
}

// finding prints one difference.
func (p *auditPrinter) finding(f *audit.Finding) error {
	if p.json {
		return printJSON(p.out, f)
	}
	about := oneLine(cmp.Or(f.Record, "an entry without an identifier"))
	if f.URL != "" {
		about += " (" + oneLine(f.URL) + ")"
	}
	line := fmt.Sprintf("%s: %s: %s: found %s; expected %s", f.Set, f.Kind, about, oneLine(f.Found), oneLine(f.Expected))
	switch f.Repair {
	case "":
	case audit.Done:
		line += "; repaired"
	default:
		line += "; NOT REPAIRED: " + oneLine(f.Repair)
	}
	_, err := fmt.Fprintln(p.out, line)
	return err
}

// set prints the results of a set.
func (p *auditPrinter) set(s *daemon.AuditedSet) error {
	p.bar.clear()
	for _, r := range s.Sources {
		r.Source = daemon.Redact(r.Source)
		for i, why := range r.Unchecked {
			r.Unchecked[i] = daemon.Redact(why)
			p.unchecked++
		}
	}
	if p.json {
		return printJSON(p.out, jsonAudited{s})
	}
	var w strings.Builder
	if len(s.Sources) == 0 && s.Records > 0 {
		fmt.Fprintf(&w, "%s: no Source to compare %s with; bridge verify checks what is here\n", s.Set, plural(int(s.Records), "record", "records"))
	}
	for _, r := range s.Sources {
		if p.report {
			printAuditReport(&w, s, r)
		} else {
			fmt.Fprintf(&w, "%s: %s: compared %s of the Source (%s) with %s here, read %s: %s", s.Set, r.Source, plural(int(r.AtSource), "record", "records"),
				plural(int(r.Documents), "document", "documents"), plural(int(r.Here), "record", "records"), plural(int(r.Contents), "content", "contents"),
				plural(int(r.Differences), "difference", "differences"))
			if p.repair {
				fmt.Fprintf(&w, ", %d repaired", r.Repaired)
			}
			fmt.Fprintln(&w)
		}
		if p.config.File == "" && r.Differences > 0 && r.Documents > 0 {
			fmt.Fprintf(&w, "%s: read with the default settings, by which records differ if a configuration has others: if one has this Source, name it with --config\n", s.Set)
		}
		for _, why := range r.Unchecked {
			fmt.Fprintf(&w, "%s: NOT CHECKED: %s\n", s.Set, oneLine(why))
		}
	}
	_, err := io.WriteString(p.out, w.String())
	return err
}

// neverHarvested prints the configured sets of which there is nothing here.
func (p *auditPrinter) neverHarvested(ctx context.Context, b *daemon.Bridge) error {
	sets, err := b.NeverHarvested(ctx)
	for _, s := range sets {
		err = errors.Join(err, p.set(s))
	}
	return err
}

// The last line of bridge audit --json of each set.
type jsonAudited struct {
	Audited *daemon.AuditedSet `json:"audited"`
}

// printAuditReport prints the report of an audit, for example as the proof of a migration.
func printAuditReport(w io.Writer, s *daemon.AuditedSet, r *audit.Report) {
	line := func(name string, format string, args ...any) {
		fmt.Fprintf(w, "  %-34s %s\n", name, fmt.Sprintf(format, args...))
	}
	count := func(n int64, what, see string) {
		if n > 0 || see == "" {
			if see = strings.TrimSpace(see); see != "" {
				see = "  (above: " + see + ")"
			}
			fmt.Fprintf(w, "    %9d  %s%s\n", n, what, see)
		}
	}
	fmt.Fprintf(w, "REPORT on set %s, %s\n", s.Set, stamp(r.Ended))
	line("Source:", "%s%s", r.Source, inBrackets(r.Kind))
	if r.Documents > 0 {
		line("read:", "%s to %s, %s", stamp(r.Started), stamp(r.Ended), plural(int(r.Documents), "document", "documents"))
	}
	if !r.At.IsZero() {
		line("as its lists were at:", "%s", stamp(r.At))
	}
	if s.BaseURL != "" {
		line("published at:", "%s/sets/%s/", s.BaseURL, s.Set)
	}
	line("live records of the set:", "%d, of which %d in the Resource List", s.Records, s.Listed)
	if r.Documents > 0 {
		deleted := ""
		if r.DeletedAtSource > 0 {
			deleted = fmt.Sprintf(", and names %d as deleted", r.DeletedAtSource)
		}
		fmt.Fprintf(w, "  The Source has %s%s:\n", plural(int(r.AtSource), "record", "records"), deleted)
		count(r.Published, "published here", "")
		count(r.OtherSource, "published here, as an earlier Source of the set has them", " ")
		count(r.GivenBack, "published here, from the same origin", " ")
		count(r.Pending, "pending: their content could not be fetched yet", "pending")
		count(r.Quarantined, "quarantined: their entries cannot be read", "quarantined")
		count(r.DeletedHere, "deleted here", "deleted-here")
		count(r.Missing, "missing here", "missing")
		count(r.Changed, "changed during the audit: run it again", " ")
		fmt.Fprintf(w, "  The log has %s of this Source:\n", plural(int(r.Here), "record", "records"))
		count(r.Published+r.OtherSource, "at the Source too", "")
		count(r.ToDelete, "deleted at the Source", "deleted-there")
		count(r.Held, "not at the Source; their deletions are held", "held")
		count(r.Extra, "not named by the Source", "extra")
		count(r.NotJudged, "not named by what the Source gives, which is not all that it has", " ")
		count(r.NotRead, "at the Source, in entries that cannot be read", "quarantined")
		count(r.ChangedHere, "changed during the audit: run it again", " ")
	}
	line("copies read and hashed:", "%d", r.Contents)
	if r.Originals > 0 {
		line("originals asked for:", "%d", r.Originals)
	}
	line("differences:", "%d, of which %d repaired", r.Differences, r.Repaired)
	if err := r.Sums(); err != nil {
		fmt.Fprintf(w, "  THE NUMBERS DO NOT ADD UP: %v; the log was written during the audit: run it again\n", err)
	}
	switch {
	case r.Whole() && r.Part:
		fmt.Fprintln(w, "  All that the Source gives is published here. It may have more than it gives.")
	case r.Whole() && r.Kind != "":
		fmt.Fprintln(w, "  All that the Source has is published here, and nothing else.")
	case r.Documents == 0:
		fmt.Fprintln(w, "  The Source was not compared.")
	default:
		fmt.Fprintln(w, "  NOT all that the Source has is published here as it is there.")
	}
}

// outcome returns the error with the exit status: 1 when something differs, 3 when
// something could not be checked.
func (p *auditPrinter) outcome() error {
	switch {
	case p.left > 0:
		return &exitError{status: exitFailed}
	case p.unchecked > 0:
		return &exitError{status: exitPartly}
	}
	return nil
}
