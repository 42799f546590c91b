package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// following is what a node knows of the bucket that makes no snapshots, and gets those of
// the one that does.
type following struct {
	index atomic.Pointer[fileIndex] // nil before it was read
}

// Follow gets the snapshots and dumps that another node has put into the bucket, and removes
// those that it no longer keeps there, until ctx is done: each Poll one small request, while
// nothing has changed. A snapshot is published when all of it is here and has the hashes
// that its manifest states. While the bucket is away, what is here is published. Failures
// are logged. Without a bucket Follow does nothing.
//
// A Publisher either follows or runs. When its node becomes the one that writes, Follow has
// ended before Run begins, which goes on with what is here.
func (p *Publisher) Follow(ctx context.Context) {
	if p.files == nil {
		<-ctx.Done()
		return
	}
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

// followers makes this a node that follows another.
func (p *Publisher) followers() []*follower {
	from := &following{}
	p.following.Store(from)
	return []*follower{
		{p: p, from: from, what: "snapshots", wakeups: p.wakeups, again: map[string]retry{}, cleaned: map[*series]bool{}},
		{p: p, from: from, what: "dumps", wakeups: p.dumpWakeups, dumps: true, again: map[string]retry{}, cleaned: map[*series]bool{}}, // which may take hours
	}
}

// stopFollowing makes this node the one that writes the bucket's index. Others may have
// written it since it did that last.
func (p *Publisher) stopFollowing() {
	p.following.Store(nil)
	p.files.mu.Lock()
	p.files.index = nil
	p.files.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.states {
		for _, se := range st.all() {
			se.mu.Lock()
			se.settled = false
			se.mu.Unlock()
		}
	}
}

func (p *Publisher) isFollowing() bool { return p.following.Load() != nil }

// awaited reports whether another node has, or may have, a snapshot that is not here yet; with
// number 0 any of the series.
func (p *Publisher) awaited(set *event.Set, se *series, number int64) bool {
	from := p.following.Load()
	if from == nil {
		return false
	}
	x := from.index.Load()
	if x == nil {
		return true
	}
	there := x.of(set, se)
	if number == 0 {
		return len(there) > 0
	}
	_, ok := there[number]
	return ok || number > newest(there)
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
	from    *following
	what    string
	wakeups <-chan struct{} // one that was here is damaged
	dumps   bool            // of dumps, else of Resource Lists

	done    *fileIndex       // all that it names is here
	again   map[string]retry // failures, by folder
	cleaned map[*series]bool // without what crashes have left
}

// retry is when a snapshot is tried again that could not be got.
type retry struct {
	at   time.Time
	wait time.Duration
}

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
func (w *follower) check(ctx context.Context) (err error) {
	defer defect.Recover(&err)
	p := w.p
	select {
	case <-w.wakeups:
		w.done = nil
	default:
	}
	x := w.from.index.Load()
	if w.dumps && (x == nil || x == w.done) { // the other one reads the index
		return nil
	}
	sets, err := p.log.Sets(ctx)
	if err != nil {
		return err
	}
	if !w.dumps {
		err := p.files.attempt(ctx, func() error {
			read, err := p.files.readIndex(ctx, sets, x)
			switch {
			case err == nil:
				x = read
			case errors.Is(err, fs.ErrNotExist) && x == nil: // the other node has not begun
				x = &fileIndex{}
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
			return nil
		})
		if err != nil && !errors.Is(err, errBucket) {
			return err
		}
		w.from.index.Store(x)
		if x == nil || x == w.done {
			return nil
		}
	}
	missing, err := w.missing(ctx, sets, x)
	if err != nil {
		return err
	}
	done := true
	var faults faults
	for _, d := range missing {
		r, again := w.again[d.from.Folder]
		if again && p.opts.Now().Before(r.at) {
			done = false
			continue
		}
		err := p.fetch(ctx, d)
		switch {
		case err == nil:
			delete(w.again, d.from.Folder)
			p.logger.Info("a snapshot of another node is published", "set", d.set.Name, "kind", d.se.name(), "number", d.number)
			continue
		case ctx.Err() != nil, errors.Is(err, errBucket):
			return nil
		}
		done = false
		// What is not there may just have been removed, and what this log does not have may
		// arrive: the first time it is no fault.
		if again || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotOurs) {
			faults.add(err)
		}
		r.wait = min(max(2*r.wait, p.opts.Poll), dumpRetry)
		r.at = p.opts.Now().Add(r.wait)
		w.again[d.from.Folder] = r
	}
	if faults.n > 0 {
		p.logger.Error(w.what+" of another node cannot be published; they are tried again", "count", faults.n, "first", faults.first)
	}
	if done {
		w.done = x
	}
	return w.prune(ctx, sets, x)
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

// missing returns what the index names and is not here, the newest Resource Lists first.
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
				if err := w.p.cleanup(se); err != nil {
					w.p.logger.Warn("leftovers of snapshots could not be removed", "set", se.set, "error", err)
				}
				w.cleaned[se] = true
			}
			here := map[int64]bool{}
			for _, s := range se.snapshots() {
				here[s.number()] = true
			}
			for _, d := range downloads(st, &sets[i], se, x) {
				if !here[d.number] {
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

// settle gets what the bucket has of some series, before this node makes any; once. What it
// cannot get is made.
func (p *Publisher) settle(ctx context.Context, st *state, set event.Set, all ...*series) {
	for _, se := range all {
		if p.files == nil || se.isSettled() {
			continue
		}
		var faults faults
		if x, err := p.files.known(ctx); err == nil {
			for _, d := range downloads(st, &set, se, x) {
				if se.find(d.number) != nil {
					continue
				}
				if err = p.fetch(ctx, d); errors.Is(err, errBucket) || ctx.Err() != nil {
					break
				}
				if err != nil {
					faults.add(err)
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		if faults.n > 0 {
			p.logger.Warn("snapshots in the bucket cannot be used; others are made", "set", set.Name, "kind", se.name(), "count", faults.n, "first", faults.first)
		}
		se.settle()
	}
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
	var data []byte
	if err := p.files.attempt(ctx, func() (err error) {
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
	made, err := p.makeSnapshot(ctx, d.se, set, l.snapshotID, func(dir string) (manifest, error) {
		for name, want := range filesOf(l.Parts, l.Packages) {
			if err := p.fetchFile(ctx, d.from.Folder+"/"+name, filepath.Join(dir, name), want); err != nil {
				return *l, err
			}
		}
		return *l, nil
	})
	if err == nil && d.se == &d.st.series {
		d.st.noteSize(made)
	}
	return err
}

// fetchFile gets an object, and makes it durable. If it breaks off it goes on from there.
func (p *Publisher) fetchFile(ctx context.Context, key, path string, want sum) error {
	if err := p.full(); err != nil {
		return err
	}
	file, err := p.disk.create(path)
	if err != nil {
		return err
	}
	defer file.abandon()
	out := newHashWriter(file)
	for progress := int64(-1); out.length < want.length; {
		err := p.files.attempt(ctx, func() error {
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
	if err := file.sync(); err != nil {
		return err
	}
	return file.Close()
}
