package harvest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/translate"
)

// Repository is what a set wants of an OAI-PMH repository, beside what the Source's URL
// says.
type Repository struct {
	// Format is the metadataPrefix that is listed, "" what the URL says, else oai_dc.
	// Also are further ones, asked for record by record.
	Format string
	Also   []string
	// Set is the setSpec of the records, "" what the URL says, else all.
	Set string
	// Window divides a long list by datestamps; 0 does not (O14).
	Window time.Duration
}

// oaiMemory is what a harvest of a repository leaves for the next one.
type oaiMemory struct {
	State oaipmh.State `json:"state,omitzero"`
	// Formats are those of the repository.
	Formats []oaipmh.Format `json:"formats,omitempty"`
	// Named is that of translate.OAISource. It stays as in the first harvest.
	Named string `json:"named,omitempty"`
	// Reread: the headers have shown more changes that the list of records does not have
	// than were asked for one by one. The next walk reads all records.
	Reread bool `json:"reread,omitempty"`
}

// oaiWalk is a walk over an OAI-PMH repository: the list of the records that have
// changed, or of all, and then, when that is due, the headers of all records. A record
// that they do not have is deleted, unless the repository lists all deletions itself.
type oaiWalk struct {
	r     *run
	base  string
	asked oaipmh.Request // the selection
	from  translate.OAISource
	wants translate.Selection
	walk  *oaipmh.Walk // over the list under way
	state oaiState
	// first: nothing of the repository was ever read, so that an error may be about the
	// configuration (O11).
	first bool
	ended oaipmh.Result // of the last list
}

// oaiState is where an unfinished walk goes on.
type oaiState struct {
	// List is the state of the list under way.
	List oaipmh.State `json:"list,omitzero"`
	// Records is the result of the list of records, once it was read to its end: the list
	// under way is that of the headers then.
	Records *oaiRecords `json:"records,omitempty"`
	// At is the date of the first answer of a list of all records or headers.
	At time.Time `json:"at,omitzero"`
	// RecordUnknown: some entry that may be of an existing record does not have its identifier.
	// Then absence means nothing (I6).
	RecordUnknown bool `json:"unnamed,omitempty"`
	// DeletionUnknown: some deletion does not have the identifier of its record.
	DeletionUnknown bool `json:"untold,omitempty"`
	// NoHeaders: the list of headers could not be begun.
	NoHeaders bool `json:"unread,omitempty"`
	// Documents counts those of the list that earlier harvests have read, the last one at the
	// time Last.
	Documents int       `json:"documents,omitempty"`
	Last      time.Time `json:"last,omitzero"`
	// Asked counts the records that were asked for since the headers have shown them, and
	// Reread is that of oaiMemory.
	Asked  int  `json:"asked,omitempty"`
	Reread bool `json:"reread,omitempty"`
}

// oaiRecords is the result of a list of records.
type oaiRecords struct {
	State oaipmh.State `json:"state"`
	Empty bool         `json:"empty,omitempty"`
}

// repository returns the base URL of a repository, and what is asked of it: by the URL
// of the Source, and by the configuration.
func (src *Source) repository() (base string, asked oaipmh.Request, err error) {
	base, asked, err = oaipmh.ParseURL(src.URL)
	asked.Prefix = cmp.Or(src.Repository.Format, asked.Prefix, oaipmh.DC)
	asked.Set = cmp.Or(src.Repository.Set, asked.Set)
	return base, asked, err
}

// asks returns, as a text, what a repository is asked for beside its URL; "" for other
// Sources. When it changes everything has to be read anew.
func (src *Source) asks() string {
	if src.Kind != OAIPMH {
		return ""
	}
	p := &src.Repository
	return strings.Join(append([]string{p.Format, p.Set}, p.Also...), " ")
}

// AskedBefore reports whether the last harvest of the Source asked for what its settings ask for now.
func (src *Source) AskedBefore(p *event.Progress) (bool, error) {
	var m memory
	err := unmarshal(p.Memory, &m)
	return m.URL == "" || m.Asked == src.asks(), err
}

