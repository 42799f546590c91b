package publish

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// Dumps are the contents of a set in packages (ResourceSync 11 and 13), for Destinations
// that would need a request for each record. A Resource Dump has those of the records
// that are alive at a Seq, a Change Dump one package for each closed segment, with the
// contents as they were at each event. They are files, made in the background like
// snapshots: all of one dump, or of one segment, become visible together, in the rename of
// their folder. So the document that names them states the length and the hash of what is
// there. Like every document they are a function of the log, and of contents that do not
// change.
//
// A content that is missing or damaged is an error: there is no dump without it.

// packageBytes is how many bytes of contents one package of a Resource Dump has at most,
// unless the first record has more.
const packageBytes int64 = 1 << 30

// packedPart is a package of a dump: the ZIP file and the copy of its manifest.
type packedPart struct {
	Entries        int    `json:"entries"`
	Length         int64  `json:"length"`
	SHA256         string `json:"sha256"` // of the file, in hex
	ContentsLength int64  `json:"contents_length"`
	ContentsSHA256 string `json:"contents_sha256"`
}

// packageItem is a package as a dump names it.
type packageItem struct {
	packedPart
	path        string       // without .zip, or .xml for the manifest
	from, until event.Micros // of a Change Dump
}

func resourceDumpPath(set string, s Snapshot, part int) string {
	return fmt.Sprintf("/sets/%s/resourcedump/%s/%d", set, s.name(), part)
}

func changeDumpPath(set string, segment int) string {
	return fmt.Sprintf("/sets/%s/changedump/%d", set, segment)
}

// resourceDump returns the document that names the packages of the newest Resource Dump. The
// next one replaces it; pastResourceDump is the same at a path that stays as long as they do.
func resourceDump(set event.Set, s *storedSnapshot) Item {
	it := Item{Path: dumpPath(set.Name, resourcesync.ResourceDump), Kind: ResourceDump, Set: set, Events: event.Range{Upto: s.Seq}, At: s.At}
	for i, part := range s.packages {
		it.packages = append(it.packages, packageItem{packedPart: part, path: resourceDumpPath(set.Name, s.Snapshot, i+1)})
	}
	return it
}

func dumpPath(set string, c resourcesync.Capability) string { return setPath(set, string(c)+".xml") }

// pastResourceDump returns the same document at the path of its Seq.
func pastResourceDump(set event.Set, s *storedSnapshot) Item {
	it := resourceDump(set, s)
	it.Path, it.Closed = fmt.Sprintf("/sets/%s/resourcedump/%s.xml", set.Name, s.name()), true
	return it
}

// planChangeDumps returns the documents that name the packages of segments. The first names the
// newest packages that follow each other without a gap, at most so many. The others name the
// packages before, oldest first; their paths have the numbers of so many segments, so that a
// full one never changes.
func planChangeDumps(set event.Set, segments []event.Segment, made []*storedSnapshot, most int) (items []Item) {
	run := 0 // made[:run] are the newest packages, without a gap
	for run < len(made) && (run == 0 || made[run].segment == made[run-1].segment-1) {
		if _, ok := numbered(segments, int64(made[run].segment)); !ok {
			break
		}
		run++
	}
	if run == 0 {
		return nil
	}
	document := func(path string, made []*storedSnapshot) Item {
		it := Item{Path: path, Kind: ChangeDump, Set: set, N: made[0].segment}
		for _, s := range slices.Backward(made) {
			g, _ := numbered(segments, int64(s.segment))
			it.packages = append(it.packages, packageItem{s.packages[0], changeDumpPath(set.Name, g.N), g.From, g.Until})
		}
		it.From = it.packages[0].from
		return it
	}
	newest := min(run, most)
	items = append(items, document(dumpPath(set.Name, resourcesync.ChangeDump), made[:newest]))
	for past := made[newest:run]; len(past) > 0; {
		k := (past[len(past)-1].segment - 1) / most
		n := slices.IndexFunc(past, func(s *storedSnapshot) bool { return (s.segment-1)/most == k }) // newer ones come before
		it := document(fmt.Sprintf("/sets/%s/changedump/%d-%d.xml", set.Name, k*most+1, (k+1)*most), past[n:])
		// Without its first packages, which may be made again, it is not full.
		if first := past[len(past)-1].segment; it.N == (k+1)*most && (first == k*most+1 || it.From == set.Created) {
			it.Closed, it.Until = true, it.packages[len(it.packages)-1].until
		}
		items, past = append(items, it), past[:n]
	}
	return items
}

