// Package export writes all that bridge serve publishes as files, for any web server or
// bucket: [Run] is one export into a folder, the tree.
//
// The tree has a file for each URL, at the URL's path: documents, with a compressed copy
// beside each (documents.go), records (records.go) and pages. The folder .bridge in it is
// bridge's own: the state of the last export (state.go), hashes, and the configuration of
// web servers (webserver.go).
//
// All documents show one moment of the log, even while bridge serve appends to it. An
// export writes only what has changed since the last one. Its order makes a crash
// harmless, whenever it comes:
//
//  1. What is new is written to .bridge/new and then moved: no file of the tree is ever
//     half written. New records, which nothing names yet, are moved at once.
//  2. When everything is written and durable, what replaces other files is moved:
//     changed records, then documents that never change again, then open lists and feeds.
//  3. When that is durable, what leads to them: indexes, then Capability Lists, then the
//     Source Description.
//  4. Only then files are removed: those of deleted records and, if wanted, documents that
//     nothing names any more.
//  5. Last the state of the export is replaced. An export that did not end has not
//     changed it, so the next one does all of this again.
package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/pattern"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// Options are what an export needs. All but Sets, Published, Prune, Now and Logger must be given.
type Options struct {
	Log      *eventlog.Log
	Contents *content.Store // nil while the data folder has none
	// Publisher returns the publisher of a log whose cache and snapshots are in a folder.
	Publisher func(l publish.Log, folder string) (*publish.Publisher, error)
	// BaseURL is what the URLs of all documents begin with, absolute.
	BaseURL string
	// Folder is where the tree is, Data the data folder, which must be elsewhere.
	Folder, Data string
	// Sets are the sets to export; none is all.
	Sets []string
	// Published reports whether a set is published at all; nil is all of them. What the
	// tree has of others is named no more.
	Published func(set string) bool
	// About returns a set's licence and contact, for its page; nil: there are none.
	About func(set string) (licence, contact string)
	// Prune removes documents that nothing names any more.
	Prune bool
	// Now is the clock; nil is the system's.
	Now    func() time.Time
	Logger *slog.Logger

	step func(op, path string, do func() error) error // of the tree, for tests
}

// Report is the result of an export.
type Report struct {
	Folder string
	Sets   []SetReport
	Written
	// Stale counts the files that nothing names any more, and that are still there.
	Stale int
	// Documents and Unchanged count the documents and pages of the exported sets, and
	// those of them that were left as they are.
	Documents, Unchanged int
	// Problems are sentences about what is not in the tree as it should be.
	Problems []string
	Took     time.Duration
}

// SetReport is a set in the tree.
type SetReport struct {
	Name    string    `json:"set"`
	Content string    `json:"content"`
	Seq     event.Seq `json:"seq"`
	Records int64     `json:"records"`
	// Files counts the files of records; 0 in a set that serves none.
	Files int64 `json:"files"`
}

// plainPath matches paths that are the same in a URL, a file system and a regular
// expression of a web server, but for the dot.
var plainPath = pattern.Of(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)

// exporter is one export under way.
type exporter struct {
	Options
	*tree
	base      string // without a slash at its end
	moment    *moment
	publisher *publish.Publisher
	old, new  *state
	// doubtful: the last export did not end, so documents are compared with what the
	// tree has of them and not with the state.
	doubtful bool
	// moved: the tree has documents for another base URL, all of which must go.
	moved   bool
	sets    []event.Set // those that are exported
	drafts  []replacement
	held    []recordMove    // changed records
	gone    []string        // files of records that are to be removed
	own     []replacement   // bridge's own files, with the state
	renewed map[string]bool // sets with another list of records
	missing int             // records of the set under way of which a content could not be read
	report  Report
}

