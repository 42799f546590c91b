package export

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// maxChanged is how many changed records are exported from the events alone. For more,
// all records of the set are compared: that needs no memory for each.
const maxChanged = 200_000

// maxNamed is how many records of a set without a file are named.
const maxNamed = 5

// record is a record as the tree has it: a line of a list in .bridge/records.
type record struct {
	key string
	// files are what its URLs answer; none when it was deleted.
	files []recordFile
	gone  bool
}

// recordFile is what one URL of a record answers.
type recordFile struct {
	// name follows the key and a dot; "" is the record itself.
	name string
	// sha256 in hex, and the media type, of a file; of a redirect the first is "", and
	// the second is where it leads.
	sha256, value string
}

// path is the file of a URL in its set's folder of records.
func (f *recordFile) path(key string) string {
	if f.name == "" {
		return key
	}
	return key + "." + f.name
}

// extension is what a web server guesses the media type from.
func (f *recordFile) extension() string { return f.name[strings.LastIndexByte(f.name, '.')+1:] }

// append writes the record as a line of fields with tabs between them.
func (r *record) append(b []byte) []byte {
	b = append(b, r.key...)
	if r.gone {
		return append(b, "\t-\n"...)
	}
	for i := range r.files {
		f := &r.files[i]
		b = fmt.Appendf(b, "\t%s\t%s\t%s", f.name, f.sha256, f.value)
	}
	return append(b, '\n')
}

var errList = errors.New("it is not a list of records")

// parse reads a line without its end.
func (r *record) parse(line string) error {
	fields := strings.Split(line, "\t")
	r.key, r.files, r.gone = fields[0], r.files[:0], len(fields) == 2 && fields[1] == "-"
	if fields = fields[1:]; r.gone {
		return nil
	}
	if r.key == "" || strings.ContainsAny(r.key, "/.") || len(fields)%3 != 0 {
		return errList
	}
	for ; len(fields) > 0; fields = fields[3:] {
		if strings.ContainsRune(fields[0], '/') {
			return errList
		}
		r.files = append(r.files, recordFile{fields[0], fields[1], fields[2]})
	}
	return nil
}

func listPath(set string) string { return own + "/records/" + set }

func sumsPath(set string) string { return own + "/records-" + set + ".sha256" }

// readRecords calls do for each record in the list of a set, and returns what the list is. The
// record is valid until do returns.
func (t *tree) readRecords(set string, do func(r *record) error) (is sum, err error) {
	f, err := t.root.Open(listPath(set))
	if err != nil {
		return is, err
	}
	defer f.Close()
	var r record
	h := publish.NewHashWriter(io.Discard)
	lines := bufio.NewScanner(io.TeeReader(f, h))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if err := r.parse(lines.Text()); err != nil {
			return is, fmt.Errorf("%s: %w", listPath(set), err)
		}
		if err := do(&r); err != nil {
			return is, err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return is, fmt.Errorf("%s: %w", listPath(set), errList)
	}
	return sumOf(h), lines.Err()
}

// listWriter writes the list of a set's records, and their hashes.
type listWriter struct {
	x          *exporter
	set        string
	state      *setState
	list, sums *stageFile
	line       []byte
}

func (x *exporter) newList(set string) (w *listWriter, err error) {
	w = &listWriter{x: x, set: set, state: x.new.Sets[set]}
	w.state.Files, w.state.Types = 0, map[string]map[string]int64{}
	if w.list, err = x.create(); err != nil {
		return nil, err
	}
	w.sums, err = x.create()
	return w, err
}

func (w *listWriter) add(r *record) error {
	w.line = r.append(w.line[:0])
	if _, err := w.list.Write(w.line); err != nil {
		return err
	}
	for i := range r.files {
		f := &r.files[i]
		w.state.Files++
		if f.sha256 == "" {
			continue
		}
		types := w.state.Types[f.extension()]
		if types == nil {
			types = map[string]int64{}
			w.state.Types[f.extension()] = types
		}
		types[f.value]++
		w.line = fmt.Appendf(w.line[:0], "%s  sets/%s/records/%s\n", f.sha256, w.set, f.path(r.key))
		if _, err := w.sums.Write(w.line); err != nil {
			return err
		}
	}
	return nil
}

