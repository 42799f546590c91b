package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
)

func harvestCommand() *cobra.Command {
	cmd := command("harvest")
	var full, dry, quiet, acceptClock, newData bool
	in, asJSON := newAsking(cmd), addJSON(cmd)
	cmd.Flags().BoolVar(&full, "full", false, "read every document down to the oldest")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be logged, and store nothing")
	cmd.Flags().BoolVar(&quiet, "quiet", false, "print only what needs attention, for cron")
	cmd.Flags().BoolVar(&acceptClock, "accept-clock", false, "accept the time of a clock that has jumped ahead")
	cmd.Flags().BoolVar(&newData, "new-data", false, "create a new log in a data folder that was used before")
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var names []string
		if in.file != "" { // SOURCEs and a file exclude each other
			names, args = args, nil
		}
		c, err := in.resolve(args)
		if err != nil {
			return nameHint(err, args)
		}
		if err := errors.Join(needSources(c), knownNames(c, names)); err != nil {
			return err
		}
		h, err := openBridge(cmd.Context(), c, daemon.Options{DryRun: dry, AcceptClock: acceptClock, NewData: newData, Command: "bridge harvest", Logger: warnings(cmd.ErrOrStderr())})
		if err != nil {
			return err
		}
		h.Only(names)
		out := &harvestPrinter{out: cmd.OutOrStdout(), json: *asJSON, dry: dry, quiet: quiet}
		out.bar = newMeter(cmd.ErrOrStderr(), *asJSON || quiet)
		_, underived := h.DeriveSets(cmd.Context())
		paused, err := h.LeaveOutPaused(cmd.Context())
		if err == nil {
			err = out.paused(paused, len(names)+len(args) > 0 && len(h.Sources()) == 0)
		}
		if err != nil {
			return errors.Join(err, h.Close())
		}
		err = harvestAll(cmd.Context(), h, harvest.Options{Full: full, AllPending: true}, out)
		if underived != nil && len(h.Sources()) > 0 && err == nil {
			underived = partFailure(underived)
		}
		return errors.Join(underived, err, h.Close())
	}
	return cmd
}

// nameHint says how to select what ./bridge.toml names, if an argument that is no Source may
// be such a name.
func nameHint(err error, args []string) error {
	named := slices.ContainsFunc(args, func(arg string) bool { return !strings.ContainsAny(arg, ":/=.") })
	if _, missing := os.Stat(defaultFile); missing != nil || !named {
		return err
	}
	return usage(fmt.Errorf("%w\nfor a set or a Source of %s: bridge harvest --config %s NAME", err, defaultFile, defaultFile))
}

// harvestAll makes one pass over every Source, all at the same time. The Bridge bounds
// how many of them work at once.
func harvestAll(ctx context.Context, h *daemon.Bridge, o harvest.Options, out *harvestPrinter) error {
	var group sync.WaitGroup
	sources := h.Sources()
	if len(sources) == 0 { // no set of a template is known yet
		return nil
	}
	reports := make([]harvest.Report, len(sources))
	failed := make([]error, len(sources))
	for _, round := range h.Rounds() {
		for _, src := range round {
			i := slices.Index(sources, src)
			group.Go(func() {
				o := o
				var ended func()
				o.Progress, ended = out.bar.source(src.URL)
				reports[i], failed[i] = h.Harvest(ctx, src, o)
				ended()
				if ctx.Err() != nil && failed[i] != nil {
					reports[i].Error = "interrupted"
				} else if failed[i] != nil { // the harvest may be whole, and its outcome not be stored
					reports[i].Error = cmp.Or(reports[i].Error, failed[i].Error())
				}
				out.report(src, &reports[i])
			})
		}
		group.Wait()
	}
	out.bar.stop()
	if ctx.Err() != nil {
		return errors.New("interrupted; the next harvest continues where this one stopped")
	}
	return errors.Join(outcome(ctx, h, reports, failed, !out.json), out.err)
}