func (w *oaiWalk) begin(ctx context.Context, state []byte) (err error) {
	r := w.r
	*w = oaiWalk{r: r, first: r.memory.OAI.State.IsZero()}
	if err := errors.Join(unmarshal(state, &w.state), w.prepare()); err != nil || !w.first && !r.opt.Full {
		return err
	}
	if err := w.checkFormats(ctx); err != nil {
		return err
	}
	return w.prepare()
}

// prepare sets what translation needs to know.
func (w *oaiWalk) prepare() (err error) {
	r := w.r
	w.wants = r.selection()
	if w.base, w.asked, err = r.src.repository(); err != nil {
		return err
	}
	namespace := func(prefix string) string {
		for _, f := range r.memory.OAI.Formats {
			if f.Prefix == prefix {
				return f.Namespace
			}
		}
		return ""
	}
	r.memory.OAI.Named = cmp.Or(r.memory.OAI.Named, translate.SetOf(w.base))
	w.from = translate.OAISource{BaseURL: w.base, Prefix: w.asked.Prefix, Namespace: namespace(w.asked.Prefix), Named: r.memory.OAI.Named}
	for _, prefix := range r.src.Repository.Also {
		w.from.Also = append(w.from.Also, oaipmh.Format{Prefix: prefix, Namespace: namespace(prefix)})
	}
	return nil
}

// newWalk returns a walk over a list of the repository.
func (w *oaiWalk) newWalk(verb oaipmh.Verb, state oaipmh.State, full bool) *oaipmh.Walk {
	r, l := w.r, &w.r.src.Limits
	most := r.src.MaxDocuments
	if most > 0 { // of this harvest
		most += w.state.Documents
	}
	return &oaipmh.Walk{
		Client: r.documentClient(), URL: w.base, Prefix: w.asked.Prefix, Set: w.asked.Set, From: w.asked.From, Until: w.asked.Until,
		Verb: verb, State: state, Overlap: r.src.Overlap, Full: full, Window: r.src.Repository.Window, InTurn: r.fetchesContents(),
		MaxDocuments: most, AllowHost: r.src.AllowHost,
		Limits: oaipmh.Limits(l.document()), Now: r.h.now,
		Report: func(p oaipmh.Problem) { r.problem(p.Rule, p.String()) },
	}
}

func (w *oaiWalk) documents(ctx context.Context) iter.Seq2[document[*event.Item], error] {
	return func(yield func(document[*event.Item], error) bool) {
		if err := w.lists(ctx, func(d *oaiDocument) bool { return yield(d, nil) }); err != nil {
			paused := w.paused(err)
			if err = w.explain(ctx, err); paused {
				err = &pausedError{err}
			}
			yield(nil, err)
		}
	}
}

// lists yields the documents of the list of records and, where that is due, of the
// headers.
func (w *oaiWalk) lists(ctx context.Context, yield func(*oaiDocument) bool) error {
	r, m := w.r, &w.r.memory.OAI
	if w.state.Records == nil {
		state := w.state.List
		if state.IsZero() {
			state = m.State
		}
		w.walk = w.newWalk(oaipmh.ListRecords, state, r.opt.Full || m.Reread)
		if more, err := w.list(ctx, yield); err != nil || !more {
			return err
		}
		if w.first && w.ended.Empty {
			if err := w.explainSelection(ctx); err != nil {
				return err
			}
		}
		due, err := w.headersDue(ctx)
		if err != nil || !due {
			return err
		}
		if err := r.flush(); err != nil { // the headers are compared with it
			return err
		}
		w.state = oaiState{Records: &oaiRecords{State: w.ended.State, Empty: w.ended.Empty}}
	}
	w.walk = w.newWalk(oaipmh.ListIdentifiers, w.state.List, true)
	_, err := w.list(ctx, yield)
	// A list that could not even be begun may be more than the server can do, and is tried
	// again in the next harvest.
	var status *oaipmh.StatusError
	w.state.NoHeaders = w.state.List.IsZero() && errors.As(err, &status) && fetch.TransientStatus(status.Status)
	if (w.state.NoHeaders || repositorys(err)) && ctx.Err() == nil {
		// The records that were read count all the same.
		r.problem(ruleHeaders, "the headers of all records could not be read: "+err.Error())
		w.state.RecordUnknown, err = true, nil
	}
	return err
}

