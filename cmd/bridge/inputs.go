package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// defaultFile is read when no flag and no SOURCE is given.
const defaultFile = "bridge.toml"

// inputs are the flags that select the configuration and the data folder.
type inputs struct {
	file  string
	flags config.Flags
}

// newInputs adds --config and --data to a command that reads or writes the log. The secrets of
// the configuration may be for the service alone: those that cannot be read are no problem.
func newInputs(cmd *cobra.Command) *inputs {
	in := newAsking(cmd)
	in.flags.WithoutSecrets = true
	return in
}

// newAsking is newInputs for a command that may send requests to Sources, and needs all secrets.
func newAsking(cmd *cobra.Command) *inputs {
	in := &inputs{}
	in.addFile(cmd)
	cmd.Flags().StringVar(&in.flags.Data, "data", "", "the data `folder` (default: the file's, or ./bridge-data)")
	return in
}

// addFile adds --config.
func (in *inputs) addFile(cmd *cobra.Command) {
	cmd.Flags().StringVar(&in.file, "config", "", "the configuration `file` (default ./bridge.toml, if nothing else is given)")
}

// addJSON adds --json, which makes a command print JSON lines.
func addJSON(cmd *cobra.Command) *bool { return cmd.Flags().Bool("json", false, "print JSON lines") }

// addSet adds --set.
func addSet(cmd *cobra.Command) *string {
	return cmd.Flags().String("set", "", "only those of the set with this `name`")
}

// resolve makes one configuration from the flags, the file and the SOURCEs. The file is the
// one that --config names, or ./bridge.toml when neither --config, --data nor a SOURCE is
// given; without a file the defaults apply. Every error that it returns means wrong usage.
func (in *inputs) resolve(sources []string) (*config.Config, error) {
	file, err := in.chosen(sources)
	if err != nil {
		return nil, err
	}
	var c *config.Config
	if file != "" {
		c, err = config.LoadWith(file, in.flags)
	} else {
		c, err = config.FromArguments(in.flags, sources)
	}
	if err != nil {
		return nil, usage(err)
	}
	return c, nil
}

// chosen returns the path of the file that resolve reads, "" for none.
func (in *inputs) chosen(sources []string) (string, error) {
	switch {
	case in.file != "" && len(sources) > 0:
		return "", usage(errors.New("SOURCEs and --config exclude each other: write the Sources into the file, or leave --config out"))
	case in.file == "" && len(sources) == 0 && in.flags.Data == "":
		switch _, err := os.Stat(defaultFile); {
		case err == nil:
			return defaultFile, nil
		case !errors.Is(err, os.ErrNotExist):
			return "", usage(fmt.Errorf("configuration: %w", err))
		}
	}
	return in.file, nil
}

// folder returns the data folder as resolve does, and reads nothing else of the file.
func (in *inputs) folder() (string, error) {
	file, err := in.chosen(nil)
	if err != nil {
		return "", err
	}
	if file != "" && in.flags.Data == "" {
		folder, err := config.DataFolder(file)
		if err != nil {
			return "", usage(err)
		}
		return folder, nil
	}
	c, err := config.FromArguments(in.flags, nil)
	if err != nil {
		return "", usage(err)
	}
	return c.Data, nil
}

// action is the part of a command that needs an open data folder. It prints to w.
type action func(ctx context.Context, w io.Writer, b *daemon.Bridge) error

// read opens the data folder for reading while do runs; another process may write to it.
func (in *inputs) read(cmd *cobra.Command, do action) error {
	c, err := in.resolve(nil)
	if err != nil {
		return err
	}
	b, err := openBridge(cmd.Context(), c, daemon.Options{ReadOnly: true, Logger: warnings(cmd.ErrOrStderr())})
	switch {
	case errors.Is(err, fs.ErrNotExist) && !daemon.HasLog(c.Data) && c.Store.Log == "":
		return usage(fmt.Errorf("%s holds no log: give the data folder of a bridge with --data; bridge serve and bridge harvest make a new one", c.Data))
	case errors.Is(err, fs.ErrNotExist):
		return usage(err)
	case err != nil:
		return err
	}
	return errors.Join(do(cmd.Context(), cmd.OutOrStdout(), b), b.Close())
}

// openBridge opens the data folder of a configuration. A configuration that contradicts the
// folder is wrong usage.
func openBridge(ctx context.Context, c *config.Config, o daemon.Options) (*daemon.Bridge, error) {
	o.Version = release()
	b, err := daemon.Open(ctx, c, o)
	if errors.As(err, new(*eventlog.ContentError)) || errors.As(err, new(*daemon.LocalError)) {
		return nil, usage(err)
	}
	return b, err
}

