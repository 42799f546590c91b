package harvest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

const (
	// mirrorBatch is how many records of a mirror are committed at once, after their
	// contents were fetched.
	mirrorBatch = 1000
	// packageBatch is how many are, when their contents are in a package on the disk, or
	// in the store already.
	packageBatch = 5000
	// mirrorsMost is how many mirrors of a record, and how many copies of a version of it, are
	// asked for its content, one after the other: a thousand that do not answer would take hours.
	mirrorsMost = 10
	// putBytes is how many fetched bytes are put into the store at once.
	putBytes = 16 << 20
)

// batchSize is how many observations are committed at once.
func (r *run) batchSize() int {
	switch {
	case !r.src.mirrors():
		return r.h.batchSize()
	case r.keepsArrivals(), r.src.Kind == Set, r.pack.Load() != nil:
		return min(r.h.batchSize(), packageBatch)
	}
	return min(r.h.batchSize(), mirrorBatch)
}

// fetchesContents reports whether contents are asked for while the Source's documents are read.
func (r *run) fetchesContents() bool {
	return r.src.mirrors() && !r.keepsArrivals() && r.src.Kind != Set
}

// fetchAndCommit appends a batch to the log, in a mirror with the contents that it
// needs.
func (r *run) fetchAndCommit(ctx context.Context, b *event.Batch) error {
	if r.src.statedOnly {
		for i := range b.Items {
			b.Items[i].Fetched = !b.Items[i].Deleted
		}
		return r.commit(ctx, b)
	}
	wanted, err := r.neededContents(ctx, b)
	if err != nil {
		return err
	}
	if err := r.fetchContents(ctx, b, wanted); err != nil {
		return err
	}
	if err := r.fetchTypes(ctx, b); err != nil {
		return err
	}
	out, err := r.append(ctx, b)
	if err != nil {
		return err
	}
	if missed := r.missed(b, wanted, out.Outcomes); missed != nil {
		return r.fetchAndCommit(ctx, missed)
	}
	return nil
}

// missed returns a batch of the items whose contents only Append has found to be
// needed, and of those that hold only if the URLs of their records confirm them; nil
// for none. Contents that were needed before and not asked for stay pending.
func (r *run) missed(b *event.Batch, wanted []int, outcomes []event.Outcome) *event.Batch {
	missed := &event.Batch{Mode: event.ModeSettle, Next: b.Next, Documents: b.Documents}
	for i, o := range outcomes {
		_, asked := slices.BinarySearch(wanted, i)
		switch {
		case o != event.NeedsContent:
		case asked:
			r.unasked++
			r.updateReport(func(p *Report) { p.Pending++ })
		default:
			missed.Items = append(missed.Items, b.Items[i])
		}
	}
	if len(missed.Items) == 0 {
		return nil
	}
	return missed
}

// lackContent reports whether items may need contents that are not there yet.
func lackContent(items []*event.Item) bool {
	for i := range items {
		if it := items[i]; !it.Fetched && !it.Unselected && len(it.Representations) > 0 {
			return true
		}
	}
	return false
}

// neededContents returns the indexes of the items whose content is needed, or whose URL
// is to be asked. In a mirror a batch has each record once.
func (r *run) neededContents(ctx context.Context, b *event.Batch) (wanted []int, err error) {
	mirror := r.src.Content == event.Mirror
	var needs []bool
	if b.Mode == event.ModeWalk && mirror && lackContent(b.Items) {
		b.Source = r.src.ID
		if needs, err = r.h.Log.NeedsContent(ctx, b); err != nil {
			return nil, err
		}
	}
	for i := range b.Items {
		switch b.Mode {
		case event.ModeWalk:
			if needs != nil && needs[i] {
				wanted = append(wanted, i)
			}
		case event.ModeSettle:
			wanted = append(wanted, i)
		default:
			switch {
			case !mirror || b.Items[i].Deleted:
			case r.src.Kind == Set: // the set has them
				b.Items[i].Fetched = true
			default:
				wanted = append(wanted, i)
			}
		}
	}
	return wanted, nil
}

// asksOnly reports whether only the status is wanted of what a record's URL answers.
func (r *run) asksOnly(it *event.Item) bool { return it.Deleted || r.src.Content != event.Mirror }

// pendingTime is how long one harvest asks for pending contents. What it has not asked
// for stays due.
const pendingTime = 10 * time.Minute