// list yields the documents of the list under way. more is false when the loop was left.
func (w *oaiWalk) list(ctx context.Context, yield func(*oaiDocument) bool) (more bool, err error) {
	for d, err := range w.walk.Documents(ctx) {
		if err != nil {
			return false, err
		}
		if w.state.At.IsZero() {
			if w.state.At = d.Answer().ResponseDate; w.state.At.IsZero() {
				w.state.At = d.Date
			}
		}
		if !yield(&oaiDocument{w: w, doc: d}) {
			return false, nil
		}
	}
	w.ended = w.walk.Result()
	return true, nil
}

// repositorys reports whether the repository has caused an error of a walk, and not the
// network, a limit of ours or the caller.
func repositorys(err error) bool {
	var status *oaipmh.StatusError
	return errors.As(err, new(*oaipmh.Error)) || errors.As(err, &status) && !fetch.TransientStatus(status.Status) || errors.As(err, new(*oaipmh.DocumentError)) ||
		errors.Is(err, oaipmh.ErrLoop) || errors.Is(err, oaipmh.ErrIncomplete)
}

// headersDue reports whether the headers of all records are to be read, now that the list
// of those that have changed was read: every so often, and when deletions are held that
// only they can confirm (A6).
func (w *oaiWalk) headersDue(ctx context.Context) (bool, error) {
	r := w.r
	if w.ended.Full || !w.ended.Whole {
		return false, nil
	}
	if due := r.fullDue(); due {
		return true, nil
	}
	held, err := r.h.Log.Held(ctx, r.src.ID, false, r.overdueSince())
	return len(held) > 0, err
}

// tellsDeletions reports whether the repository lists each deletion. No repository
// states that a record has left one of its sets.
func (w *oaiWalk) tellsDeletions() bool {
	return w.ended.Identity != nil && w.ended.Identity.Deleted == oaipmh.DeletedPersistent && w.asked.Set == "" && !w.state.DeletionUnknown
}

// explain returns an error of the walk in the form by which the harvest decides how to
// go on.
func (w *oaiWalk) explain(ctx context.Context, err error) error {
	var many *oaipmh.TooManyError
	var status *oaipmh.StatusError
	switch {
	case errors.As(err, &many):
		return &tooManyError{error: err, url: many.URL}
	case errors.As(err, &status) && overtaxed(status) && w.r.src.Repository.Window == 0:
		return fmt.Errorf(`%w; where a list is too much for the server at once, write window = "30d" under this [[set.source]]`, err)
	case errors.Is(err, oaipmh.ErrLoop), errors.Is(err, oaipmh.ErrIncomplete):
		return &startAnewError{err}
	case errors.Is(err, oaipmh.ErrRepository):
		return fmt.Errorf("%w: nothing was harvested; if the repository has moved, or was replaced on purpose, run bridge source reset %s %s", err, w.r.src.Set, w.r.src.URL)
	case w.first:
		if _, ok := errors.AsType[*oaipmh.Error](err); ok {
			err = cmp.Or(w.explainSelection(ctx), err)
		}
	}
	return err
}

// pausedMost is how long a list that the repository is too busy to go on with keeps back a new
// one: some servers answer so whatever is wrong.
const pausedMost = 7 * 24 * time.Hour

// paused reports whether the repository is busy, so that a list under way goes on after the
// pause (OAI-PMH 3.1.2.2).
func (w *oaiWalk) paused(err error) bool {
	status := follow.Status(err)
	busy := status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests || !w.r.report.RetryAfter.IsZero()
	return busy && (w.state.Last.IsZero() || w.r.h.now().Sub(w.state.Last) < pausedMost)
}

