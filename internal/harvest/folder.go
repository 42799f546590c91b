package harvest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/translate"
)

// Rules of our own that a folder can break.
const (
	ruleLink     = "folder-link"     // a symbolic link that is not followed
	ruleSpecial  = "folder-special"  // a pipe, a socket or a device
	ruleUnread   = "folder-unread"   // a file or folder that cannot be read
	ruleChanging = "folder-changing" // a file that is being written
	ruleNames    = "folder-names"    // files of different folders with the same name
)

// FolderNames is how the records of a folder are identified.
type FolderNames struct {
	// Name stands in the identifiers of a folder that is published nowhere.
	Name string
	// ByName: the identifier is a file's name without its extension, and not its path.
	ByName bool
}

// folderMemory is what a harvest of a folder leaves for the next one.
type folderMemory struct {
	// Base begins the identifiers. It stays as it was made in the first harvest, whatever
	// becomes of the names of the set and of the Source, and wherever the folder goes.
	Base string `json:"base,omitempty"`
	// States is the digest of a folder that was taken in whole.
	States string `json:"states,omitempty"`
	// Mounts are the mounted file systems in the folder, "." being the folder itself.
	Mounts []string `json:"mounts,omitempty"`
	// Round counts the harvests that were to read each file again.
	Round int `json:"round,omitempty"`
}

// scansOfFolder is how many times a folder is looked through that changes meanwhile.
const scansOfFolder = 3

// folderWalk is a walk over a folder whose files are records. It looks through the folder
// twice: only where both times found the same names are all of them known, so that what
// is absent was deleted. Files that look as they did are not opened.
type folderWalk struct {
	r     *run
	root  *os.Root
	wants translate.Selection
	next  folderMemory
	full  bool
	began time.Time

	notModified bool
	taken       bool // the folder was taken in
	complete    bool // and all of its names are known
	unsettled   bool // some file was not read, and has to be looked at again
}

func (w *folderWalk) begin(ctx context.Context, _ []byte) error {
	r := w.r
	*w = folderWalk{r: r, full: r.full(), began: r.h.now()}
	first := r.memory.Folder.Base == ""
	if err := w.prepare(ctx); err != nil {
		return err
	}
	if w.full && !r.src.statedOnly { // a survey claims what the harvests do
		w.next.Round++
	}
	if first { // before any record is identified by it: this harvest may be interrupted
		return r.remember(ctx)
	}
	return nil
}

// prepare sets what translation needs to know.
func (w *folderWalk) prepare(ctx context.Context) (err error) {
	m := &w.r.memory.Folder
	if m.Base == "" {
		if m.Base, err = w.r.folderBase(ctx); err != nil {
			return err
		}
	}
	w.next = *m
	w.wants = w.r.selection()
	w.wants.LocalURL = translate.FilesOf
	return nil
}

// folderBase returns a new text for the identifiers of a folder to begin with. It must
// not be that of another folder of the set, which may have had the same name when it
// was made.
func (r *run) folderBase(ctx context.Context) (string, error) {
	if public := r.src.Selection.PublicURL; public != "" {
		return strings.TrimSuffix(public, "/") + "/", nil
	}
	set, err := r.h.Log.Set(ctx, r.src.Set)
	if err != nil {
		return "", err
	}
	all, err := r.h.Log.Sources(ctx, r.src.Set)
	if err != nil {
		return "", err
	}
	taken := map[string]bool{}
	for i := range all {
		var m memory
		if s := &all[i]; s.Kind == Folder && s.ID != r.src.ID && !s.Former && unmarshal(s.Memory, &m) == nil {
			taken[m.Folder.Base] = true
		}
	}
	name := url.PathEscape(r.src.Folder.Name)
	for n := 1; ; n++ {
		base := fmt.Sprintf("urn:x-bridge:folder:%s:%s:", set.IdentifierName(), name)
		if !taken[base] {
			return base, nil
		}
		name = fmt.Sprintf("%s-%d", url.PathEscape(r.src.Folder.Name), n+1)
	}
}

// folderPath returns where the folder of a Source is.
func (src *Source) folderPath() (string, error) {
	u, err := url.Parse(src.URL)
	if err != nil || u.Scheme != "file" {
		return "", fmt.Errorf("%s is no folder of this machine", src.URL)
	}
	return filepath.FromSlash(path.Clean(u.Path)), nil
}

// openFolder opens the folder of a Source.
func (src *Source) openFolder() (root *os.Root, err error) {
	name, err := src.folderPath()
	if err == nil {
		root, err = os.OpenRoot(name)
	}
	if err != nil {
		return nil, folderMissing(err)
	}
	return root, nil
}