// Run exports the sets of a log. Other processes may write the log meanwhile. After an
// error the tree shows the former state or the new one, see the package's comment.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	start := o.Now()
	x := &exporter{Options: o, base: strings.TrimRight(o.BaseURL, "/"), renewed: map[string]bool{}}
	// A web server maps the path as it is, so nothing may have to be escaped in it.
	u, err := url.Parse(x.base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !plainPath().MatchString(u.Path) {
		return x.report, &InputError{"base URL " + o.BaseURL, "want http or https, a host, no query, and in a path only letters, digits and - . _ ~ /"}
	}
	if err := x.checkFolder(); err != nil {
		return x.report, err
	}
	if x.moment, err = momentOf(ctx, o.Log, o.Published); err != nil {
		return x.report, err
	}
	for _, name := range o.Sets {
		if _, ok := x.moment.byName[name]; !ok {
			return x.report, &InputError{fmt.Sprintf("set %q", name), "there is no such set; there is: " + strings.Join(slices.Sorted(maps.Keys(x.moment.byName)), ", ")}
		}
	}
	if x.tree, err = openTree(o.Folder); err != nil {
		return x.report, err
	}
	x.tree.step = o.step
	x.report.Folder = x.path
	err = x.run(ctx)
	if err == nil {
		x.report.Written, x.report.Took = x.Wrote, o.Now().Sub(start)
	} else {
		// The disk may be full, and others use it. What fails here the next export does.
		_ = errors.Join(x.removeAll(stageFolder), x.removeAll(own+"/cache"))
	}
	return x.report, errors.Join(err, x.close())
}

// checkFolder refuses a folder that would publish the data folder.
func (x *exporter) checkFolder() error {
	resolved := func(folder string) (string, error) {
		abs, err := filepath.Abs(folder)
		if err != nil {
			return "", err
		}
		for rest := ""; ; { // of what is not there yet, the part that is
			if real, err := filepath.EvalSymlinks(abs); err == nil {
				return filepath.Join(real, rest), nil
			}
			if filepath.Dir(abs) == abs {
				return abs, nil
			}
			rest, abs = filepath.Join(filepath.Base(abs), rest), filepath.Dir(abs)
		}
	}
	out, err := resolved(x.Folder)
	if err != nil {
		return err
	}
	data, err := resolved(x.Data)
	if err != nil {
		return err
	}
	if strings.ContainsAny(out, "\"\\$`{}\r\n") {
		return &InputError{x.Folder, "its path has a character that the configuration of a web server cannot have"}
	}
	if inside(out, data) || inside(data, out) {
		return &InputError{x.Folder, "it and the data folder " + x.Data + " must not be in each other: give another folder with --out"}
	}
	return nil
}

// run performs the steps in the order that the package's comment gives.
func (x *exporter) run(ctx context.Context) error {
	if err := x.begin(ctx); err != nil {
		return err
	}
	for i := range x.sets {
		err := x.exportSet(ctx, &x.sets[i])
		if gone := x.hasSet(ctx, &x.sets[i]); gone != nil { // then the error, or what was written, may be of none or of another one
			return gone
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", x.sets[i].Name, err)
		}
	}
	if err := x.exportSite(ctx); err != nil {
		return err
	}
	removed := x.unnamed()
	if err := x.moveAll(); err != nil {
		return err
	}
	for _, name := range append(x.gone, removed...) {
		if err := x.remove(name); err != nil {
			return err
		}
	}
	if x.Prune {
		if err := x.prune(); err != nil {
			return err
		}
	}
	return x.end(ctx)
}

// begin reads the former state, removes what a crash left behind, and opens the
// publisher.
func (x *exporter) begin(ctx context.Context) (err error) {
	if x.old, err = x.load(x.base); err != nil {
		return err
	}
	unended, err := x.readMarker()
	if err != nil {
		return err
	}
	x.doubtful = unended != nil
	if err := x.checkBase(unended); err != nil {
		return err
	}
	if err := x.removeAll(stageFolder); err != nil {
		return err
	}
	x.new = newState(x.base)
	maps.Copy(x.new.Sets, x.old.Sets)
	x.chooseSets()
	x.moment.limit(x.new.Sets)
	if x.publisher, err = x.Publisher(x.moment, filepath.Join(x.path, own)); err != nil {
		return err
	}
	return x.mark(ctx, unended)
}