// archiveOf is the archive of dumps, which names them oldest first (see archive.go).
func archiveOf(set event.Set, kind Kind, dumps []Item) Item {
	return Item{Path: listArchivePath(set.Name, kind.archive()), Kind: kind, Set: set, archived: dumps}
}

// dumpArchive is an archive of Resource Dumps or of Change Dumps.
func dumpArchive(base string, it *Item) *resourcesync.Document {
	doc := &resourcesync.Document{Capability: it.Kind.archive(), Links: []resourcesync.Link{upLink(base, it.Set.Name)}}
	for i := range it.archived {
		dump := &it.archived[i]
		if dump.Kind == ChangeDump {
			doc.Entries = append(doc.Entries, intervalEntry(base+dump.Path, dump.From, dump.Until))
			continue
		}
		doc.Entries = append(doc.Entries, resourcesync.Entry{Loc: base + dump.Path, LastMod: resourcesync.Seconds(dump.At.Time()),
			Metadata: resourcesync.Metadata{At: datetime(dump.At)}})
	}
	return doc
}

// dumpDocument is a Resource Dump or a Change Dump (clauses 11.1 and 13.1).
func dumpDocument(base string, it *Item) *resourcesync.Document {
	doc := &resourcesync.Document{Capability: resourcesync.ResourceDump, Links: []resourcesync.Link{upLink(base, it.Set.Name)},
		Entries: make([]resourcesync.Entry, 0, len(it.packages))}
	if it.Kind == ChangeDump {
		doc.Capability, doc.From = resourcesync.ChangeDump, datetime(it.From)
		if it.Until != 0 {
			doc.Until = datetime(it.Until)
		}
	} else {
		doc.At = datetime(it.At)
	}
	for i := range it.packages {
		p := &it.packages[i]
		e := resourcesync.Entry{Loc: base + p.path + ".zip", Metadata: resourcesync.Metadata{
			Hash: "sha-256:" + p.SHA256, Length: resourcesync.Bytes(p.Length), Type: zipType}}
		if it.Kind == ChangeDump {
			e.Metadata.From, e.Metadata.Until = datetime(p.from), datetime(p.until)
			e.LastMod = resourcesync.Seconds(p.until.Time())
		} else {
			e.Metadata.At = datetime(it.At)
			e.LastMod = resourcesync.Seconds(it.At.Time())
		}
		e.Links = []resourcesync.Link{{Rel: resourcesync.RelContents, Href: base + p.path + ".xml",
			Hash: "sha-256:" + p.ContentsSHA256, Length: resourcesync.Bytes(p.ContentsLength), Type: "application/xml"}}
		doc.Entries = append(doc.Entries, e)
	}
	return doc
}

const zipType = "application/zip"

// dumps returns the documents that name the existing dumps: the newest dumps, the earlier ones,
// and the archives that name those.
func (p *Publisher) dumps(st *state, set event.Set, segments []event.Segment) (items []Item) {
	if !set.Dumps || set.Partial {
		return nil
	}
	if kept := st.resourceDumps.snapshots(); len(kept) > 0 {
		var past []Item
		for _, s := range slices.Backward(kept[1:]) {
			past = append(past, pastResourceDump(st.fixed, s))
		}
		items = append(append(items, resourceDump(st.fixed, kept[0])), past...)
		if len(past) > 0 {
			items = append(items, archiveOf(st.fixed, ResourceDumpArchive, past))
		}
	}
	changes := planChangeDumps(st.fixed, segments, st.changeDumps.snapshots(), p.limits.Entries)
	if items = append(items, changes...); len(changes) > 1 {
		items = append(items, archiveOf(st.fixed, ChangeDumpArchive, changes[1:]))
	}
	return items
}

