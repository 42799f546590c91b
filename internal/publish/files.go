package publish

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// Snapshots and dumps may be in a bucket of an S3 server too, from where other nodes get
// them (follow.go): they publish the same ones, and make none. A node's own folder stays
// what it serves from, so a bucket that is away stops nobody.
//
// Each is in a folder of its own in the bucket, files/{set}/{series}/{number}-{random}/,
// whose name is never used for anything else. One object, the index, names all that are
// kept. The order of steps makes this safe: files, then the manifest, then the index. What
// the index names is whole, and what a crash has left is not named; after a day it is
// removed, as is what the index has ceased to name.
const (
	indexKey    = "index"
	filesPrefix = "files/"
	// indexFormat changes when older nodes cannot read the index.
	indexFormat = 1

	// sweepEvery is how often all objects are listed, and unneeded how long one stays that
	// nothing names: an upload may be under way, or a download.
	sweepEvery = time.Hour
	unneeded   = 24 * time.Hour
	// lookEvery is how often the node that writes the index looks whether it is still there.
	lookEvery = time.Minute
	// A bucket that is away is asked again after a while, which doubles.
	firstWait, lastWait = 5 * time.Second, time.Minute
	// uploadWait is how long a Resource List is put into the bucket before it is published.
	uploadWait = time.Minute
)

var (
	// errBucket: the bucket cannot be used at the moment. That has been reported.
	errBucket = errors.New("the bucket of the snapshots cannot be used")
	// errForeign: another log has the place.
	errForeign = errors.New("it has the snapshots of another log: give another prefix or bucket; if it was this log before that was restored or copied, and no other bridge uses it, remove the object " + indexKey)
	// errObject: an object does not have the bytes that were put there.
	errObject = errors.New("an object has other bytes than were written")
)

// fileIndex is the object that names the snapshots of all sets. Before it, on a line of its
// own, is its SHA-256 in hex: whoever knows that need not read the rest.
type fileIndex struct {
	About  string                `json:"about"`
	Format int                   `json:"format"`
	Owner  string                `json:"owner"` // the log: Options.FilesOwner
	Sets   map[string]indexedSet `json:"sets"`

	sum string // "" when it is not there
}

const indexAbout = "The snapshots and dumps of one bridge. Nothing but that bridge may write or remove here."

// indexedSet is what there is of a set, by series and number.
type indexedSet struct {
	Feed      string                               `json:"feed"` // of another set, or epoch, with the name it is another one
	Snapshots map[string]map[int64]indexedSnapshot `json:"snapshots,omitempty"`
}

type indexedSnapshot struct {
	Folder   string `json:"folder"`   // in the bucket
	Manifest string `json:"manifest"` // its SHA-256, in hex
	Files    int    `json:"files"`    // with the manifest
	Bytes    int64  `json:"bytes"`    // of them all
}

func (x indexedSet) equal(other indexedSet) bool {
	return x.Feed == other.Feed && maps.EqualFunc(x.Snapshots, other.Snapshots, maps.Equal[map[int64]indexedSnapshot, map[int64]indexedSnapshot])
}

// folders yields the folder of each snapshot that the index names.
func (x *fileIndex) folders() map[string]indexedSnapshot {
	all := map[string]indexedSnapshot{}
	for _, set := range x.Sets {
		for _, snapshots := range set.Snapshots {
			for _, s := range snapshots {
				all[s.Folder] = s
			}
		}
	}
	return all
}

// files is the bucket of the snapshots, as this process knows it.
type files struct {
	p      *Publisher
	bucket *bucket.Bucket
	wakeup chan struct{} // the index is to name something else

	mu     sync.Mutex
	wait   time.Duration // how long the bucket is not asked after its last failure; 0: it did not fail
	again  time.Time     // when it is asked again
	failed action        // what failed first; only its success ends the trouble

	index *fileIndex // as it is there, nil while that is not known; it is never changed

	// Of the node that writes the index. It is read before anything is written.
	working sync.Mutex // held while the index is read, written or compared with what is there
	damaged bool       // the index there cannot be read
	looked  time.Time
	swept   time.Time
	objects map[string]indexedSnapshot // whole ones in the bucket, by set, series and number
	uploads map[string]*upload         // unfinished ones
	since   map[string]time.Time       // when a sweep first found a folder in the bucket that nothing needs
}

