package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/backup"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func backupCommand() *cobra.Command {
	cmd := command("backup")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := in.resolve(nil)
		if err != nil {
			return err
		}
		if !daemon.HasLog(c.Data) {
			return usage(fmt.Errorf("%s holds no log: give the data folder of a bridge with --data", c.Data))
		}
		if args[0] == "-" {
			m, err := backup.Write(cmd.Context(), c.Data, unescaped(cmd.OutOrStdout()), release())
			if err != nil {
				return unlessOnServer(err)
			}
			sayBucket(cmd.ErrOrStderr(), m.Bucket)
			return nil
		}
		m, size, err := backup.WriteFile(cmd.Context(), c.Data, args[0], release())
		if err != nil {
			return unlessOnServer(err)
		}
		sayBucket(cmd.ErrOrStderr(), m.Bucket)
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), jsonBackup{m, size})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d bytes, %s\n", args[0], size, ofWhen(&m))
		return errors.Join(err, printSets(cmd.OutOrStdout(), m.Sets))
	}
	return cmd
}

// sayBucket says that a backup does not have all contents.
func sayBucket(w io.Writer, bucket string) {
	if bucket != "" {
		fmt.Fprintf(w, "bridge: contents are in %s too, and not in the backup: keep that bucket\n", bucket)
	}
}

// unlessOnServer marks the error of a log on a server as wrong usage.
func unlessOnServer(err error) error {
	if errors.Is(err, backup.ErrOnServer) {
		return usage(err)
	}
	return err
}

// jsonBackup is what bridge backup --json prints.
type jsonBackup struct {
	backup.Manifest
	Bytes int64 `json:"bytes"`
}

func restoreCommand() *cobra.Command {
	cmd := command("restore")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	var o backup.Options
	cmd.Flags().BoolVar(&o.Moved, "moved", false, "nothing was served since the backup was made, and nothing will be from the old folder")
	cmd.Flags().BoolVar(&o.AcceptClock, "accept-clock", false, "the clock is right, although it is long after the backup")
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := in.resolve(nil)
		if err != nil {
			return err
		}
		if c.Store.Log != "" {
			return usage(fmt.Errorf("%s says in [store] that the log is on a PostgreSQL server, and log.db in %s would be a second one: restore it on the server, see docs/scale.md#backup; or give a new folder with --data, and no --config", c.File, c.Data))
		}
		from := cmd.InOrStdin()
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return usage(err)
			}
			defer f.Close()
			from = bufio.NewReaderSize(f, 1<<20)
		}
		m, err := backup.Restore(cmd.Context(), from, c.Data, o)
		switch {
		case errors.Is(err, backup.ErrInUse), errors.Is(err, backup.ErrNotMoved), errors.Is(err, backup.ErrLost), errors.Is(err, backup.ErrOnServer):
			return usage(err)
		case err != nil:
			return err
		case *asJSON:
			return printJSON(cmd.OutOrStdout(), jsonRestored{m, !o.Moved})
		}
		return printRestored(cmd.OutOrStdout(), c.Data, &m, o.Moved)
	}
	return cmd
}

// jsonRestored is what bridge restore --json prints.
type jsonRestored struct {
	backup.Manifest
	NewEpoch bool `json:"new_epoch"`
}

func printRestored(w io.Writer, folder string, m *backup.Manifest, moved bool) error {
	_, err := fmt.Fprintf(w, "restored into %s, %s\n", folder, ofWhen(m))
	if err := errors.Join(err, printSets(w, m.Sets)); err != nil {
		return err
	}
	if moved {
		_, err = fmt.Fprintln(w, "The log goes on where it ended. Never start bridge on the old folder again.")
	} else {
		_, err = fmt.Fprintln(w, `A new epoch begins, because Destinations may have seen what is not in the backup:
sets and feeds start anew, with new feed ids, and Destinations compare everything.
Another bridge that harvests a feed of this one needs: bridge source reset.
Submissions that were acknowledged after the backup are lost: ask for them again.`)
	}
	if err == nil && m.Bucket != "" {
		_, err = fmt.Fprintf(w, "Contents are in %s too. Those that were moved there after the backup: bridge gc --adopt.\n", m.Bucket)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, "Next: bridge verify, then bridge serve.")
	return err
}

// ofWhen returns the time of a backup in words.
func ofWhen(m *backup.Manifest) string {
	text := "as of " + m.Made.Format(time.RFC3339)
	if m.LastObserved != nil {
		text += fmt.Sprintf(", last event %d of %s", m.Last, m.LastObserved.UTC().Format(time.RFC3339))
	}
	return text
}

func printSets(w io.Writer, sets []backup.Set) error {
	for _, s := range sets {
		if _, err := fmt.Fprintf(w, "  %s: %s, %s\n", s.Name, plural(int(s.Records), "record", "records"), plural(int(s.Events), "event", "events")); err != nil {
			return err
		}
	}
	return nil
}
