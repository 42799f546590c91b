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
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
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

// take appends a batch, in a mirror with the contents that it needs.
func (r *run) take(ctx context.Context, b *event.Batch) error {
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
	return r.takeLate(ctx, b, wanted, out.Outcomes)
}

// takeLate fetches what only Append has found to be needed, and asks whether that
// holds which is in doubt. What was not asked for with the others waits in the
// queue.
func (r *run) takeLate(ctx context.Context, b *event.Batch, wanted []int, outcomes []event.Outcome) error {
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
	return r.take(ctx, &late)
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

// anyAlive asks whether the record of some entries is there, by the first active
// one of them.
func (r *run) anyAlive(ctx context.Context, entries []*atompmh.Entry) (bool, error) {
	for _, e := range entries {
		if e.Kind == atompmh.Active {
			return r.alive(ctx, e)
		}
	}
	return false, nil
}

// alive asks whether a record with an active entry is there: one answer is
// enough, and all have to be gone for a no (S9).
func (r *run) alive(ctx context.Context, e *atompmh.Entry) (bool, error) {
	for _, l := range e.Alternates() {
		resp, err := r.get(ctx, l.Href)
		if err != nil {
			return false, err
		}
		status := resp.StatusCode
		if err := resp.Body.Close(); err != nil {
			return false, err
		}
		switch {
		case status == http.StatusOK:
			return true, nil
		case !fetch.Gone(status):
			return false, fmt.Errorf("%s answered %d", l.Href, status)
		}
	}
	return false, nil
}

// keeper collects drafts and puts them into the store many at a time. Its first
// error is the harvest's: what cannot be stored must not be logged.
type keeper struct {
	store  Contents
	mu     sync.Mutex
	drafts []Draft
	bytes  int64
	err    error
}

func (k *keeper) add(ctx context.Context, d Draft) {
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
		k.err = k.store.Put(ctx, k.drafts)
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