// overtaxed reports whether a status may come of a list that is too long for its server.
func overtaxed(e *oaipmh.StatusError) bool {
	return strings.Contains(e.URL, "verb=List") && (e.Status == http.StatusInternalServerError || e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout)
}

func (w *oaiWalk) result() walkResult {
	r, m := w.r, &w.r.memory
	o := walkResult{Memory: m.walkMemory, Short: m.Short}
	records := oaiRecords{State: w.ended.State, Empty: w.ended.Empty}
	full := w.state.Records == nil && w.ended.Full // of records
	if w.state.Records != nil {
		records = *w.state.Records
	}
	if w.state.Records == nil && !full && records.Empty {
		// Nothing has changed: to ask for the same once more costs nothing.
		m.Complete = false
		o.NotModified = true
		return o
	}
	o.Memory.OAI.State, o.Memory.OAI.Reread = records.State, w.state.Reread
	o.Mark = records.State.Mark()
	o.Whole, o.Full = full, full
	if w.ended.Whole && w.ended.Full && !w.state.RecordUnknown && (full || !w.tellsDeletions()) {
		o.Complete, o.At = true, w.state.At
	}
	if n := w.ended.Missing; o.Complete && n > 0 {
		// A list may have ended too early; many repositories count a little wrong.
		o.Complete, o.Doubtful = shortfallOf(w.ended.Records+n, w.ended.Records) == nil, true
		if !o.Complete {
			o.Warnings = append(o.Warnings, fmt.Sprintf("the repository says that its lists have %d records more than the %d that they have: nothing is deleted because it is absent; tell the repository's operator", n, w.ended.Records))
		}
	}
	o.Doubtful, o.Unsure = o.Doubtful || o.Complete && w.ended.Changed, w.ended.Unsure
	if w.state.Records != nil && !w.state.NoHeaders || m.FullAt.IsZero() && w.asked.From.IsZero() && w.asked.Until.IsZero() {
		m.FullAt = r.h.now().UTC() // the headers are due FullEvery later, also where the first list was not full
	}
	if w.state.Reread {
		o.Warnings = append(o.Warnings, fmt.Sprintf("the repository has more than %d headers of records that were not taken with these datestamps: the next harvest reads all records", askedMost))
	}
	return o
}

func (w *oaiWalk) record(it *event.Item) string { return it.Record }

// oaiDocument is one part of a list of the repository.
type oaiDocument struct {
	w   *oaiWalk
	doc *oaipmh.Document
}

// headers reports whether the document has headers alone.
func (d *oaiDocument) headers() bool { return d.w.state.Records != nil }

func (d *oaiDocument) origin() event.Document { return event.Document{URL: d.doc.URL} }

func (d *oaiDocument) read(b *backlog[*event.Item], afterEntry func() error) (whole bool, err error) {
	for rec, bad := range d.doc.Entries() {
		if bad != nil {
			d.quarantine(b, bad)
		} else {
			d.add(b, rec)
		}
		if err := afterEntry(); err != nil {
			return false, err
		}
	}
	d.w.state.RecordUnknown = d.w.state.RecordUnknown || d.doc.Answer().Misplaced > 0
	return d.doc.Whole(), nil
}

// add translates a record. One that cannot be translated is bad. One that the
// configuration does not select, and a copy of our own record from another bridge, is
// ignored.
func (d *oaiDocument) add(b *backlog[*event.Item], rec *oaipmh.Record) {
	r := d.w.r
	it, err := d.w.item(rec)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		r.updateReport(func(p *Report) { p.Skipped++ })
		if errors.Is(err, translate.ErrOwn) || r.beforeSince(&it.Observation) {
			return
		}
		it.Unselected, it.Inline = true, nil // nothing of it is kept
	case err != nil:
		d.quarantine(b, &oaipmh.RecordError{Rule: ruleOf(err), URL: d.doc.URL, Line: rec.Line, Column: rec.Column, Header: rec.Header, Reason: err.Error(), Input: d.doc.Input()})
		return
	}
	if rec.Mended {
		r.problem(ruleMended, fmt.Sprintf("%s:%d:%d: record %q: characters that XML does not allow are U+FFFD now", d.doc.URL, rec.Line, rec.Column, it.Record))
	}
	if n := len(rec.About); n > 0 {
		r.updateReport(func(p *Report) { p.About += int64(n) })
	}
	if it.Late = d.late(it.Order); !it.Deleted && !it.Unselected {
		r.active++
	}
	b.add(it, textOf(&it.Observation)+len(it.Inline))
}

