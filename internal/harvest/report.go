package harvest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
)

// Report says what a harvest has done.
type Report struct {
	// Kind is what the Source is, as configured or detected; "" when neither is.
	Kind    string    `json:"-"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Documents and Entries count what was read, Events what was logged.
	Documents   int64 `json:"documents"`
	Entries     int64 `json:"entries"`
	Created     int64 `json:"created"`
	Updated     int64 `json:"updated"`
	Deleted     int64 `json:"deleted"`
	Unchanged   int64 `json:"unchanged"`
	Historical  int64 `json:"historical"`
	Fetched     int64 `json:"fetched"`
	Pending     int64 `json:"pending"`     // observations put off in this harvest
	Held        int64 `json:"held"`        // deletions kept back in this harvest
	Quarantined int64 `json:"quarantined"` // entries in this harvest, each once
	// Dropped counts input that was removed from quarantine to make room for newer.
	Dropped int64 `json:"dropped,omitempty"`
	// Skipped counts entries that were ignored: not selected by prefix or since, or
	// copies of our own records from another bridge.
	Skipped int64 `json:"skipped,omitempty"`
	// About counts the containers beside the metadata of a repository's records, which
	// are left out.
	About int64 `json:"about,omitempty"`
	// Dialects are those of the Source's lists, without ResourceSync 1.1.
	Dialects []string `json:"dialects,omitempty"`
	// Moved is where the Source's URL has moved permanently (301 or 308), "" when
	// it has not.
	Moved string `json:"moved,omitempty"`
	// NotModified: the Source said that nothing has changed.
	NotModified bool `json:"not_modified,omitempty"`
	// Withheld: the Source is a bridge that has not walked all its own Sources yet,
	// and will give its lists soon.
	Withheld bool `json:"withheld,omitempty"`
	// Full: the walk has read all that the Source has.
	Full bool `json:"full,omitempty"`
	// Problems counts broken rules, and the error. Examples has the first of each rule.
	Problems int64     `json:"problems"`
	Examples []Example `json:"examples,omitempty"`
	// Warnings are sentences for the operator.
	Warnings []string `json:"warnings,omitempty"`
	// Gap is the missing document and the reason, "" when none is missing.
	Gap string `json:"gap,omitempty"`
	// RetryAfter is the time before which the Source wants no further request.
	RetryAfter time.Time `json:"retry_after,omitzero"`
	// Bytes are those of the documents. They go into the history.
	Bytes int64 `json:"-"`
	// Error is why the harvest failed, "" when it did not; ErrorKind and ErrorRule are
	// those of Classify.
	Error     string `json:"error,omitempty"`
	ErrorKind string `json:"error_kind,omitempty"`
	ErrorRule string `json:"error_rule,omitempty"`

	// complete: the walk has enumerated all records, as they were at a time, which may be
	// unknown.
	complete bool
	at       event.Stamp
}

// Example is a broken rule: how often, and the first place.
type Example struct {
	Rule  string `json:"rule"`
	Count int64  `json:"count"`
	First string `json:"first"`
}

// Events returns how many events were logged.
func (r *Report) Events() int64 { return r.Created + r.Updated + r.Deleted }

// Partial reports whether something was left undone: failed, pending, held,
// quarantined, or missing at the Source.
func (r *Report) Partial() bool {
	return r.Error != "" || r.Pending > 0 || r.Held > 0 || r.Quarantined > 0 || r.Gap != "" || len(r.Warnings) > 0
}

// updateReport changes the report, which the walk and the writer of a harvest share.
func (r *run) updateReport(change func(*Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.report)
}

// problem counts a broken rule and keeps the first place of each.
func (r *run) problem(rule, text string) {
	r.updateReport(func(p *Report) {
		p.Problems++
		p.Examples = addExample(p.Examples, rule, text)
	})
}

// addExample counts a broken rule.
func addExample(all []Example, rule, text string) []Example {
	for i := range all {
		if all[i].Rule == rule {
			all[i].Count++
			return all
		}
	}
	return append(all, Example{Rule: rule, Count: 1, First: text})
}

// redirected notes that the Source's URL has moved permanently, if each redirect on the
// way says so.
func (r *run) redirected(next *http.Request, via []*http.Request) {
	if fetch.Plain(via[0].URL) != r.src.URL || next.Response.StatusCode != http.StatusMovedPermanently && next.Response.StatusCode != http.StatusPermanentRedirect {
		return
	}
	r.updateReport(func(p *Report) {
		if from := fetch.Plain(via[len(via)-1].URL); len(via) == 1 || p.Moved == from {
			p.Moved = fetch.Plain(next.URL)
		}
	})
}

// warn adds warnings to the report, each once.
func (r *run) warn(texts ...string) {
	r.updateReport(func(p *Report) {
		for _, text := range texts {
			p.Warnings = appendNew(p.Warnings, text)
		}
	})
}

func appendNew(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

// finalReport returns the report of a harvest that has ended.
func (r *run) finalReport(failed error) Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.report
	out.Kind, out.Ended = r.src.Kind, r.h.now().UTC()
	out.Documents, out.Entries, out.Fetched, out.Bytes = r.documents.Load(), r.entries.Load(), r.fetched.Load(), r.bytes.Load()
	if out.Dropped > 0 {
		out.Warnings = append(slices.Clip(out.Warnings), fmt.Sprintf("the quarantine of this Source is full: this harvest dropped %d bad inputs that were not met for the longest time", out.Dropped))
	}
	if failed != nil {
		out.Error = failed.Error()
		out.ErrorKind, out.ErrorRule = Classify(failed)
		out.Problems++
	}
	return out
}

// reportProgress calls Options.Progress with how far the harvest has come.
func (r *run) reportProgress() {
	if r.opt.Progress == nil {
		return
	}
	r.progressMu.Lock()
	defer r.progressMu.Unlock()
	p := Progress{Documents: r.documents.Load(), Entries: r.entries.Load(), Created: r.created.Load(), Updated: r.updated.Load(), Deleted: r.deleted.Load(), Fetched: r.fetched.Load(), Wanted: r.needed.Load()}
	p.Events = p.Created + p.Updated + p.Deleted
	if a := r.activity.Load(); a != nil {
		p.Doing, p.Until = a.doing, a.until
	}
	r.opt.Progress(p)
}

// activity is what a harvest does, or waits for.
type activity struct {
	doing string
	until time.Time
}

// setActivity sets what the harvest does now, or waits for, and until when, if known.
func (r *run) setActivity(what string, until time.Time) {
	r.activity.Store(&activity{doing: what, until: until})
	r.reportProgress()
}

// count counts what became of a batch. It returns what adds that to the report, which
// does not keep the batch.
func (r *run) count(b *event.Batch, out *event.Appended) (add func()) {
	var unchanged, skipped, historical, held, pending int64
	for i, o := range out.Outcomes {
		switch o {
		case event.Unchanged, event.Suppressed, event.Tombstone:
			unchanged++
		case event.Loopback:
			skipped++
		case event.Historical:
			historical++
		}
		switch {
		case b.Mode == event.ModeHold:
			held++
		case b.Items[i].Pending != "" && (o == event.Waiting || b.Items[i].Partial):
			pending++
		}
	}
	for _, i := range out.Broken {
		it := b.Items[i]
		rule := "S2"
		if !it.Place.IsZero() {
			rule = ruleOrder
		}
		r.problem(rule, fmt.Sprintf("%s: record %q was met in a newer document with an earlier stamp than %s here",
			b.Documents[it.Document].URL, it.Record, it.Order))
	}
	dropped, created, updated, deleted := int64(out.Dropped), int64(out.Created), int64(out.Updated), int64(out.Deleted)
	return func() {
		r.created.Add(created)
		r.updated.Add(updated)
		r.deleted.Add(deleted)
		r.updateReport(func(p *Report) {
			p.Dropped += dropped
			p.Created += created
			p.Updated += updated
			p.Deleted += deleted
			p.Unchanged += unchanged
			p.Skipped += skipped
			p.Historical += historical
			p.Held += held
			p.Pending += pending
		})
	}
}

// documentClient returns the client that asks for the Source's documents. It reports
// what the harvest waits for, notes when the Source wants no requests, and ends a
// harvest that exceeds its limits.
func (r *run) documentClient() *http.Client {
	c := *r.src.Client
	c.Transport = &watchedTransport{run: r, next: c.Transport}
	return &c
}

// watchedTransport is the transport of that client.
type watchedTransport struct {
	run  *run
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w *watchedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	r := w.run
	if err := r.checkLimits(); err != nil {
		return nil, err
	}
	next := w.next
	if next == nil {
		next = http.DefaultTransport
	}
	url := fetch.Plain(req.URL)
	ctx := fetch.WithWaiting(req.Context(), func(x fetch.Waiting) { r.setActivity("waiting for "+x.For+": "+url, x.Until) })
	r.setActivity("asking for "+url, time.Time{})
	resp, err := next.RoundTrip(req.WithContext(ctx))
	if wait, ok := errors.AsType[*fetch.WaitError](err); ok {
		r.postpone(wait.Until)
	}
	if err != nil {
		return nil, err
	}
	if fetch.TransientStatus(resp.StatusCode) {
		if asked := fetch.RetryAfter(resp.Header, r.h.now()); asked > 0 {
			r.postpone(r.h.now().Add(min(asked, retryAfterMost)))
		}
	}
	r.setActivity("reading "+url, time.Time{})
	resp.Body = &watchedBody{ReadCloser: resp.Body, run: r, ctx: req.Context()}
	return resp, nil
}

// retryAfterMost is the longest time for which no request is made because the Source
// asks for that.
const retryAfterMost = 24 * time.Hour

// postpone notes until when the Source wants no request.
func (r *run) postpone(until time.Time) {
	r.updateReport(func(p *Report) {
		if until.After(p.RetryAfter) {
			p.RetryAfter = until.UTC()
		}
	})
}

// watchedBody counts the bytes of a document.
type watchedBody struct {
	io.ReadCloser
	run *run
	ctx context.Context
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (n int, err error) {
	b.run.slot.whileServerAnswers(b.ctx, func() { n, err = b.ReadCloser.Read(p) })
	b.run.bytes.Add(int64(n))
	if err == nil {
		err = b.run.checkLimits()
	}
	return n, err
}

// ErrSpent: a harvest has used up its time or its bytes. What it has read is kept, and
// the next one goes on from there.
var ErrSpent = errors.New("the harvest has reached its limit; the next one continues from here")

// checkLimits returns an ErrSpent when the harvest may not read on.
func (r *run) checkLimits() error {
	l := &r.src.Limits
	if took := r.h.now().Sub(r.report.Started); l.Time > 0 && took > l.Time {
		return fmt.Errorf("%w: %s of %s", ErrSpent, took.Round(time.Second), l.Time)
	}
	if n := r.bytes.Load(); l.Bytes > 0 && n > l.Bytes {
		return fmt.Errorf("%w: %d of %d bytes", ErrSpent, n, l.Bytes)
	}
	return nil
}