// end makes the files those of the set, once the export ends. Without hashes there is no file of
// them: sha256sum fails for an empty one.
func (w *listWriter) end(err error) error {
	list, err := w.list.end(err)
	sums, err := w.sums.end(err)
	if err != nil {
		return err
	}
	w.x.renewed[w.set], w.state.List = true, list.sum
	w.x.own = append(w.x.own, replacement{draft: list, to: listPath(w.set)})
	if sums.Length == 0 {
		w.x.gone = append(w.x.gone, sumsPath(w.set))
		return w.x.discard(sums)
	}
	w.x.own = append(w.x.own, replacement{draft: sums, to: sumsPath(w.set)})
	return nil
}

// exportRecords writes the files of the records that have changed, and returns how many
// files there are in all.
func (x *exporter) exportRecords(ctx context.Context, set *event.Set) (int64, error) {
	if set.Content == event.Reference {
		return 0, nil
	}
	st := x.new.Sets[set.Name]
	old := x.old.Sets[set.Name]
	_, statErr := x.root.Lstat("sets/" + set.Name + "/records")
	had := statErr == nil
	var dir *recordFolder // nil in mode redirect
	if set.Content == event.Mirror {
		var err error
		if dir, err = x.openRecords(set.Name); err != nil {
			return 0, err
		}
		defer func() { _ = dir.root.Close() }() // all in it was written by name
	}
	if old != nil && old.Whole && x.size(listPath(set.Name)) == old.List.Length && (x.size(sumsPath(set.Name)) < 0) == (len(old.Types) == 0) {
		ours, err := old.isOf(ctx, x.moment, set)
		if err != nil {
			return 0, err
		}
		if ours && old.Seq == set.Last && !x.doubtful {
			st.Files, st.List, st.Types = old.Files, old.List, old.Types
			return st.Files, nil
		}
		if ours {
			done, err := x.exportChanged(ctx, set, dir, old)
			if done || err != nil {
				return st.Files, err
			}
		}
	}
	return st.Files, x.exportAll(ctx, set, dir, had)
}

// exportChanged writes the records that events have changed since the former state; done
// is false when these are too many, or the list of the former state is damaged.
func (x *exporter) exportChanged(ctx context.Context, set *event.Set, dir *recordFolder, old *setState) (done bool, err error) {
	last := map[string]event.Seq{}
	names := map[string][]string{} // by key, the files that the tree may have of changed records
	for e, err := range x.moment.since(ctx, set, old.Seq) {
		if err != nil {
			return false, err
		}
		if e.Kind == event.Rejected {
			continue
		}
		if last[e.Record] = e.Seq; len(last) > maxChanged {
			return false, nil
		}
		key := event.Key(e.Record)
		files := names[key]
		if x.doubtful { // an export that did not end may have written them
			files = append(files, key)
			for i := range e.Representations {
				files = append(files, key+"."+e.Representations[i].Name)
			}
		}
		names[key] = files
	}
	w, err := x.newList(set.Name)
	if err != nil {
		return false, err
	}
	is, err := x.readRecords(set.Name, func(r *record) error {
		files, changed := names[r.key]
		if !changed {
			return w.add(r)
		}
		for i := range r.files {
			files = append(files, r.files[i].path(r.key))
		}
		names[r.key] = files
		return nil
	})
	if err == nil && is != old.List {
		err = errList
	}
	if err != nil {
		if err = w.end(err); errors.Is(err, errList) {
			err = nil
		}
		return false, err
	}
	for e, err := range x.moment.since(ctx, set, old.Seq) {
		if err == nil && (last[e.Record] != e.Seq || e.Kind == event.Rejected) {
			continue
		}
		var r record
		if err == nil {
			r, err = x.exportRecord(ctx, set, dir, e)
		}
		if err == nil {
			x.remains(set.Name, &r, names[r.key])
			err = w.add(&r)
		}
		if err != nil {
			return false, w.end(err)
		}
	}
	return true, w.end(nil)
}

// remains marks for removal those of some files that a record no longer has.
func (x *exporter) remains(set string, now *record, files []string) {
	has := map[string]bool{}
	for i := range now.files {
		has[now.files[i].path(now.key)] = true
	}
	for _, name := range files {
		if !has[name] {
			has[name] = true
			x.gone = append(x.gone, recordPath(set, name))
		}
	}
}

func recordPath(set, name string) string { return "sets/" + set + "/records/" + name }