// action is what the bucket is asked for: a key may allow one and not the others.
type action int

const (
	reading action = iota
	writing
	tidying // listing and removing
)

// upload is a snapshot that is being put into the bucket.
type upload struct {
	indexedSnapshot
	done map[string]bool // the files that are there
}

func hashOf(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// attempt makes requests to the bucket, unless it failed a moment ago. If it fails now, that
// is reported, once until what failed has succeeded, and the error is errBucket.
func (f *files) attempt(ctx context.Context, what action, do func() error) error {
	f.mu.Lock()
	wait := f.wait > 0 && f.p.opts.Now().Before(f.again)
	f.mu.Unlock()
	if wait {
		return errBucket
	}
	err := do()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		if f.wait > 0 && f.failed == what {
			f.p.opts.ReportFiles(nil)
			f.wait = 0
		}
	case ctx.Err() != nil:
	case errors.Is(err, bucket.ErrAway), errors.Is(err, bucket.ErrRefused), errors.Is(err, errForeign), errors.Is(err, errObject):
		if f.wait == 0 {
			f.p.opts.ReportFiles(err)
			f.failed = what
		}
		f.wait = min(max(2*f.wait, firstWait), lastWait)
		f.again = f.p.opts.Now().Add(f.wait)
		return fmt.Errorf("%w: %w", errBucket, err)
	}
	return err
}

// logFiles logs when the bucket cannot be used, and when it can be again.
func (p *Publisher) logFiles(err error) {
	if err == nil {
		p.logger.Info("the bucket of the snapshots can be used again")
		return
	}
	p.logger.Error("the bucket of the snapshots cannot be used; it is tried again", "error", err)
}

// failing reports whether there is trouble that began with one of some actions.
func (f *files) failing(actions ...action) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wait > 0 && slices.Contains(actions, f.failed)
}

// readIndex returns the index, or the known one if that is still there.
func (f *files) readIndex(ctx context.Context, known *fileIndex) (*fileIndex, error) {
	if known != nil && known.sum != "" {
		if sum, err := f.bucket.Get(ctx, indexKey, 0, int64(len(known.sum))); err == nil && string(sum) == known.sum {
			return known, nil
		}
	}
	data, err := f.bucket.Get(ctx, indexKey, 0, -1)
	if err != nil {
		return nil, err
	}
	sum, body, _ := bytes.Cut(data, []byte("\n"))
	x := &fileIndex{sum: string(sum)}
	switch {
	case x.sum != hashOf(body) || json.Unmarshal(body, x) != nil:
		return nil, fmt.Errorf("%w: %s of %s", errObject, indexKey, f.bucket)
	case x.Format != indexFormat:
		return nil, fmt.Errorf("%w: %s of %s has the format of another version of bridge", bucket.ErrRefused, indexKey, f.bucket)
	case x.Owner != f.p.opts.FilesOwner:
		return nil, fmt.Errorf("%w: %s", errForeign, f.bucket)
	}
	return x, nil
}

