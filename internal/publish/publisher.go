package publish

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// Log is the event log as this package reads it; eventlog.Log is one. It is an interface
// because this package may not import the log (imports_test.go): documents are made of
// events, whoever stores them. It is called from several goroutines at once.
type Log interface {
	// Sets returns all sets in the order of their names.
	Sets(ctx context.Context) ([]event.Set, error)
	// Set returns one set; the error is fs.ErrNotExist when there is none.
	Set(ctx context.Context, name string) (event.Set, error)
	// SegmentsFrom returns the segments of a set from the one with a number on, in
	// order, the open one last, in a slice that is the caller's; from 1, all of them.
	SegmentsFrom(ctx context.Context, set string, n int) ([]event.Segment, error)
	// Events yields the set's events in a range, in order. All sequences end after the
	// first error, and may yield the same *event.Event again with another value.
	Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error]
	// Live yields the last event of every record that lives at that Seq, in
	// order of Seq; Listed, in mode reference, one event for each Loc.
	Live(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error]
	Listed(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error]
}

// Options are what a Publisher needs. Log, BaseURL, CacheDir and SnapshotDir
// must be given.
type Options struct {
	Log Log
	// BaseURL is what all published URLs begin with, absolute.
	BaseURL string
	// CacheDir holds rendered documents. It may be deleted at any time.
	CacheDir string
	// CacheBytes is how large it may become; the document that was made last stays in
	// any case.
	CacheBytes int64
	// Full returns why nothing more may be written into the cache, nil while the disk
	// has room. A nil func means that it always has.
	Full func() error
	// Room returns why so many bytes more may not be written; a nil func is never asked.
	Room func(bytes int64) error
	// SnapshotDir holds snapshots: {set}/{seq}/. Deleting it costs making the
	// last one anew.
	SnapshotDir string
	// Files is a bucket where Run puts the snapshots and dumps too, and from which Follow gets
	// them, nil for none. A place in it is of one log, the one with the identity FilesOwner.
	Files      *bucket.Bucket
	FilesOwner string
	// Follow: another node makes the snapshots. This one calls Follow, and not Run.
	Follow bool
	// ReportFiles is told when Files cannot be used, and with nil when it can be again; a nil
	// func logs that.
	ReportFiles func(error)
	// DumpEvery is how old a Resource Dump becomes before it is made anew, if anything has
	// changed.
	DumpEvery time.Duration
	// Content opens a content of sets in mode mirror by its SHA-256; with nil there are
	// no dumps. A missing one is fs.ErrNotExist; reading one that is damaged fails.
	Content func(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error)
	// AnyBase accepts snapshots that were made for any base URL, for a caller that only
	// reports what there is and serves nothing.
	AnyBase bool
	// AfterDeletion and AfterChange are how long after the first deletion or
	// change that it does not show a snapshot is made anew.
	AfterDeletion, AfterChange time.Duration
	// MinAge is how old the last rendering of an open document may become before it is made
	// anew, for each 1,000 of its entries; one with fewer always is. With 0 all are. Also an
	// older rendering shows a range of the log.
	MinAge time.Duration
	// Retention bounds the snapshots that are kept for clients that are reading their
	// parts.
	Retention Retention
	// Poll is how often Run asks the log what has changed; 0 is two seconds.
	Poll time.Duration
	// Hubs returns the URLs of the WebSub hubs that the documents of a set name; a nil func
	// is none for any set.
	Hubs func(set string) []string
	// Now is the clock of Run's schedule; nil is time.Now. No document has its
	// time from it.
	Now func() time.Time
	// Logger gets what Run cannot return; nil discards it.
	Logger *slog.Logger
}

// Retention bounds how many snapshots of a set are kept. The newest two always are.
type Retention struct {
	// Age is how long after its successor was made one is kept.
	Age time.Duration
	// Count of all of them, and Bytes that they have together.
	Count int
	Bytes int64
}