// fetchPending asks for the pending contents that are due: first for those that were
// never asked for, then for the others in the order in which they are due. What this
// harvest has asked for already is left to the next one.
func (r *run) fetchPending(ctx context.Context) error {
	start := r.h.now()
	due := event.MicrosOf(start)
	if r.opt.AllPending {
		due = math.MaxInt64
	}
	list, err := r.h.Log.Due(ctx, r.src.ID, due)
	if err != nil {
		return err
	}
	began, now := event.MicrosOf(r.report.Started), event.MicrosOf(start) // later ones are of a clock that was ahead
	list = slices.DeleteFunc(list, func(d event.Due) bool { return began <= d.Asked && d.Asked <= now })
	for part := range slices.Chunk(list, mirrorBatch) {
		if r.h.now().Sub(start) > pendingTime {
			return nil
		}
		for _, d := range part {
			if d.Asked == 0 && r.unasked > 0 { // it is counted again
				r.unasked--
				r.updateReport(func(p *Report) { p.Pending-- })
			}
		}
		kept, err := r.h.Log.PendingOf(ctx, r.src.ID, part)
		if err != nil {
			return err
		}
		b := event.Batch{Mode: event.ModeSettle, Next: r.data}
		for i := range kept {
			b.Documents = append(b.Documents, kept[i].Document)
			b.Items = append(b.Items, r.itemAgain(kept[i].Observation, i))
		}
		if len(b.Items) == 0 {
			continue
		}
		if err := r.fetchAndCommit(ctx, &b); err != nil {
			return err
		}
	}
	return nil
}

// contentJob is a request for one representation, and what came of it.
type contentJob struct {
	item, rep int
	host      string
	waits     *atomic.Bool // the request has no answer yet
	came      bool         // it came with the entry of its record
	sum       [32]byte
	size      int64
	mediaType string
	status    int   // with which the request failed, 0 if otherwise
	packed    error // why its bytes were not taken out of a package
	// err is why there is no content. final: the same request will probably fail again;
	// never: it was not made, and will not be; gone: only the status was wanted, and the
	// record is gone (fetch.Gone, ErrGone).
	err                error
	final, never, gone bool
	after              time.Time // the server wants no request for it before that
}

// newJob returns the request for a representation of an item.
func newJob(item, rep int, href string) contentJob {
	j := contentJob{item: item, rep: rep, waits: new(atomic.Bool)}
	if u, err := url.Parse(href); err == nil {
		j.host = u.Host
	}
	return j
}

// fetchContents fetches the representations of the wanted items, stores them, and writes
// into the items what was found (A13). It returns once everything is durable. It does not
// change items of which some request was not made.
func (r *run) fetchContents(ctx context.Context, b *event.Batch, wanted []int) error {
	if len(wanted) == 0 {
		return nil
	}
	keep := &contentWriter{store: r.h.Contents}
	var jobs []contentJob
	left := make(map[int]int, len(wanted)) // jobs of an item
	for _, i := range wanted {
		reps := b.Items[i].Representations
		if r.asksOnly(b.Items[i]) {
			reps = reps[:min(len(reps), 1)]
		}
		left[i] = len(reps)
		for rep := range reps {
			jobs = append(jobs, newJob(i, rep, reps[rep].Href))
		}
	}
	got := make(map[int][]contentJob, len(wanted))
	jobs, came := r.takeInline(ctx, jobs, b, keep)
	r.needed.Add(int64(len(jobs)))
	r.setActivity("fetching contents", time.Time{})
	jobs, unpacked := r.unpackAll(ctx, jobs, b, keep)
	for _, f := range slices.Concat(came, unpacked) {
		got[f.item] = append(got[f.item], f)
	}
	for _, f := range r.fetchAll(ctx, jobs, !r.walking, func(ctx context.Context, j contentJob) contentJob {
		return r.fetch(ctx, j, b, keep)
	}) {
		got[f.item] = append(got[f.item], f)
	}
	if err := errors.Join(context.Cause(ctx), keep.flush(ctx)); err != nil {
		return err
	}
	for _, i := range wanted {
		it := b.Items[i]
		again := b.Mode == event.ModeSettle
		if again && len(got[i]) > 0 { // the others were not asked for
			for rep := len(got[i]); rep < left[i]; rep++ {
				got[i] = append(got[i], contentJob{err: errNotAsked})
			}
		}
		if len(got[i]) == left[i] || !again && slices.ContainsFunc(got[i], contentJob.waiting) {
			r.applyContents(it, got[i], again)
		}
	}
	return nil
}

