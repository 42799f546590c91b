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
	// mirrorBatch is how many records of a mirror commit at once: their
	// contents are fetched first.
	mirrorBatch = 1000
	// putBytes is how many fetched bytes wait in memory for the store.
	putBytes = 16 << 20
)

// size is how many observations commit at once.
func (r *run) size() int {
	if r.src.Content == event.Mirror {
		return min(r.h.batchSize(), mirrorBatch)
	}
	return r.h.batchSize()
}

// fetchAndCommit appends a batch to the log, in a mirror with the contents that it
// needs.
func (r *run) fetchAndCommit(ctx context.Context, b *event.Batch) error {
	wanted, err := r.wanted(ctx, b)
	if err != nil {
		return err
	}
	if err := r.contents(ctx, b, wanted); err != nil {
		return err
	}
	if err := r.types(ctx, b); err != nil {
		return err
	}
	out, err := r.append(ctx, b)
	if err != nil {
		return err
	}
	return r.fetchLate(ctx, b, wanted, out.Outcomes)
}

// fetchLate fetches what only Append has found to be needed, and asks whether that
// holds which is in doubt. What was not asked for with the others waits in the
// queue.
func (r *run) fetchLate(ctx context.Context, b *event.Batch, wanted []int, outcomes []event.Outcome) error {
	late := event.Batch{Mode: event.ModeSettle, Next: b.Next, Documents: b.Documents}
	for i, o := range outcomes {
		_, asked := slices.BinarySearch(wanted, i)
		switch {
		case o != event.NeedsContent:
		case asked:
			r.left++
			r.note(func(p *Report) { p.Pending++ })
		default:
			late.Items = append(late.Items, b.Items[i])
		}
	}
	if len(late.Items) == 0 {
		return nil
	}
	return r.fetchAndCommit(ctx, &late)
}

