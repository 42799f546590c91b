package publish

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// Follow gets the snapshots and dumps that another node has put into the bucket, and removes
// those that it no longer keeps there, until ctx is done: each Poll one small request, while
// nothing has changed. A snapshot is published when all of it is here and has the hashes
// that its manifest states. While the bucket is away, what is here is published. Failures
// are logged. Without a bucket Follow does nothing.
//
// A Publisher that does not follow (Options.Follow) does nothing. When its node becomes the
// one that writes, another Publisher runs, and goes on with what is here.
func (p *Publisher) Follow(ctx context.Context) {
	if !p.opts.Follow || p.files == nil {
		<-ctx.Done()
		return
	}
	defer context.AfterFunc(ctx, p.end)()
	if err := p.cleanupCache(); err != nil {
		p.logger.Warn("leftovers could not be removed from the cache", "folder", p.opts.CacheDir, "error", err)
	}
	var group sync.WaitGroup
	for _, w := range p.followers() {
		// Requests do not wake it: they could make it ask all the time.
		group.Go(func() { p.repeat(ctx, w.what+" of another node", nil, func() error { return w.check(ctx) }) })
	}
	group.Wait()
}

// followers returns those that get Resource Lists and dumps.
func (p *Publisher) followers() []*follower {
	return []*follower{
		{p: p, what: "snapshots", wakeups: p.wakeups, again: map[string]retry{}, cleaned: map[*series]bool{}},
		{p: p, what: "dumps", wakeups: p.dumpWakeups, dumps: true, again: map[string]retry{}, cleaned: map[*series]bool{}}, // which may take hours
	}
}

// awaited reports whether the bucket has, or may have, a snapshot that will be got from there
// and is not here yet; with number 0 any of the series.
func (p *Publisher) awaited(set *event.Set, se *series, number int64) bool {
	if p.files == nil || !p.opts.Follow && se.isSettled() {
		return false
	}
	x := p.files.loaded()
	if x == nil {
		return true
	}
	there := x.of(set, se)
	if number != 0 {
		_, ok := there[number]
		return ok || number > newest(there)
	}
	here := 0
	for _, s := range se.snapshots() {
		if _, ok := there[s.number()]; ok {
			here++
		}
	}
	return here < len(there)
}

func newest(numbered map[int64]indexedSnapshot) (n int64) {
	for k := range numbered {
		n = max(n, k)
	}
	return n
}

// follower gets the snapshots of some kinds.
type follower struct {
	p       *Publisher
	what    string
	wakeups <-chan struct{} // one that was here is damaged
	dumps   bool            // of dumps, else of Resource Lists

	asked   time.Time        // when the index was read last
	done    *fileIndex       // all that it names is here
	again   map[string]retry // failures, by folder
	cleaned map[*series]bool // without what crashes have left
}

// retry is when a snapshot is tried again that could not be got.
type retry struct {
	at   time.Time
	wait time.Duration
}

// after sets the time of the next attempt after one that began at start and failed. It doubles
// each time, and is as long as the attempt at least: a dump may have been fetched in vain for
// hours.
func (r *retry) after(start time.Time, p *Publisher) {
	now := p.opts.Now()
	took := now.Sub(start)
	r.wait = min(max(2*r.wait, p.opts.Poll, took), max(dumpRetry, min(10*took, longestRetry)))
	r.at = now.Add(r.wait)
}

// longestRetry is the longest time after which what was fetched in vain is fetched again.
const longestRetry = 12 * time.Hour

// download is a snapshot that is not here yet.
type download struct {
	st     *state
	set    *event.Set
	se     *series
	number int64
	from   indexedSnapshot
	turn   int // that of the newest Resource Lists is before the others'
}

// check reads the index, and gets what is new.
func (w *follower) check(ctx context.Context) error {
	for {
		if changed, err := w.checkOnce(ctx); !changed || err != nil {
			return err
		}
	}
}