// errNotAsked: a representation was not asked for, but others were.
var errNotAsked = errors.New("it was not asked for yet")

// waiting reports whether the whole record has to wait, whatever became of its other
// representations.
func (f contentJob) waiting() bool { return f.err != nil && !f.final && !f.never && !f.gone }

// fetch fetches one representation: from its own URL or, when that fails, from the
// mirrors that the Source names, the best one first.
func (r *run) fetch(ctx context.Context, j contentJob, b *event.Batch, keep *contentWriter) (out contentJob) {
	var failed error
	defer func() {
		if failed != nil { // it counts against the record, like any other failure
			out = j
			out.err = failed
		}
	}()
	defer defect.Recover(&failed)
	it := b.Items[j.item]
	rep, document := &it.Representations[j.rep], b.Documents[it.Document].URL
	switch {
	case r.asksOnly(it) && r.src.Kind == OAIPMH:
		return r.askRecord(ctx, j, rep.Href)
	case r.asksOnly(it):
		return r.askURL(ctx, j, rep.Href)
	}
	if event.IsInline(rep.Href) {
		return r.openInline(ctx, j, it, keep)
	}
	if r.src.Kind == OAIPMH {
		return r.fetchRecord(ctx, j, rep, keep)
	}
	if !fetchable(rep.Href, document) {
		j.never, j.err = true, fmt.Errorf("%s is not fetched: only http and https are, and local files that a local document names", rep.Href)
		return j
	}
	if patched, ok := r.fetchPatch(ctx, j, it, keep); ok {
		return patched
	}
	first := r.fetchFrom(ctx, j, rep, rep.Href, keep)
	if first.err == nil || j.rep != 0 || ctx.Err() != nil {
		return first
	}
	if version, ok := r.fetchMemento(ctx, j, it, document, first, keep); ok {
		return version
	}
	left := mirrorsMost
	for _, l := range it.Links {
		if l.Rel != resourcesync.RelDuplicate || !fetchable(l.Href, document) {
			continue
		}
		if left--; left < 0 || ctx.Err() != nil {
			break
		}
		if second := r.fetchFrom(ctx, j, rep, l.Href, keep); second.err == nil {
			r.problem("mirror", fmt.Sprintf("%v; it came from its mirror %s", first.err, l.Href))
			return second
		}
	}
	return first
}

// takeInline stores content that came with the entry of its record. It returns the jobs
// that are done by that, and those that are left, to be asked for.
func (r *run) takeInline(ctx context.Context, jobs []contentJob, b *event.Batch, keep *contentWriter) (left, done []contentJob) {
	left = jobs[:0]
	for _, j := range jobs {
		it := b.Items[j.item]
		if j.rep != 0 || it.Inline == nil || r.asksOnly(it) {
			left = append(left, j)
			continue
		}
		rep := &it.Representations[j.rep]
		j.mediaType, j.came = rep.Type, true
		done = append(done, r.keepContent(ctx, j, rep, "the content of the entry", bytes.NewReader(it.Inline), newHashCheck(rep), keep))
	}
	return left, done
}

// openInline finds content in the store that came with the entry of its record and was
// stored then: the log has kept the observation.
func (r *run) openInline(ctx context.Context, j contentJob, it *event.Item, keep *contentWriter) contentJob {
	rep := &it.Representations[j.rep]
	if own := cmp.Or(it.SourceIdentifier, it.Record); !r.src.Selection.Inline || rep.Href != event.InlineHref(own) && rep.Href != event.InlineHref(it.Record) {
		// The store has the contents of all sets: a Source that knows a hash must not get
		// content of another set by it.
		j.never, j.err = true, fmt.Errorf("%s is not fetched: the set takes no content of this entry", rep.Href)
		return j
	}
	j.never, j.err = true, errors.New("its content came with the entry, and is not in the store: a harvest with --full reads it")
	sum, err := content.ParseSum(rep.SHA256())
	if err != nil {
		return j
	}
	blob, err := r.h.Contents.Open(ctx, sum)
	switch {
	case err == nil:
		j.sum, j.size, j.never = sum, blob.Size(), false
		if j.err = blob.Close(); j.err != nil {
			keep.fail(j.err)
		}
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, content.ErrDamaged):
		keep.fail(err)
		j.err = err
	}
	return j
}