// outcome returns the error with the exit status: 1 when every Source failed, 3 when some
// did, or when something is pending, held, missing or was quarantined. told: the reasons
// have been printed with the reports.
func outcome(ctx context.Context, h *daemon.Bridge, reports []harvest.Report, failed []error, told bool) error {
	failures := 0
	for _, err := range failed {
		if err != nil {
			failures++
		}
	}
	what := "nothing could be harvested"
	for i := range reports {
		if reports[i].Events() > 0 {
			what = "nothing could be harvested to its end"
		}
	}
	if failures == len(failed) && told {
		return fmt.Errorf("%s: %d of %s failed", what, failures, plural(len(failed), "Source", "Sources"))
	}
	if failures == len(failed) {
		if more := len(failed) - namedInLine; more > 0 {
			failed = append(failed[:namedInLine:namedInLine], fmt.Errorf("and %d more failed", more))
		}
		return fmt.Errorf("%s: %w", what, errors.Join(failed...))
	}
	now, err := h.Status(ctx)
	if err != nil {
		return err
	}
	var left []string
	if failures > 0 {
		left = append(left, fmt.Sprintf("%d of %s failed", failures, plural(len(failed), "Source", "Sources")))
	}
	ofSet := map[string]int{}
	for _, src := range h.Sources() {
		ofSet[src.Set]++
	}
	for i, src := range h.Sources() {
		if failed[i] != nil {
			continue
		}
		about := src.Set
		if ofSet[src.Set] > 1 { // the set alone does not say which
			about = sourceTitle(&status.Source{Set: src.Set, Name: src.Name, URL: daemon.Redact(src.URL)})
		}
		left = append(left, unfinished(src, about, &reports[i], now.Sets)...)
	}
	if gone := h.ContentsGone(ctx); gone != nil {
		left = append(left, gone.Error())
	}
	if len(left) > 0 {
		return partFailure(fmt.Errorf("done in part: %s", inOneLine(left)))
	}
	return nil
}

// unfinished returns what is left to do for a Source, which is called about, after its harvest.
func unfinished(src *daemon.Source, about string, r *harvest.Report, sets []status.Set) (left []string) {
	say := func(n int, one, many, state string) {
		if n > 0 {
			left = append(left, fmt.Sprintf("%s: %s %s", about, plural(n, one, many), state))
		}
	}
	for _, set := range sets {
		for i := range set.Sources {
			if s := &set.Sources[i]; s.ID == src.ID {
				say(s.Pending, "record", "records", "pending")
				say(s.Held, "deletion", "deletions", "held")
			}
		}
	}
	say(int(r.Quarantined), "entry", "entries", "quarantined")
	if r.Gap != "" {
		left = append(left, about+": "+missingDocument(r.Kind))
	}
	if len(left) == 0 && len(r.Warnings) > 0 {
		left = append(left, about+": see the warning")
	}
	return left
}

// harvestPrinter prints the reports of harvests.
type harvestPrinter struct {
	mu    sync.Mutex // guards out and err
	out   io.Writer
	json  bool
	dry   bool
	quiet bool // print only what a person should look at
	bar   *meter
	err   error // the first error of out
}

// paused says which Sources are left out since they are paused. That is an error if they are
// all that was asked for.
func (p *harvestPrinter) paused(said []string, asked bool) error {
	if asked && len(said) > 0 {
		return fmt.Errorf("%s: resume it with bridge source resume", strings.Join(said, "; "))
	}
	if p.quiet || p.json {
		return nil
	}
	for _, text := range said {
		if _, err := fmt.Fprintln(p.out, text); err != nil {
			return err
		}
	}
	return nil
}

func (p *harvestPrinter) report(src *daemon.Source, r *harvest.Report) {
	if p.quiet && !r.Partial() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.clear()
	var err error
	if p.json {
		err = printJSON(p.out, jsonReport{src.Set, src.Name, daemon.Redact(src.URL), r.Kind, p.dry, daemon.RedactReport(r)})
	} else {
		err = printReport(p.out, src, r, p.dry)
	}
	p.err = cmp.Or(p.err, err)
}

// A line of bridge harvest --json.
type jsonReport struct {
	Set    string `json:"set"`
	Name   string `json:"name,omitempty"`
	URL    string `json:"url"`
	Kind   string `json:"kind,omitempty"` // absent while unknown
	DryRun bool   `json:"dry_run,omitempty"`
	*harvest.Report
}
