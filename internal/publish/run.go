package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// retryAfter is how long Run waits after a snapshot that failed: disk space
// comes back without anybody telling us.
const retryAfter = 20 * time.Second

// Run tidies what an earlier run has left behind, and then keeps snapshots of
// the sets that need them until ctx is done: at once where there is none, or
// where the log has moved since the last run; some time after a deletion or a
// change (Options). It returns nil when ctx is done, and no other error.
func (p *Publisher) Run(ctx context.Context) error {
	if err := p.tidyCache(); err != nil {
		p.logger.Warn("the cache could not be tidied", "folder", p.opts.CacheDir, "error", err)
	}
	plans := map[string]*plan{}
	ticker := time.NewTicker(p.opts.Poll)
	defer ticker.Stop()
	for {
		if err := p.round(ctx, plans); err != nil && ctx.Err() == nil {
			p.logger.Error("snapshots could not be looked after", "error", err)
			defect.Log(p.logger, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-p.wake:
		}
	}
}

// rouse has Run look at all sets at once.
func (p *Publisher) rouse() {
	select {
	case p.wake <- struct{}{}:
	default: // it is going to look anyway
	}
}

// plan is when Run makes the next snapshot of a set.
type plan struct {
	shown event.Seq // what the Resource List showed when the set was last looked at
	seen  event.Seq // how far the set's events have been looked through
	due   time.Time // zero: nothing to do
}

// round looks at each set once and makes the snapshots that are due.
func (p *Publisher) round(ctx context.Context, plans map[string]*plan) error {
	sets, err := p.log.Sets(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, set := range sets {
		if err := p.look(ctx, plans, set); err != nil {
			errs = append(errs, fmt.Errorf("set %s: %w", set.Name, err))
		}
	}
	return errors.Join(errs...)
}

// look makes the snapshot of a set if it is due. A panic is a failure of that set
// alone, whose snapshot is tried again later.
func (p *Publisher) look(ctx context.Context, plans map[string]*plan, set event.Set) (err error) {
	defer func() {
		var panicked *defect.Error
		if pl := plans[set.Name]; pl != nil && errors.As(err, &panicked) {
			pl.due = p.opts.Now().Add(retryAfter)
		}
	}()
	defer defect.Recover(&err)
	st, err := p.state(ctx, set.Name)
	if err != nil {
		return err
	}
	pl := plans[set.Name]
	if pl == nil {
		pl = p.firstPlan(st, set)
		plans[set.Name] = pl
	}
	if set.Partial {
		return nil
	}
	if p.direct(st, set) {
		*pl = plan{shown: set.Last}
		return nil
	}
	func() {
		st.making.Lock()
		defer st.making.Unlock()
		p.prune(st)
	}()
	if err := p.reckon(ctx, st, set, pl); err != nil {
		return err
	}
	start := p.opts.Now()
	if pl.due.IsZero() || start.Before(pl.due) {
		return nil
	}
	if err := p.Snapshot(ctx, set.Name); err != nil {
		pl.due = p.opts.Now().Add(retryAfter)
		return err
	}
	if current := st.current(); current != nil {
		*pl = plan{shown: current.Seq, seen: current.Seq}
		p.logger.Info("snapshot made", "set", set.Name, "seq", current.Seq, "records", set.Live,
			"parts", current.Parts, "took", p.opts.Now().Sub(start))
	}
	return nil
}

// firstPlan tidies the set's snapshots. What the log did while nobody looked is
// shown at once.
func (p *Publisher) firstPlan(st *state, set event.Set) *plan {
	if err := p.tidy(st); err != nil {
		p.logger.Warn("leftovers of snapshots could not be removed", "set", set.Name, "error", err)
	}
	current := st.current()
	if current == nil {
		return &plan{}
	}
	pl := &plan{shown: current.Seq, seen: current.Seq}
	if current.Seq != set.Last {
		pl.due = p.opts.Now()
	}
	return pl
}

// reckon says when the next snapshot is due, from what has happened since the
// current one.
func (p *Publisher) reckon(ctx context.Context, st *state, set event.Set, pl *plan) error {
	now := p.opts.Now()
	current := st.current()
	switch {
	case current == nil:
		if pl.shown != 0 || pl.due.IsZero() { // the first, or the last one was given up
			*pl = plan{due: now}
		}
		return nil
	case current.Seq < pl.shown: // the Resource List must not stay behind what it has shown
		*pl = plan{shown: current.Seq, seen: set.Last, due: now}
		return nil
	case current.Seq > pl.shown: // somebody else made one
		*pl = plan{shown: current.Seq, seen: current.Seq}
	}
	if set.Last <= pl.seen {
		return nil
	}
	if due := now.Add(p.opts.AfterChange); pl.due.IsZero() || due.Before(pl.due) {
		pl.due = due
	}
	if due := now.Add(p.opts.AfterDeletion); due.Before(pl.due) {
		deletes, err := p.deletes(ctx, set.Name, event.Range{After: pl.seen, Upto: set.Last})
		if err != nil {
			return err
		}
		if deletes {
			pl.due = due
		}
	}
	pl.seen = set.Last
	return nil
}

// deletes tells whether a deletion is among some events.
func (p *Publisher) deletes(ctx context.Context, set string, r event.Range) (bool, error) {
	for e, err := range p.log.Events(ctx, set, r) {
		if err != nil {
			return false, err
		}
		if e.Kind == event.Deleted || e.Gone != "" {
			return true, nil
		}
	}
	return false, nil
}

// tidyCache removes what this format and base URL have no use for: other
// epochs, open documents, and files that were never finished.
func (p *Publisher) tidyCache() error {
	entries, err := os.ReadDir(p.opts.CacheDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if name := e.Name(); len(name) == len(cacheEpoch("")) && name != filepath.Base(p.cache.dir) {
			errs = append(errs, p.disk.remove(filepath.Join(p.opts.CacheDir, e.Name())))
		}
	}
	return errors.Join(append(errs, p.cache.tidy(), p.nameCache())...)
}

// nameCache writes beside what is rendered for which base URL that is: its hash,
// which names the folder, does not tell.
func (p *Publisher) nameCache() error {
	if err := p.disk.mkdir(p.cache.dir); err != nil {
		return err
	}
	return p.disk.writeFile(filepath.Join(p.cache.dir, baseName), []byte(p.base+"\n"), false)
}