// askURL finds out the status that a URL answers with. It does not read the body.
func (r *run) askURL(ctx context.Context, j contentJob, href string) contentJob {
	resp, err := r.getContent(ctx, &j, href)
	if err != nil {
		return j
	}
	j.gone = fetch.Gone(resp.StatusCode)
	if j.gone || resp.StatusCode != http.StatusOK {
		j.err = fmt.Errorf("%s answered %s", href, resp.Status)
	}
	if err := resp.Body.Close(); err != nil && j.err == nil {
		j.err = err
	}
	return j
}

// setAnswer writes into an item what its URL answered. An item without a URL is
// confirmed.
func setAnswer(it *event.Item, got []contentJob) {
	it.Answer, it.Pending = event.Confirmed, ""
	if len(got) == 0 {
		return
	}
	switch f := &got[0]; {
	case f.err != nil && !f.gone:
		it.Answer, it.Pending = event.Unasked, f.err.Error()
	case f.gone != it.Deleted:
		it.Answer = event.Refuted
	}
}

// fetchable reports whether a URL that a document names may be asked for contents.
func fetchable(href, document string) bool {
	scheme, _, _ := strings.Cut(href, ":")
	switch strings.ToLower(scheme) {
	case "http", "https":
		return true
	case "file":
		return !follow.Foreign(document, href)
	}
	return false
}

// fetchFrom asks for a representation and reads it to its end.
func (r *run) fetchFrom(ctx context.Context, j contentJob, rep *event.Representation, href string, keep *contentWriter) contentJob {
	check := newHashCheck(rep)
	resp, err := r.getContent(fetch.WithCoded(ctx, &check.coded), &j, href)
	if err != nil {
		return j
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		j.err, j.final = fmt.Errorf("%s answered %s", href, resp.Status), !fetch.TransientStatus(resp.StatusCode)
		j.status = resp.StatusCode
		return j
	}
	j.mediaType = resp.Header.Get("Content-Type")
	return r.keepContent(ctx, j, rep, href, resp.Body, check, keep)
}

// keepContent reads a representation to its end, compares it with what is stated, and
// passes it to the store. from says where it comes from.
func (r *run) keepContent(ctx context.Context, j contentJob, rep *event.Representation, from string, in io.Reader, check *hashCheck, keep *contentWriter) contentJob {
	limit := r.recordLimit()
	body := &errorReader{r: fetch.Limit(in, limit, "a representation")}
	draft, err := r.h.Contents.Draft(io.TeeReader(body, check), limit)
	if err != nil {
		if j.err, j.final = fmt.Errorf("%s: %w", from, err), !fetch.Transient(err); context.Cause(ctx) != nil {
			j.err, j.final = context.Cause(ctx), false
			return j
		}
		if body.err == nil { // the store's fault, not the Source's
			keep.fail(err)
		}
		return j
	}
	j.sum, j.size = draft.Sum(), draft.Size()
	if r.isPage(check, rep, j.mediaType) { // as if the server had said 403
		j.err, j.final = errors.Join(fmt.Errorf("%s answered with an HTML page, as for a login or an error; the Source says %s", from, rep.Type), draft.Close()), true
		return j
	}
	if why := r.differs(check, rep, &j); why != "" {
		j.err = errors.Join(fmt.Errorf("%s%s: %s", mismatch, from, why), draft.Close())
		return j
	}
	if !j.came && r.fetched.Add(1)%100 == 0 {
		r.reportProgress()
	}
	keep.add(ctx, draft)
	return j
}

// recordLimit is how many bytes a representation may have.
func (r *run) recordLimit() int64 { return cmp.Or(r.src.Limits.Record, 64<<20) }

// mismatch begins the reason why content waits that differs from what its list states.
const mismatch = "not what the Source says: "

// differs returns how the content differs from what is stated, "" if it does not. The length
// is a hint in Atom (RFC 4287 4.2.7.6), and a statement in ResourceSync (clause
// 7) and of a file. A media type that differs is reported and changes nothing (but see isPage).
func (r *run) differs(c *hashCheck, rep *event.Representation, got *contentJob) string {
	length := rep.Length
	if r.src.Kind != ResourceSync && r.src.Kind != Folder {
		length = event.NoLength
	}
	why := c.compare(got, length)
	if why == "" && r.src.Kind == ResourceSync && rep.Type != "" && got.mediaType != "" && !translate.SameType(rep.Type, got.mediaType) {
		r.problem("type", fmt.Sprintf("%s is served as %s, the Source says %s, which is kept", rep.Href, got.mediaType, rep.Type))
	}
	return why
}

