package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// The help texts, one file for each command: help/config/check.txt is of "bridge
// config check". The first line is the usage, the second what it does in a few
// words; then come the long text and, after a line "Examples:", examples.
//
//go:embed help
var helpTexts embed.FS

// command returns a command with its help text. name is its words below
// "bridge". The caller sets RunE, Args and flags; without Args it takes none.
func command(name string) *cobra.Command {
	text, err := helpTexts.ReadFile("help/" + strings.ReplaceAll(name, " ", "/") + ".txt")
	if err != nil {
		panic(fmt.Sprintf("bridge %s has no help text: %v", name, err))
	}
	use, rest, _ := strings.Cut(string(text), "\n")
	short, rest, _ := strings.Cut(rest, "\n")
	long, examples, _ := strings.Cut(rest, "\nExamples:\n")
	return &cobra.Command{
		Use:                   use,
		Short:                 short,
		Long:                  strings.TrimSpace(long),
		Example:               strings.TrimRight(examples, "\n"),
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
	}
}

// group returns a command that only holds others, such as "bridge config".
func group(name string, commands ...*cobra.Command) *cobra.Command {
	cmd := command(name)
	cmd.AddCommand(commands...)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := cobra.NoArgs(cmd, args)
		if err == nil {
			return nil
		}
		cmd.SuggestionsMinimumDistance = 2
		if close := cmd.SuggestionsFor(args[0]); len(close) > 0 {
			err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(close, " or "))
		}
		return err
	}
	// A command without code of its own would take any word and print its help.
	cmd.RunE = func(*cobra.Command, []string) error {
		var names []string
		for _, c := range commands {
			names = append(names, c.Name())
		}
		slices.Sort(names)
		return usage(fmt.Errorf("bridge %s: say what: %s", name, strings.Join(names, ", ")))
	}
	return cmd
}