// capabilitiesOf returns the capabilities that a Capability List names because of some
// documents of dumps.
func capabilitiesOf(dumps []Item) (more []resourcesync.Capability) {
	for i := range dumps {
		it := &dumps[i]
		c := it.Kind.archive()
		switch it.Kind {
		case ResourceDump:
			c = resourcesync.ResourceDump
		case ChangeDump:
			c = resourcesync.ChangeDump
		}
		if it.Path == dumpPath(it.Set.Name, c) { // else an archive names it
			more = append(more, c)
		}
	}
	return more
}

// planPackages returns the packages of dumps and their manifests.
func planPackages(dumps []Item) (items []Item) {
	for i := range dumps {
		for _, pack := range dumps[i].packages {
			it := Item{Kind: Package, Set: dumps[i].Set, Closed: true, packages: []packageItem{pack}}
			for _, it.Path = range []string{pack.path + ".zip", pack.path + ".xml"} {
				items = append(items, it)
			}
		}
	}
	return items
}

// dumpFile returns a package or its manifest, by what follows the set in its path:
// "resourcedump/{seq}/{part}.zip" or "changedump/{n}.zip", or the same with .xml; or the
// document of an earlier dump.
func (p *Publisher) dumpFile(ctx context.Context, name, rest string, gzip bool) (*Document, error) {
	set, err := p.set(ctx, name)
	if err != nil {
		return nil, err
	}
	st, err := p.state(ctx, name)
	if err != nil {
		return nil, err
	}
	se, part := &st.resourceDumps, int64(1)
	if strings.HasPrefix(rest, "changedump/") {
		se = &st.changeDumps
	}
	extension := filepath.Ext(rest)
	numbers := strings.Split(strings.TrimSuffix(rest, extension), "/")
	switch {
	case !set.Dumps || extension != ".zip" && extension != ".xml":
		return nil, ErrNotFound
	case numbers[0] == "changedump" && len(numbers) == 2 && strings.Contains(numbers[1], "-"): // an earlier Change Dump
		_, segments, err := p.segments(ctx, st)
		if err != nil {
			return nil, err
		}
		most := int64(p.limits.Entries)
		it, err := find(planChangeDumps(st.fixed, segments, se.snapshots(), p.limits.Entries), setPath(name, rest))
		if first, last, _ := strings.Cut(numbers[1], "-"); err != nil && number(first)%most == 1%most && number(last) == number(first)+most-1 &&
			number(first) < int64(segments[len(segments)-1].N) && p.awaited(&set, se, 0) {
			return nil, &NotReadyError{setPath(name, rest), snapshotWait, ""}
		}
		if err != nil {
			return nil, err
		}
		return p.document(ctx, it, gzip), nil
	case numbers[0] == "changedump" && len(numbers) == 2:
	case len(numbers) == 2 && extension == ".xml": // an earlier Resource Dump
		if s := se.named(numbers[1]); s != nil {
			return p.document(ctx, pastResourceDump(st.fixed, s), gzip), nil
		}
		if p.dumpAwaited(ctx, st, &set, se, seqOf(numbers[1])) {
			return nil, &NotReadyError{setPath(name, rest), snapshotWait, ""}
		}
		return nil, ErrNotFound
	case numbers[0] == "resourcedump" && len(numbers) == 3:
		part = number(numbers[2])
	default:
		return nil, ErrNotFound
	}
	if s := se.named(numbers[1]); s != nil && part >= 1 && part <= int64(len(s.packages)) {
		return p.packageFile(ctx, se, s, int(part), extension == ".zip")
	}
	if p.dumpAwaited(ctx, st, &set, se, seqOf(numbers[1])) {
		return nil, &NotReadyError{setPath(name, rest), snapshotWait, ""}
	}
	return nil, ErrNotFound
}

// dumpAwaited reports whether another node has, or may have, a dump with a number.
func (p *Publisher) dumpAwaited(ctx context.Context, st *state, set *event.Set, se *series, n int64) bool {
	if n == 0 || se.find(n) != nil || !p.awaited(set, se, n) {
		return false
	}
	if se.dump == resourcesync.ResourceDump {
		return event.Seq(n) <= set.Last
	}
	_, segments, err := p.segments(ctx, st)
	g, ok := numbered(segments, n)
	return err == nil && ok && !g.Open()
}

