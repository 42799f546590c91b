package harvest

import (
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"mime"
	"net"
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
	// putBytes is how many fetched bytes are put into the store at once.
	putBytes = 16 << 20
)

// batchSize is how many observations are committed at once.
func (r *run) batchSize() int {
	if r.src.Content == event.Mirror {
		return min(r.h.batchSize(), mirrorBatch)
	}
	return r.h.batchSize()
}

// fetchAndCommit appends a batch to the log, in a mirror with the contents that it
// needs.
func (r *run) fetchAndCommit(ctx context.Context, b *event.Batch) error {
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
	return r.fetchLate(ctx, b, wanted, out.Outcomes)
}

// fetchLate fetches the contents that only Append has found to be needed, and asks the
// URLs of the records of which it cannot know whether the item holds. Contents that were
// needed before and not asked for stay pending.
func (r *run) fetchLate(ctx context.Context, b *event.Batch, wanted []int, outcomes []event.Outcome) error {
	late := event.Batch{Mode: event.ModeSettle, Next: b.Next, Documents: b.Documents}
	for i, o := range outcomes {
		_, asked := slices.BinarySearch(wanted, i)
		switch {
		case o != event.NeedsContent:
		case asked:
			r.unasked++
			r.updateReport(func(p *Report) { p.Pending++ })
		default:
			late.Items = append(late.Items, b.Items[i])
		}
	}
	if len(late.Items) == 0 {
		return nil
	}
	return r.fetchAndCommit(ctx, &late)
}

