package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// contents adapts a content store to the interface that the server needs.
type contents struct{ *content.Store }

// openContents opens the content store, which is where the log and the configuration say. A
// process that only reads may find none.
func (b *Bridge) openContents(ctx context.Context) error {
	c := b.Config()
	owner := content.Owner{Folder: c.Data}
	owner.URL, owner.Identity = b.Log.Server()
	if owner.URL != "" && !b.opt.ReadOnly && !b.opt.AdoptBucket {
		var err error
		if owner.Named, err = b.Log.NamesContents(ctx); err != nil {
			return err
		}
	}
	path, err := content.Locate(ctx, owner, c.Store.Contents)
	if err != nil {
		return err
	}
	b.Contents, err = content.Open(ctx, path, content.Options{ReadOnly: b.opt.ReadOnly, DryRun: b.opt.DryRun, Spool: c.Data, Log: owner.Identity,
		Bucket: c.Store.Contents, Keep: c.Store.ContentsCache, KeepUnneeded: c.Store.ContentsKeep, Now: b.trustedNow, Adopt: b.opt.AdoptBucket, Report: b.reportBucket, Failed: b.endIfContentsInUse})
	if b.opt.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		b.Contents, err = nil, nil
	}
	return err
}

// trustedNow returns the clock's time, but none before the log was last in use, and why the clock
// is not trusted, as for events.
func (b *Bridge) trustedNow() (time.Time, error) {
	now, seen := b.now(), b.Log.Seen()
	if seen.After(now) {
		now = seen
	}
	return now, b.Log.Clock()
}

// endIfContentsInUse ends Serve when another process writes the contents, or the server has lost
// some: as long as they are open nothing can be stored any more.
func (b *Bridge) endIfContentsInUse(err error) {
	if errors.Is(err, eventlog.ErrInUse) {
		b.endIfStopped(fmt.Errorf("%w: %w", eventlog.ErrStopped, err))
	}
}

// keepRecords stores submitted records. They are durable when it returns nil.
func (b *Bridge) keepRecords(ctx context.Context, all ...[]byte) error {
	drafts := make([]*content.Draft, len(all))
	for i, r := range all {
		drafts[i] = content.NewDraft(r)
	}
	return b.Contents.Put(ctx, drafts...)
}

// Open returns a stored content and its length.
func (c contents) Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	b, err := c.Store.Open(ctx, sum)
	if err != nil {
		return nil, 0, err
	}
	return b, b.Size(), nil
}

// openContent is contents.Open that also works without a store.
func (b *Bridge) openContent(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	if b.Contents == nil {
		return nil, 0, database.Missing("there is no content store")
	}
	return contents{b.Contents}.Open(ctx, sum)
}

// dumpContent is openContent for dumps, which take long: it waits for a bucket that is away.
func (b *Bridge) dumpContent(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	if b.Contents == nil {
		return b.openContent(ctx, sum)
	}
	blob, err := b.Contents.OpenPatiently(ctx, sum)
	if err != nil {
		return nil, 0, err
	}
	return blob, blob.Size(), nil
}

// smallContents is content.Store.Small that also works without a store.
func (b *Bridge) smallContents(ctx context.Context, sums [][32]byte) (map[[32]byte][]byte, error) {
	if b.Contents == nil {
		return nil, nil
	}
	names := make([]content.Sum, len(sums))
	for i := range sums {
		names[i] = sums[i]
	}
	found, err := b.Contents.Small(ctx, names)
	small := make(map[[32]byte][]byte, len(found))
	for sum, body := range found {
		small[sum] = body
	}
	return small, err
}

// reportBucket notes and logs whether contents can be moved to their bucket.
func (b *Bridge) reportBucket(err error) {
	if err == nil {
		b.bucketTrouble.Store(nil)
		b.opt.Logger.Info("contents can be moved to their bucket again")
		return
	}
	defect.Log(b.opt.Logger, err)
	const text = contentsCannot + ", and stay where they are until they can"
	b.bucketTrouble.Store(new(text + ": " + Redact(err.Error())))
	b.opt.Logger.Error(text, "error", err)
}

// restoreContents fetches the missing and damaged contents of a Source's records again.
// They must have the hash that was published: different bytes are an update, which a
// harvest logs.
func (b *Bridge) restoreContents(ctx context.Context, s *Source, r *harvest.Report) error {
	if s.Content != event.Mirror || b.opt.DryRun || s.Kind == harvest.SIP || s.Kind == harvest.Set { // the set's own Sources restore them
		return nil
	}
	set, err := b.Log.Set(ctx, s.Set)
	if err != nil {
		return err
	}
	var all restored
	// They are fetched between two pages of the log, of which one reader must not have a
	// connection for as long as a server takes.
	for after := event.Seq(0); after < set.Last; {
		var page []namedContents
		named := 0
		after, err = b.Log.Newest(ctx, s.Set, event.Range{After: after, Upto: set.Last}, restoreAtOnce, func(ev *event.Event) bool {
			if ev.Live() && ev.Origin.Source == s.URL {
				page = append(page, namedContents{ev.Record, slices.Clone(ev.Representations)})
				named += len(ev.Representations)
			}
			return named < restoreAtOnce
		})
		if err != nil {
			return err
		}
		for i := range page {
			if err := b.restoreRecord(ctx, s, &page[i], &all); err != nil {
				return err
			}
		}
	}
	r.Fetched += all.fetched
	if all.failed > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("contents missing or damaged that could not be fetched again: %d; the first: %v", all.failed, all.first))
	}
	return nil
}