// packageFile returns a package or its manifest. If the file is damaged the dump is
// discarded and made again.
func (p *Publisher) packageFile(ctx context.Context, se *series, s *storedSnapshot, part int, zip bool) (*Document, error) {
	packed := &s.packages[part-1]
	name, want := fmt.Sprintf(contentsPattern, part), sum{packed.ContentsLength, packed.ContentsSHA256}
	meta := Meta{ContentType: "application/xml", Immutable: true, LastModified: s.At.Time().Truncate(time.Second)}
	if zip {
		name, want = fmt.Sprintf(packagePattern, part), sum{packed.Length, packed.SHA256}
		meta.ContentType = zipType
	}
	meta.ETag = `"` + want.sha256 + `"`
	f, err := s.openFile(ctx, name, want.sha256)
	if errors.Is(err, errDamaged) {
		p.discard(se, s, err)
		return nil, &NotReadyError{setPath(se.set, string(se.dump)+".xml"), snapshotWait, ""}
	}
	if err != nil {
		return nil, err
	}
	f.Close()
	return &Document{Meta: meta, open: func() (io.ReadSeekCloser, int64, error) {
		f, err := s.openFile(ctx, name, want.sha256)
		return f, want.length, err
	}}, nil
}

// Dump makes a Resource Dump of the set as it is now, and returns when it is durable and
// published. If there is one of that state already, it does nothing. An error, for
// instance because a content is missing, leaves the current one as it was.
func (p *Publisher) Dump(ctx context.Context, set string) error {
	st, s, err := p.dumped(ctx, set)
	if err != nil {
		return err
	}
	se := &st.resourceDumps
	se.making.Lock()
	defer se.making.Unlock()
	at := snapshotOf(&s, s.Last, s.LastObserved)
	if current := se.current(); current != nil && current.Seq == at.Seq {
		return nil
	}
	id := p.idOf(se, s, at)
	_, err = p.makeSnapshot(ctx, se, s, id, func(dir string) (l manifest, err error) {
		encoder := translate.NewListEncoder(p.base, s.Name, s.Content)
		head := &resourcesync.Document{Capability: resourcesync.ResourceDumpManifest, At: datetime(at.At), Links: []resourcesync.Link{upLink(p.base, s.Name)}}
		it := resourceList(s)
		w := p.newPackages(ctx, dir, head, p.packageLimits)
		l.Packages, err = w.write(func(yield func(*resourcesync.Entry, error) bool) {
			for e, err := range p.events(ctx, &it) {
				if err != nil {
					yield(nil, err)
					return
				}
				entry := encoder.ResourceEntry(e)
				encoder.AddPaths(entry, e, "/resources/")
				if !yield(entry, nil) {
					return
				}
			}
		})
		entries := 0
		for _, part := range l.Packages {
			entries += part.Entries
		}
		if err == nil && entries != it.Entries {
			err = fmt.Errorf("expected %d records, read %d: the log may be damaged; run bridge verify", it.Entries, entries)
		}
		return l, err
	})
	if err != nil {
		return fmt.Errorf("dump of the resources of set %s at %d: %w", set, at.Seq, err)
	}
	return nil
}

// ChangeDump makes the package of the Change Dump for a closed segment, unless it is
// there. The error is as with Dump.
func (p *Publisher) ChangeDump(ctx context.Context, set string, segment event.Segment) error {
	st, s, err := p.dumped(ctx, set)
	if err != nil {
		return err
	}
	se := &st.changeDumps
	se.making.Lock()
	defer se.making.Unlock()
	id := p.idOf(se, s, Snapshot{Seq: segment.Last, At: segment.Until})
	id.Segment = segment.N
	if se.find(int64(segment.N)) != nil {
		return nil
	}
	_, err = p.makeSnapshot(ctx, se, s, id, func(dir string) (l manifest, err error) {
		encoder := translate.NewListEncoder(p.base, s.Name, s.Content)
		head := &resourcesync.Document{Capability: resourcesync.ChangeDumpManifest, From: datetime(segment.From), Until: datetime(segment.Until),
			Links: []resourcesync.Link{upLink(p.base, s.Name)}}
		w := p.newPackages(ctx, dir, head, Limits{}) // one package, however large
		l.Packages, err = w.write(func(yield func(*resourcesync.Entry, error) bool) {
			for e, err := range p.log.Events(ctx, s.Name, segment.Range()) {
				if err != nil {
					yield(nil, err)
					return
				}
				entries := encoder.ChangeEntries(e)
				for i := range entries {
					encoder.AddPaths(&entries[i], e, fmt.Sprintf("/resources/%d/", e.Seq))
					if !yield(&entries[i], nil) {
						return
					}
				}
			}
		})
		if err == nil && l.Packages[0].Entries != segment.Entries {
			err = fmt.Errorf("expected %d changes, read %d: the log may be damaged; run bridge verify", segment.Entries, l.Packages[0].Entries)
		}
		return l, err
	})
	if err != nil {
		return fmt.Errorf("dump of the changes of set %s, segment %d: %w", set, segment.N, err)
	}
	return nil
}