// checkOnce is check, but ends with changed when the index has changed meanwhile.
func (w *follower) checkOnce(ctx context.Context) (changed bool, err error) {
	defer defect.Recover(&err)
	p := w.p
	select {
	case <-w.wakeups:
		w.done = nil
	default:
	}
	if err := w.read(ctx); err != nil {
		return false, err
	}
	x := p.files.loaded()
	if x == nil || x == w.done {
		return false, nil
	}
	sets, err := p.log.Sets(ctx)
	if err != nil {
		return false, err
	}
	missing, err := w.missing(ctx, sets, x)
	if err != nil {
		return false, err
	}
	done := true
	var faults faults
	for _, d := range missing {
		if p.opts.Now().Sub(w.asked) >= p.opts.Poll { // thousands may be missing
			if err := w.read(ctx); err != nil {
				return false, err
			}
		}
		if changed = p.files.loaded() != x; changed {
			done = false
			break
		}
		r, again := w.again[d.from.Folder]
		if again && p.opts.Now().Before(r.at) {
			done = false
			continue
		}
		start := p.opts.Now()
		err := p.fetch(ctx, d)
		switch {
		case err == nil:
			delete(w.again, d.from.Folder)
			p.logger.Info("a snapshot of another node is published", "set", d.set.Name, "kind", d.se.name(), "number", d.number)
			continue
		case ctx.Err() != nil:
			return false, nil
		case errors.Is(err, errBucket):
			if p.opts.Now().Sub(start) > lastWait { // what was fetched until then is fetched again
				r.after(start, p)
				w.again[d.from.Folder] = r
			}
			return false, nil
		}
		done = false
		// What is not there may just have been removed, and what this log does not have may
		// arrive: the first time it is no fault.
		if again || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotOurs) {
			faults.add(err)
		}
		r.after(start, p)
		w.again[d.from.Folder] = r
	}
	if faults.n > 0 {
		p.logger.Error(w.what+" of another node cannot be published; they are tried again", "count", faults.n, "first", faults.first)
	}
	if done {
		w.done = x
	}
	return changed, w.prune(ctx, sets, x)
}