// restored counts the missing and damaged contents that were fetched again, and those that
// could not be.
type restored struct {
	fetched, failed int64
	first           error // why one could not be
}

// restoreAtOnce is how many events restoreContents looks at before it fetches what they miss, and
// about how many contents these name.
const restoreAtOnce = 500

// namedContents are the contents that the last event of a record names.
type namedContents struct {
	record          string
	representations []event.Representation
}

// restoreRecord fetches the missing and damaged contents of a record again.
func (b *Bridge) restoreRecord(ctx context.Context, s *Source, of *namedContents, did *restored) error {
	for _, rep := range of.representations {
		sum, err := content.ParseSum(rep.SHA256())
		if err != nil {
			continue // verify finds it
		}
		switch err := b.Contents.Check(ctx, sum); {
		case err == nil:
			continue
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, content.ErrDamaged):
			return err
		}
		err = b.restoreContent(ctx, s, rep.Href, sum)
		switch {
		case ctx.Err() != nil || errors.Is(err, content.ErrFull):
			return err
		case err != nil:
			did.failed++
			did.first = cmp.Or(did.first, fmt.Errorf("record %q: %w", of.record, err))
		default:
			did.fetched++
		}
	}
	return nil
}

// restoreContent fetches one content.
func (b *Bridge) restoreContent(ctx context.Context, s *Source, href string, want content.Sum) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, event.URI(href), nil)
	if err != nil {
		return err
	}
	resp, err := cmp.Or(s.ContentClient, s.Client).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", href, resp.Status)
	}
	draft, err := b.Contents.Draft(fetch.Limit(resp.Body, s.Limits.Record, "a representation"), s.Limits.Record)
	if err != nil {
		return fmt.Errorf("%s: %w", href, err)
	}
	defer func() { _ = draft.Close() }() // it was stored, or is not needed
	if draft.Sum() != want {
		return fmt.Errorf("%s: its SHA-256 is %s, and %s was published", href, draft.Sum(), want)
	}
	return b.Contents.Replace(ctx, draft)
}

// countEvery is how often serve counts the contents that are missing, if any is.
const countEvery = time.Hour

// watchContents counts the missing contents of live records at the start, and then every
// countEvery as long as any are missing, or they could not be counted. It returns when ctx
// ends.
func (b *Bridge) watchContents(ctx context.Context) {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		missing, of, err := b.countMissing(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // what was known stays
			b.opt.Logger.Error("the contents could not be counted", "error", err)
		case missing == 0:
			b.missingContents.Store(nil)
			return
		default:
			b.opt.Logger.Error("contents are missing: bridge verify names them, bridge harvest --full fetches them again", "missing", missing, "of", of)
			b.missingContents.Store(&missingContents{missing, of})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// missingContents is the number of missing contents, and of all.
type missingContents struct{ missing, of int64 }

func (l *missingContents) Error() string {
	return fmt.Sprintf("%d of %d contents are missing: bridge verify names them, bridge harvest --full fetches them again", l.missing, l.of)
}

// isSevere reports whether so many contents are missing that /readyz must fail: at least
// one in a hundred.
func (l *missingContents) isSevere() bool { return l.missing*100 >= l.of }

// countMissing counts the missing contents of live records.
func (b *Bridge) countMissing(ctx context.Context) (missing, of int64, err error) {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return 0, 0, err
	}
	var sums []content.Sum
	ask := func() error {
		gone, err := b.Contents.Missing(ctx, sums)
		missing, of, sums = missing+int64(len(gone)), of+int64(len(sums)), sums[:0]
		return err
	}
	for i := range sets {
		if sets[i].Content != event.Mirror {
			continue
		}
		for ev, err := range b.Log.Live(ctx, sets[i].Name, sets[i].Last) {
			if err != nil {
				return missing, of, err
			}
			for _, r := range ev.Representations {
				if sum, err := content.ParseSum(r.SHA256()); err == nil {
					sums = append(sums, sum)
				}
			}
			if len(sums) >= 1000 {
				if err := ask(); err != nil {
					return missing, of, err
				}
			}
		}
	}
	return missing, of, ask()
}
