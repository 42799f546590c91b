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

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
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
	out, err := r.append(ctx, b)
	if err != nil {
		return err
	}
	return r.takeLate(ctx, b, out.Outcomes)
}

// takeLate fetches what only Append has found to be needed, and asks whether that
// holds which is in doubt.
func (r *run) takeLate(ctx context.Context, b *event.Batch, outcomes []event.Outcome) error {
	late := event.Batch{Mode: event.ModeSettle, Next: b.Next, Documents: b.Documents}
	for i, o := range outcomes {
		if o == event.NeedsContent {
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
	sum       [32]byte
	size      int64
	mediaType string
	gone      bool
	err       error
}

// contents fetches the representations of the wanted items, some at once, puts
// them into the store, and writes into the items what was found (A13). It
// returns once everything is durable.
func (r *run) contents(ctx context.Context, b *event.Batch, wanted []int) error {
	if len(wanted) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	jobs := make(chan fetched)
	results := make(chan fetched)
	keep := &keeper{store: r.h.Contents}
	var workers sync.WaitGroup
	for range min(r.h.workers(), max(len(wanted), 1)) {
		workers.Go(func() {
			for j := range jobs {
				j = r.fetch(ctx, j, &b.Items[j.item], keep)
				results <- j
			}
		})
	}
	go func() {
		defer close(jobs)
		for _, i := range wanted {
			reps := b.Items[i].Representations
			if r.asks(&b.Items[i]) {
				reps = reps[:min(len(reps), 1)]
			}
			for rep := range reps {
				select {
				case jobs <- fetched{item: i, rep: rep}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	go func() { workers.Wait(); close(results) }()
	got := make(map[int][]fetched, len(wanted))
	for f := range results {
		got[f.item] = append(got[f.item], f)
	}
	err := errors.Join(context.Cause(ctx), keep.flush(ctx))
	if err != nil {
		return err
	}
	for _, i := range wanted {
		r.settle(&b.Items[i], got[i])
	}
	return nil
}

// fetch gets one representation: from its own place, or, when that fails, from
// the mirrors that the Source names, the best one first.
func (r *run) fetch(ctx context.Context, j fetched, it *event.Item, keep *keeper) fetched {
	rep := &it.Representations[j.rep]
	if r.asks(it) {
		return r.ask(ctx, j, rep.Href)
	}
	first := r.fetchFrom(ctx, j, rep, rep.Href, keep)
	if first.err == nil || j.rep != 0 || ctx.Err() != nil {
		return first
	}
	for _, l := range it.Links {
		if l.Rel != resourcesync.RelDuplicate {
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
	if j.err = r.hosts.ask(href); j.err != nil {
		return j
	}
	resp, err := r.get(ctx, href)
	r.hosts.answered(href, err == nil && !fetch.TransientStatus(resp.StatusCode))
	if err != nil {
		j.err = err
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

// fetchFrom asks for a representation and reads it to its end.
func (r *run) fetchFrom(ctx context.Context, j fetched, rep *event.Representation, href string, keep *keeper) fetched {
	if j.err = r.hosts.ask(href); j.err != nil {
		return j
	}
	resp, err := r.get(ctx, href)
	r.hosts.answered(href, err == nil && !fetch.TransientStatus(resp.StatusCode))
	if err != nil {
		j.err = err
		return j
	}
	defer resp.Body.Close()
	switch {
	case fetch.Gone(resp.StatusCode):
		j.gone = true
		j.err = fmt.Errorf("%s answered %s", href, resp.Status)
		return j
	case resp.StatusCode != http.StatusOK:
		j.err = fmt.Errorf("%s answered %s", href, resp.Status)
		return j
	}
	check := newCheck(rep.Hash)
	limit := r.src.Limits.Record
	if limit == 0 {
		limit = 64 << 20
	}
	body := &noted{r: fetch.Limit(resp.Body, limit, "a representation")}
	draft, err := r.h.Contents.Draft(io.TeeReader(body, check), limit)
	if err != nil {
		j.err = fmt.Errorf("%s: %w", href, err)
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
	if r.src.Kind != ResourceSync {
		return c.against(got.sum)
	}
	if rep.Length >= 0 && rep.Length != got.size {
		return fmt.Sprintf("it has %d bytes, the Source says %d", got.size, rep.Length)
	}
	why := c.against(got.sum)
	if why == "" && rep.Type != "" && got.mediaType != "" && !translate.SameType(rep.Type, got.mediaType) {
		r.problem("type", fmt.Sprintf("%s is served as %s, the Source says %s, which is kept", rep.Href, got.mediaType, rep.Type))
	}
	return why
}

func (r *run) get(ctx context.Context, href string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, href, nil)
	if err != nil {
		return nil, err
	}
	return cmp.Or(r.src.ContentClient, r.src.Client).Do(req)
}

// settle writes into an item what became of its representations. Those that
// answered make the record; what is gone is left out and asked for again; a
// failure of any other kind makes the whole observation wait (A13).
func (r *run) settle(it *event.Item, got []fetched) {
	slices.SortFunc(got, func(a, b fetched) int { return a.rep - b.rep })
	if r.asks(it) {
		answer(it, got)
		return
	}
	asked := it.Observation
	asked.Representations = slices.Clone(asked.Representations)
	var have []event.Representation
	var left []string
	for _, f := range got {
		switch {
		case f.err != nil && !f.gone:
			it.Pending = f.err.Error()
			return
		case f.gone:
			left = append(left, f.err.Error())
			r.problem("A13", fmt.Sprintf("record %q: %v", it.Record, f.err))
		default:
			rep := it.Representations[f.rep]
			rep.Hash, rep.Length = event.HashOf(f.sum), f.size
			if rep.Type == "" && len(f.mediaType) <= event.MaxType {
				rep.Type = f.mediaType
			}
			have = append(have, rep)
		}
	}
	if len(left) > 0 {
		it.Pending, it.Partial = strings.Join(left, "; "), len(have) > 0
	}
	if len(have) == 0 {
		return
	}
	it.Representations, it.Fetched = have, true
	if it.Partial {
		it.Asked = &asked
		it.Preferred = translate.Preferred(r.src.Wants.Prefer, have)
	}
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
	others []stated
}

type stated struct {
	name, digits string
	hash         hash.Hash
}

func newCheck(hashes string) *check {
	c := &check{}
	for h := range strings.FieldsSeq(hashes) {
		name, digits, _ := strings.Cut(h, ":")
		var of hash.Hash
		switch {
		case name == "sha-256" && len(digits) == 2*sha256.Size:
			c.sha256 = digits
			continue
		case name == "md5" && len(digits) == 2*md5.Size:
			of = md5.New()
		case name == "sha-1" && len(digits) == 2*sha1.Size:
			of = sha1.New()
		case name == "sha-384" && len(digits) == 2*sha512.Size384:
			of = sha512.New384()
		case name == "sha-512" && len(digits) == 2*sha512.Size:
			of = sha512.New()
		default:
			continue
		}
		c.others = append(c.others, stated{name, digits, of})
	}
	return c
}

// Write is io.Writer.
func (c *check) Write(b []byte) (int, error) {
	for _, s := range c.others {
		s.hash.Write(b)
	}
	return len(b), nil
}

// against returns why the bytes are not the stated ones, "" when they are.
func (c *check) against(sum [32]byte) string {
	if got := hex.EncodeToString(sum[:]); c.sha256 != "" && got != c.sha256 {
		return "its SHA-256 is " + got + ", the Source says " + c.sha256
	}
	for _, s := range c.others {
		if got := hex.EncodeToString(s.hash.Sum(nil)); got != s.digits {
			return "its " + strings.ToUpper(s.name) + " is " + got + ", the Source says " + s.digits
		}
	}
	return ""
}