// Publisher serves the documents of a log. Its methods may be called from any
// goroutine. Any number of processes may read documents, each with its own
// Publisher on the same folders; only the one that holds the log's writer lock
// calls Run or Snapshot. With a bucket others may have folders of their own: they call
// Follow.
type Publisher struct {
	opts   Options
	log    Log
	base   string // without a slash at its end
	disk   disk
	cache  *cache
	limits Limits // those of the specification
	// packageLimits are those of one package of a Resource Dump; the bytes are those of
	// the contents.
	packageLimits Limits
	// completeBytes is how long a complete feed may be.
	completeBytes int64
	logger        *slog.Logger
	wakeups       chan struct{} // Run has a snapshot to make at once
	dumpWakeups   chan struct{} // or a dump
	files         *files        // nil without a bucket
	uploadWait    time.Duration // how long a Resource List waits for the bucket before it is published

	lasting context.Context //nolint:containedctx // of what goes on after a request: it ends with Run or Follow
	end     context.CancelFunc

	mu       sync.Mutex
	states   map[string]*state
	forgets  int                            // how often Forget was called
	latest   map[openDocument]string        // cached name of the last rendering
	openDocs map[openDocument]openRendering // without gzip
}

// openDocument is one that may change. A set has one of a kind at a time: where the numbers of
// segments name them, the next one takes the place of the last.
type openDocument struct {
	set  string
	kind Kind
	gzip bool
}

// openRendering is the last rendering of an open document, compressed or not.
type openRendering struct {
	it  Item
	key string
	at  time.Time
}

// ErrNotFound: there is no such document, or there is no longer.
var ErrNotFound = errors.New("no such document")

// NotReadyError: the document will exist, but its snapshot has not been made
// yet, or the set does not have all its records yet, or there is no room for it. A server answers 503 with
// Retry-After.
type NotReadyError struct {
	Path       string
	RetryAfter time.Duration
	// Partial is the set of which not all Sources were walked yet, else "".
	Partial string
}

// Error says what is missing and when to ask again.
func (e *NotReadyError) Error() string {
	return fmt.Sprintf("%s: it is being made: ask again in %v", e.Path, e.RetryAfter)
}

// snapshotWait is the Retry-After of a snapshot that is being made: a million
// records take less. partialWait is that of a set whose Sources are being walked
// for the first time; memoryWait, of a document for which there is neither a cache nor memory.
const (
	snapshotWait = 10 * time.Second
	partialWait  = 30 * time.Second
	memoryWait   = 5 * time.Second
)

// requireComplete returns a *NotReadyError while the state of a set must not be
// published: a Destination deletes what a complete list lacks.
func requireComplete(set *event.Set, path string) error {
	if set.Partial {
		return &NotReadyError{path, partialWait, set.Name}
	}
	return nil
}

// New returns a Publisher. It touches no file.
func New(o Options) (*Publisher, error) {
	u, err := url.Parse(o.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("base URL %q: want http or https, a host, and no query", o.BaseURL)
	}
	if o.Log == nil || o.CacheDir == "" || o.SnapshotDir == "" {
		return nil, errors.New("publish: Log, CacheDir and SnapshotDir must be given")
	}
	o.Poll = cmp.Or(o.Poll, 2*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Publisher{
		opts: o, log: o.Log, base: strings.TrimRight(o.BaseURL, "/"), logger: o.Logger,
		limits: Limits{Entries: resourcesync.MaxEntries, Bytes: resourcesync.MaxBytes}, completeBytes: completeBytes,
		packageLimits: Limits{Entries: resourcesync.MaxEntries, Bytes: packageBytes},
		wakeups:       make(chan struct{}, 1), dumpWakeups: make(chan struct{}, 1), uploadWait: uploadWait,
		states: map[string]*state{}, latest: map[openDocument]string{}, openDocs: map[openDocument]openRendering{},
	}
	p.lasting, p.end = context.WithCancel(context.Background())
	p.cache = newCache(filepath.Join(o.CacheDir, cacheEpoch(p.base)), p.disk, o.CacheBytes)
	p.cache.full, p.cache.changed = o.Full, p.logCache
	if o.Files != nil && o.ReportFiles == nil {
		p.opts.ReportFiles = p.logFiles
	}
	if o.Files != nil {
		p.files = &files{p: p, bucket: o.Files, wakeup: make(chan struct{}, 1)}
	}
	return p, nil
}

// logCache logs that documents cannot be kept, and that they can be again.
func (p *Publisher) logCache(why error) {
	if why == nil {
		p.logger.Info("the cache can be written again")
		return
	}
	p.logger.Error("documents cannot be kept in the cache: each is made anew, in memory, for each request", "folder", p.opts.CacheDir, "error", why)
}

// cacheEpoch names the folder of all that is rendered in one format and for one base URL, so
// that all others can be recognized and removed.
func cacheEpoch(base string) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%d %s", FormatVersion, base))
	return hex.EncodeToString(h[:8])
}