// find returns the snapshot with a number, nil when there is none.
func (se *series) find(number int64) *storedSnapshot {
	for _, s := range se.snapshots() {
		if s.number() == number {
			return s
		}
	}
	return nil
}

// dumped returns a set of which dumps can be made now.
func (p *Publisher) dumped(ctx context.Context, name string) (*state, event.Set, error) {
	st, err := p.state(ctx, name)
	if err != nil {
		return nil, event.Set{}, err
	}
	set, err := p.set(ctx, name)
	switch {
	case err != nil:
	case !set.Dumps || set.Content != event.Mirror || p.opts.Content == nil:
		err = fmt.Errorf("set %s: %w: it has no dumps", name, ErrNotFound)
	default:
		if err = p.full(); err != nil {
			err = fmt.Errorf("set %s: no dump is made: %w", name, err)
			break
		}
		err = requireComplete(&set, setPath(name, "resourcedump.xml"))
	}
	return st, set, err
}

// packages writes the packages of a dump into a folder.
type packages struct {
	p      *Publisher
	ctx    context.Context //nolint:containedctx // that of the one call of write
	dir    string
	head   *resourcesync.Document
	limits Limits

	made     []packedPart
	zip      *file
	contents *file
	out      *bufio.Writer
	sums     [2]*HashWriter // of zip and contents
	dump     *resourcesync.DumpWriter
}

func (p *Publisher) newPackages(ctx context.Context, dir string, head *resourcesync.Document, limits Limits) *packages {
	return &packages{p: p, ctx: ctx, dir: dir, head: head, limits: limits}
}

// write writes all entries, each package as full as limits allow. There is always one
// package, which may be empty.
func (w *packages) write(entries iter.Seq2[*resourcesync.Entry, error]) ([]packedPart, error) {
	defer func() {
		for _, f := range []*file{w.zip, w.contents} {
			if f != nil {
				f.abandon()
			}
		}
	}()
	err := w.begin()
	for e, readErr := range entries {
		if err == nil {
			err = errors.Join(readErr, w.ctx.Err(), w.p.full()) // one package may fill a disk
		}
		if err != nil {
			break
		}
		if err = w.dump.Entry(e, w.content); errors.Is(err, resourcesync.ErrFull) {
			if err = w.end(); err == nil {
				err = w.begin()
			}
			if err == nil {
				err = w.dump.Entry(e, w.content)
			}
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", e.Loc, err)
		}
	}
	if err == nil {
		err = w.end()
	}
	return w.made, err
}

// content opens the content with the hash that its entry states.
func (w *packages) content(m *resourcesync.Metadata) (io.ReadCloser, error) {
	var sum [32]byte
	if n, err := hex.Decode(sum[:], []byte(event.SHA256Of(m.Hash))); err != nil || n != len(sum) {
		return nil, errors.New("no SHA-256 although its set is a mirror: run bridge verify")
	}
	body, _, err := w.p.opts.Content(w.ctx, sum)
	if err != nil && !errors.Is(err, event.ErrUnavailable) {
		err = fmt.Errorf("%w; run bridge verify", err)
	}
	return body, err
}