// late reports whether a datestamp is later than the answer (A3).
func (d *oaiDocument) late(s event.Stamp) bool {
	at := d.doc.Date
	if said := d.doc.Answer().ResponseDate; said.After(at) {
		at = said
	}
	return s.Known() && s.Time().After(at)
}

// item translates a record into an item for the log.
func (w *oaiWalk) item(rec *oaipmh.Record) (*event.Item, error) {
	o, err := translate.FromOAI(rec, w.from, &w.wants)
	if w.wants.Published && rec.Metadata != nil && !o.Deleted {
		sum := sha256.Sum256(rec.Metadata)
		o.ContentBits = int64(binary.BigEndian.Uint64(sum[:]))
	}
	it := &event.Item{Observation: o, Current: true}
	it.Claim = it.ClaimOf()
	return it, err
}

// quarantine puts a record into quarantine. It counts as met, if it has an identifier.
func (d *oaiDocument) quarantine(b *backlog[*event.Item], e *oaipmh.RecordError) {
	gone := e.Header
	gone.Deleted = true
	o, _ := translate.FromOAI(&oaipmh.Record{Header: gone}, d.w.from, &d.w.wants) // for its identifier
	id := cmp.Or(o.SourceIdentifier, o.Record)
	b.addBad(event.Quarantined{URL: e.URL, Line: e.Line, Column: e.Column, Record: id, Rule: e.Rule, Reason: e.Reason, Input: e.Input})
	if !identifiesRecord(id) {
		// Where two records are written as one, only one of them may be deleted.
		d.w.state.RecordUnknown = d.w.state.RecordUnknown || !e.Header.Deleted || e.Rule != identifierRule
		d.w.state.DeletionUnknown = d.w.state.DeletionUnknown || e.Header.Deleted
		return
	}
	met := &event.Item{Quarantine: true}
	met.Record, met.SourceIdentifier = d.w.wants.Identifier(id)
	met.Order = stampOrUnknown(e.Header.Datestamp)
	b.add(met, 0)
}

// latest returns of each record what counts: the later datestamp, of equal ones the later
// place, and what can be taken before what cannot (O9). It takes over the memory of the
// entries.
func (d *oaiDocument) latest(ctx context.Context, b *backlog[*event.Item], items []*event.Item) ([]*event.Item, error) {
	b.values = nil
	at := make(map[string]int, len(items))
	out := items[:0]
	for _, it := range items {
		i, again := at[it.Record]
		if !again {
			at[it.Record] = len(out)
			out = append(out, it)
			continue
		}
		if c := it.Order.Compare(out[i].Order); c > 0 || c == 0 && (!it.Quarantine || out[i].Quarantine) {
			out[i] = it
		}
	}
	if d.headers() {
		return d.w.applyHeaders(ctx, out)
	}
	return out, nil
}

func (d *oaiDocument) state() ([]byte, error) {
	d.w.state.List, _ = d.doc.State() // it was read whole
	d.w.state.Documents, d.w.state.Last = d.doc.Index+1, d.w.r.h.now().UTC()
	return json.Marshal(d.w.state)
}

// askedMost is how many records one walk asks for because their headers differ from
// what is known.
const askedMost = 1000