// LinkHeader returns the value of the Link header by which each record of a set
// leads to the set's Capability List (clause 6.3.3).
func (p *Publisher) LinkHeader(set string) string {
	return "<" + p.base + setPath(set, "capabilitylist.xml") + `>; rel="resourcesync"`
}

// Plan returns all documents of a set as they are now.
func (p *Publisher) Plan(ctx context.Context, set string) ([]Item, error) {
	s, err := p.set(ctx, set)
	if err != nil {
		return nil, err
	}
	st, err := p.state(ctx, set)
	if err != nil {
		return nil, err
	}
	_, segments, err := p.segments(ctx, st)
	if err != nil {
		return nil, err
	}
	var snapshot *Snapshot
	if err := requireComplete(&s, setPath(set, "resourcelist.xml")); err != nil {
		return nil, err
	}
	if current := st.current(); !p.isOneDocument(st, s) {
		if current == nil {
			return nil, &NotReadyError{setPath(set, "resourcelist.xml"), snapshotWait, ""}
		}
		snapshot = &current.Snapshot
	}
	items := planSet(s, segments, snapshot, p.limits.Entries)
	dumps := p.dumps(st, s, segments)
	for i := range items {
		if items[i].Kind == CapabilityList {
			items[i].more = append(items[i].more, capabilitiesOf(dumps)...)
		}
	}
	kept, err := p.planKept(st, s, segments)
	return slices.Concat(items, kept, dumps, planPackages(dumps)), err
}

// set reads a set as it is now.
func (p *Publisher) set(ctx context.Context, name string) (event.Set, error) {
	set, err := p.log.Set(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return event.Set{}, ErrNotFound
	}
	return set, err
}

// state caches the data of a set. All of it but the snapshots comes
// from the log.
type state struct {
	fixed event.Set // only the fields that never change
	// series are the snapshots of its Resource List. Its mu also guards the fields after past.
	series
	resourceDumps, changeDumps series
	past                       series // Resource Lists that are kept (kept.go)

	segments []event.Segment // all of them, as of last or later; the slice is never changed
	last     event.Seq       // the set's last event when they were read
	tooLarge bool            // its Resource List is larger than one document may be
	tooLong  int64           // how many records it had when its complete feed was too long, 0: it was not
}

// all returns the series of the set.
func (st *state) all() []*series {
	return []*series{&st.series, &st.past, &st.resourceDumps, &st.changeDumps}
}

// state returns the set's state, and on the first call looks at what snapshots
// there are.
func (p *Publisher) state(ctx context.Context, name string) (*state, error) {
	p.mu.Lock()
	st, forgets := p.states[name], p.forgets
	p.mu.Unlock()
	if st != nil {
		return st, nil
	}
	set, err := p.set(ctx, name)
	if err != nil {
		return nil, err
	}
	st = &state{fixed: event.Set{Name: set.Name, Named: set.Named, Content: set.Content, Created: set.Created, Feed: set.Feed, Complete: set.Complete, FirstFeed: set.FirstFeed}}
	for se, dump := range map[*series]resourcesync.Capability{&st.series: "", &st.resourceDumps: resourcesync.ResourceDump, &st.changeDumps: resourcesync.ChangeDump} {
		se.set, se.dump, se.dir = name, dump, filepath.Join(p.setDir(name), string(dump))
		if err := p.loadSnapshots(ctx, se, set); err != nil {
			return nil, err
		}
	}
	st.past.set, st.past.dir, st.past.past = name, filepath.Join(p.setDir(name), pastFolder), true
	if err := p.loadSnapshots(ctx, &st.past, set); err != nil {
		return nil, err
	}
	st.tooLarge = p.isTooLarge(st.current())
	p.mu.Lock()
	defer p.mu.Unlock()
	if other := p.states[name]; other != nil {
		return other, nil
	}
	if p.forgets == forgets { // else another set may have the name by now
		p.states[name] = st
	}
	return st, nil
}

// isTooLarge reports whether a snapshot, which may be nil, has several parts because of its bytes,
// and not of its records.
func (p *Publisher) isTooLarge(s *storedSnapshot) bool {
	if s == nil {
		return false
	}
	entries := 0
	for i := range s.Files {
		entries += s.Files[i].Entries
	}
	return len(s.Files) > 1 && entries <= p.limits.Entries
}