func (w *packages) begin() (err error) {
	if err := w.p.full(); err != nil {
		return err
	}
	n := len(w.made) + 1
	if w.zip, err = w.p.disk.create(filepath.Join(w.dir, fmt.Sprintf(packagePattern, n))); err != nil {
		return err
	}
	if w.contents, err = w.p.disk.create(filepath.Join(w.dir, fmt.Sprintf(contentsPattern, n))); err != nil {
		return err
	}
	w.sums = [2]*HashWriter{NewHashWriter(w.zip), NewHashWriter(w.contents)}
	w.out = bufio.NewWriterSize(w.sums[0], 256<<10)
	w.dump = resourcesync.NewDumpWriter(w.out, contentsFile{w.contents, w.sums[1]}, w.head)
	w.dump.MaxEntries, w.dump.MaxBytes = w.limits.Entries, w.limits.Bytes
	if w.limits != (Limits{}) {
		w.dump.MaxManifest = resourcesync.MaxBytes
	}
	return nil
}

// contentsFile is the copy of a manifest, which is read again for the package.
type contentsFile struct {
	file *file
	sum  *HashWriter
}

func (c contentsFile) Write(b []byte) (int, error) { return c.sum.Write(b) }

func (c contentsFile) Read(b []byte) (int, error) { return c.file.f.Read(b) }

func (c contentsFile) Seek(offset int64, whence int) (int64, error) {
	return c.file.f.Seek(offset, whence)
}

func (w *packages) end() error {
	entries := w.dump.Entries()
	if err := w.dump.Close(); err != nil {
		return err
	}
	if err := w.out.Flush(); err != nil {
		return err
	}
	for _, f := range []*file{w.zip, w.contents} {
		if err := f.finish(); err != nil {
			return err
		}
	}
	zip, contents := w.sums[0].sum(), w.sums[1].sum()
	w.made = append(w.made, packedPart{Entries: entries, Length: zip.length, SHA256: zip.sha256, ContentsLength: contents.length, ContentsSHA256: contents.sha256})
	return nil
}

// dumpRetry is how long Run waits after a dump that failed: only an operator can restore a
// missing content.
const dumpRetry = 10 * time.Minute

// dumpPlan is when Run tries failed dumps again.
type dumpPlan struct {
	resources time.Time
	changes   map[int]time.Time // by segment
}

