package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// SetAction is a call of one of the methods below, as commands send it to the serving
// process.
type SetAction struct {
	Do  string `json:"do"` // rename, free, rm
	Set string `json:"set"`
	To  string `json:"to,omitempty"` // the new name
	// Yes means that the operator has confirmed the consequences.
	Yes bool `json:"yes,omitempty"`
	// FromConfig makes rm remove the set from the configuration too.
	FromConfig bool `json:"from_config,omitempty"`
}

func (b *Bridge) actOnSet(ctx context.Context, a *SetAction) (string, error) {
	switch a.Do {
	case "rename":
		return b.RenameSet(ctx, a.Set, a.To, a.Yes)
	case "free":
		return b.FreeName(ctx, a.Set, a.Yes)
	case "rm":
		return b.RemoveSet(ctx, a.Set, a.FromConfig)
	}
	return "", fmt.Errorf("this version of bridge does not know %q: restart bridge serve with the version of the command", a.Do)
}

// readFormerNames reads the names that sets had before.
func (b *Bridge) readFormerNames(ctx context.Context) error {
	all, err := b.Log.FormerNames(ctx)
	if err == nil {
		b.formerNames.Store(&all)
	}
	return err
}

// movedTo returns the present name of a published set by a former one, "" when name is no
// former name.
func (b *Bridge) movedTo(name string) string {
	for _, f := range *b.formerNames.Load() {
		if f.Name == name && b.publishes(f.Now) {
			return f.Now
		}
	}
	return ""
}

// renamedLately is for how long what is not found in a set that was renamed may be there: the
// request may have come before.
const renamedLately = 5 * time.Second

// isRenamed reports whether a set has got, or lost, a name that not all of this process knows of:
// the log has it first, then the redirects, then the configuration.
func (b *Bridge) isRenamed(ctx context.Context, name string) bool {
	all, err := b.Log.FormerNames(ctx)
	return err == nil && slices.ContainsFunc(all, func(f eventlog.FormerName) bool {
		age := time.Since(f.Since.Time())
		return f.Name == name && (b.publishes(f.Now) || b.publishes(name)) ||
			f.Now == name && (!b.publishes(name) && b.publishes(f.Name) || age >= 0 && age < renamedLately)
	})
}

// underNewNames returns a configuration in which sets have the names that the log has for
// them: a former name in the file means the set that was renamed. The file may be an older
// copy, or bridge was killed before it changed the file.
func (b *Bridge) underNewNames(file *config.Config) *config.Config {
	for _, f := range *b.formerNames.Load() {
		if file.Set(f.Name) != nil && file.Set(f.Now) == nil {
			b.opt.Logger.Warn("the configuration has a set under its former name: write the new one", "file", file.File, "set", f.Name, "now", f.Now)
			file = file.Renamed(f.Name, f.Now)
		}
	}
	return file
}