// load reads the index for the node that writes it. One that is damaged, or gone, or of
// another node that has not noticed that it writes no more, is written anew.
func (f *files) load(ctx context.Context) error {
	f.working.Lock()
	defer f.working.Unlock()
	known := f.loaded()
	x, err := f.readIndex(ctx, known)
	damaged := errors.Is(err, errObject)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x = &fileIndex{}
	case damaged:
		f.p.logger.Error("the index of the snapshots is damaged, and is written anew", "error", err)
		if x = known; known == nil {
			x = &fileIndex{}
		}
	case err != nil:
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if known != nil && known.sum != "" && x.sum == "" {
		f.swept = time.Time{} // the objects may have gone too
	}
	if known == nil {
		f.objects, f.uploads = map[string]indexedSnapshot{}, map[string]*upload{}
		for name, set := range x.Sets {
			for series, snapshots := range set.Snapshots {
				for n, s := range snapshots {
					f.objects[objectID(name, series, n)] = s
				}
			}
		}
	}
	f.index, f.damaged, f.looked = x, damaged, f.p.opts.Now()
	return nil
}

// known is loaded after the first load.
func (f *files) known(ctx context.Context) (*fileIndex, error) {
	if x := f.loaded(); x != nil {
		return x, nil
	}
	err := f.attempt(ctx, reading, func() error { return f.load(ctx) })
	return f.loaded(), err
}

// loaded returns the index as it was read or written last, nil before that.
func (f *files) loaded() *fileIndex {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.index
}

func objectID(set, series string, number int64) string {
	return fmt.Sprintf("%s/%s/%d", set, series, number)
}

// upload puts a snapshot into the bucket, unless it is there: its files, then its manifest.
// After a failure it goes on with those that are missing.
func (p *Publisher) upload(ctx context.Context, se *series, s *storedSnapshot) error {
	f := p.files
	if f == nil || p.opts.Follow || f.failing(reading, writing, tidying) {
		return nil
	}
	return f.upload(ctx, se, s)
}

func (f *files) upload(ctx context.Context, se *series, s *storedSnapshot) error {
	if _, err := f.known(ctx); err != nil {
		return err
	}
	id := objectID(se.set, se.name(), s.number())
	f.mu.Lock()
	there, u := f.objects[id], f.uploads[id]
	if there.Manifest == s.indexed.Manifest {
		f.mu.Unlock()
		return nil
	}
	if u == nil || u.Manifest != s.indexed.Manifest {
		u = &upload{s.indexed, map[string]bool{}}
		u.Folder = filesPrefix + id + "-" + rand.Text()
		f.uploads[id] = u
	}
	f.mu.Unlock()
	put := func(name, hash string, length int64) error {
		f.mu.Lock()
		done := u.done[name]
		f.mu.Unlock()
		if done {
			return nil
		}
		file, err := s.openFile(ctx, name, hash)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := f.attempt(ctx, writing, func() error { return f.bucket.Put(ctx, u.Folder+"/"+name, file, length) }); err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		u.done[name] = true
		return nil
	}
	length := u.Bytes
	for name, want := range s.files() {
		if err := put(name, want.sha256, want.length); err != nil {
			return err
		}
		length -= want.length
	}
	if err := put(manifestName, u.Manifest, length); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uploads[id] == u { // else the snapshot was removed here meanwhile
		delete(f.uploads, id)
		f.objects[id] = u.indexedSnapshot
	}
	return nil
}

// share keeps the bucket as this node's folder is, until ctx is done: it puts there what is
// missing, writes the index, and removes what nothing needs.
func (f *files) share(ctx context.Context) {
	f.p.repeat(ctx, "snapshots in the bucket", f.wakeup, func() error {
		if err := f.shareOnce(ctx); !errors.Is(err, errBucket) {
			return err
		}
		return nil
	})
}

