package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
)

// defaultFile is read when nothing else says what to work on.
const defaultFile = "bridge.toml"

// inputs are the flags that select the configuration and the data folder.
type inputs struct {
	file  string
	flags config.Flags
}

// addData adds --data, which every command has that reads or writes the log.
func (in *inputs) addData(cmd *cobra.Command) {
	cmd.Flags().StringVar(&in.flags.Data, "data", "", "the data `folder` (default: the file's, or ./bridge-data)")
}

// addFile adds --config.
func (in *inputs) addFile(cmd *cobra.Command) {
	cmd.Flags().StringVar(&in.file, "config", "", "the configuration `file` (default ./bridge.toml, if nothing else is given)")
}

// addServer adds --listen and --base-url.
func (in *inputs) addServer(cmd *cobra.Command) {
	cmd.Flags().StringVar(&in.flags.Listen, "listen", "", "`address` of the server (default 127.0.0.1:8080)")
	cmd.Flags().StringVar(&in.flags.BaseURL, "base-url", "", "the `URL` under which others reach the server (default http:// and the address)")
}

// resolve makes one configuration of the flags, the file and the SOURCEs. The
// file is the one that --config names, or ./bridge.toml when neither --config,
// --data nor a SOURCE is given; without one there are the defaults. All that it
// returns as an error is wrong usage.
func (in *inputs) resolve(sources []string) (*config.Config, error) {
	file := in.file
	switch {
	case file != "" && len(sources) > 0:
		return nil, usage(errors.New("SOURCEs and --config exclude each other: write the Sources into the file, or leave --config out"))
	case file == "" && len(sources) == 0 && in.flags.Data == "":
		_, err := os.Stat(defaultFile)
		if err == nil {
			file = defaultFile
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, usage(fmt.Errorf("configuration: %w", err))
		}
	}
	var c *config.Config
	var err error
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

// needSources returns an error for a configuration from which nothing can be harvested.
func needSources(c *config.Config) error {
	if anySource(c, func(s *config.Source) bool { return s.Kind != config.KindSIP }) {
		return nil
	}
	if anySource(c, func(*config.Source) bool { return true }) {
		return usage(errors.New("there is nothing to harvest: a Source of kind sip calls us, while bridge serve runs"))
	}
	const example = "name one, like:\n  bridge harvest https://data.example.org/feed.atom"
	if c.File != "" {
		return usage(fmt.Errorf("there is no Source in %s: add a [[set]] with a [[set.source]], or %s", c.File, example))
	}
	return usage(fmt.Errorf("there is no Source to harvest: %s\nor write a bridge.toml with: bridge init", example))
}

// knownNames returns an error for a name of neither a set nor a Source.
func knownNames(c *config.Config, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(c.Sets, func(set config.Set) bool { return set.Name == name }) && !anySource(c, func(s *config.Source) bool { return s.Name == name }) {
			return usage(fmt.Errorf("%s has no set and no Source named %q; SOURCEs and --config exclude each other: write the Sources into the file, or leave --config out", c.File, name))
		}
	}
	return nil
}

// anySource reports whether the configuration has a Source for which sort is true.
func anySource(c *config.Config, sort func(*config.Source) bool) bool {
	return slices.ContainsFunc(c.Sets, func(set config.Set) bool {
		return slices.ContainsFunc(set.Sources, func(s config.Source) bool { return sort(&s) })
	})
}
