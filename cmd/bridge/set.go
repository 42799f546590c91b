package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func setCommand() *cobra.Command {
	return group("set", setListCommand(), setShowCommand(), setAction("set rename", 2), setAction("set free", 1), setRemoveCommand())
}

func setListCommand() *cobra.Command {
	cmd := command("set ls")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			all, err := b.SetInfos(ctx)
			if err != nil {
				return err
			}
			if *asJSON {
				for i := range all {
					err = errors.Join(err, printJSON(w, &all[i]))
				}
				return err
			}
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "SET\tSTATE\tCONTENT\tRECORDS\tEVENTS\tSOURCES\tLAST EVENT\tFORMER NAMES")
			for i := range all {
				s := &all[i]
				former := cmp.Or(strings.Join(s.FormerNames, ", "), "-")
				fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", s.Name, setState(s), s.Content, s.Records, s.Events, s.Sources, minute(s.Newest.Time), former)
			}
			return table.Flush()
		})
	}
	return cmd
}

// setState returns whether a set is published, in words.
func setState(s *daemon.SetInfo) string {
	if s.Published {
		return "published"
	}
	return "not configured"
}

func setShowCommand() *cobra.Command {
	cmd := command("set show")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			return eachSet(ctx, b, args[0], func(string) error {
				all, err := b.SetInfos(ctx)
				for i := range all {
					if s := &all[i]; s.Name == args[0] && *asJSON {
						return errors.Join(err, printJSON(w, s))
					} else if s.Name == args[0] {
						printSetInfo(w, s)
						return err
					}
				}
				return err
			})
		})
	}
	return cmd
}

func printSetInfo(w io.Writer, s *daemon.SetInfo) {
	fmt.Fprintf(w, "%s: %s\n", s.Name, setState(s))
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "  %-13s %s\n", name, text)
		}
	}
	line("title", oneLine(s.Title))
	line("description", oneLine(s.Description))
	line("content", s.Content)
	line("made of", s.Template)
	line("created", stamp(s.Created.Time))
	records := fmt.Sprintf("%d, %s", s.Records, plural(int(s.Events), "event", "events"))
	if s.Events > 0 {
		records += fmt.Sprintf(", the last one is %d, %s", s.LastSeq, stamp(s.Newest.Time))
	}
	line("records", records)
	line("Sources", fmt.Sprintf("%d, see bridge source ls %s", s.Sources, s.Name))
	line("feed", s.Feed)
	line("address", s.URL)
	line("former names", strings.Join(s.FormerNames, ", "))
	if !s.Published {
		fmt.Fprintf(w, "  It is kept, and serve publishes it only without a configuration, or with one that has it: write it into the configuration again, or remove it with: bridge set rm %s\n", s.Name)
	}
}

// setAction is a command that acts on a set, through the serving process or with the lock
// of the data folder.
func setAction(name string, arguments int) *cobra.Command {
	cmd := command(name)
	in := newInputs(cmd)
	a := daemon.SetAction{Do: cmd.Name()}
	cmd.Flags().BoolVar(&a.Yes, "yes", false, "do it, whatever it ends")
	cmd.Args = takes(arguments, arguments)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if a.Set = args[0]; arguments > 1 {
			a.To = args[1]
		}
		return in.decide(cmd, []daemon.Decision{{SetAction: &a}}, func(w io.Writer, _ int, done daemon.DecisionResult) {
			fmt.Fprintln(w, done.Result)
		})
	}
	return cmd
}

func setRemoveCommand() *cobra.Command {
	cmd := command("set rm")
	in := newInputs(cmd)
	a := daemon.SetAction{Do: cmd.Name()}
	cmd.Flags().BoolVar(&a.Yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&a.FromConfig, "from-config", false, "take the set out of the configuration too")
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.Set = args[0]
		sure, configured := a.Yes, false
		if err := in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			set, err := b.Log.Set(ctx, a.Set)
			if err != nil {
				return err
			}
			if c := b.FileConfig(); c.File != "" && len(c.Sets) > 0 && !a.FromConfig {
				all, err := b.SetInfos(ctx)
				if err != nil {
					return err
				}
				configured = slices.ContainsFunc(all, func(s daemon.SetInfo) bool { return s.Name == a.Set && s.Published })
			}
			contents := ""
			if set.Content == event.Mirror {
				n, bytes, err := b.SetContents(ctx, a.Set)
				switch {
				case ctx.Err() != nil:
					return err
				case err != nil: // a damaged event is no reason to keep the set
					contents = fmt.Sprintf(", and of its contents those that no other set has; they cannot be counted: %v", err)
				default:
					contents = fmt.Sprintf(", and of %s (%d bytes) those that no other set has", plural(int(n), "content", "contents"), bytes)
				}
			}
			fmt.Fprintf(w, "set %s has %s and %s, which go for good%s\n", a.Set, plural(int(set.Live), "record", "records"), plural(int(set.Events), "event", "events"), contents)
			if sure || configured || !isTerminal(w) {
				return nil
			}
			fmt.Fprintf(w, "remove it? write its name: ")
			line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
			sure = strings.TrimSpace(line) == a.Set
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}); err != nil {
			return err
		}
		if configured && !sure {
			return usage(fmt.Errorf("set %s is not removed, since it is configured: add --from-config --yes to remove it, and to take it out of the configuration", a.Set))
		}
		if !sure {
			return usage(fmt.Errorf("set %s is not removed: add --yes to remove it", a.Set))
		}
		return in.decide(cmd, []daemon.Decision{{SetAction: &a}}, func(w io.Writer, _ int, done daemon.DecisionResult) {
			fmt.Fprintln(w, done.Result)
		})
	}
	return cmd
}
