package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// serve checks every checkEvery that its data folder exists and can be used, and stores
// every beatEvery that it runs.
const (
	checkEvery = 2 * time.Second
	beatEvery  = 30 * time.Second
)

// HasLog reports whether a data folder contains a log, or anything in its place.
func HasLog(folder string) bool { return eventlog.Exists(folder) }

// watchFolder stops serve when the data folder has disappeared or its disk fails: anything
// acknowledged after that would be lost. It returns when ctx ends.
func (b *Bridge) watchFolder(ctx context.Context, stop context.CancelCauseFunc) {
	check, beat := time.NewTicker(checkEvery), time.NewTicker(beatEvery)
	defer check.Stop()
	defer beat.Stop()
	refused := false
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			err = b.Log.Check(ctx)
		case <-beat.C:
			err = b.Log.RecordAlive()
		}
		if errors.Is(err, eventlog.ErrStopped) {
			b.opt.Logger.Error("the data folder cannot be used any more", "folder", b.Config().Data, "error", err)
			stop(err)
			return
		}
		clock := b.Log.Clock()
		if (clock != nil) != refused {
			refused = clock != nil
			if refused {
				b.opt.Logger.Error("nothing is logged", "error", clock)
			} else {
				b.opt.Logger.Info("the clock is right again")
			}
		}
	}
}

// logLoss logs the events that the log has lost.
func (b *Bridge) logLoss() {
	switch loss := b.Log.Loss(); {
	case loss == nil:
	case loss.Events() && !b.opt.ReadOnly && !b.opt.DryRun:
		b.opt.Logger.Error("THE LOG HAS LOST EVENTS THAT MAY HAVE BEEN PUBLISHED; it continues in a new epoch: sets and feeds start anew, and Destinations compare everything",
			"folder", b.Config().Data, "lost", loss.String())
	default:
		b.opt.Logger.Error("THE LOG HAS LOST DATA", "folder", b.Config().Data, "lost", loss.String())
	}
}

// Warnings returns sentences for the operator: about events that the log has lost, why
// nothing is logged, contents that are missing, templates whose sets cannot be found out, and alerts that do not arrive.
func (b *Bridge) Warnings(ctx context.Context) ([]string, error) {
	var out []string
	moved, err := eventlog.ReadMark(b.Config().Data, eventlog.MovedName)
	if err != nil {
		return nil, err
	}
	if moved != "" {
		out = append(out, "this data folder was copied to "+moved+", where it goes on")
	}
	if loss := b.Log.Loss(); loss != nil && (b.opt.ReadOnly || !loss.Events()) {
		text := loss.String()
		if loss.Events() && b.opt.ReadOnly {
			text += "; when bridge serve or bridge harvest opens it for writing, it continues in a new epoch"
		}
		out = append(out, text)
	}
	epochs, err := b.Log.Epochs(ctx)
	for _, e := range epochs {
		out = append(out, fmt.Sprintf("epoch %d began at %v: %s", e.N, e.Started, e.Reason))
	}
	if clock := b.clockTrouble(); clock != "" {
		out = append(out, clock)
	}
	if gone := b.ContentsGone(ctx); gone != nil {
		out = append(out, gone.Error())
	} else if l := b.missingContents.Load(); l != nil {
		out = append(out, l.Error())
	}
	for _, trouble := range []*string{b.bucketTrouble.Load(), b.filesTrouble.Load(), b.alertTrouble.Load()} {
		if trouble != nil {
			out = append(out, *trouble)
		}
	}
	former, ferr := b.formerSets(ctx)
	for _, set := range former {
		out = append(out, fmt.Sprintf("set %s: the configuration has none of its Sources any more: it is kept, and bridge serve publishes it only without a configuration, or with one that has the set; write it into the configuration again, or remove it with bridge set rm", set))
	}
	templates, terr := b.templateWarnings(ctx)
	return append(out, templates...), errors.Join(err, ferr, terr)
}

// formerSets returns the sets that have Sources of which none is configured any more, and
// that are not published: one that is configured without a Source is.
func (b *Bridge) formerSets(ctx context.Context) (names []string, err error) {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	known := b.Config().File != ""
	configured, err := b.configuredSets(ctx)
	if err != nil {
		return nil, err
	}
	sources, _, err := b.Log.SourceNamesOfSets(ctx) // at once: there may be thousands of sets
	if err != nil {
		return nil, err
	}
	for i := range sets {
		if known && (configured == nil || configured[sets[i].Name]) {
			continue
		}
		if all := sources[sets[i].Name]; len(all) > 0 && !slices.ContainsFunc(all, func(s eventlog.Source) bool { return !s.Former }) {
			names = append(names, sets[i].Name)
		}
	}
	return names, nil
}