// folderMissing returns the error for a folder that does not exist or cannot be read.
func folderMissing(err error) error {
	return fmt.Errorf("the folder cannot be read, so its records stay as they are: %w; if it is on another disk or server, is that mounted?", err)
}

func (w *folderWalk) documents(ctx context.Context) iter.Seq2[document[folderFile], error] {
	return func(yield func(document[folderFile], error) bool) {
		if err := w.scans(ctx, func(d *folderDocument) bool { return yield(d, nil) }); err != nil {
			yield(nil, err)
		}
	}
}

// scans looks through the folder, and yields it until two looks have found the same
// names.
func (w *folderWalk) scans(ctx context.Context, yield func(*folderDocument) bool) error {
	r := w.r
	root, err := r.src.openFolder()
	if err != nil {
		return err
	}
	defer root.Close()
	w.root = root
	r.setActivity("looking through the folder", time.Time{})
	before, err := scanFolder(ctx, w.root, w.began, nil, func(string, string) {})
	if err != nil {
		return w.failed(ctx, err)
	}
	if err := w.mounted(before.mounts); err != nil {
		return err
	}
	if !w.full && before.unread == nil && r.memory.Complete && r.memory.Folder.States == w.statesOf(&before) {
		w.notModified = true
		return nil
	}
	for n := 1; !w.taken; n++ {
		d := &folderDocument{w: w, ctx: ctx, before: before, last: n == scansOfFolder}
		if !yield(d) {
			return nil
		}
		before = d.found
	}
	return nil
}

// failed returns an error of a scan.
func (w *folderWalk) failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return folderMissing(err)
}

// mounted returns an error if a file system is gone that was mounted in the folder
// before: the files in its place do not show whether its own still exist.
func (w *folderWalk) mounted(now []string) error {
	for _, at := range w.next.Mounts {
		if !slices.Contains(now, at) {
			name := w.root.Name()
			return fmt.Errorf("nothing is mounted any more at %s, where there was: the records stay as they are; mount it or, if that is on purpose, run bridge source reset %s %s", shown(filepath.Join(name, at)), w.r.src.Set, w.r.src.URL)
		}
	}
	w.next.Mounts = now
	return nil
}

// settings is a digest of what decides which records the files become.
func (w *folderWalk) settings() []byte {
	s := &w.r.src.Selection
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %v %v %v", w.next.Base, s.PublicURL, s.Formats, s.Prefixes, s.Since, w.r.src.Folder.ByName, w.r.src.Content))
	return sum[:8]
}

// statesOf returns the digest that shows that nothing has changed.
func (w *folderWalk) statesOf(s *folderScan) string {
	return hex.EncodeToString(w.settings()) + hex.EncodeToString(s.states[:16])
}

func (w *folderWalk) result() walkResult {
	m := &w.r.memory
	o := walkResult{NotModified: w.notModified, Memory: m.walkMemory, Short: m.Short}
	if w.notModified {
		return o
	}
	o.Whole, o.Full, o.Complete = true, w.full, w.complete
	o.Memory.Folder = w.next
	if w.unsettled || !w.complete {
		o.Memory.Folder.States = ""
	}
	return o
}

func (w *folderWalk) record(f folderFile) string { return f.Record }

// identifier returns the identifier at the Source of the record that a file belongs to.
func (w *folderWalk) identifier(name string) string {
	return w.next.Base + escapePath(w.r.src.Folder.nameOf(name))
}

// nameOf returns the part of a file's path that identifies its record.
func (n *FolderNames) nameOf(name string) string {
	if n.ByName {
		name = path.Base(name)
		name = strings.TrimSuffix(name, path.Ext(name))
	}
	return name
}

// folderDocument is the folder as one look through it shows it.
type folderDocument struct {
	w             *folderWalk
	ctx           context.Context // of the walk
	before, found folderScan
	last          bool // it is taken even if the folder has changed meanwhile
}

func (d *folderDocument) origin() event.Document { return event.Document{URL: d.w.r.src.URL} }

