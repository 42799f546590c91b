package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

func gcCommand() *cobra.Command {
	cmd := command("gc")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	var t daemon.Tidy
	cmd.Flags().DurationVar(&t.Keep, "keep", -1, "keep what nothing needs any more for this `time`, like 48h (default: contents_keep of the configuration)")
	cmd.Flags().Lookup("keep").DefValue = "0s" // is not printed
	cmd.Flags().BoolVar(&t.Adopt, "adopt", false, "take back contents that the data folder has lost from objects that it does not know")
	cmd.Flags().BoolVar(&t.Unknown, "unknown", false, "do that too, and remove the others of these objects")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("keep") && t.Keep < 0 {
			return usage(fmt.Errorf("--keep %v is less than nothing", t.Keep))
		}
		return in.decide(cmd, []daemon.Decision{{Tidy: &t}}, func(w io.Writer, _ int, done daemon.DecisionResult) {
			if *asJSON {
				_ = printJSON(w, done.Tidied) // as what a decision prints
				return
			}
			printTidied(w, done.Tidied)
		})
	}
	return cmd
}

func printTidied(w io.Writer, t *daemon.Tidied) {
	if t.Adopted > 0 {
		fmt.Fprintf(w, "found %s (%d bytes) in %s that the data folder did not know\n",
			plural(int(t.Contents), "lost content", "lost contents"), t.ContentsBytes, plural(int(t.Adopted), "object", "objects"))
	}
	fmt.Fprintf(w, "removed %s (%d bytes), which nothing needed\n", plural(int(t.Removed), "object", "objects"), t.RemovedBytes)
	if t.Waiting > 0 {
		fmt.Fprintf(w, "%s more will be removed when their time has come (--keep)\n", plural(int(t.Waiting), "object", "objects"))
	}
	if t.Rewritten > 0 {
		fmt.Fprintf(w, "%s had lost more than half of their contents: the rest is in new ones\n", plural(int(t.Rewritten), "pack", "packs"))
	}
	if t.Unknown > 0 {
		fmt.Fprintf(w, "%s (%d bytes) are in the bucket that this data folder does not know: it was put back from a backup, or a copy of it uses the same bucket. bridge gc --adopt finds lost contents in them; --unknown also removes the others, if no other folder needs them\n",
			plural(int(t.Unknown), "object", "objects"), t.UnknownBytes)
	}
}