// RenameSet gives a set another name, in the log and in the configuration. All of the set
// stays: events, records, Sources with their cursors, submissions. The URLs under the
// former name redirect to the new ones from now on, for good. Where those of the new name
// redirect to another set, yes must be true, or the error is an UndecidedError.
//
// The log is changed before the file: if bridge is killed in between, or the file cannot be
// written, bridge takes the former name in the file for the new one.
func (b *Bridge) RenameSet(ctx context.Context, name, newName string, yes bool) (string, error) {
	e, err := b.renamed(ctx, name, newName)
	if err != nil {
		return "", err
	}
	if e != nil {
		defer e.Close()
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	last := b.generation.Load()
	file := last.file
	set, serving := file.Set(name), b.stop.Load() != nil
	if b.movedTo(name) == newName && file.Set(newName) != nil { // bridge was killed after the log was changed
		if err := b.saveName(e, file, name); err != nil {
			return "", err
		}
		return fmt.Sprintf("set %s is called %s, also in %s", name, newName, file.File), nil
	}
	switch {
	case !config.IsSetName(newName):
		return "", fmt.Errorf("%q is not a name of a set: write 1 to 63 of a-z, 0-9 and -, not beginning with -", newName)
	case name == newName:
		return "", fmt.Errorf("set %q has that name", name)
	case file.Set(newName) != nil:
		return "", fmt.Errorf("%s has another set %q: choose another name", file.File, newName)
	case set != nil && set.IsTemplate():
		return "", fmt.Errorf("set %q is a template, of which sets of other names were made: it cannot be renamed; write another template, and end the Sources of these", name)
	case serving && set != nil && len(file.Fixed(file.Renamed(name, newName))) > 0:
		return "", fmt.Errorf("set %q uses SIP, and can only be renamed while bridge does not run: stop bridge serve, rename it, and start it again", name)
	}
	var ended []*Source
	for _, src := range last.sources {
		if src.Set == name || src.Kind == harvest.Set && harvest.MemberOf(src.URL) == name { // it continues under the new name from where it ends now
			b.loops.end(src)
			src.turn.close()
			ended = append(ended, src)
		}
	}
	err = b.Log.RenameSet(ctx, name, newName, yes)
	var former *eventlog.FormerNameError
	if errors.As(err, &former) {
		err = &UndecidedError{fmt.Sprintf("set %q has been called %q since %v, and the addresses of %[1]q lead there: add --yes to end that, so that they are those of set %q", former.Name, former.Now, former.Since, name)}
	}
	if err != nil {
		b.restart(last, ended)
		return "", err
	}
	said := fmt.Sprintf("set %s is called %s; the addresses under its former name lead to the new ones", name, newName)
	saved := b.saveName(e, file, name)
	if err := b.readFormerNames(ctx); err != nil { // the log has them: its Sources go on under the new name
		saved = errors.Join(fmt.Errorf("bridge must be restarted before these addresses lead there: %w", err), saved)
	}
	if b.sip.formerHandlers.Load() != nil { // else nobody is served
		if _, _, err := b.openFormerHandlers(ctx); err != nil {
			saved = errors.Join(fmt.Errorf("bridge must be restarted before the set takes the decisions that ingest servers owe it: %w", err), saved)
		}
	}
	if saved != nil {
		saved = fmt.Errorf("%s; but %w", said, saved)
	}
	b.opt.Logger.Info("a set was renamed", "set", name, "now", newName)
	if set != nil && serving {
		if _, err := b.change(ctx, last, file.Renamed(name, newName)); err != nil {
			return said, errors.Join(fmt.Errorf("set %s is called %s by now, and bridge serve cannot go on with it before it is restarted: %w", name, newName, err), saved)
		}
	}
	b.forget(ctx, name, newName)
	return said, saved
}

// editConfig opens the files of the configuration to be changed; nil when there are none.
// The caller must not hold changing: a command that changes the files locks them while it
// waits for a Reload.
func (b *Bridge) editConfig(ctx context.Context) (*config.Edit, error) {
	file := b.generation.Load().file
	if file.File == "" {
		return nil, nil
	}
	return file.Edit(ctx)
}

// renamed returns the configuration with another name for a set, to be written by saveName;
// nil when its files do not have the set. It is an error if the files have another set of
// the new name, which the log may not have yet: two sets in the file would be one in the
// log.
func (b *Bridge) renamed(ctx context.Context, name, newName string) (*config.Edit, error) {
	if !config.IsSetName(newName) {
		return nil, nil // reported later
	}
	e, err := b.editConfig(ctx)
	if e == nil || err != nil {
		return nil, err
	}
	if e.Config().Set(name) == nil {
		e.Close()
		return nil, nil
	}
	if e.Config().Set(newName) != nil {
		e.Close()
		return nil, fmt.Errorf("%s has another set %q: choose another name", e.Config().File, newName)
	}
	if err = e.RenameSet(name, newName); err == nil {
		_, err = e.Check()
	}
	if err != nil && !errors.As(err, new(*config.ByHandError)) {
		e.Close()
		return nil, err
	}
	return e, nil
}

// saveName writes what renamed has returned. If that fails, the error names what a person
// has to write: until then the former name in the file means the set.
func (b *Bridge) saveName(e *config.Edit, file *config.Config, name string) error {
	if e == nil {
		return nil
	}
	_, err := e.Save()
	if byHand, ok := errors.AsType[*config.ByHandError](err); ok {
		return fmt.Errorf("%s still has the name %s; bridge treats it as the new name: %w; %s", file.File, name, err, byHand.Do)
	}
	return err
}

// forget drops what is cached of the documents of sets: in memory, and the snapshots of
// removed or renamed sets, since their documents have other URLs.
func (b *Bridge) forget(ctx context.Context, names ...string) {
	for _, name := range names {
		if forget := b.forgetSet.Load(); forget != nil {
			(*forget)(name)
		}
	}
	b.removeSnapshots(ctx)
}

// removeSnapshots removes the snapshots and dumps of sets that the log does not have, or has
// under another name by now.
func (b *Bridge) removeSnapshots(ctx context.Context) {
	const gone = ".gone-" // no set is called so
	dir := b.snapshotDir()
	folders, err := os.ReadDir(dir) // before the log: a set is there before its folder
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	sets, setsErr := b.Log.Sets(ctx)
	if err = errors.Join(err, setsErr); err == nil {
		for _, f := range folders {
			name := f.Name()
			if slices.ContainsFunc(sets, func(s event.Set) bool { return s.Name == name }) {
				continue
			}
			if !strings.HasPrefix(name, gone) { // it takes time, and a new set may get the name
				err = errors.Join(err, os.Rename(filepath.Join(dir, name), filepath.Join(dir, gone+name)))
				name = gone + name
			}
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		}
	}
	if err != nil {
		b.opt.Logger.Warn("snapshots of sets that were removed or renamed could not be removed; it is tried again at the next start", "folder", dir, "error", err)
	}
}

// FreeName ends the redirects from a former name to the set that had it: its URLs answer
// 404 until another set takes the name. yes must be true, or the error is an
// UndecidedError.
func (b *Bridge) FreeName(ctx context.Context, name string, yes bool) (string, error) {
	b.changing.Lock()
	defer b.changing.Unlock()
	for _, f := range *b.formerNames.Load() {
		if f.Name != name {
			continue
		}
		if !yes {
			return "", &UndecidedError{fmt.Sprintf("the addresses of %q lead to set %q, which was called so until %v: add --yes to end that", f.Name, f.Now, f.Since)}
		}
		if err := b.Log.FreeName(ctx, name); err != nil {
			return "", err
		}
		b.opt.Logger.Info("the addresses of a former name lead nowhere any more", "name", name, "set", f.Now)
		return fmt.Sprintf("the addresses of %s do not lead to set %s any more", name, f.Now), b.readFormerNames(ctx)
	}
	return "", fmt.Errorf("%q is no former name of a set: see bridge set ls", name)
}

// SetInfo is a set as bridge set ls and bridge set show print it.
type SetInfo struct {
	Name        string      `json:"set"`
	Title       string      `json:"title"`
	Description string      `json:"description,omitempty"`
	Content     string      `json:"content"`
	Published   bool        `json:"published"` // the configuration has it
	Template    string      `json:"template,omitempty"`
	Created     status.Time `json:"created"`
	Newest      status.Time `json:"newest,omitzero"`
	Records     int64       `json:"records"`
	Events      int64       `json:"events"`
	LastSeq     event.Seq   `json:"last_seq"`
	Sources     int         `json:"sources"`
	Feed        string      `json:"feed"`
	URL         string      `json:"url,omitempty"` // of its page, "" without a configured base_url
	// FormerNames redirect to it.
	FormerNames []string `json:"former_names,omitempty"`
}

// SetInfos returns all sets of the data folder, in the order of their names.
func (b *Bridge) SetInfos(ctx context.Context) ([]SetInfo, error) {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	names, err := b.configuredSets(ctx)
	if err != nil {
		return nil, err
	}
	templates := map[string]string{}
	for _, s := range b.generation.Load().file.Sets {
		derived, err := b.Log.DerivedSets(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		for _, d := range derived {
			templates[d.Name] = s.Name
		}
	}
	sources, _, err := b.Log.SourceNamesOfSets(ctx) // at once: there may be thousands of sets
	if err != nil {
		return nil, err
	}
	var former []string
	if b.Config().File == "" { // the log knows whether the configuration that it is used with has the set
		if former, err = b.formerSets(ctx); err != nil {
			return nil, err
		}
	}
	out := make([]SetInfo, 0, len(sets))
	for _, s := range sets {
		info := SetInfo{Name: s.Name, Title: s.Title, Description: s.Description, Content: s.Content.String(), Published: (names == nil || names[s.Name]) && !slices.Contains(former, s.Name), Template: templates[s.Name],
			Created: status.Time{Time: s.Created.Time()}, Newest: status.Time{Time: server.Newest(ctx, b.Log, &s)}, Records: s.Live, Events: s.Events, LastSeq: s.Last, Sources: len(sources[s.Name]), Feed: s.Feed}
		if base := b.Config().BaseURL; base != "" && info.Published {
			info.URL = base + "/sets/" + s.Name + "/"
		}
		for _, f := range *b.formerNames.Load() {
			if f.Now == s.Name {
				info.FormerNames = append(info.FormerNames, f.Name)
			}
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(x, y SetInfo) int { return strings.Compare(x.Name, y.Name) })
	return out, nil
}

// RemoveSet removes a set for good: its events, records and Sources, the submissions and
// notifications that it has received and sent, and the contents that no other set names. It
// refuses a configured set; with fromConfig it takes the set out of the configuration
// first. It refuses a set with submissions that are not concluded. If bridge is killed at
// any point, the removal continues when the data folder is next opened for writing.
//
// While Serve runs, contents stay until the next start: a harvest under way may be about to
// name them.
func (b *Bridge) RemoveSet(ctx context.Context, name string, fromConfig bool) (string, error) {
	configured, err := b.configuredSets(ctx)
	if err != nil {
		return "", err
	}
	var e *config.Edit
	if configured[name] {
		if e, err = b.editConfig(ctx); err != nil {
			return "", err
		}
	}
	if e != nil {
		defer e.Close()
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	set, err := b.Log.Set(ctx, name)
	if err != nil {
		return "", err
	}
	if err := b.concluded(ctx, name, ""); err != nil {
		return "", err
	}
	if err := b.takeOut(ctx, e, name, fromConfig); err != nil {
		return "", err
	}
	if err := b.Log.RemoveSet(ctx, name); err != nil {
		return "", err
	}
	b.opt.Logger.Info("a set was removed", "set", name, "records", set.Live, "events", set.Events)
	b.forget(ctx, name)
	said := fmt.Sprintf("set %s is removed: %s, %s", name, count(set.Live, "record"), count(set.Events, "event"))
	if err := b.readFormerNames(ctx); err != nil {
		return said, err
	}
	if b.stop.Load() == nil {
		return said, b.finishRemovals(ctx)
	}
	if set.Content == event.Mirror {
		said += "; the contents that no other set has go when bridge serve is started again"
	}
	return said, b.Log.FinishRemovals(ctx)
}

// takeOut takes a set out of the configuration, or returns an error. e is nil when there is
// no configuration file.
func (b *Bridge) takeOut(ctx context.Context, e *config.Edit, name string, fromConfig bool) error {
	last := b.generation.Load()
	configured, err := b.configuredSets(ctx)
	typed := last.file.File == "" && last.file.Set(name) != nil
	if err != nil || !configured[name] && !typed {
		return err
	}
	if typed {
		return fmt.Errorf("set %q is on the command line of bridge serve: start that without it first", name)
	}
	if e == nil {
		return fmt.Errorf("set %q is configured: take it out there first", name)
	}
	if err := e.RemoveSet(name); err != nil {
		return fmt.Errorf("set %q is configured, and cannot be taken out of the configuration: %w", name, err)
	}
	if !fromConfig {
		place := last.file.File
		if all := e.Places(); len(all) > 0 {
			place = all[0]
		}
		return fmt.Errorf("set %q is configured, at %s: take it out there first, or do that with --from-config", name, place)
	}
	file := *last.file
	file.Sets = slices.DeleteFunc(slices.Clone(file.Sets), func(s config.Set) bool { return s.Name == name })
	if keys := last.file.Fixed(&file); b.stop.Load() != nil && len(keys) > 0 {
		return fmt.Errorf("set %q uses SIP, and can only be removed while bridge does not run: stop bridge serve, remove it, and start it again", name)
	}
	if len(file.Sets) == 0 {
		return fmt.Errorf("set %q is the only one of %s, and without any all that the data folder has is published: write another set first", name, file.File)
	}
	if _, err := e.Save(); err != nil {
		if byHand, ok := errors.AsType[*config.ByHandError](err); ok {
			err = fmt.Errorf("set %q is not removed: %w; take it out by hand, have bridge reload it, and then remove the set: %s", name, err, byHand.Do)
		}
		return err
	}
	if b.stop.Load() == nil {
		return nil
	}
	_, err = b.change(ctx, last, &file)
	return err
}

// concluded returns an error when a set has submissions that are not concluded; with the
// URL of a Source, submissions to that one. What waits to be sent to a target does not
// count: nobody has been asked, and nothing could conclude it once the target is gone. Nor do
// those count that are damaged in the log: nobody can conclude them.
func (b *Bridge) concluded(ctx context.Context, name, source string) error {
	sources, targets, err := b.Log.SourcesOfSets(ctx)
	if err != nil {
		return err
	}
	for _, src := range slices.Concat(sources[name], targets[name]) {
		if source != "" && src.URL != source || src.Kind != config.KindSIP && src.Kind != eventlog.Target {
			continue
		}
		counts, err := b.SIP.Counts(ctx, src.ID)
		if err != nil {
			return err
		}
		var open int64
		var states []submission.State
		for _, state := range submission.States() {
			if state.Open() && (state != submission.StateWaiting || !isSent(&src)) {
				open += counts.Submissions[state]
				states = append(states, state)
			}
		}
		waiting := counts.Outgoing[submission.DeliveryWaiting]
		if open+waiting == 0 {
			continue
		}
		switch conclude, err := b.SIP.CanConclude(ctx, src.ID, states); {
		case err != nil:
			return err
		case !conclude:
			b.opt.Logger.Warn("submissions and notifications are damaged in the log: nobody can conclude them, and they are given up", "set", name, "submissions", open, "notifications", waiting)
		default:
			return fmt.Errorf("set %q still has %s to conclude, and %s to deliver: conclude them first, see bridge submission ls --set %[1]s and bridge notification ls --sent --set %[1]s", name, count(open, "submission"), count(waiting, "notification"))
		}
	}
	return nil
}

// finishRemovals removes the rest of sets that were removed, while nothing else uses the
// data folder.
func (b *Bridge) finishRemovals(ctx context.Context) error {
	if err := b.Log.FinishRemovals(ctx); err != nil {
		return err
	}
	for removed := 0; ; {
		unused, done, err := b.Log.UnusedContents(ctx)
		if err != nil || done == nil {
			if removed > 0 {
				b.opt.Logger.Info("contents of removed sets were removed", "contents", removed)
			}
			return err
		}
		for some := range slices.Chunk(unused, 500) {
			if b.Contents == nil {
				break
			}
			sums := make([]content.Sum, len(some))
			for i := range some {
				sums[i] = some[i]
			}
			if err := b.Contents.Remove(ctx, sums...); err != nil {
				return err
			}
		}
		if removed += len(unused); os.RemoveAll(b.cacheDir()) != nil {
			b.opt.Logger.Warn("the cache, with documents of removed sets, could not be removed", "folder", b.cacheDir())
		}
		if err := done(); err != nil {
			return err
		}
	}
}

// SetContents returns the number of the contents that the events of a set name, and their
// bytes. Other sets may name some of them too.
func (b *Bridge) SetContents(ctx context.Context, name string) (contents, bytes int64, err error) {
	known := map[[32]byte]bool{}
	for ev, err := range b.Log.Events(ctx, name, event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			return 0, 0, err
		}
		for _, r := range ev.Representations {
			if sum, err := content.ParseSum(r.SHA256()); err == nil && !known[sum] {
				known[sum] = true
				bytes += max(r.Length, 0)
			}
		}
	}
	return int64(len(known)), bytes, nil
}