func (d *folderDocument) read(b *backlog[folderFile], afterEntry func() error) (whole bool, err error) {
	w := d.w
	var stopped error
	d.found, err = scanFolder(d.ctx, w.root, w.began, func(f *folderFile) error {
		f.Record, _ = w.wants.Identifier(w.identifier(f.Path))
		b.add(*f, len(f.Path)+len(f.Record))
		stopped = afterEntry()
		return stopped
	}, w.r.problem)
	switch {
	case stopped != nil:
		return false, stopped
	case err != nil:
		return false, w.failed(d.ctx, err)
	}
	if err := w.mounted(d.found.mounts); err != nil { // since the last look
		return false, err
	}
	stable := d.found.names == d.before.names
	if !stable && !d.last {
		return false, nil
	}
	w.taken, w.complete = true, stable && d.found.unread == nil
	w.next.States = w.statesOf(&d.found)
	if !stable {
		w.r.warn("the folder was changed all the while it was read: nothing is deleted because it is absent, the next harvest looks again")
	} else if err := d.found.unread; err != nil {
		w.r.warn(fmt.Sprintf("some of the folder could not be read, so nothing is deleted because it is absent: %v", err))
	}
	return true, nil
}

// latest returns of each record what its files say. Those that look as they did are only
// noted as present.
func (d *folderDocument) latest(ctx context.Context, b *backlog[folderFile], files []folderFile) (items []*event.Item, err error) {
	slices.SortFunc(files, func(x, y folderFile) int {
		return cmp.Or(cmp.Compare(x.Record, y.Record), cmp.Compare(x.Path, y.Path))
	})
	var records [][]folderFile
	for len(files) > 0 {
		n := 1
		for n < len(files) && files[n].Record == files[0].Record {
			n++
		}
		records, files = append(records, files[:n:n]), files[n:]
	}
	for part := range slices.Chunk(records, lookedUp) {
		ids := make([]string, len(part))
		for i := range part {
			ids[i] = part[i][0].Record
		}
		known, err := d.w.r.h.Log.SourceRecordsOf(ctx, d.w.r.src.ID, ids)
		if err != nil {
			return nil, err
		}
		for i := range part {
			it, err := d.w.item(ctx, b, part[i], &known[i])
			if err != nil {
				return nil, err
			}
			if it != nil {
				items = append(items, it)
			}
		}
	}
	return items, nil
}

// item returns the item of a record that its files make; nil when there is nothing to
// apply.
func (w *folderWalk) item(ctx context.Context, b *backlog[folderFile], files []folderFile, known *eventlog.SourceRecord) (*event.Item, error) {
	files = w.oneFolder(files)
	claim := w.claim(files)
	if known.Alive && known.Observation.Claim == claim && known.Pending == "" {
		w.r.active++
		return present(files[0].Record), nil
	}
	observed := make([]translate.File, 0, len(files))
	for i := range files {
		f, err := w.look(&files[i])
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, fs.ErrNotExist): // the next harvest finds it deleted
			w.complete, w.unsettled = false, true
			continue
		case err != nil:
			w.unsettled = true
			rule := ruleUnread
			if errors.Is(err, errChanging) {
				rule = ruleChanging
			}
			w.r.problem(rule, fmt.Sprintf("%s: %v; the next harvest reads it", shown(files[i].Path), err))
			if known.Number == 0 {
				return nil, nil
			}
			w.r.active++
			return present(files[0].Record), nil
		}
		observed = append(observed, f)
	}
	if len(observed) == 0 {
		return nil, nil
	}
	o, err := translate.FromFiles(w.identifier(files[0].Path), observed, &w.wants)
	switch {
	case errors.Is(err, translate.ErrUnselected):
		w.r.updateReport(func(p *Report) { p.Skipped++ })
		return nil, nil
	case err != nil:
		w.quarantine(b, &files[0], err)
		return &event.Item{Observation: event.Observation{Record: o.Record, SourceIdentifier: o.SourceIdentifier}, Quarantine: true}, nil
	}
	if !o.Deleted {
		w.r.active++
	}
	o.Claim = claim
	return &event.Item{Observation: o, Late: o.Modified.Time().After(w.began)}, nil
}

func present(record string) *event.Item {
	return &event.Item{Present: true, Observation: event.Observation{Record: record}}
}

// oneFolder returns those files of a record that lie in the folder of the first one:
// they are its representations. Others have the same name by chance.
func (w *folderWalk) oneFolder(files []folderFile) []folderFile {
	in := path.Dir(files[0].Path)
	return slices.DeleteFunc(files, func(f folderFile) bool {
		other := path.Dir(f.Path) != in
		if other {
			w.r.problem(ruleNames, fmt.Sprintf("%s has the name of %s, so both would be one record; the first counts: rename one, or identify records by their paths", shown(f.Path), shown(files[0].Path)))
		}
		return other
	})
}

// claim returns what the log keeps of the files' states, to recognize unchanged files.
func (w *folderWalk) claim(files []folderFile) int64 {
	b := binary.AppendUvarint(w.settings(), uint64(w.next.Round))
	for i := range files {
		b = files[i].state(b)
	}
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:8])) | 1 // 0 lets the log make its own
}