// isPage reports whether a server has answered with an HTML page in the place of something else,
// and neither hash nor length shows that this is meant.
func (r *run) isPage(c *hashCheck, rep *event.Representation, mediaType string) bool {
	return r.src.Kind == ResourceSync && rep.Length < 0 && !c.compares() && translate.SameType(mediaType, "text/html") && !mayBePage(rep.Type) && c.isPage()
}

// mayBePage reports whether a Source may mean an HTML page by a media type.
func mayBePage(stated string) bool {
	return stated == "" || slices.ContainsFunc([]string{"text/html", "application/xhtml+xml", "text/plain", untyped}, func(t string) bool { return translate.SameType(stated, t) })
}

// getContent asks for content, and writes into j why there was no answer.
func (r *run) getContent(ctx context.Context, j *contentJob, href string) (*http.Response, error) {
	j.waits.Store(true)
	defer j.waits.Store(false)
	resp, err := r.get(ctx, href)
	if err != nil {
		if j.err, j.final = err, !fetch.Transient(err); context.Cause(ctx) != nil {
			j.err, j.final = context.Cause(ctx), false
		}
		return nil, err
	}
	if asked := fetch.RetryAfter(resp.Header, r.h.now()); asked > 0 && fetch.TransientStatus(resp.StatusCode) {
		j.after = r.h.now().Add(min(asked, 24*time.Hour))
	}
	return resp, nil
}

func (r *run) get(ctx context.Context, href string) (*http.Response, error) {
	return r.send(ctx, http.MethodGet, href)
}

func (r *run) send(ctx context.Context, method, href string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, event.URI(r.src.locate(href)), nil)
	if err != nil {
		return nil, err
	}
	return cmp.Or(r.src.ContentClient, r.src.Client).Do(req)
}

// applyContents writes into an item what became of its representations (A13). The record
// has those that answered. The others are left out and asked for again: at once if the
// failure looks final, else once a second request has failed too. Until then, and while
// content is not as its list says, the whole observation waits.
func (r *run) applyContents(it *event.Item, got []contentJob, again bool) {
	slices.SortFunc(got, func(a, b contentJob) int { return a.rep - b.rep })
	if r.asksOnly(it) {
		setAnswer(it, got)
		return
	}
	asked := it.Observation
	asked.Representations = slices.Clone(asked.Representations)
	var have []event.Representation
	var left, never []string
	for _, f := range got {
		if !f.after.IsZero() {
			it.After = max(it.After, event.MicrosOf(f.after))
		}
		switch {
		case errors.Is(f.err, errNoFormat) && f.rep > 0: // the record is there without it
		case f.never:
			never = append(never, f.err.Error()+f.besides())
		case f.err != nil && !f.final && (!again || strings.HasPrefix(f.err.Error(), mismatch)):
			it.Pending = f.err.Error() + f.besides()
			return
		case f.err != nil:
			left = append(left, f.err.Error()+f.besides())
		default:
			rep := it.Representations[f.rep]
			rep.Hash, rep.Length, rep.Encoding = event.HashOf(f.sum), f.size, ""
			if f.mediaType != "" && len(f.mediaType) <= event.MaxType && (rep.Type == "" || r.src.Kind == Feed) { // legacy feeds guess
				rep.Type = f.mediaType
			}
			have = append(have, rep)
		}
	}
	for _, why := range slices.Concat(left, never) {
		r.problem("A13", fmt.Sprintf("record %q: %s", it.Record, why))
	}
	if len(have) == 0 {
		it.Pending = strings.Join(slices.Concat(left, never), "; ")
		return
	}
	if len(left) > 0 {
		it.Pending, it.Partial, it.Asked = strings.Join(left, "; "), true, &asked
	}
	it.Representations, it.Fetched = have, true
	it.Preferred = translate.Preferred(r.src.Selection.Prefer, have)
}

// contentWriter puts contents into the store, many at a time. An error ends the harvest:
// what cannot be stored must not be logged.
type contentWriter struct {
	store  *content.Store
	mu     sync.Mutex
	drafts []*content.Draft
	bytes  int64
	err    error
}

func (k *contentWriter) add(ctx context.Context, d *content.Draft) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drafts = append(k.drafts, d)
	if k.bytes += d.Size(); k.bytes >= putBytes {
		k.put(ctx)
	}
}

func (k *contentWriter) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = errors.Join(k.err, err)
}

// errorReader keeps the error with which a reader has ended.
type errorReader struct {
	r   io.Reader
	err error
}

