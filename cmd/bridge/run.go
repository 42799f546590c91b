package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

// The exit statuses, on which scripts depend.
const (
	exitDone   = 0 // all done
	exitFailed = 1 // failed
	exitUsage  = 2 // wrong usage or configuration
	exitPartly = 3 // done in part: something failed, is pending, held or was quarantined
)

// exitError is an error with an exit status; all others mean exitFailed. If it contains no
// error, nothing is printed: the command has printed the reason.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage marks an error as wrong usage or configuration.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitUsage, err}
}

// partFailure marks an error of a command that was done in part.
func partFailure(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitPartly, err}
}

// commands lists what bridge can do, in the order of its help.
func commands() []*cobra.Command {
	return []*cobra.Command{
		demoCommand(),
		serveCommand(),
		reloadCommand(),
		harvestCommand(),
		logCommand(),
		statusCommand(),
		sourceCommand(),
		setCommand(),
		recordCommand(),
		quarantineCommand(),
		submissionCommand(),
		notificationCommand(),
		submitCommand(),
		auditCommand(),
		verifyCommand(),
		backupCommand(),
		restoreCommand(),
		copyCommand(),
		gcCommand(),
		validateCommand(),
		exportCommand(),
		configCommand(),
		initCommand(),
		completionCommand(),
		manCommand(),
		versionCommand(),
	}
}

// run is the whole program: it runs one command line and returns its exit status. It
// returns soon after ctx has ended.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out, failures := &escaping{out: stdout}, &escaping{out: stderr}
	status := execute(ctx, commands(), args, stdin, out, failures)
	if status == exitDone && out.err != nil && ctx.Err() == nil { // most commands print a line after the other, and look at no error
		fmt.Fprintf(failures, "bridge: the output is not whole: %v\n", out.err)
		return exitFailed
	}
	return status
}

func execute(ctx context.Context, commands []*cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := command("bridge")
	root.Args = nil // so cobra reports unknown commands, with suggestions
	root.Version = version()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(commands...)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(unlessUnknown(root, helpOf(args)))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return describeFlag(err) })

	// Errors before a command's own code runs are wrong usage: unknown commands and flags,
	// missing arguments.
	ran := false
	recordRun(root, &ran)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	status := exitFailed
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		status = exit.status
		if exit.err == nil {
			return status
		}
	case !ran:
		status = exitUsage
	}
	text := err.Error()
	if ctx.Err() != nil { // by a signal
		text = strings.ReplaceAll(text, context.Canceled.Error(), "interrupted")
	}
	fmt.Fprintf(stderr, "bridge: %s\n", daemon.Redact(text))
	if !ran {
		fmt.Fprintf(stderr, "Usage: %s\nMore: %s --help\n", cmd.UseLine(), cmd.CommandPath())
	}
	return status
}

// describeFlag says of a flag that should have a number, a time, true or false what it has
// instead.
func describeFlag(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag, wants := bad.GetFlag(), ""
	switch flag.Value.Type() {
	case "int", "int64":
		wants = "a number"
	case "duration":
		wants = "a time; write one like 90s, 10m or 48h"
	case "bool":
		wants = "true or false"
	default:
		return err
	}
	return fmt.Errorf("--%s: %q is not %s", flag.Name, bad.GetValue(), wants)
}

// helpOf returns the arguments, with "help COMMAND" as "COMMAND --help": cobra's own command
// reports success also where there is no such command.
func helpOf(args []string) []string {
	if len(args) > 1 && args[0] == "help" && !strings.HasPrefix(args[1], "-") {
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

// unlessUnknown returns the arguments, without a request for help where they name a
// subcommand that does not exist: cobra would print the help of the group and report
// success.
func unlessUnknown(root *cobra.Command, args []string) []string {
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasParent() || !cmd.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return args
	}
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "-h" || arg == "--help" })
}

// recordRun sets ran when the code of cmd, or of a subcommand, begins.
func recordRun(cmd *cobra.Command, ran *bool) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			*ran = true
			return inner(c, args)
		}
	}
	for _, c := range cmd.Commands() {
		recordRun(c, ran)
	}
}

// The help texts, one file for each command: help/config/check.txt is of "bridge
// config check". The first line is the usage, the second what it does in a few
// words; then come the long text and, after a line "Examples:", examples.
//
//go:embed help
var helpTexts embed.FS

// command returns a command with its help text. name is its words after "bridge". The
// caller sets RunE, Args and flags; without Args it takes no arguments.
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
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
	}
}

// noArgs refuses arguments. Most often one is the name of a set, which is a flag here.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("%s takes no argument %q", cmd.CommandPath(), args[0])
	if cmd.Flags().Lookup("set") != nil {
		set, _, _ := strings.Cut(args[0], "/") // of SET/NAME, as other commands take a Source
		err = fmt.Errorf("%w; for the set of that name write --set %s", err, set)
	}
	return err
}

// takes refuses fewer arguments than least, and more than most.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch missing := least - len(args); {
		case missing == 1:
			return errors.New("an argument is missing")
		case missing > 1:
			return fmt.Errorf("%d arguments are missing", missing)
		case len(args) > most:
			return fmt.Errorf("%s takes no further argument %q", cmd.CommandPath(), args[most])
		}
		return nil
	}
}

// group returns a command that only has subcommands, such as "bridge config".
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
	// A command without code of its own would accept any word and print its help.
	cmd.RunE = func(*cobra.Command, []string) error {
		var names []string
		for _, c := range commands {
			names = append(names, c.Name())
		}
		slices.Sort(names)
		return usage(fmt.Errorf("bridge %s: name one of: %s", name, strings.Join(names, ", ")))
	}
	return cmd
}
