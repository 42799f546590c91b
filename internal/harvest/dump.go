package harvest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// rulePackage: a package of a dump, or a file in it, cannot be used.
const rulePackage = "dump"

// requestCost is how many bytes of a package one request for a content may save: what a
// server sends in the time of a request, when several are under way. See
// docs/decisions/dumps-by-cost.md.
const requestCost = 32 << 10

// wantsDumps reports whether dumps may be read in the place of lists: the set keeps
// contents, and of all records. Where only some records are selected, a package would
// have too many.
func (r *run) wantsDumps() bool {
	return r.src.mirrors() && len(r.src.Selection.Prefixes) == 0 && !r.src.Selection.Since.Known()
}

// pathsOf returns where in a package the bytes of each representation of an entry are.
func pathsOf(e *resourcesync.Entry, reps []event.Representation) []string {
	paths := make([]string, len(reps))
	for i := range reps {
		if reps[i].Href == e.Loc {
			paths[i] = e.Metadata.Path
			continue
		}
		for j := range e.Links {
			if l := &e.Links[j]; l.Rel == resourcesync.RelAlternate && l.Href == reps[i].Href {
				paths[i] = l.Path
				break
			}
		}
	}
	return paths
}

// loadPackage downloads the package whose manifest the document is, if that costs less
// than to ask for the contents that are needed one by one. items are those of n
// entries, one for each record; the document may have more entries.
func (d *listDocument) loadPackage(ctx context.Context, items []*event.Item, n int) error {
	p, r := d.doc.Package(), d.r
	switch {
	case p == nil, d.single, !r.src.mirrors(), n == 0:
		return nil
	case p.Loaded():
		return d.usePackage(ctx)
	}
	var requests, size int64
	for part := range slices.Chunk(items, mirrorBatch) {
		// With Start the answer does not depend on what of this walk is durable yet.
		in := event.Batch{Source: r.src.ID, Mode: event.ModeWalk, Start: true, Items: part}
		needs, err := r.h.Log.NeedsContent(ctx, &in)
		if err != nil {
			return err
		}
		for i := range part {
			for j := range part[i].Paths {
				if needs[i] && part[i].Paths[j] != "" {
					requests++
					size += max(0, part[i].Representations[j].Length)
				}
			}
		}
	}
	all := int64(d.doc.Position())
	if length, known := p.Length().Bytes(); !known && 2*requests < int64(n) || known && (requests*requestCost+size)*all/int64(n) < length || requests == 0 {
		return nil
	}
	err := p.Load()
	switch {
	case err == nil:
		return d.usePackage(ctx)
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrSpent):
		return err
	}
	d.single = true
	r.problem(rulePackage, fmt.Sprintf("%v; its contents are asked for one by one", err))
	return nil
}

// usePackage makes the harvest take contents out of the package until the document is
// taken in.
func (d *listDocument) usePackage(ctx context.Context) error {
	p, r := d.doc.Package(), d.r
	if n := p.Memory(); d.memory == 0 {
		if err := r.slot.takeMemory(ctx, n); err != nil {
			return err
		}
		d.memory = n
	}
	r.pack.Store(p)
	return nil
}

// unpackAll takes representations out of the package whose manifest the document under
// way is. It returns them, and the jobs that are left, to be asked for.
func (r *run) unpackAll(ctx context.Context, jobs []contentJob, b *event.Batch, keep *contentWriter) (left, done []contentJob) {
	p := r.pack.Load()
	if p == nil {
		return jobs, nil
	}
	var mu sync.Mutex // guards left, done and the rest of jobs
	var workers sync.WaitGroup
	for range min(len(jobs), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for {
				mu.Lock()
				if len(jobs) == 0 || ctx.Err() != nil {
					mu.Unlock()
					return
				}
				j := jobs[0]
				jobs = jobs[1:]
				mu.Unlock()
				j = r.unpack(ctx, j, b, p, keep)
				mu.Lock()
				if j.sum != [32]byte{} {
					done = append(done, j)
				} else {
					left = append(left, j)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return left, done
}

// unpack takes one representation out of a package. If that fails it is to be asked
// for, and packed says why.
func (r *run) unpack(ctx context.Context, j contentJob, b *event.Batch, p *resourcesync.Package, keep *contentWriter) (out contentJob) {
	var failed error
	defer func() {
		if failed != nil {
			out = j
			out.packed = failed
		}
	}()
	defer defect.Recover(&failed)
	it := b.Items[j.item]
	rep := &it.Representations[j.rep]
	if r.asksOnly(it) || j.rep >= len(it.Paths) || it.Paths[j.rep] == "" || rep.Encoding != "" { // bytes in a coding are not kept
		return j
	}
	from := p.URL() + ", file " + it.Paths[j.rep]
	in, err := p.Open(&resourcesync.Metadata{Path: it.Paths[j.rep]})
	got := j
	if err == nil {
		defer in.Close()
		got = r.keepContent(ctx, j, rep, from, in, newHashCheck(rep), keep)
		err = got.err
	}
	if err == nil {
		return got
	}
	if refused, ok := errors.AsType[*resourcesync.DumpError](err); ok {
		err = refused
	}
	if context.Cause(ctx) == nil {
		r.problem(rulePackage, fmt.Sprintf("record %q: %v; it is asked for at %s", it.Record, err, rep.Href))
	}
	j.packed = err
	return j
}

// besides returns, for a message, why the bytes were not taken out of a package, ""
// where that was not tried.
func (f contentJob) besides() string {
	if f.packed == nil {
		return ""
	}
	return "; " + f.packed.Error()
}