// number parses an ID, which another command lists.
func number(word, of, list string) (int64, error) {
	id, err := strconv.ParseInt(word, 10, 64)
	if err != nil || id < 1 {
		return 0, usage(fmt.Errorf("%q is not a number of %s: see %s", word, of, list))
	}
	return id, nil
}

// eachSet calls do for the set with the name, or for all sets when it is "".
func eachSet(ctx context.Context, b *daemon.Bridge, name string, do func(set string) error) error {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range sets {
		names = append(names, s.Name)
		if name == "" || s.Name == name {
			if err := do(s.Name); err != nil {
				return err
			}
		}
	}
	if name != "" && !slices.Contains(names, name) {
		return fmt.Errorf("there is no set %q here; there is: %s", name, strings.Join(names, ", "))
	}
	return nil
}

// listing has the flags of the commands that list the newest items of each set.
type listing struct {
	*inputs
	set          string
	limit        int
	asJSON, full bool
}

// newListing adds the flags of a listing to a command.
func newListing(cmd *cobra.Command) *listing {
	l := &listing{inputs: newInputs(cmd)}
	cmd.Flags().StringVar(&l.set, "set", "", "only those of the set with this `name`")
	cmd.Flags().IntVar(&l.limit, "limit", 100, "at most this many of a set, the newest; 0 is all")
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "print JSON lines")
	cmd.Flags().BoolVar(&l.full, "full", false, "do not cut long texts")
	return l
}

// checkLimit checks the number of a --limit.
func checkLimit(limit int) error {
	if limit < 0 {
		return usage(fmt.Errorf("--limit: %d is no number of items; write 1 or more, or 0 for all", limit))
	}
	return nil
}

// each opens the data folder and prints the items of each selected set.
func (l *listing) each(cmd *cobra.Command, print func(ctx context.Context, w io.Writer, b *daemon.Bridge, set string) error) error {
	if err := checkLimit(l.limit); err != nil {
		return err
	}
	return l.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
		return eachSet(ctx, b, l.set, func(set string) error { return print(ctx, w, b, set) })
	})
}

// newest prints at most limit items, all with 0, a page of the log at a time: the next page
// begins after the ID of the last printed item.
func newest[T any](limit int, page func(after int64, most int) ([]T, error), print func(*T) (id int64, err error)) error {
	left, after := limit, int64(0)
	for {
		most := 1000
		if limit > 0 {
			most = min(most, left)
		}
		found, err := page(after, most)
		if err != nil {
			return err
		}
		for i := range found {
			if after, err = print(&found[i]); err != nil {
				return err
			}
		}
		left -= len(found)
		if len(found) < most || limit > 0 && left <= 0 {
			return nil
		}
	}
}

// brief returns a client's text for a line of a list, cut after 200 characters unless the
// full text is wanted.
func (l *listing) brief(text string) string {
	text = oneLine(text)
	if l.full {
		return text
	}
	n := 0
	for i := range text {
		if n++; n > 200 {
			return text[:i] + "…"
		}
	}
	return text
}

// needSources returns an error for a configuration from which nothing can be harvested.
func needSources(c *config.Config) error {
	if anySource(c, func(s *config.Source) bool { return s.Kind != config.KindSIP }) {
		return nil
	}
	if anySource(c, func(*config.Source) bool { return true }) {
		return usage(errors.New("there is nothing to harvest: a Source of kind sip calls bridge serve"))
	}
	const example = "name one, like:\n  bridge harvest https://data.example.org/feed.atom"
	if c.File != "" {
		return usage(fmt.Errorf("there is no Source in %s: add a [[set]] with a [[set.source]], or %s", c.File, example))
	}
	return usage(fmt.Errorf("there is no Source to harvest: %s\nor write a bridge.toml with: bridge init", example))
}

// knownNames returns an error if one of the names is neither that of a set nor of a Source.
func knownNames(c *config.Config, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(c.Sets, func(set config.Set) bool {
			return set.Name == name || set.IsTemplate() && strings.HasPrefix(name, set.Name+"-")
		}) && !anySource(c, func(s *config.Source) bool { return s.Name == name }) {
			return usage(fmt.Errorf("%s has no set and no Source named %q; SOURCEs and --config exclude each other: write the Sources into the file, or leave --config out", c.File, name))
		}
	}
	return nil
}

// anySource reports whether sort is true for a Source of the configuration.
func anySource(c *config.Config, sort func(*config.Source) bool) bool {
	return slices.ContainsFunc(c.Sets, func(set config.Set) bool {
		return slices.ContainsFunc(set.Sources, func(s config.Source) bool { return sort(&s) })
	})
}