// Read is io.Reader.
func (n *errorReader) Read(p []byte) (int, error) {
	read, err := n.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		n.err = err
	}
	return read, err
}

func (k *contentWriter) flush(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(ctx)
	return k.err
}

func (k *contentWriter) put(ctx context.Context) {
	if len(k.drafts) > 0 && k.err == nil {
		k.err = k.store.Put(ctx, k.drafts...)
	}
	for _, d := range k.drafts {
		k.err = errors.Join(k.err, d.Close())
	}
	k.drafts, k.bytes = k.drafts[:0], 0
}

// untyped is the media type of bytes of which nothing is known (RFC 2046 4.5.1).
const untyped = "application/octet-stream"

// fetchTypes finds out the media types that a Source does not state, in a set that
// fetches no contents: an alternate link of Atom-PMH must have one. It asks for each
// once, when the record has changed.
func (r *run) fetchTypes(ctx context.Context, b *event.Batch) error {
	if r.src.Content == event.Mirror || r.src.Kind == Set || !lackType(b.Items) {
		return nil
	}
	var needs []bool
	if b.Mode == event.ModeWalk {
		b.Source = r.src.ID
		var err error
		if needs, err = r.h.Log.NeedsContent(ctx, b); err != nil {
			return err
		}
	}
	var jobs []contentJob
	for i := range b.Items {
		it := b.Items[i]
		if needs != nil && !needs[i] || !lackType(b.Items[i:i+1]) {
			continue
		}
		it.Representations = slices.Clone(it.Representations)
		for n := range it.Representations {
			if rep := &it.Representations[n]; rep.Type == "" {
				rep.Type = untyped
				jobs = append(jobs, newJob(i, n, rep.Href))
			}
		}
	}
	answers := map[[2]int]contentJob{}
	for _, f := range r.fetchAll(ctx, jobs, true, func(ctx context.Context, j contentJob) contentJob {
		return r.headType(ctx, j, b.Items[j.item].Representations[j.rep].Href)
	}) {
		if found := (*defect.Error)(nil); errors.As(f.err, &found) {
			return f.err // or a defect of ours would be logged as the type of a record
		}
		answers[[2]int{f.item, f.rep}] = f
	}
	for _, j := range jobs {
		it := b.Items[j.item]
		rep := &it.Representations[j.rep]
		switch f, asked := answers[[2]int{j.item, j.rep}]; {
		case asked && f.err == nil:
			rep.Type = f.mediaType
		case !asked:
			f.err = errNotAsked
			fallthrough
		default:
			r.problem("type", fmt.Sprintf("%s has no media type: %s; it is published as %s", rep.Href, f.err, untyped))
		}
		it.Preferred = translate.Preferred(r.src.Selection.Prefer, it.Representations)
	}
	return context.Cause(ctx)
}

// lackType reports whether the media type of some representation is not known.
func lackType(items []*event.Item) bool {
	for i := range items {
		for j := range items[i].Representations {
			if items[i].Representations[j].Type == "" {
				return true
			}
		}
	}
	return false
}

// headType asks for the media type of what is at a URL.
func (r *run) headType(ctx context.Context, j contentJob, href string) (out contentJob) {
	defer func() { out = j }()
	defer defect.Recover(&j.err)
	switch {
	case !fetchable(href, r.src.URL):
		j.err, j.never = errors.New("only http and https are asked"), true
		return
	case r.host(j.host).failing(): // a type is not worth another request
		j.err, j.never = errors.New("the last requests to its host failed"), true
		return
	}
	var resp *http.Response
	if resp, j.err = r.send(ctx, http.MethodHead, r.src.local(href)); j.err != nil {
		return
	}
	_ = resp.Body.Close() // it is empty
	j.final = true
	j.mediaType = resp.Header.Get("Content-Type")
	if parsed, _, err := mime.ParseMediaType(j.mediaType); err != nil || !strings.Contains(parsed, "/") || len(j.mediaType) > event.MaxType {
		j.err = fmt.Errorf("HEAD answered with Content-Type %q", strictxml.Clip(j.mediaType))
	}
	if resp.StatusCode != http.StatusOK {
		j.err = errors.New("HEAD answered " + resp.Status)
	}
	return
}

// local returns the URL of the local file that is published at a URL, else the
// URL itself.
func (src *Source) local(href string) string {
	w := &src.Selection
	if rest, ok := strings.CutPrefix(href, w.PublicURL); ok && w.PublicURL != "" && w.LocalURL != "" {
		return w.LocalURL + rest
	}
	return href
}