// neededContents returns the indexes of the items whose content is needed, or whose URL
// is to be asked. In a mirror a batch has each record once.
func (r *run) neededContents(ctx context.Context, b *event.Batch) (wanted []int, err error) {
	mirror := r.src.Content == event.Mirror
	var needs []bool
	if b.Mode == event.ModeWalk && mirror {
		b.Source = r.src.ID
		if needs, err = r.h.Log.NeedsContent(ctx, b); err != nil {
			return nil, err
		}
	}
	for i := range b.Items {
		switch b.Mode {
		case event.ModeWalk:
			if mirror && needs[i] {
				wanted = append(wanted, i)
			}
		case event.ModeSettle:
			wanted = append(wanted, i)
		default:
			if mirror && !b.Items[i].Deleted {
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
	list = slices.DeleteFunc(list, func(d event.Due) bool { return d.Asked >= event.MicrosOf(r.report.Started) })
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
	sum       [32]byte
	size      int64
	mediaType string
	// err is why there is no content. final: the same request will probably fail again;
	// never: it is not made again; gone: of a URL of which only the status is wanted,
	// it answered 404 or 410.
	err                error
	final, never, gone bool
	after              time.Time // the server wants no request for it before that
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
		if r.asksOnly(&b.Items[i]) {
			reps = reps[:min(len(reps), 1)]
		}
		for rep := range reps {
			left[i]++
			jobs = append(jobs, contentJob{item: i, rep: rep, host: hostOf(reps[rep].Href), waits: new(atomic.Bool)})
		}
	}
	r.needed.Add(int64(len(jobs)))
	r.setActivity("fetching contents", time.Time{})
	got := make(map[int][]contentJob, len(wanted))
	for _, f := range r.fetchAll(ctx, jobs, func(ctx context.Context, j contentJob) contentJob {
		return r.fetch(ctx, j, b, keep)
	}) {
		got[f.item] = append(got[f.item], f)
	}
	if err := errors.Join(context.Cause(ctx), keep.flush(ctx)); err != nil {
		return err
	}
	for _, i := range wanted {
		it := &b.Items[i]
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

// errNotAsked: a representation was not asked for, but others of its record were.
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
	it := &b.Items[j.item]
	rep, document := &it.Representations[j.rep], b.Documents[it.Document].URL
	if r.asksOnly(it) {
		return r.askURL(ctx, j, rep.Href)
	}
	if !fetchable(rep.Href, document) {
		j.never, j.err = true, fmt.Errorf("%s is not fetched: only http and https are, and local files that a local document names", rep.Href)
		return j
	}
	first := r.fetchFrom(ctx, j, rep, rep.Href, keep)
	if first.err == nil || j.rep != 0 || ctx.Err() != nil {
		return first
	}
	for _, l := range it.Links {
		if l.Rel != resourcesync.RelDuplicate || !fetchable(l.Href, document) {
			continue
		}
		if second := r.fetchFrom(ctx, j, rep, l.Href, keep); second.err == nil {
			r.problem("mirror", fmt.Sprintf("%v; it came from its mirror %s", first.err, l.Href))
			return second
		}
	}
	return first
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
		return j
	}
	limit := r.src.Limits.Record
	if limit == 0 {
		limit = 64 << 20
	}
	body := &errorReader{r: fetch.Limit(resp.Body, limit, "a representation")}
	draft, err := r.h.Contents.Draft(io.TeeReader(body, check), limit)
	if err != nil {
		if j.err, j.final = fmt.Errorf("%s: %w", href, err), !fetch.Transient(err); context.Cause(ctx) != nil {
			j.err, j.final = context.Cause(ctx), false
			return j
		}
		if body.err == nil { // the store's fault, not the Source's
			keep.fail(err)
		}
		return j
	}
	j.sum, j.size, j.mediaType = draft.Sum(), draft.Size(), resp.Header.Get("Content-Type")
	if why := r.differs(check, rep, &j); why != "" {
		j.err = errors.Join(fmt.Errorf("%s%s: %s", mismatch, href, why), draft.Close())
		return j
	}
	if r.fetched.Add(1)%100 == 0 {
		r.reportProgress()
	}
	keep.add(ctx, draft)
	return j
}

// mismatch is how the reason begins for which content waits that is not as its list
// says.
const mismatch = "not what the Source says: "

// differs returns how the content differs from what is stated, "" if it does not. The length
// is a hint in Atom (RFC 4287 4.2.7.6) and a statement in ResourceSync (clause
// 7). A media type that differs is reported and changes nothing.
func (r *run) differs(c *hashCheck, rep *event.Representation, got *contentJob) string {
	length := rep.Length
	if r.src.Kind != ResourceSync {
		length = event.NoLength
	}
	why := c.compare(got, length)
	if why == "" && r.src.Kind == ResourceSync && rep.Type != "" && got.mediaType != "" && !translate.SameType(rep.Type, got.mediaType) {
		r.problem("type", fmt.Sprintf("%s is served as %s, the Source says %s, which is kept", rep.Href, got.mediaType, rep.Type))
	}
	return why
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
	req, err := http.NewRequestWithContext(ctx, method, href, nil)
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
		case f.never:
			never = append(never, f.err.Error())
		case f.err != nil && !f.final && (!again || strings.HasPrefix(f.err.Error(), mismatch)):
			it.Pending = f.err.Error()
			return
		case f.err != nil:
			left = append(left, f.err.Error())
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

// hashCheck compares a representation with the hashes that its link states, in the form
// of translate.Hashes. It ignores hashes of unknown kinds. The store computes that of
// SHA-256.
type hashCheck struct {
	sha256 string
	others digests
	// coded is of the bytes as they are transferred, where hash and length are
	// stated of these.
	coded coded
	// unknown: they are stated of a coding that nobody asks for.
	unknown bool
}

// digests are stated hashes, and the bytes so far.
type digests []stated

type stated struct {
	name, digits string
	hash         hash.Hash
}

// coded is the body of an answer in gzip.
type coded struct {
	digests
	wanted bool
	size   int64
}

func newHashCheck(rep *event.Representation) *hashCheck {
	c := &hashCheck{}
	switch rep.Encoding {
	case "":
	case "gzip":
		c.coded.wanted = true
	default:
		c.unknown = true
		return c
	}
	for h := range strings.FieldsSeq(rep.Hash) {
		name, digits, _ := strings.Cut(h, ":")
		var of func() hash.Hash
		switch {
		case name == "sha-256" && len(digits) == 2*sha256.Size:
			of, c.sha256 = sha256.New, digits
		case name == "md5" && len(digits) == 2*md5.Size:
			of = md5.New
		case name == "sha-1" && len(digits) == 2*sha1.Size:
			of = sha1.New
		case name == "sha-384" && len(digits) == 2*sha512.Size384:
			of = sha512.New384
		case name == "sha-512" && len(digits) == 2*sha512.Size:
			of = sha512.New
		default:
			continue
		}
		if name != "sha-256" {
			c.others = append(c.others, stated{name, digits, of()})
		}
		if c.coded.wanted {
			c.coded.digests = append(c.coded.digests, stated{name, digits, of()})
		}
	}
	return c
}

// Write is io.Writer.
func (c *hashCheck) Write(b []byte) (int, error) { return c.others.Write(b) }

// Write is io.Writer.
func (c *coded) Write(b []byte) (int, error) {
	if c.wanted {
		c.size += int64(len(b))
		return c.digests.Write(b)
	}
	return len(b), nil
}

// Write is io.Writer.
func (d digests) Write(b []byte) (int, error) {
	for _, s := range d {
		s.hash.Write(b)
	}
	return len(b), nil
}

// compare returns how the bytes differ from the stated ones, "" if they do not. If hash
// and length are stated of the body in a coding, either that body or the bytes
// themselves have to match: many Sources mean the latter, and a server need not send
// the coding.
func (c *hashCheck) compare(got *contentJob, length int64) string {
	if c.unknown {
		return ""
	}
	why := compareLength(got.size, length)
	if sum := hex.EncodeToString(got.sum[:]); why == "" && c.sha256 != "" && sum != c.sha256 {
		why = "its SHA-256 is " + sum + ", the Source says " + c.sha256
	}
	if why == "" {
		why = c.others.compare()
	}
	if why == "" || c.coded.size == 0 {
		return why
	}
	if why = compareLength(c.coded.size, length); why == "" {
		why = c.coded.compare()
	}
	if why != "" {
		why = "in gzip " + why
	}
	return why
}

func compareLength(got, stated int64) string {
	if stated >= 0 && stated != got {
		return fmt.Sprintf("it has %d bytes, the Source says %d", got, stated)
	}
	return ""
}

func (d digests) compare() string {
	for _, s := range d {
		if got := hex.EncodeToString(s.hash.Sum(nil)); got != s.digits {
			return "its " + strings.ToUpper(s.name) + " is " + got + ", the Source says " + s.digits
		}
	}
	return ""
}

const (
	// troubleAfter is how many requests for contents of one host in a row have to
	// fail before its contents are asked for once each and not several times.
	troubleAfter = 8
	// troubleMost is how long one harvest goes on asking a host where all fail.
	troubleMost = 10 * time.Minute
	// lastContentsTime is how long a walk waits for the last contents of a batch when
	// all others are there.
	lastContentsTime = 5 * time.Second
)

// hostState is what one harvest knows of a host with contents. A failure counts against
// the record, not the host: every record is asked for, whatever became of others. Only
// a host that cannot be reached at all is given up.
type hostState struct {
	mu sync.Mutex // guards what follows

	failed      int  // requests in a row
	unreachable int  // of these, in a row, those that had no answer because nothing answers there
	answered    bool // there was an answer, of whatever kind
	since       time.Time
}

// givenUp reports whether this harvest sends no more requests to the host.
func (h *hostState) givenUp(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.answered && h.unreachable >= troubleAfter || h.failed >= troubleAfter && now.Sub(h.since) > troubleMost
}

// record notes how a request has ended.
func (h *hostState) record(f *contentJob, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if isUnreachable(f.err) {
		h.unreachable++
	} else {
		h.unreachable, h.answered = 0, true
	}
	if !f.waiting() && h.unreachable == 0 {
		h.failed = 0
		return
	}
	if h.failed++; h.failed == 1 {
		h.since = now
	}
}

// failing reports whether so many requests in a row have failed that each is made once
// only.
func (h *hostState) failing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed >= troubleAfter
}

// isUnreachable reports whether a request failed because the host does not answer at all.
func isUnreachable(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns)
}

// contentQueue asks for the contents of one batch. Each host has its own queue, in the
// order of the batch, so that a slow host does not hold up the others.
type contentQueue struct {
	r       *run
	get     func(context.Context, contentJob) contentJob
	hosts   []*hostQueue
	next    int // index of the host that is next
	running map[*atomic.Bool]context.CancelCauseFunc
	done    chan contentJob
}

// hostQueue has the jobs of one host.
type hostQueue struct {
	*hostState
	jobs    []contentJob
	running int
}

// fetchAll makes the requests and returns what came of them. It leaves out requests that
// were not made and, during a walk, those without an answer when all others have one.
func (r *run) fetchAll(ctx context.Context, jobs []contentJob, get func(context.Context, contentJob) contentJob) []contentJob {
	q := &contentQueue{r: r, get: get, done: make(chan contentJob), running: map[*atomic.Bool]context.CancelCauseFunc{}}
	of := map[string]*hostQueue{}
	for _, j := range jobs {
		l := of[j.host]
		if l == nil {
			l = &hostQueue{hostState: r.host(j.host)}
			of[j.host] = l
			q.hosts = append(q.hosts, l)
		}
		l.jobs = append(l.jobs, j)
	}
	var out []contentJob
	var patience <-chan time.Time
	for {
		q.start(ctx)
		if len(q.running) == 0 {
			return out
		}
		if r.walking && patience == nil && q.empty() {
			tick := time.NewTicker(lastContentsTime)
			defer tick.Stop()
			patience = tick.C
		}
		select {
		case f := <-q.done:
			q.running[f.waits](nil)
			delete(q.running, f.waits)
			l := of[f.host]
			l.running--
			if errors.Is(f.err, errSlow) || errors.Is(f.err, fetch.ErrWait) {
				continue // as if it had not been made
			}
			l.record(&f, r.h.now())
			out = append(out, f)
		case <-patience:
			for waits, cancel := range q.running {
				if waits.Load() {
					cancel(errSlow)
				}
			}
		}
	}
}

// errSlow cancels requests that a walk does not wait for.
var errSlow = errors.New("slower than all others")

// host returns what is known of a host.
func (r *run) host(name string) *hostState {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hosts[name]
	if h == nil {
		if r.hosts == nil {
			r.hosts = map[string]*hostState{}
		}
		h = &hostState{}
		r.hosts[name] = h
	}
	return h
}

// start sends as many requests as may be under way, host by host in turn. One of several
// hosts gets half as many as a single one.
func (q *contentQueue) start(ctx context.Context) {
	each := q.r.h.workers()
	all := 4 * each
	if len(q.hosts) > 1 {
		each = max(1, each/2)
	}
	for idle := 0; idle < len(q.hosts) && len(q.running) < all && ctx.Err() == nil; {
		l := q.hosts[q.next%len(q.hosts)]
		q.next++
		if len(l.jobs) > 0 && l.givenUp(q.r.h.now()) {
			l.jobs = nil
		}
		if len(l.jobs) == 0 || l.running >= each {
			idle++
			continue
		}
		idle = 0
		j := l.jobs[0]
		l.jobs = l.jobs[1:]
		l.running++
		asking, cancel := context.WithCancelCause(ctx)
		q.running[j.waits] = cancel
		if l.failing() {
			asking = fetch.Once(asking)
		}
		go func() { q.done <- q.get(asking, j) }()
	}
}

// empty reports whether all requests were made.
func (q *contentQueue) empty() bool {
	for _, l := range q.hosts {
		if len(l.jobs) > 0 {
			return false
		}
	}
	return true
}

func hostOf(href string) string {
	u, err := url.Parse(href)
	if err != nil {
		return ""
	}
	return u.Host
}

// untyped is the media type of bytes of which nothing is known (RFC 2046 4.5.1).
const untyped = "application/octet-stream"

// fetchTypes finds out the media types that a Source does not state, in a set that
// fetches no contents: an alternate link of Atom-PMH must have one. It asks for each
// once, when the record has changed.
func (r *run) fetchTypes(ctx context.Context, b *event.Batch) error {
	if r.src.Content == event.Mirror || !slices.ContainsFunc(b.Items, func(it event.Item) bool { return lacksType(&it) }) {
		return nil
	}
	needs := make([]bool, len(b.Items))
	if b.Mode == event.ModeWalk {
		b.Source = r.src.ID
		var err error
		if needs, err = r.h.Log.NeedsContent(ctx, b); err != nil {
			return err
		}
	}
	jobs := make(chan *event.Item)
	workers := make(chan error)
	for range r.h.workers() {
		go func() {
			var err error
			for it := range jobs {
				err = errors.Join(err, defect.Guard(func() error {
					r.findTypes(ctx, it)
					return nil
				}))
			}
			workers <- err
		}()
	}
	for i := range b.Items {
		if it := &b.Items[i]; lacksType(it) && (needs[i] || b.Mode != event.ModeWalk) {
			jobs <- it
		}
	}
	close(jobs)
	var err error
	for range r.h.workers() {
		err = errors.Join(err, <-workers)
	}
	return errors.Join(err, context.Cause(ctx))
}

// lacksType reports whether an item has a representation without a media type.
func lacksType(it *event.Item) bool {
	return slices.ContainsFunc(it.Representations, func(rep event.Representation) bool { return rep.Type == "" })
}

// findTypes gives an item's representations the media types that HTTP states.
func (r *run) findTypes(ctx context.Context, it *event.Item) {
	it.Representations = slices.Clone(it.Representations)
	for i := range it.Representations {
		rep := &it.Representations[i]
		if rep.Type != "" {
			continue
		}
		var why string
		if rep.Type, why = r.headType(ctx, rep.Href); why != "" {
			rep.Type = untyped
			r.problem("type", fmt.Sprintf("%s has no media type: %s; it is published as %s", rep.Href, why, untyped))
		}
	}
	it.Preferred = translate.Preferred(r.src.Selection.Prefer, it.Representations)
}

// headType returns the media type of what is at a URL, or why it is not known.
func (r *run) headType(ctx context.Context, href string) (mediaType, why string) {
	if !fetchable(href, r.src.URL) {
		return "", "only http and https are asked"
	}
	host := r.host(hostOf(href))
	if host.failing() { // a type is not worth another
		return "", "the last requests to its host failed"
	}
	resp, err := r.send(ctx, http.MethodHead, r.src.local(href))
	host.record(&contentJob{err: err}, r.h.now())
	if err != nil {
		return "", err.Error()
	}
	_ = resp.Body.Close() // it is empty
	if resp.StatusCode != http.StatusOK {
		return "", "HEAD answered " + resp.Status
	}
	stated := resp.Header.Get("Content-Type")
	if parsed, _, err := mime.ParseMediaType(stated); err != nil || !strings.Contains(parsed, "/") || len(stated) > event.MaxType {
		return "", fmt.Sprintf("HEAD answered with Content-Type %q", strictxml.Clip(stated))
	}
	return stated, ""
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