// clockTrouble returns what is wrong with the clock, "" if nothing is. A process that only
// reads can see just when the writing process last accepted its clock.
func (b *Bridge) clockTrouble() string {
	if !b.opt.ReadOnly {
		if err := b.Log.Clock(); err != nil {
			return err.Error()
		}
		return ""
	}
	if b.opt.Beside {
		return "" // that is for the node that writes
	}
	ahead := b.now().Sub(b.Log.Seen())
	if !b.Log.Seen().IsZero() && ahead > 24*time.Hour && eventlog.Held(b.Config().Data) {
		return fmt.Sprintf("the clock may have jumped: a process holds the data folder, and has accepted no time since %s: nothing is logged; set the clock, or restart it with --accept-clock",
			b.Log.Seen().UTC().Format(time.RFC3339))
	}
	return ""
}

// ready returns the reason why /readyz must fail: the log cannot be read, or nothing can be
// logged.
func (b *Bridge) ready(ctx context.Context) error {
	if _, err := b.Log.Sets(ctx); err != nil {
		return err
	}
	if b.opt.ReadOnly {
		return nil
	}
	err := errors.Join(b.Log.Check(ctx), b.Log.Clock(), b.ContentsGone(ctx))
	if l := b.missingContents.Load(); l != nil && l.isSevere() {
		err = errors.Join(err, l)
	}
	return err
}

// ContentsGone returns an error when a mirrored set has records and the store has no
// content at all.
func (b *Bridge) ContentsGone(ctx context.Context) error {
	store := "the content store"
	if b.Contents != nil {
		stats, err := b.Contents.Stats(ctx)
		if err != nil || stats.Count > 0 {
			return err
		}
		store = b.Contents.Name()
	}
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return err
	}
	for i := range sets {
		if s := &sets[i]; s.Content == event.Mirror && s.Live > 0 {
			return fmt.Errorf("the contents of the records are gone (set %s has %d records, %s has nothing): restore the contents from a backup, or have them fetched again with bridge harvest --full", s.Name, s.Live, store)
		}
	}
	return nil
}

// dataFolders is a file beside a configuration. It lists the data folders that were created
// with that configuration, one a line. It distinguishes a new folder from one whose log is
// missing, as when its disk is not mounted: a new log there would be published, and
// Destinations would delete all that they have.
type dataFolders struct{ path, folder string }

func dataFoldersOf(c *config.Config) (dataFolders, error) {
	folder, err := filepath.Abs(c.Data)
	return dataFolders{c.File + ".used", folder}, err
}

func (u dataFolders) read() ([]string, error) {
	b, err := os.ReadFile(u.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n"), err
}

// Remember notes, beside a configuration, that its data folder is used: without its disk no
// new log is made.
func Remember(c *config.Config) error {
	list, err := dataFoldersOf(c)
	if err != nil {
		return err
	}
	return list.note()
}

// check returns an error for a folder that was used before and has no log.
func (u dataFolders) check() error {
	if HasLog(u.folder) {
		return nil
	}
	all, err := u.read()
	if err == nil && slices.Contains(all, u.folder) {
		err = fmt.Errorf("the data folder %s was used before, and holds no log now: is its disk mounted? Else restore a backup; to start empty, add --new-data (%s records that the folder was used)", u.folder, u.path)
	}
	return err
}

// add is note, and only logs a failure.
func (u dataFolders) add(log *slog.Logger) {
	if err := u.note(); err != nil {
		log.Debug("that the data folder is used now could not be remembered: if it goes, a new one will be made", "file", u.path, "error", err)
	}
}

// note adds the folder to the file.
func (u dataFolders) note() error {
	all, err := u.read()
	if err != nil || slices.Contains(all, u.folder) {
		return err
	}
	return os.WriteFile(u.path, []byte(strings.Join(append(all, u.folder), "\n")+"\n"), 0o644)
}

// noteConfiguration notes in the data folder which configuration has the settings of its Sources;
// those of a command line have none. A failure is only logged.
func (b *Bridge) noteConfiguration() {
	file, folder := b.Config().File, b.Config().Data
	noted, err := eventlog.ReadMark(folder, eventlog.ConfigurationName)
	switch {
	case err != nil || noted == file:
	case file == "":
		err = eventlog.RemoveMark(folder, eventlog.ConfigurationName)
	default:
		err = eventlog.WriteMark(folder, eventlog.ConfigurationName, file)
	}
	if err != nil {
		b.opt.Logger.Debug("which configuration the data folder is used with could not be noted: bridge audit --repair without it takes the default settings", "folder", folder, "error", err)
	}
}