// Forget drops what is kept in memory of a set that has another name from now on, was
// removed, or has the name of one that was. Files that were made for it are found again, if
// they are of the same set.
func (p *Publisher) Forget(set string) {
	p.forgetFiles(set + "/")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgets++
	delete(p.states, set)
	maps.DeleteFunc(p.openDocs, func(d openDocument, _ openRendering) bool { return d.set == set })
	maps.DeleteFunc(p.latest, func(d openDocument, _ string) bool { return d.set == set })
}

// Segments returns a set as it is now, and its segments of that moment or later, the
// open one last. The caller must not change them.
func (p *Publisher) Segments(ctx context.Context, set string) (event.Set, []event.Segment, error) {
	st, err := p.state(ctx, set)
	if err != nil {
		return event.Set{}, nil, err
	}
	return p.segments(ctx, st)
}

// segments is Segments of a known set. Segments change only when an event is appended,
// and only the open one and those after it: while the set's last event is the same, a
// poll reads one row, and then a few, however long the log is.
func (p *Publisher) segments(ctx context.Context, st *state) (event.Set, []event.Segment, error) {
	set, err := p.set(ctx, st.fixed.Name)
	if err != nil {
		return set, nil, err
	}
	st.mu.Lock()
	segments, current := st.segments, st.segments != nil && st.last == set.Last
	st.mu.Unlock()
	if current {
		return set, segments, nil
	}
	closed, from := segments[:max(len(segments)-1, 0)], 1
	if n := len(closed); n < len(segments) {
		from = segments[n].N
	}
	// Read after set.Last, so they are of that moment or later.
	fresh, err := p.log.SegmentsFrom(ctx, st.fixed.Name, from)
	if err != nil {
		return set, nil, err
	}
	if n := len(fresh); n == 0 || !fresh[n-1].Open() {
		return set, nil, fmt.Errorf("set %s: its last segment is not open: the log may be damaged; run bridge verify", st.fixed.Name)
	}
	segments = slices.Concat(closed, fresh)
	st.mu.Lock()
	if set.Last >= st.last {
		st.segments, st.last = segments, set.Last
	}
	st.mu.Unlock()
	return set, segments, nil
}

// segment returns segment n; closed ones come from memory, so that their Change
// Lists are served without asking the log.
func (p *Publisher) segment(ctx context.Context, st *state, n int64) (event.Segment, error) {
	st.mu.Lock()
	segments := st.segments
	st.mu.Unlock()
	if s, ok := numbered(segments, n); ok && !s.Open() {
		return s, nil
	}
	_, segments, err := p.segments(ctx, st)
	if err != nil {
		return event.Segment{}, err
	}
	s, ok := numbered(segments, n)
	if !ok {
		return event.Segment{}, ErrNotFound
	}
	return s, nil
}

// numbered finds segment n among all that there are: after a loss the first of
// them has a later number than 1.
func numbered(segments []event.Segment, n int64) (event.Segment, bool) {
	if len(segments) == 0 {
		return event.Segment{}, false
	}
	i := n - int64(segments[0].N)
	if i < 0 || i >= int64(len(segments)) {
		return event.Segment{}, false
	}
	return segments[i], true
}

// isOneDocument reports whether the set's Resource List is known to be one document,
// made on request, and not a snapshot with an index.
func (p *Publisher) isOneDocument(st *state, set event.Set) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.tooLarge && set.Live <= int64(p.limits.Entries)
}

// render returns a function that writes a document from the log.
func (p *Publisher) render(it Item, gzip bool) renderFunc {
	return func(ctx context.Context, w io.Writer) error {
		write := func(w io.Writer) error { return Render(w, p.base, &it, p.events(ctx, &it)) }
		var err error
		if gzip {
			err = compress(w, write)
		} else {
			err = write(w)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", it.Path, err)
		}
		return nil
	}
}

// events are those that Render needs for a document.
func (p *Publisher) events(ctx context.Context, it *Item) iter.Seq2[*event.Event, error] {
	switch {
	case it.Events.Upto <= it.Events.After:
	case it.Kind == Complete:
		return p.log.Live(ctx, it.Set.Name, it.Events.Upto)
	case it.Kind == ResourceList:
		return p.log.Listed(ctx, it.Set.Name, it.Events.Upto)
	default:
		return p.log.Events(ctx, it.Set.Name, it.Events)
	}
	return func(func(*event.Event, error) bool) {}
}

// inline makes a small document.
func (p *Publisher) inline(it Item, gzip bool) (io.ReadSeekCloser, int64, error) {
	var b bytes.Buffer
	err := p.render(it, gzip)(context.Background(), &b)
	return openMemory(b.Bytes(), err)
}