// read reads the index, unless it is for the other follower to read.
func (w *follower) read(ctx context.Context) error {
	if w.dumps {
		return nil
	}
	f := w.p.files
	w.asked = w.p.opts.Now()
	err := f.attempt(ctx, reading, func() error {
		known := f.loaded()
		x, err := f.readIndex(ctx, known)
		switch {
		case errors.Is(err, fs.ErrNotExist) && known == nil: // the other node has not begun
			x = &fileIndex{}
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.index = x
		return nil
	})
	if errors.Is(err, errBucket) {
		return nil
	}
	return err
}

// faults counts errors that have, often, one cause.
type faults struct {
	n     int
	first error
}

func (f *faults) add(err error) {
	if f.n++; f.n == 1 {
		f.first = err
	}
}

// missing returns what the index names and is not here, or is another one here, the newest
// Resource Lists first.
func (w *follower) missing(ctx context.Context, sets []event.Set, x *fileIndex) (all []download, err error) {
	failed := map[string]retry{}
	for i := range sets {
		st, err := w.p.state(ctx, sets[i].Name)
		if err != nil {
			return nil, err
		}
		for _, se := range st.all() {
			if (se.dump != "") != w.dumps || se.dump != "" && !sets[i].Dumps {
				continue
			}
			if !w.cleaned[se] {
				w.p.cleanup(se)
				w.cleaned[se] = true
			}
			here := map[int64]string{}
			for _, s := range se.snapshots() {
				here[s.number()] = s.indexed.Manifest
			}
			for _, d := range downloads(st, &sets[i], se, x) {
				if here[d.number] != d.from.Manifest {
					all = append(all, d)
					if r, ok := w.again[d.from.Folder]; ok {
						failed[d.from.Folder] = r
					}
				}
			}
		}
	}
	w.again = failed // those that are no longer there are forgotten
	slices.SortStableFunc(all, func(a, b download) int { return cmp.Compare(a.turn, b.turn) })
	return all, nil
}

// downloads returns what the index names of a series, in the order of series.inOrder.
func downloads(st *state, set *event.Set, se *series, x *fileIndex) (all []download) {
	for number, from := range x.of(set, se) {
		all = append(all, download{st, set, se, number, from, 1})
	}
	slices.SortFunc(all, func(a, b download) int {
		if se.dump == resourcesync.ChangeDump {
			return cmp.Compare(a.number, b.number)
		}
		return cmp.Compare(b.number, a.number)
	})
	if len(all) > 0 && se == &st.series {
		all[0].turn = 0
	}
	return all
}

// prune removes what the other node keeps no longer. Newer ones than it names stay: this node
// may have made them when it was the one that writes. So do Change Dumps, which are kept as
// long as their segments.
func (w *follower) prune(ctx context.Context, sets []event.Set, x *fileIndex) error {
	var errs []error
	for i := range sets {
		st, err := w.p.state(ctx, sets[i].Name)
		if err != nil {
			return err
		}
		se := &st.series
		if w.dumps {
			se = &st.resourceDumps
			if !sets[i].Dumps {
				errs = append(errs, w.p.removeDumps(st))
			}
		} else {
			_, err := w.p.keepLists(ctx, sets[i].Name, 0)
			errs = append(errs, err)
		}
		kept := x.of(&sets[i], se)
		last := newest(kept)
		se.making.Lock()
		for _, s := range se.snapshots() {
			if _, ok := kept[s.number()]; !ok && s.number() < last {
				se.drop(func(other *storedSnapshot) bool { return other == s })
				w.p.removeSnapshot(se, s.number())
			}
		}
		se.making.Unlock()
	}
	return errors.Join(errs...)
}

// errNotOurs: a snapshot in the bucket is of another log, base URL or version, or of events
// that this node does not see yet.
var errNotOurs = errors.New("it is not of this log as it is here, of this base URL, and of this version of bridge")

// settle gets what the bucket has of a series, at most so many of them, before this node makes any.
// more: it has not come to an end. What cannot be used is made. While the bucket, or the disk,
// fails, others are made too, but the series is not settled: the index goes on naming what it
// has, and settle tries again later. A bucket that is slow must not hold up the Resource Lists of
// all sets: it has a minute for those of one, and each later attempt takes no longer than the time
// before it.
func (p *Publisher) settle(ctx context.Context, st *state, set event.Set, se *series, most int) (more bool) {
	if p.files == nil || se.isSettled() || p.opts.Now().Before(se.vain.at) {
		return false
	}
	start := p.opts.Now()
	limited, cancel := ctx, context.CancelFunc(func() {})
	if se.dump == "" { // dumps are gigabytes, and hold up dumps alone
		limited, cancel = context.WithTimeout(ctx, max(p.uploadWait, se.vain.wait))
	}
	defer cancel()
	var unusable faults
	x, err := p.files.known(limited)
	if err == nil {
		for _, d := range downloads(st, &set, se, x) {
			if se.find(d.number) != nil {
				continue
			}
			if most == 0 {
				return true
			}
			if err = p.fetch(limited, d); err == nil {
				most--
			} else if !isUnusable(err) {
				break
			} else {
				unusable.add(err)
				err = nil
			}
		}
	}
	if ctx.Err() != nil {
		return false
	}
	if unusable.n > 0 {
		p.logger.Warn("snapshots in the bucket cannot be used; others are made", "set", set.Name, "kind", se.name(), "count", unusable.n, "first", unusable.first)
	}
	if err == nil {
		se.settle()
		return false
	}
	se.vain.after(start, p)
	if !errors.Is(err, errBucket) {
		p.logger.Warn("snapshots in the bucket cannot be fetched now; others are made", "set", set.Name, "kind", se.name(), "error", err)
	}
	return false
}

// isUnusable reports whether a snapshot could not be fetched because of what the bucket has.
func isUnusable(err error) bool {
	return !errors.Is(err, errBucket) && (errors.Is(err, errObject) || errors.Is(err, errNotOurs) || errors.Is(err, fs.ErrNotExist))
}

func (se *series) isSettled() bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.settled
}