func (f *files) shareOnce(ctx context.Context) (err error) {
	defer defect.Recover(&err)
	sets, err := f.p.log.Sets(ctx)
	if err != nil || len(sets) == 0 {
		return err
	}
	start := f.p.opts.Now()
	f.mu.Lock()
	look := f.index == nil || start.Sub(f.looked) >= lookEvery
	f.mu.Unlock()
	if look {
		if err := f.attempt(ctx, reading, func() error { return f.load(ctx) }); err != nil {
			return err
		}
	}
	var errs []error
	for _, dumps := range [...]bool{false, true} {
		for i := range sets {
			st, err := f.p.state(ctx, sets[i].Name)
			if err != nil {
				return err
			}
			for _, se := range st.all() {
				if (se.dump != "") != dumps {
					continue
				}
				for _, s := range se.inOrder() {
					if dumps && f.p.opts.Now().Sub(start) > lookEvery {
						wakeUp(f.wakeup) // there may be new Resource Lists, which do not wait for all dumps
						break
					}
					err := f.upload(ctx, se, s)
					if errors.Is(err, errDamaged) {
						f.p.discard(se, s, err)
						continue
					}
					if errors.Is(err, errBucket) || ctx.Err() != nil {
						return err
					}
					errs = append(errs, err)
				}
			}
		}
		if err := f.attempt(ctx, writing, func() error { return f.writeIndex(ctx, sets) }); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	f.mu.Lock()
	sweep := f.p.opts.Now().Sub(f.swept) >= sweepEvery
	f.mu.Unlock()
	if sweep {
		errs = append(errs, f.attempt(ctx, tidying, func() error { return f.sweep(ctx) }))
	}
	return errors.Join(errs...)
}

// writeIndex writes the index if it is to name other snapshots: those that this node has,
// and whose objects are there. Of a series that is not settled it also names what it named.
func (f *files) writeIndex(ctx context.Context, sets []event.Set) error {
	f.working.Lock()
	defer f.working.Unlock()
	next := &fileIndex{About: indexAbout, Format: indexFormat, Owner: f.p.opts.FilesOwner, Sets: map[string]indexedSet{}}
	last := f.loaded()
	for i := range sets {
		set := indexedSet{Feed: sets[i].Feed, Snapshots: map[string]map[int64]indexedSnapshot{}}
		st, err := f.p.state(ctx, sets[i].Name)
		if err != nil {
			return err
		}
		for _, se := range st.all() {
			snapshots := f.whole(se)
			for n, s := range last.of(&sets[i], se) {
				if _, ok := snapshots[n]; !ok && !se.isSettled() {
					snapshots[n] = s
				}
			}
			if len(snapshots) > 0 {
				set.Snapshots[se.name()] = snapshots
			}
		}
		next.Sets[sets[i].Name] = set
	}
	if !f.damaged && !f.failing(writing) && maps.EqualFunc(next.Sets, last.Sets, indexedSet.equal) {
		return nil // but after a failure it is written: that shows whether writing succeeds again
	}
	body, err := json.Marshal(next)
	if err != nil {
		return err
	}
	next.sum = hashOf(body)
	data := bytes.NewReader(slices.Concat([]byte(next.sum), []byte("\n"), body))
	put := f.bucket.Put
	if last.sum == "" && !f.damaged {
		put = f.bucket.PutNew // another log may claim the place at the same time
	}
	err = put(ctx, indexKey, data, data.Size())
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.looked = time.Time{} // it may be there all the same
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", bucket.ErrAway, err)
		}
		return err
	}
	needed, named := next.folders(), last.folders()
	maps.DeleteFunc(f.objects, func(_ string, s indexedSnapshot) bool {
		_, stays := needed[s.Folder]
		_, was := named[s.Folder]
		return was && !stays
	})
	f.index, f.damaged, f.looked = next, false, f.p.opts.Now()
	return nil
}

// whole returns the snapshots of a series that are in the bucket as they are here.
func (f *files) whole(se *series) map[int64]indexedSnapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[int64]indexedSnapshot{}
	for _, s := range se.snapshots() {
		if there, ok := f.objects[objectID(se.set, se.name(), s.number())]; ok && there.Manifest == s.indexed.Manifest {
			all[s.number()] = there
		}
	}
	return all
}

// of returns what the index names of a series.
func (x *fileIndex) of(set *event.Set, se *series) map[int64]indexedSnapshot {
	if in := x.Sets[set.Name]; in.Feed == set.Feed {
		return in.Snapshots[se.name()]
	}
	return nil // of another set, which had the name before
}

