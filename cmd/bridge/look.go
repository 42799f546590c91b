package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/validate"
)

func sourceTestCommand() *cobra.Command {
	cmd := command("source test")
	in, asJSON := newAsking(cmd), addJSON(cmd)
	patience := addTimeout(cmd)
	cmd.Args = takes(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := in.resolve(nil)
		if err != nil {
			return err
		}
		c, set, url, err := sourceToTest(c, args)
		if err != nil {
			return usage(err)
		}
		look, err := lookAt(cmd, c, set, url, *patience)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if *asJSON {
			err = printJSON(w, jsonLook{daemon.Redact(url), look, clauses(look)})
		} else {
			err = printLook(w, url, look)
		}
		switch {
		case err != nil:
			return err
		case look.Error != "" && *asJSON:
			return &exitError{status: exitFailed}
		case look.Error != "":
			return fmt.Errorf("it cannot be harvested: %s", look.Error)
		case look.Bad > 0:
			return partFailure(fmt.Errorf("%s would be quarantined", plural(int(look.Bad), "entry", "entries")))
		}
		return nil
	}
	return cmd
}

// addTimeout adds --timeout, the longest time of a look at a Source.
func addTimeout(cmd *cobra.Command) *time.Duration {
	return cmd.Flags().Duration("timeout", time.Minute, "how long the Source may take for the look, like 30s or 5m")
}

// jsonLook is what bridge source test --json prints.
type jsonLook struct {
	URL string `json:"url"`
	*harvest.Look
	Clauses map[string]string `json:"clauses,omitempty"` // of the rules of Problems
}

// clauses returns the clauses of the rules that a Source breaks.
func clauses(look *harvest.Look) map[string]string {
	all := map[string]string{}
	for _, p := range look.Problems {
		if _, clause := validate.Clause(p.Rule); clause != "" {
			all[p.Rule] = clause
		}
	}
	return all
}

// sourceToTest returns the Source that arguments name, and the configuration that has it:
// c, or a copy of c with a Source as bridge harvest accepts it.
func sourceToTest(c *config.Config, args []string) (in *config.Config, set, url string, err error) {
	found, err := configuredSource(c, args)
	if err == nil {
		return c, found.set, found.url, nil
	}
	if !errors.Is(err, errNotConfigured) || len(args) > 1 {
		return nil, "", "", err
	}
	typed, typedErr := config.FromArguments(config.Flags{}, args)
	if typedErr != nil {
		if strings.Contains(args[0], ":") {
			return nil, "", "", typedErr
		}
		return nil, "", "", fmt.Errorf("%w; and as a SOURCE: %w", err, typedErr)
	}
	like := *c
	like.Sets = typed.Sets
	return &like, like.Sets[0].Name, like.Sets[0].Sources[0].URL, nil
}

// errNotConfigured means that the configuration has no such Source.
var errNotConfigured = errors.New("not in the configuration")

// foundSource is a Source of the configuration.
type foundSource struct{ set, name, url string }

// configuredSource returns the Source of a configuration that arguments name: see sourceNamed. A
// path may be relative, as in the file.
func configuredSource(c *config.Config, args []string) (found foundSource, err error) {
	set, source := sourceNamed(args)
	path := source
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(c.File), path)
	}
	var all []foundSource
	for _, s := range c.Sets {
		if set != "" && s.Name != set {
			continue
		}
		for _, src := range s.Sources {
			if source == "" || src.Name == source || src.URL == source || daemon.Redact(src.URL) == source || daemon.IsPath(path, src.URL) {
				all = append(all, foundSource{s.Name, src.Name, src.URL})
			}
		}
	}
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		var names []string
		for _, f := range all {
			names = append(names, f.set+"/"+cmp.Or(f.name, daemon.Redact(f.url)))
		}
		return found, fmt.Errorf("%s may be any of %s: name one of them", strings.Join(args, " "), strings.Join(names, ", "))
	case c.File == "":
		return found, fmt.Errorf("%s: %w: there is no file; name one with --config", daemon.Redact(strings.Join(args, " ")), errNotConfigured)
	}
	return found, fmt.Errorf("%s: %w %s", daemon.Redact(strings.Join(args, " ")), errNotConfigured, c.File)
}

// lookAt looks at a Source, for at most patience.
func lookAt(cmd *cobra.Command, c *config.Config, set, url string, patience time.Duration) (*harvest.Look, error) {
	if patience <= 0 {
		return nil, usage(errors.New("--timeout must be more than 0s"))
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), patience, fmt.Errorf("the Source has not answered all within %s (see --timeout)", patience))
	defer cancel()
	look, err := daemon.LookAt(ctx, c, set, url, daemon.Options{Version: release(), Logger: warnings(cmd.ErrOrStderr())})
	if err != nil {
		return nil, usage(err)
	}
	if err := cmd.Context().Err(); err != nil {
		return nil, err
	}
	return look, nil
}

// printLook prints the result of a look, without the error.
func printLook(w io.Writer, url string, look *harvest.Look) error {
	var b strings.Builder
	kind := cmp.Or(look.Kind, "kind not found out")
	if look.Detected {
		kind += " (detected)"
	}
	fmt.Fprintf(&b, "%s: %s", daemon.Redact(url), kind)
	if look.Title != "" {
		fmt.Fprintf(&b, ", %q", oneLine(look.Title))
	}
	b.WriteByte('\n')
	if look.Moved != "" {
		fmt.Fprintf(&b, "  MOVED permanently to %s: write that\n", look.Moved)
	}
	for _, d := range look.Read {
		whole := ""
		if d.Complete {
			whole = ", all there are"
		}
		fmt.Fprintf(&b, "  %s %s: %s%s\n", d.What, d.URL, counted(&d), whole)
		for _, format := range slices.Sorted(maps.Keys(d.Formats)) {
			fmt.Fprintf(&b, "    %d of %s\n", d.Formats[format], cmp.Or(oneLine(format), "a type that is not said"))
		}
	}
	if look.Error == "" && look.Total >= 0 {
		fmt.Fprintf(&b, "  in all %s (%s)\n", plural(int(look.Total), "record", "records"), look.TotalFrom)
	} else if look.Error == "" && len(look.Read) > 0 {
		fmt.Fprintln(&b, "  how many records there are in all, the Source does not say")
	}
	for _, note := range look.Notes {
		fmt.Fprintf(&b, "  %s\n", oneLine(note))
	}
	const most = 10 // one look reads fewer documents; redirects may make more
	for i, r := range look.Requests {
		if i == most {
			fmt.Fprintf(&b, "  and %s\n", plural(len(look.Requests)-most, "more request", "more requests"))
			break
		}
		answer := "no answer"
		if r.Status != 0 {
			answer = fmt.Sprint(r.Status)
		}
		fmt.Fprintf(&b, "  %s after %s: %s\n", answer, took(time.Duration(r.Millis*float64(time.Millisecond))), oneLine(r.URL))
	}
	for _, p := range look.Problems {
		severity, clause := validate.Clause(p.Rule)
		if clause != "" {
			clause = fmt.Sprintf(" (%s: %s)", severity, clause)
		}
		fmt.Fprintf(&b, "  PROBLEM %s, %s%s: %s\n", p.Rule, plural(int(p.Count), "place", "places"), clause, oneLine(p.First))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// counted describes how many records a document has.
func counted(d *harvest.LookedAt) string {
	if d.Parts > 0 {
		return plural(d.Parts, "part", "parts")
	}
	text := plural(int(d.Records), "record", "records")
	if d.Deletions > 0 {
		text += ", " + plural(int(d.Deletions), "deletion", "deletions")
	}
	return text
}