// wanted returns the indexes of the items whose content is needed, or whose URL
// is to be asked. In a mirror a record stands once in a batch.
func (r *run) wanted(ctx context.Context, b *event.Batch) (wanted []int, err error) {
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

// asks reports whether a record's URL is asked for an answer alone.
func (r *run) asks(it *event.Item) bool { return it.Deleted || r.src.Content != event.Mirror }

// pendingMost is how long one harvest asks for pending contents: what is left
// stays due.
const pendingMost = 10 * time.Minute

// pending asks for the contents that are due: first those that were never asked
// for, then in the order in which they are due. What this harvest has asked for
// already is left for the next.
func (r *run) pending(ctx context.Context) error {
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
		if r.h.now().Sub(start) > pendingMost {
			return nil
		}
		for _, d := range part {
			if d.Asked == 0 && r.left > 0 { // it counts anew
				r.left--
				r.note(func(p *Report) { p.Pending-- })
			}
		}
		kept, err := r.h.Log.PendingOf(ctx, r.src.ID, part)
		if err != nil {
			return err
		}
		b := event.Batch{Mode: event.ModeSettle, Next: r.data}
		for i := range kept {
			b.Documents = append(b.Documents, kept[i].Document)
			b.Items = append(b.Items, r.again(kept[i].Observation, i))
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

// fetched is what became of one representation.
type fetched struct {
	item, rep int
	host      string
	waits     *atomic.Bool // for an answer
	sum       [32]byte
	size      int64
	mediaType string
	// err is why it was not had. It is final when nothing tells that this will
	// pass; never, when nobody would ask again; and gone, when there is nothing at
	// a URL that was asked for an answer alone.
	err                error
	final, never, gone bool
	after              time.Time // its server wants it not to be asked for before
}

// contents fetches the representations of the wanted items, puts them into the
// store, and writes into the items what was found (A13). It returns once
// everything is durable. Items whose content was not asked for to the end stay as
// they are.
func (r *run) contents(ctx context.Context, b *event.Batch, wanted []int) error {
	if len(wanted) == 0 {
		return nil
	}
	keep := &keeper{store: r.h.Contents}
	var jobs []fetched
	left := make(map[int]int, len(wanted)) // jobs of an item
	for _, i := range wanted {
		reps := b.Items[i].Representations
		if r.asks(&b.Items[i]) {
			reps = reps[:min(len(reps), 1)]
		}
		for rep := range reps {
			left[i]++
			jobs = append(jobs, fetched{item: i, rep: rep, host: hostOf(reps[rep].Href), waits: new(atomic.Bool)})
		}
	}
	r.needed.Add(int64(len(jobs)))
	r.doing("fetching contents", time.Time{})
	got := make(map[int][]fetched, len(wanted))
	for _, f := range r.fetchAll(ctx, jobs, func(ctx context.Context, j fetched) fetched {
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
				got[i] = append(got[i], fetched{err: errLeft})
			}
		}
		if len(got[i]) == left[i] || !again && slices.ContainsFunc(got[i], fetched.waiting) {
			r.settle(it, got[i], again)
		}
	}
	return nil
}

// errLeft: a representation was not asked for, and others of its record were.
var errLeft = errors.New("it was not asked for yet")

// waiting reports whether a failure makes the whole record wait, whatever becomes
// of its other representations.
func (f fetched) waiting() bool { return f.err != nil && !f.final && !f.never && !f.gone }

// fetch gets one representation: from its own place, or, when that fails, from
// the mirrors that the Source names, the best one first.
func (r *run) fetch(ctx context.Context, j fetched, b *event.Batch, keep *keeper) (out fetched) {
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
	if r.asks(it) {
		return r.ask(ctx, j, rep.Href)
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

// ask asks whether a URL answers; what it answers with is not read.
func (r *run) ask(ctx context.Context, j fetched, href string) fetched {
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

// answer writes into an item what its URL answered. Without a URL there is
// nobody to contradict it.
func answer(it *event.Item, got []fetched) {
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

// fetchable tells whether contents can be asked for at a URL that a document
// names.
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
func (r *run) fetchFrom(ctx context.Context, j fetched, rep *event.Representation, href string, keep *keeper) fetched {
	check := newCheck(rep)
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
	body := &noted{r: fetch.Limit(resp.Body, limit, "a representation")}
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
		r.tell()
	}
	keep.add(ctx, draft)
	return j
}

// mismatch begins the reason why content waits that is not what its list says.
const mismatch = "not what the Source says: "

// differs tells in what the content is not as stated, "" when it is. The length
// is a hint in Atom (RFC 4287 4.2.7.6) and a statement in ResourceSync (clause
// 7). A media type that differs is reported and changes nothing.
func (r *run) differs(c *check, rep *event.Representation, got *fetched) string {
	length := rep.Length
	if r.src.Kind != ResourceSync {
		length = event.NoLength
	}
	why := c.against(got, length)
	if why == "" && r.src.Kind == ResourceSync && rep.Type != "" && got.mediaType != "" && !translate.SameType(rep.Type, got.mediaType) {
		r.problem("type", fmt.Sprintf("%s is served as %s, the Source says %s, which is kept", rep.Href, got.mediaType, rep.Type))
	}
	return why
}

// getContent asks for a content, and writes into j why there was no answer.
func (r *run) getContent(ctx context.Context, j *fetched, href string) (*http.Response, error) {
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

// settle writes into an item what became of its representations (A13). Those that
// answered make the record. What cannot be had is left out and asked for again:
// at once where nothing tells that this will pass, else when it was asked for
// again. Until then, and while content is not what its list says, the whole
// observation waits.
func (r *run) settle(it *event.Item, got []fetched, again bool) {
	slices.SortFunc(got, func(a, b fetched) int { return a.rep - b.rep })
	if r.asks(it) {
		answer(it, got)
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

// keeper collects drafts and puts them into the store many at a time. Its first
// error is the harvest's: what cannot be stored must not be logged.
type keeper struct {
	store  *content.Store
	mu     sync.Mutex
	drafts []*content.Draft
	bytes  int64
	err    error
}

func (k *keeper) add(ctx context.Context, d *content.Draft) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drafts = append(k.drafts, d)
	if k.bytes += d.Size(); k.bytes >= putBytes {
		k.put(ctx)
	}
}

func (k *keeper) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = errors.Join(k.err, err)
}

// noted remembers the error with which a reader has ended.
type noted struct {
	r   io.Reader
	err error
}

// Read is io.Reader.
func (n *noted) Read(p []byte) (int, error) {
	read, err := n.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		n.err = err
	}
	return read, err
}

func (k *keeper) flush(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(ctx)
	return k.err
}

func (k *keeper) put(ctx context.Context) {
	if len(k.drafts) > 0 && k.err == nil {
		k.err = k.store.Put(ctx, k.drafts...)
	}
	for _, d := range k.drafts {
		k.err = errors.Join(k.err, d.Close())
	}
	k.drafts, k.bytes = k.drafts[:0], 0
}

// check compares a representation with the hashes that its link stated, in the
// form of translate.Hashes. Hashes of a kind that it does not know are not
// checked. That of SHA-256 is known from the store.
type check struct {
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

func newCheck(rep *event.Representation) *check {
	c := &check{}
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
func (c *check) Write(b []byte) (int, error) { return c.others.Write(b) }

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

// against returns why the bytes are not the stated ones, "" when they are. Where
// hash and length are stated of the body in a coding, that is compared; and the
// bytes themselves as well, since many mean these all the same, and a server need
// not send the coding.
func (c *check) against(got *fetched, length int64) string {
	if c.unknown {
		return ""
	}
	why := ofLength(got.size, length)
	if sum := hex.EncodeToString(got.sum[:]); why == "" && c.sha256 != "" && sum != c.sha256 {
		why = "its SHA-256 is " + sum + ", the Source says " + c.sha256
	}
	if why == "" {
		why = c.others.against()
	}
	if why == "" || c.coded.size == 0 {
		return why
	}
	if why = ofLength(c.coded.size, length); why == "" {
		why = c.coded.against()
	}
	if why != "" {
		why = "in gzip " + why
	}
	return why
}

func ofLength(got, stated int64) string {
	if stated >= 0 && stated != got {
		return fmt.Sprintf("it has %d bytes, the Source says %d", got, stated)
	}
	return ""
}

func (d digests) against() string {
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
	// slowContents is how long a walk waits for the last contents of a batch once
	// all others are there.
	slowContents = 5 * time.Second
)

// hostState is what one harvest has found out about a host with contents. A
// failure counts against the record: whatever others do, every record is asked
// for. Only a host that cannot be reached at all is left alone.
type hostState struct {
	mu sync.Mutex // guards what follows

	failed      int  // requests in a row
	unreachable int  // of these, in a row, those that had no answer because nothing answers there
	answered    bool // there was an answer, of whatever kind
	since       time.Time
}

// leave reports whether the host is asked for nothing more in this harvest.
func (h *hostState) leave(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.answered && h.unreachable >= troubleAfter || h.failed >= troubleAfter && now.Sub(h.since) > troubleMost
}

// took takes note of how a request has ended.
func (h *hostState) took(f *fetched, now time.Time) {
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

// failing reports whether so many requests in a row have failed that each is worth
// no more than one attempt.
func (h *hostState) failing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed >= troubleAfter
}

// isUnreachable reports whether a request failed because nothing answers at the
// host, whatever is asked for.
func isUnreachable(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns)
}

// queue asks for the contents of one batch. Each host has its own line, in the
// order of the batch, so that none keeps the others waiting.
type queue struct {
	r       *run
	get     func(context.Context, fetched) fetched
	lines   []*line
	next    int // the line whose turn it is
	running map[*atomic.Bool]context.CancelCauseFunc
	done    chan fetched
}

// line is the jobs of one host.
type line struct {
	*hostState
	jobs    []fetched
	running int
}

// fetchAll asks for everything and returns what came of it. What its host was not
// asked for is not among it; nor is, during a walk, what has no answer yet when
// all else is there.
func (r *run) fetchAll(ctx context.Context, jobs []fetched, get func(context.Context, fetched) fetched) []fetched {
	q := &queue{r: r, get: get, done: make(chan fetched), running: map[*atomic.Bool]context.CancelCauseFunc{}}
	of := map[string]*line{}
	for _, j := range jobs {
		l := of[j.host]
		if l == nil {
			l = &line{hostState: r.host(j.host)}
			of[j.host] = l
			q.lines = append(q.lines, l)
		}
		l.jobs = append(l.jobs, j)
	}
	var out []fetched
	var patience <-chan time.Time
	for {
		q.start(ctx)
		if len(q.running) == 0 {
			return out
		}
		if r.hurry && patience == nil && q.empty() {
			tick := time.NewTicker(slowContents)
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
				continue // it counts as not asked for
			}
			l.took(&f, r.h.now())
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

// errSlow ends requests that a walk does not wait for.
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

// start sends as many requests as may be under way, the hosts in turn. One host
// among several gets half of what one alone gets.
func (q *queue) start(ctx context.Context) {
	each := q.r.h.workers()
	all := 4 * each
	if len(q.lines) > 1 {
		each = max(1, each/2)
	}
	for idle := 0; idle < len(q.lines) && len(q.running) < all && ctx.Err() == nil; {
		l := q.lines[q.next%len(q.lines)]
		q.next++
		if len(l.jobs) > 0 && l.leave(q.r.h.now()) {
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

// empty reports whether everything was asked for.
func (q *queue) empty() bool {
	for _, l := range q.lines {
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

// types asks the servers of a set that fetches no contents for the media types
// that a Source does not state: an alternate link of Atom-PMH must have one. Each
// is asked for once, when the record has changed.
func (r *run) types(ctx context.Context, b *event.Batch) error {
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

// lacksType tells whether an item has a representation without a media type.
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
		if rep.Type, why = r.head(ctx, rep.Href); why != "" {
			rep.Type = untyped
			r.problem("type", fmt.Sprintf("%s has no media type: %s; it is published as %s", rep.Href, why, untyped))
		}
	}
	it.Preferred = translate.Preferred(r.src.Selection.Prefer, it.Representations)
}

// head returns the media type of what is at a URL, or why it is not known.
func (r *run) head(ctx context.Context, href string) (mediaType, why string) {
	if !fetchable(href, r.src.URL) {
		return "", "only http and https are asked"
	}
	host := r.host(hostOf(href))
	if host.failing() { // a type is not worth more
		return "", "the last requests to its host failed"
	}
	resp, err := r.send(ctx, http.MethodHead, r.src.local(href))
	host.took(&fetched{err: err}, r.h.now())
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