// applyHeaders returns what to apply for the headers of records. A deleted record is deleted.
// A record is noted as present if the log has it with this datestamp, if it is pending,
// or if the next list of records will have it. Any other record is asked for: the list
// of records should have had it.
func (w *oaiWalk) applyHeaders(ctx context.Context, items []*event.Item) (out []*event.Item, err error) {
	r := w.r
	// Records from this datestamp on are in the next list.
	next := stampOrUnknown(w.state.Records.State.Mark().Add(-r.src.Overlap))
	for part := range slices.Chunk(items, lookedUp) {
		ids := make([]string, len(part))
		for i := range part {
			ids[i] = part[i].Record
		}
		known, err := r.h.Log.SourceRecordsOf(ctx, r.src.ID, ids)
		if err != nil {
			return nil, err
		}
		for i, it := range part {
			if !it.Deleted && !it.Quarantine && !it.Unselected {
				if it, err = w.applyHeader(ctx, it, &known[i], next); err != nil {
					return nil, err
				}
			}
			if it != nil {
				out = append(out, it)
			}
		}
	}
	return out, nil
}

// lookedUp is how many records are looked up at once.
const lookedUp = 500

// applyHeader returns what to apply for the header of a record that is not deleted, nil where
// there is nothing to apply.
func (w *oaiWalk) applyHeader(ctx context.Context, it *event.Item, known *eventlog.SourceRecord, next event.Stamp) (*event.Item, error) {
	r := w.r
	there := &event.Item{Present: true}
	there.Record, there.SourceIdentifier = it.Record, it.SourceIdentifier
	switch {
	case known.Number == 0 && !it.Order.Before(next):
		return nil, nil
	case known.Pending != "", known.Alive && known.Observation.Order == it.Order, known.Number != 0 && !it.Order.Before(next):
		return there, nil
	case w.state.Asked >= askedMost:
		w.state.Reread = true
		return there, nil
	}
	w.state.Asked++
	href := it.Representations[0].Href
	j := newJob(0, 0, href)
	rec, err := r.getRecord(ctx, &j, href)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, errNoFormat), errors.Is(err, ErrGone) && !known.Alive:
		return nil, nil
	case errors.Is(err, ErrGone): // the lists say that it is there, and may be right
		r.problem(ruleHeaders, fmt.Sprintf("record %q is in the list of headers, and could not be asked for; it stays: %v", it.Record, err))
		return there, nil
	case errors.As(err, new(*oaipmh.RecordError)): // the list of records says what is wrong with it
		return there, nil
	case err != nil:
		r.problem(ruleHeaders, fmt.Sprintf("record %q has another datestamp in the list of headers than in that of records, and could not be asked for: %v", it.Record, err))
		return there, nil
	}
	item, err := w.item(rec)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn): // which a header does not show
		r.updateReport(func(p *Report) { p.Skipped++ })
		if known.Number == 0 {
			return nil, nil
		}
		return there, nil
	case err != nil:
		return there, nil // the list of records says what is wrong with it
	}
	r.problem(ruleHeaders, fmt.Sprintf("record %q has another datestamp in the list of headers than in that of records; it was asked for", it.Record))
	item.Late = item.Order.Known() && item.Order.Time().After(r.h.now())
	return item, nil
}

// Rules of our own that a repository can break.
const (
	ruleHeaders = "headers" // the headers show what the list of records does not
	ruleMended  = "mended"  // a record has characters that XML does not allow
)

// reread reads quarantined records.
func (w *oaiWalk) reread(_ context.Context, q *event.Quarantined) ([]event.Observation, error) {
	if err := w.prepare(); err != nil {
		return nil, err
	}
	rd := oaipmh.NewReader(bytes.NewReader(q.Input), oaipmh.ReadOptions{URL: q.URL, Limits: oaipmh.Limits(w.r.src.Limits.document())})
	return readAgain(rd.Next, func(bad *oaipmh.RecordError) { bad.Line, bad.Column = q.Line, q.Column }, func(rec *oaipmh.Record) (event.Observation, error) {
		if q.Record == "" && strings.ContainsRune(rec.Identifier, utf8.RuneError) { // the input has it in place of what could not be read
			return event.Observation{}, fmt.Errorf("its identifier, %q, had bytes or characters that XML in UTF-8 does not allow, and is not known: the repository has to mend it", rec.Identifier)
		}
		it, err := w.item(rec)
		return it.Observation, err
	})
}