func (se *series) settle() {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.settled = true
}

// fetch gets a snapshot from the bucket and publishes it: with the same checks, and in the
// same steps, as one that is made here.
func (p *Publisher) fetch(ctx context.Context, d download) error {
	if p.opts.Room != nil {
		if err := p.opts.Room(d.from.Bytes); err != nil {
			return err
		}
	}
	var data []byte
	if err := p.files.attempt(ctx, reading, func() (err error) {
		data, err = p.files.bucket.Get(ctx, d.from.Folder+"/"+manifestName, 0, -1)
		return err
	}); err != nil {
		return err
	}
	if hashOf(data) != d.from.Manifest {
		return fmt.Errorf("%w: %s/%s of %s", errObject, d.from.Folder, manifestName, p.files.bucket)
	}
	set, segments, err := p.segments(ctx, d.st)
	if err != nil {
		return err
	}
	l := p.readManifest(d.se, set, d.number, data)
	if l != nil && !bytes.Equal(l.encode(), data) { // it would be another one here
		l = nil
	}
	if l == nil {
		return fmt.Errorf("%s of %s: %w", d.from.Folder, p.files.bucket, errNotOurs)
	}
	switch ours, err := p.isOfThisLog(ctx, set, segments, &l.snapshotID); {
	case err != nil:
		return err
	case !ours:
		return fmt.Errorf("%s of %s: %w", d.from.Folder, p.files.bucket, errNotOurs)
	}
	d.se.making.Lock()
	defer d.se.making.Unlock()
	if s := d.se.find(d.number); s != nil && s.indexed.Manifest != d.from.Manifest {
		d.se.drop(func(other *storedSnapshot) bool { return other == s })
		p.removeSnapshot(d.se, d.number)
	}
	made, err := p.makeSnapshot(ctx, d.se, set, l.snapshotID, func(dir string) (manifest, error) {
		for name, want := range filesOf(l.Parts, l.Packages) {
			if err := p.fetchFile(ctx, d.from.Folder+"/"+name, filepath.Join(dir, name), want); err != nil {
				return *l, err
			}
		}
		return *l, nil
	})
	if err == nil && made == d.st.current() {
		d.st.noteSize(made)
	}
	return err
}

// unlessFull writes until the disk is nearly full: a package may have many gigabytes.
type unlessFull struct {
	p *Publisher
	w io.Writer
}

func (u unlessFull) Write(b []byte) (int, error) {
	if err := u.p.full(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}

// fetchFile gets an object, and makes it durable. If it breaks off it goes on from there.
func (p *Publisher) fetchFile(ctx context.Context, key, path string, want sum) error {
	file, err := p.disk.create(path)
	if err != nil {
		return err
	}
	defer file.abandon()
	out := NewHashWriter(unlessFull{p, file})
	for progress := int64(-1); out.length < want.length; {
		err := p.files.attempt(ctx, reading, func() error {
			body, err := p.files.bucket.Stream(ctx, key, out.length)
			if err != nil {
				return err
			}
			defer body.Close()
			began := out.length
			_, err = io.Copy(out, io.LimitReader(body, want.length-began))
			if errors.Is(err, bucket.ErrAway) && out.length > began {
				return nil
			}
			return err
		})
		switch {
		case err != nil:
			return err
		case out.length == progress: // it is shorter
			return fmt.Errorf("%w: %s of %s", errObject, key, p.files.bucket)
		}
		progress = out.length
	}
	if out.sum() != want {
		return fmt.Errorf("%w: %s of %s", errObject, key, p.files.bucket)
	}
	return file.finish()
}