// checkDumps checks the dumps of each set once, and makes what is due: the package of each
// segment that has closed, and a Resource Dump where there is none or the last one has
// become old.
func (p *Publisher) checkDumps(ctx context.Context, plans map[string]*dumpPlan) error {
	sets, err := p.log.Sets(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, set := range sets {
		if err := defect.Guard(func() error { return p.checkDump(ctx, plans, set) }); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// MakeDumps makes the dumps of a set that Run would make now, and removes those of a set
// that is to have none any more. The error is as with Dump.
func (p *Publisher) MakeDumps(ctx context.Context, set event.Set) error {
	return p.checkDump(ctx, map[string]*dumpPlan{}, set)
}

func (p *Publisher) checkDump(ctx context.Context, plans map[string]*dumpPlan, set event.Set) error {
	st, err := p.state(ctx, set.Name)
	if err != nil {
		return err
	}
	if !set.Dumps {
		return p.removeDumps(st)
	}
	for _, se := range []*series{&st.resourceDumps, &st.changeDumps} {
		p.settle(ctx, st, set, se, math.MaxInt)
	}
	plan := plans[set.Name]
	if plan == nil {
		plan = &dumpPlan{changes: map[int]time.Time{}}
		plans[set.Name] = plan
		p.cleanup(&st.resourceDumps)
		p.cleanup(&st.changeDumps)
	}
	if set.Partial || p.opts.Content == nil {
		return nil
	}
	return errors.Join(p.makeChangeDumps(ctx, st, set, plan), p.makeResourceDump(ctx, st, set, plan))
}

// removeDumps removes the dumps of a set that is to have none any more.
func (p *Publisher) removeDumps(st *state) error {
	var errs []error
	for _, se := range []*series{&st.resourceDumps, &st.changeDumps} {
		se.making.Lock()
		if !se.empty {
			se.mu.Lock()
			se.kept, se.settled = nil, true
			se.mu.Unlock()
			_, err := os.Stat(se.dir)
			if err == nil {
				errs = append(errs, p.disk.remove(se.dir))
				p.forgetFiles(se.set + "/" + se.name() + "/")
			}
			se.empty = errors.Is(err, fs.ErrNotExist)
		}
		se.making.Unlock()
	}
	return errors.Join(errs...)
}

func (p *Publisher) makeResourceDump(ctx context.Context, st *state, set event.Set, plan *dumpPlan) error {
	now := p.opts.Now()
	current := st.resourceDumps.current() // made in the future: the clock was ahead then
	if current != nil && (current.Seq == set.Last || now.Sub(current.made).Abs() < p.opts.DumpEvery) || now.Before(plan.resources) {
		return nil
	}
	err := p.Dump(ctx, set.Name)
	if err = errors.Join(err, p.noteFault(&st.resourceDumps, err)); err != nil {
		plan.resources = p.opts.Now().Add(dumpRetry)
		return err
	}
	if current = st.resourceDumps.current(); current != nil {
		p.logger.Info("Resource Dump made", "set", set.Name, "seq", current.Seq, "records", set.Live, "packages", current.Parts,
			"bytes", current.bytes, "took", p.opts.Now().Sub(now))
	}
	return nil
}

func (p *Publisher) makeChangeDumps(ctx context.Context, st *state, set event.Set, plan *dumpPlan) error {
	_, segments, err := p.segments(ctx, st)
	if err != nil {
		return err
	}
	made := map[int]bool{}
	for _, s := range st.changeDumps.snapshots() {
		made[s.segment] = true
	}
	var failed error // of the first that failed
	more, waiting := 0, false
	for _, g := range ChangeListSegments(set, segments) {
		now := p.opts.Now()
		if g.Open() || made[g.N] {
			continue
		}
		if now.Before(plan.changes[g.N]) {
			waiting = true // its fault is noted
			continue
		}
		switch err := p.ChangeDump(ctx, set.Name, g); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			plan.changes[g.N] = p.opts.Now().Add(dumpRetry) // the attempt may have taken longer than that
			if failed == nil {
				failed = err
			} else {
				more++
			}
		default:
			delete(plan.changes, g.N)
			p.logger.Info("Change Dump made", "set", set.Name, "segment", g.N, "took", p.opts.Now().Sub(now))
		}
	}
	if failed == nil && waiting {
		return nil
	}
	if more > 0 {
		failed = fmt.Errorf("%w (and %d more segments)", failed, more)
	}
	return errors.Join(failed, p.noteFault(&st.changeDumps, failed))
}

// faultName is the file in the folder of a series with the error of its last dump, for bridge
// status, which is another process than the one that makes dumps.
const faultName = "fault"

// noteFault writes the error of a dump into that file, and removes the file when there is none.
func (p *Publisher) noteFault(se *series, fault error) error {
	path := filepath.Join(se.dir, faultName)
	switch {
	case fault == nil:
		if _, err := os.Stat(path); err != nil {
			return nil
		}
		return p.disk.remove(path)
	case errors.Is(fault, context.Canceled):
		return nil
	}
	if err := p.disk.mkdir(se.dir); err != nil {
		return err
	}
	return p.disk.writeFile(path, []byte(fault.Error()), false)
}

// DumpState is the state of the dumps of a set.
type DumpState struct {
	// Seq is the Seq whose state the Resource Dump has, 0 when there is none.
	Seq event.Seq
	// Segments counts the closed segments, and Packed those that the Change Dump has.
	Segments, Packed int
	// Faults are the errors of the newest dumps that could not be made.
	Faults []string
}

// DumpState returns the state of the dumps of a set. The error may be ErrNotFound.
func (p *Publisher) DumpState(ctx context.Context, set string) (d DumpState, err error) {
	st, err := p.state(ctx, set)
	if err != nil {
		return d, err
	}
	if current := st.resourceDumps.current(); current != nil {
		d.Seq = current.Seq
	}
	d.Packed = len(st.changeDumps.snapshots())
	s, segments, err := p.segments(ctx, st)
	if err != nil {
		return d, err
	}
	if d.Segments = len(ChangeListSegments(s, segments)); d.Segments > 0 {
		d.Segments-- // the open one
	}
	for _, se := range []*series{&st.resourceDumps, &st.changeDumps} {
		if text, err := os.ReadFile(filepath.Join(se.dir, faultName)); err == nil {
			d.Faults = append(d.Faults, string(text))
		}
	}
	return d, nil
}