// checkBase finds out whether the tree has documents for another base URL. Then the sets
// that are left out now would keep them.
func (x *exporter) checkBase(unended *state) error {
	if unended == nil {
		unended = newState(x.base)
	}
	if x.moved = x.old.BaseURL != x.base || unended.BaseURL != x.base; !x.moved || len(x.Sets) == 0 {
		return nil
	}
	for _, sets := range []map[string]*setState{x.old.Sets, unended.Sets} {
		for _, name := range slices.Sorted(maps.Keys(sets)) {
			if x.moment.byName[name] != nil && !slices.Contains(x.Sets, name) {
				return &InputError{"base URL " + x.BaseURL, fmt.Sprintf("the folder has set %s for another base URL: export all sets, without --set, or give another folder with --out", name)}
			}
		}
	}
	return nil
}

// chooseSets finds out which sets are exported: those that were asked for, or all.
func (x *exporter) chooseSets() {
	for _, set := range x.moment.sets {
		switch {
		case len(x.Sets) > 0 && !slices.Contains(x.Sets, set.Name):
		case set.Partial && x.moved:
			delete(x.new.Sets, set.Name)
			x.problem("set %s: not all of its Sources have been harvested whole, and what the tree has of it is for another base URL: no list names it any more", set.Name)
		case set.Partial:
			x.problem("set %s: not all of its Sources have been harvested whole: it is left as it was", set.Name)
		default:
			x.sets = append(x.sets, set)
			x.new.Sets[set.Name] = &setState{Feed: set.Feed, Created: set.Created, Content: set.Content.String(), Seq: set.Last, Observed: set.LastObserved,
				Records: set.Live, Whole: true}
		}
	}
	for name := range x.new.Sets {
		if _, ok := x.moment.byName[name]; !ok {
			delete(x.new.Sets, name)
		}
	}
}

// mark writes down what is going to be written, so that the next export can see that this one
// did not end. An earlier one that did not end may have changed the tree too: then the former
// state of a set is not trusted if the last event that it wrote is not in this log.
func (x *exporter) mark(ctx context.Context, unended *state) error {
	if unended != nil {
		for name, s := range unended.Sets {
			set, ok := x.moment.byName[name]
			if !ok {
				continue
			}
			ours, err := s.isOf(ctx, x.moment, set)
			if err != nil {
				return err
			}
			if !ours {
				delete(x.old.Sets, name)
			}
		}
		if unended.Sets == nil {
			x.old.Sets = map[string]*setState{}
		}
	}
	note := &state{BaseURL: x.base, Sets: x.new.Sets}
	if x.moved {
		note.BaseURL = "" // the tree may have documents of several
	}
	if err := x.save(markerFile, note); err != nil {
		return err
	}
	return x.sync()
}

func (x *exporter) problem(format string, args ...any) {
	x.report.Problems = append(x.report.Problems, fmt.Sprintf(format, args...))
}