// exportAll writes all records of a set, but those that the tree has, and marks for removal all
// other files in its folder.
func (x *exporter) exportAll(ctx context.Context, set *event.Set, dir *recordFolder, had bool) error {
	w, err := x.newList(set.Name)
	if err != nil {
		return err
	}
	seed := maphash.MakeSeed()
	has := map[uint64]struct{}{} // hashes of the names of all files, for a million names are too long
	add := func(r *record) error {
		for i := range r.files {
			if had && r.files[i].sha256 != "" {
				has[maphash.String(seed, r.files[i].path(r.key))] = struct{}{}
			}
		}
		return w.add(r)
	}
	return w.end(errors.Join(x.addDeleted(ctx, set, w), x.addLive(ctx, set, dir, add), x.addRest(set, had, func(name string) bool {
		_, ok := has[maphash.String(seed, name)]
		return ok
	})))
}

// addDeleted adds the deleted records to the list, those that were deleted last at its end.
func (x *exporter) addDeleted(ctx context.Context, set *event.Set, w *listWriter) error {
	deleted := map[string]event.Seq{}
	for e, err := range x.moment.since(ctx, set, 0) {
		if err != nil {
			return err
		}
		switch e.Kind {
		case event.Deleted:
			deleted[e.Record] = e.Seq
		case event.Created, event.Updated:
			delete(deleted, e.Record)
		}
	}
	for _, identifier := range slices.SortedFunc(maps.Keys(deleted), func(a, b string) int { return cmp.Compare(deleted[a], deleted[b]) }) {
		if err := w.add(&record{key: event.Key(identifier), gone: true}); err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) addLive(ctx context.Context, set *event.Set, dir *recordFolder, add func(r *record) error) error {
	for e, err := range x.moment.Live(ctx, set.Name, set.Last) {
		if err != nil {
			return err
		}
		r, err := x.exportRecord(ctx, set, dir, e)
		if err == nil {
			err = add(&r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addRest marks for removal the files in the folder of a set's records that belong to none of
// them.
func (x *exporter) addRest(set *event.Set, had bool, has func(name string) bool) error {
	if !had {
		return nil
	}
	folder, err := x.root.Open("sets/" + set.Name + "/records")
	if err != nil {
		return err
	}
	defer folder.Close()
	for {
		names, err := folder.Readdirnames(10_000)
		for _, name := range names {
			if !has(name) {
				x.gone = append(x.gone, recordPath(set.Name, name))
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// exportRecord writes the files of a record as an event left it.
func (x *exporter) exportRecord(ctx context.Context, set *event.Set, dir *recordFolder, e *event.Event) (record, error) {
	r := record{key: event.Key(e.Record), gone: !e.Live()}
	if r.gone {
		return r, nil
	}
	pref, ok := e.Pref()
	if ok {
		r.files = append(r.files, recordFile{"", pref.SHA256(), publish.ServedType(pref.Type)})
	}
	for i := range e.Representations {
		rep := &e.Representations[i]
		r.files = append(r.files, recordFile{rep.Name, rep.SHA256(), publish.ServedType(rep.Type)})
	}
	if set.Content == event.Redirect {
		return redirects(r, pref.Href, e), nil
	}
	modified := e.Observed.Time().Truncate(time.Second)
	kept := r.files[:0]
	var first placed
	var missing error
	for i, f := range r.files {
		p, err := x.place(ctx, dir, f.path(r.key), f.sha256, modified, first)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, content.ErrDamaged) {
			missing = cmp.Or(missing, err)
			continue
		}
		if err != nil {
			return r, err
		}
		if i == 0 {
			first = p
		}
		kept = append(kept, f)
	}
	r.files = kept
	if missing != nil {
		x.new.Sets[set.Name].Whole = false
		if x.missing++; x.missing <= maxNamed {
			x.problem("set %s: record %q (event %d) has no file: %v", set.Name, e.Record, e.Seq, missing)
		}
	}
	return r, nil
}

// redirects makes the files of a record redirects to the originals.
func redirects(r record, preferred string, e *event.Event) record {
	kept := r.files[:0]
	for i, f := range r.files {
		f.sha256, f.value = "", preferred
		if i > 0 {
			f.value = e.Representations[i-1].Href
		}
		if event.OnTheWeb(f.value) && !strings.ContainsAny(f.value, "\t\r\n") {
			kept = append(kept, f)
		}
	}
	r.files = kept
	return r
}

// recordMove is a changed record's draft with the place that it will have.
type recordMove struct {
	draft
	to       string
	modified time.Time
}

// recordFolder is the folder of a set's records. It is kept open: to walk to it for each
// of many small files takes longer than to write them.
type recordFolder struct {
	path string
	root *os.Root
}

// newRecord is the name of the file in the folder that is being written.
const newRecord = ".new"

func (x *exporter) openRecords(set string) (*recordFolder, error) {
	d := &recordFolder{path: "sets/" + set + "/records"}
	err := x.folder(d.path + "/" + newRecord)
	if err == nil {
		d.root, err = x.root.OpenRoot(d.path)
	}
	if err == nil { // a crash may have left one
		if err = d.root.Remove(newRecord); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return d, err
}

// placed is where the bytes of a content are: in a draft, or in the folder of records.
type placed struct {
	sha256 string
	draft  string
	name   string
}

// place makes a file with a content. A new file is created at once, since nothing names it yet;
// one that replaces another is a draft until everything is ready. The file's time of
// modification is the lastmod of the record in lists. same is a file that may have the same
// bytes, and is linked then.
func (x *exporter) place(ctx context.Context, dir *recordFolder, name, digits string, modified time.Time, same placed) (placed, error) {
	info, err := dir.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return placed{digits, "", name}, x.placeNew(ctx, dir, name, digits, modified, same)
	case err != nil:
		return placed{}, err
	case info.Mode().IsRegular():
		holds, err := x.holdsIn(dir.root, name, sum{digits, info.Size()})
		if err != nil {
			return placed{}, err
		}
		if holds {
			if !info.ModTime().Equal(modified) {
				err = dir.root.Chtimes(name, time.Time{}, modified)
			}
			return placed{digits, "", name}, err
		}
	}
	d, err := x.stageContent(ctx, dir, digits, same)
	if err != nil {
		return placed{}, err
	}
	to := dir.path + "/" + name
	if info.Size() == d.Length && info.ModTime().Unix() == modified.Unix() {
		modified = x.later(to, x.Now()) // web servers distinguish versions by time and length
	}
	x.held = append(x.held, recordMove{d, to, modified})
	return placed{digits, d.name, ""}, nil
}

func (x *exporter) placeNew(ctx context.Context, dir *recordFolder, name, digits string, modified time.Time, same placed) error {
	path := dir.path + "/" + name
	if same.sha256 == digits && same.name != "" {
		// Not every file system has links.
		if x.do("link", path, func() error { return dir.root.Link(same.name, name) }) == nil {
			x.Wrote.Files++
			return nil
		}
	}
	s, err := x.createIn(dir.root, newRecord)
	if err != nil {
		return err
	}
	d, err := s.end(x.copyContent(ctx, s, digits))
	if err == nil {
		err = dir.root.Chtimes(newRecord, time.Time{}, modified)
	}
	if err == nil {
		err = x.do("rename", path, func() error { return dir.root.Rename(newRecord, name) })
	}
	if err == nil {
		x.Wrote.Files++
		x.Wrote.Bytes += d.Length
	}
	return err
}

// stageContent makes a draft of a content.
func (x *exporter) stageContent(ctx context.Context, dir *recordFolder, digits string, same placed) (draft, error) {
	if same.sha256 == digits && digits != "" {
		from := cmp.Or(same.draft, dir.path+"/"+same.name)
		name := x.newName()
		if x.folder(name) == nil && x.root.Link(from, name) == nil {
			return draft{sum{digits, x.size(name)}, name}, nil
		}
	}
	return x.stage(func(w io.Writer) error { return x.copyContent(ctx, w, digits) })
}

// copyContent writes a content, whose bytes the store checks against their hash.
func (x *exporter) copyContent(ctx context.Context, w io.Writer, digits string) error {
	id, err := content.ParseSum(digits)
	if err != nil {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if x.Contents == nil {
		return fmt.Errorf("the data folder has no content.db: %w", fs.ErrNotExist)
	}
	blob, err := x.Contents.OpenPatiently(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = blob.Close() }() // it was only read
	_, err = io.CopyBuffer(w, readOnly{blob}, x.copied[:])
	return err
}