// forgetFiles drops what is known of the bucket's copies of a snapshot that is here no longer,
// or, if id ends with a slash, of all whose ids begin with it. Those that the index names stay
// until it does not.
func (p *Publisher) forgetFiles(id string) {
	f := p.files
	if f == nil {
		return
	}
	gone := func(other string) bool {
		return other == id || strings.HasSuffix(id, "/") && strings.HasPrefix(other, id)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.uploads, func(id string, _ *upload) bool { return gone(id) })
	if len(f.objects) == 0 {
		return
	}
	named := f.index.folders()
	maps.DeleteFunc(f.objects, func(id string, s indexedSnapshot) bool {
		_, ok := named[s.Folder]
		return !ok && gone(id)
	})
}

// sweep removes objects that nothing needs, and puts anew what has lost some.
func (f *files) sweep(ctx context.Context) error {
	f.mu.Lock()
	known := maps.Clone(f.objects) // what is put there meanwhile is not in the list
	f.mu.Unlock()
	there, err := f.list(ctx)
	if err != nil {
		return err
	}
	now := f.p.opts.Now()
	f.mu.Lock()
	needed := map[string]bool{}
	for folder := range f.index.folders() {
		needed[folder] = true
	}
	for _, u := range f.uploads {
		needed[u.Folder] = true
	}
	for id, s := range f.objects {
		if has := there[s.Folder]; known[id] == s && (has == nil || has.files != s.Files || has.bytes != s.Bytes) {
			f.p.logger.Error("a snapshot in the bucket has lost objects, and is put there again", "folder", s.Folder)
			delete(f.objects, id)
			wakeUp(f.wakeup)
			continue
		}
		needed[s.Folder] = true
	}
	since := map[string]time.Time{}
	for folder := range there {
		if !needed[folder] {
			since[folder] = now
			if before, ok := f.since[folder]; ok {
				since[folder] = before
			}
		}
	}
	f.since = since
	f.mu.Unlock()
	for folder, has := range there {
		if needed[folder] || now.Sub(since[folder]) < unneeded || now.Sub(has.newest) < unneeded {
			continue
		}
		slices.Sort(has.keys)
		slices.Reverse(has.keys) // the manifest goes first
		if err := f.bucket.Remove(ctx, has.keys...); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.swept = now
	return nil
}

// folder is what a folder in the bucket has.
type folder struct {
	files  int
	bytes  int64
	newest time.Time
	keys   []string
}

// list lists all objects of snapshots, by folder.
func (f *files) list(ctx context.Context) (map[string]*folder, error) {
	all := map[string]*folder{}
	for o, err := range f.bucket.Objects(ctx, filesPrefix) {
		if err != nil {
			return nil, err
		}
		i := strings.LastIndexByte(o.Key, '/')
		in := all[o.Key[:i]]
		if in == nil {
			in = &folder{}
			all[o.Key[:i]] = in
		}
		in.files++
		in.bytes += o.Size
		in.keys = append(in.keys, o.Key)
		if o.Modified.After(in.newest) {
			in.newest = o.Modified
		}
	}
	return all, nil
}

// VerifyFiles looks whether all objects are in the bucket that its index names, in their
// lengths, and returns the folders in which some are missing. Without a bucket there is
// nothing to check.
func (p *Publisher) VerifyFiles(ctx context.Context) (incomplete []string, err error) {
	if p.files == nil {
		return nil, nil
	}
	for range 2 { // what was removed meanwhile is not missing
		incomplete = nil
		x, err := p.files.readIndex(ctx, nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		there, err := p.files.list(ctx)
		if err != nil {
			return nil, err
		}
		for name, s := range x.folders() {
			if has := there[name]; has == nil || has.files != s.Files || has.bytes != s.Bytes {
				incomplete = append(incomplete, name)
			}
		}
		if len(incomplete) == 0 {
			break
		}
	}
	slices.Sort(incomplete)
	return incomplete, nil
}