// hasSet returns an error if a set has another name by now, or was removed: its events are read by
// its name.
func (x *exporter) hasSet(ctx context.Context, set *event.Set) error {
	now, err := x.Log.Set(ctx, set.Name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.Feed != set.Feed {
		return fmt.Errorf("set %s was renamed or removed while it was exported, and the lists in the folder stay as they were: run bridge export again", set.Name)
	}
	return nil
}

// exportSet writes what is new of a set to drafts.
func (x *exporter) exportSet(ctx context.Context, set *event.Set) error {
	x.missing = 0
	files, err := x.exportRecords(ctx, set)
	if err != nil {
		return err
	}
	if more := x.missing - maxNamed; more > 0 {
		x.problem("set %s: records without a file besides these: %d; bridge verify names all", set.Name, more)
	}
	x.report.Sets = append(x.report.Sets, SetReport{set.Name, set.Content.String(), set.Last, set.Live, files})
	return x.exportDocuments(ctx, set)
}

// moveAll moves all drafts to their places, in the order that the package's comment gives.
func (x *exporter) moveAll() error {
	if err := x.sync(); err != nil {
		return err
	}
	for _, m := range x.held {
		if err := x.publish(m.draft, m.to, m.modified); err != nil {
			return err
		}
	}
	slices.SortStableFunc(x.drafts, func(a, b replacement) int { return int(a.rank) - int(b.rank) })
	synced := len(x.held) == 0 && len(x.drafts) == 0
	for _, r := range x.drafts {
		if r.rank >= rankIndex && !synced {
			if err := x.sync(); err != nil {
				return err
			}
			synced = true
		}
		if err := x.publish(r.draft, r.to, x.later(r.to, x.Now())); err != nil {
			return err
		}
	}
	return x.sync()
}

// end writes bridge's own files, and makes the new state the last one.
func (x *exporter) end(ctx context.Context) error {
	for _, r := range x.own {
		if err := x.move(r.draft, r.to); err != nil {
			return err
		}
	}
	if err := x.writeConfigurations(ctx); err != nil {
		return err
	}
	x.new.Ended = x.Now().UTC().Truncate(time.Second)
	if err := x.writeSums(x.new); err != nil {
		return err
	}
	if err := x.save(stateFile, x.new); err != nil {
		return err
	}
	if err := x.sync(); err != nil {
		return err
	}
	for _, name := range []string{markerFile, stageFolder, own + "/cache"} {
		if err := x.removeAll(name); err != nil {
			return err
		}
	}
	return nil
}

// moment is the log as it was at one moment. What was appended later is not in it.
type moment struct {
	log      *eventlog.Log
	sets     []event.Set
	byName   map[string]*event.Set
	segments map[string][]event.Segment
}

func momentOf(ctx context.Context, l *eventlog.Log, has func(set string) bool) (*moment, error) {
	sets, segments, err := l.AtOnce(ctx)
	if has != nil {
		sets = slices.DeleteFunc(sets, func(s event.Set) bool { return !has(s.Name) })
	}
	m := &moment{log: l, sets: sets, byName: map[string]*event.Set{}, segments: segments}
	for i := range sets {
		sets[i].History = false // see withoutHistory
		m.byName[sets[i].Name] = &sets[i]
	}
	return m, err
}

// limit leaves only the sets that the tree has: the Source Description names no others.
func (m *moment) limit(sets map[string]*setState) {
	m.sets = slices.DeleteFunc(slices.Clone(m.sets), func(s event.Set) bool { return sets[s.Name] == nil })
}

// Sets implements publish.Log, as do the methods below.
func (m *moment) Sets(context.Context) ([]event.Set, error) { return slices.Clone(m.sets), nil }

func (m *moment) Set(_ context.Context, name string) (event.Set, error) {
	if s := m.byName[name]; s != nil {
		return *s, nil
	}
	return event.Set{}, fs.ErrNotExist
}

func (m *moment) SegmentsFrom(_ context.Context, set string, n int) ([]event.Segment, error) {
	all := m.segments[set]
	if len(all) == 0 {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(all[min(max(n-all[0].N, 0), len(all)):]), nil
}

func (m *moment) Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error] {
	return withoutHistory(m.log.Events(ctx, set, r))
}

func (m *moment) Live(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return withoutHistory(m.log.Live(ctx, set, at))
}

func (m *moment) Listed(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return withoutHistory(m.log.Listed(ctx, set, at))
}

// withoutHistory yields events without their history, so that documents have no links to
// earlier versions of records. A tree has none: a file cannot be a folder too, and only a
// server can choose a version.
func withoutHistory(events iter.Seq2[*event.Event, error]) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		for e, err := range events {
			if err == nil {
				e.History = false
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// Record, Version, VersionPage and Forgotten implement server.Log. No page asks for records.
func (m *moment) Record(ctx context.Context, set, key string) (*event.Event, error) {
	return m.log.Record(ctx, set, key)
}

func (m *moment) Version(ctx context.Context, set, key string, seq event.Seq, observed event.Micros) (*event.Versions, error) {
	return m.log.Version(ctx, set, key, seq, observed)
}

func (m *moment) VersionPage(ctx context.Context, set, key string, page, size int) ([]event.Version, event.Version, event.Version, error) {
	return m.log.VersionPage(ctx, set, key, page, size)
}

func (m *moment) Forgotten(ctx context.Context, seq event.Seq) (bool, error) {
	return m.log.Forgotten(ctx, seq)
}

// since returns the set's events after those of a former state.
func (m *moment) since(ctx context.Context, set *event.Set, after event.Seq) iter.Seq2[*event.Event, error] {
	return m.log.Events(ctx, set.Name, event.Range{After: after, Upto: set.Last})
}
