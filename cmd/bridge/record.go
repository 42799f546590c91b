package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func recordCommand() *cobra.Command { return group("record", recordShowCommand()) }

func recordShowCommand() *cobra.Command {
	cmd := command("record show")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	cmd.Args = takes(2, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			set, err := b.Log.Set(ctx, args[0])
			if err != nil {
				return err
			}
			ev, err := api.FindRecord(ctx, b, set.Name, args[1])
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("set %s has no record %s: see bridge log --set %[1]s", set.Name, args[1])
			}
			if err != nil {
				return err
			}
			if *asJSON {
				r, err := api.RecordOf(ctx, b, publishedAt(b), ev, 0, 0)
				return errors.Join(err, printJSON(w, r))
			}
			printRecord(w, b, &set, ev)
			if err := printPresences(ctx, w, b, set.Name, ev.Record); err != nil {
				return err
			}
			fmt.Fprintln(w, "events:")
			var failed error
			err = b.Log.EventsOf(ctx, set.Name, event.Key(ev.Record), 0, func(e *event.Event) bool {
				failed = printEvent(w, e, false)
				return failed == nil
			})
			return errors.Join(err, failed)
		})
	}
	return cmd
}

// publishedAt returns the start of the URLs of documents, as configured.
func publishedAt(b *daemon.Bridge) string {
	return cmp.Or(b.Config().BaseURL, "http://"+b.Config().Listen)
}

// printRecord prints the state of a record by its last event, and where it is published.
func printRecord(w io.Writer, b *daemon.Bridge, set *event.Set, ev *event.Event) {
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%-16s %s\n", name, oneLine(text))
		}
	}
	line("record", ev.Record)
	line("title", ev.Title)
	line("state", fmt.Sprintf("%s %s (Seq %d)", ev.Kind, stamp(ev.Observed.Time()), ev.Seq))
	line("original", ev.Via.Href)
	for _, r := range ev.Representations {
		line("representation", strings.TrimSpace(r.Href+" "+r.Type))
	}
	base := publishedAt(b) + "/sets/" + set.Name + "/"
	if ev.Kind != event.Deleted {
		if set.Content != event.Reference {
			line("published", base+"records/"+event.Key(ev.Record))
		}
		line("listed in", base+"resourcelist.xml")
	}
	line("changes in", base+"changelist.xml")
	line("from", daemon.Redact(ev.Origin.Document))
}

// printPresences prints which Sources of a set have a record.
func printPresences(ctx context.Context, w io.Writer, b *daemon.Bridge, set, record string) error {
	sources, err := b.Log.Sources(ctx, set)
	if err != nil {
		return err
	}
	for i := range sources {
		s := &sources[i]
		has, err := b.Log.Presence(ctx, s.ID, record)
		if err != nil {
			return err
		}
		word := ""
		switch has {
		case event.Present:
			word = "has it"
		case event.Withdrawn:
			word = "had it, and has taken it back"
		default:
			continue
		}
		fmt.Fprintf(w, "%-16s %s %s\n", "Source", strings.TrimSpace(s.Name+" "+daemon.Redact(s.URL)), word)
	}
	return nil
}