// quarantine puts a file into quarantine of which the log can take nothing.
func (w *folderWalk) quarantine(b *backlog[folderFile], f *folderFile, err error) {
	id := w.identifier(f.Path)
	b.addBad(event.Quarantined{URL: w.r.src.URL + escapePath(f.Path), Record: id, Rule: ruleOf(err), Reason: err.Error(), Input: []byte(f.Path)})
}

// errChanging: a file is being written.
var errChanging = errors.New("it is being written")

// titleBytes is how long a file in XML may be whose title is looked for.
const titleBytes = 1 << 20

// look finds out what a file is. Where its content is not fetched, the whole file is read
// for its hash.
func (w *folderWalk) look(f *folderFile) (out translate.File, err error) {
	in, err := w.root.OpenFile(filepath.FromSlash(f.Path), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe in its place would keep us waiting
	if err != nil {
		return out, err
	}
	defer in.Close()
	if err := f.unchanged(in); err != nil {
		return out, err
	}
	if f.Size == 0 {
		return out, fmt.Errorf("it is empty: %w", errChanging)
	}
	modified, _ := event.StampOf(time.Unix(0, f.Modified))
	out = translate.File{Href: translate.FilesOf + f.href(), Type: fetch.MediaType(path.Base(f.Path)), Length: f.Size, Modified: modified}
	body := bufio.NewReaderSize(in, 64<<10)
	if err := w.lookInside(&out, f, body); err != nil {
		return out, err
	}
	if !w.r.src.mirrors() {
		if _, err := in.Seek(0, io.SeekStart); err != nil {
			return out, err
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, in); err != nil {
			return out, err
		}
		out.Hash = event.HashOf([sha256.Size]byte(sum.Sum(nil)))
	}
	return out, f.unchanged(in)
}

// unchanged returns an error if an open file is not as its folder has shown it.
func (f *folderFile) unchanged(in *os.File) error {
	info, err := in.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular(), info.Size() != f.Size, info.ModTime().UnixNano() != f.Modified, fetch.ChangedAt(info) != f.Changed:
		return errChanging
	}
	return nil
}

// lookInside reads the beginning of a file that is XML by its name, or whose name shows
// no type: the root element shows what it is.
func (w *folderWalk) lookInside(out *translate.File, f *folderFile, body *bufio.Reader) error {
	if out.Type != "application/xml" && out.Type != untyped {
		return nil
	}
	head, err := body.Peek(int(min(f.Size, 512)))
	if err != nil {
		return err
	}
	if text := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xEF\xBB\xBF")), " \t\r\n"); !bytes.HasPrefix(text, []byte("<")) && out.Type == untyped {
		return nil
	}
	content, err := io.ReadAll(io.LimitReader(body, titleBytes))
	if err != nil {
		return err
	}
	l := &w.r.src.Limits
	s := strictxml.New(bytes.NewReader(content), strictxml.Options{URL: f.Path, Limits: strictxml.Limits{Text: l.Text, Depth: l.Depth, Attributes: l.Attributes}})
	if err := s.Next(); err != nil {
		return nil // its type is that of its name, well-formed or not
	}
	out.Namespace, out.Type = s.Space, translate.TypeOfRoot(s.Space)
	if int64(len(content)) == f.Size {
		out.Content = content
	}
	return nil
}

// state returns nil: a walk over a folder always starts anew. It recognizes the files
// that were read before.
func (d *folderDocument) state() ([]byte, error) { return nil, nil }

// reread looks at a file again that was quarantined.
func (w *folderWalk) reread(ctx context.Context, q *event.Quarantined) ([]event.Observation, error) {
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	root, err := w.r.src.openFolder()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	w.root = root
	name := string(q.Input)
	info, err := w.root.Stat(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	f := folderFile{Path: name, Size: info.Size(), Modified: info.ModTime().UnixNano(), Changed: fetch.ChangedAt(info)}
	seen, err := w.look(&f)
	if err != nil {
		return nil, err
	}
	o, err := translate.FromFiles(w.identifier(name), []translate.File{seen}, &w.wants)
	return []event.Observation{o}, err
}

// locate returns the URL at which the contents of a Source can be asked for: the log
// keeps the files of a folder by their place in it.
func (src *Source) locate(href string) string {
	if rest, ok := strings.CutPrefix(href, translate.FilesOf); ok && src.Kind == Folder && !strings.HasPrefix(rest, "/") {
		return src.URL + rest
	}
	return href
}
