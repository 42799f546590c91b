package delivery

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/xml"
	"iter"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// Submitter submits the records of a set to an ingest server: it is a target of that
// set. The log keeps a target as a Source of kind "submit", which never speaks for
// a record.
//
// Every change of a record becomes a row in the log, a submission; what is to be
// sent waits there until there is an answer. So a process that ends loses nothing,
// and at worst submits a record again whose answer it did not live to commit.
type Submitter struct {
	Set    string
	Source event.SourceID
	// URL of the ingest server, as the log's documents name it.
	URL   string
	Store Store
	// Events are those of the log.
	Events interface {
		Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error]
		Latest(ctx context.Context, events []event.Seq) (map[event.Seq]bool, error)
		Changed() <-chan struct{}
	}
	Contents Contents
	// Server is asked for its properties first, and gets only what is of a format
	// that it lists; but with SkipProperties it gets everything, and is not asked: the
	// draft gives that operation no document, so a server need not know ours.
	Server         Upstream
	SkipProperties bool
	// Formats are the URLs of schemas by the root element of a record. A record
	// whose root is not among them is of the format that its own
	// xsi:schemaLocation names.
	Formats map[xml.Name]string
	// Submitter and Sequence describe the source of each record; nil and "" are
	// left out.
	Submitter *sip.Submitter
	Sequence  string
	// Recipient returns the URL of the notification recipient for a token; with
	// nil, or "", none is named.
	Recipient func(token string) string
	// Deadline is how long an answer may be missing before a submission counts as
	// unresolved; 0 is 168 hours.
	Deadline time.Duration
	// Every is how long a failed request waits before it is sent again, doubled
	// each time up to an hour; 0 is a minute.
	Every time.Duration
	// Workers is how many requests are under way at a time; 0 is 4.
	Workers int
	// Importer takes the accepted records; nil is nobody. What is accepted meanwhile is
	// taken when there is one.
	Importer Importer
	// ImportPending tells that somebody else has taken in that a record was accepted (see
	// ingest.Server.ImportPending); nil is never.
	ImportPending <-chan struct{}
	// Fatal tells that after this failure of the log no other call can succeed;
	// nil is never. All other failures are waited out.
	Fatal func(error) bool
	// Reload tells that somebody else has put rows into the outbox; nil is never.
	Reload <-chan struct{}
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log is told of failures; nil is silence.
	Log *slog.Logger
}

// DefaultDeadline is how long a decision may take where nothing else is said.
const DefaultDeadline = 7 * 24 * time.Hour

const (
	// groupLimit is how many submissions are in hand at most.
	groupLimit = 256
	// maxQueuedRows is how many rows wait to be sent at most; what lies behind them is
	// taken in later.
	maxQueuedRows = 20_000
	// chunkLimit is how many events are taken in at a time.
	chunkLimit = 1000
	// shutdownGrace is how long requests under way may still be answered when the
	// process ends: what is cut off has to be sent again.
	shutdownGrace = 5 * time.Second
	// storeFirst and storeLongest are how long a failing log or content store is
	// left alone.
	storeFirst, storeLongest = time.Second, 30 * time.Second
)

// Run takes in what happens in the set and submits it, until ctx has ended. It
// must not run twice at a time for one target. The error is nil, or Fatal.
func (o *Submitter) Run(ctx context.Context) error {
	calls, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	d := newSubmitLoop(o.withDefaults())
	for range d.s.Workers {
		d.calls.Go(func() { d.send(ctx, calls) })
	}
	err := d.run(ctx, calls)
	late := time.AfterFunc(shutdownGrace, cut)
	defer late.Stop()
	close(d.jobs)
	d.calls.Wait()
	if err == nil {
		d.shutdown(context.WithoutCancel(ctx))
	}
	return err
}

func (o *Submitter) withDefaults() *Submitter {
	c := *o
	c.Deadline = cmp.Or(c.Deadline, DefaultDeadline)
	c.Every = cmp.Or(c.Every, time.Minute)
	c.Workers = cmp.Or(c.Workers, 4)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("set", c.Set, "target", c.URL)
	return &c
}

// change is an event on its way into the outbox.
type change struct {
	seq           event.Seq
	record, title string
	deleted       bool
	representation
}

// representation is the content of a record that is to be submitted.
type representation struct {
	sum       [32]byte
	length    int64
	mediaType string
	// lacking tells why there is nothing to be submitted; "" when there is.
	lacking string
}

// load finds out how far the outbox has come.
func (d *submitLoop) load(ctx context.Context) error {
	if err := d.remember(ctx); err != nil {
		return err
	}
	newest, err := d.s.Store.Submissions(ctx, event.SubmissionQuery{Source: d.s.Source, Newest: true, Limit: 1})
	if err != nil {
		return err
	}
	if len(newest) > 0 {
		d.lastSeq = max(d.lastSeq, newest[0].Seq)
	}
	waiting := make(map[string]queued)
	query := event.SubmissionQuery{Source: d.s.Source, States: []event.State{event.StateWaiting}, Limit: chunkLimit}
	for {
		rows, err := d.s.Store.Submissions(ctx, query)
		if err != nil {
			return err
		}
		if err := d.queue(ctx, rows, waiting); err != nil {
			return err
		}
		if len(rows) < chunkLimit {
			break
		}
		query.After = rows[len(rows)-1].ID
	}
	if err := LimitWaits(ctx, d.s.Store, d.s.Source, []event.State{event.StateProvisional}, d.s.Now(), d.s.Deadline, d.commitUpdates(ctx)); err != nil {
		return err
	}
	d.waiting, d.loaded = waiting, true
	return nil
}

// queue adds rows that wait, and puts right which of them should not, or not so
// long. At most one row of a record waits: one that was put back into the outbox
// while its record changed is not the last word on it any more. And what was made
// while the clock was ahead is not due in years.
func (d *submitLoop) queue(ctx context.Context, rows []event.Submission, waiting map[string]queued) error {
	seqs := make([]event.Seq, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
	}
	latest, err := d.s.Events.Latest(ctx, seqs)
	if err != nil {
		return err
	}
	now := d.s.Now()
	var steps []event.SubmissionUpdate
	for i := range rows {
		var in submission.Input = submission.LimitWait{Retry: d.s.Every, Deadline: d.s.Deadline}
		if !latest[rows[i].Seq] {
			in = submission.Replace{}
		}
		s, effects := submission.Apply(rows[i], in, now)
		if effects.Changed {
			steps = append(steps, event.SubmissionUpdate{Submission: s})
		}
		if s.State == event.StateWaiting {
			waiting[s.Record] = queuedAs(s.ID, &s)
		}
	}
	if len(steps) == 0 {
		return nil
	}
	_, err = d.append(ctx, steps) // what is late was answered meanwhile
	return err
}

// enqueueChanges makes rows of the next events, when there is room for them.
func (d *submitLoop) enqueueChanges(ctx context.Context) error {
	if !d.moreEvents || d.full() {
		return nil
	}
	changes, upto, all, err := d.changes(ctx)
	if err != nil {
		return err
	}
	var steps []event.SubmissionUpdate
	for i := range changes {
		c := &changes[i]
		if w, ok := d.waiting[c.record]; ok {
			old, err := d.s.Store.Submission(ctx, w.id)
			if err != nil {
				return err
			}
			if replaced, effects := submission.Apply(*old, submission.Replace{}, d.s.Now()); effects.Changed {
				steps = append(steps, event.SubmissionUpdate{Submission: replaced})
			}
		}
		steps = append(steps, event.SubmissionUpdate{Submission: d.s.row(c)})
	}
	if len(steps) > 0 {
		// A step that comes too late is one of a row that was answered meanwhile.
		out, err := d.append(ctx, steps)
		if err != nil {
			return err
		}
		for i := range steps {
			if s := &steps[i].Submission; s.State == event.StateWaiting {
				d.waiting[s.Record] = queuedAs(out.IDs[i], s)
			} else {
				delete(d.waiting, s.Record)
			}
		}
	}
	d.lastSeq, d.moreEvents = upto, !all
	return nil
}

// changes reads the next events and returns what is the last word on a record,
// how far it has read, and whether that is all there is.
func (d *submitLoop) changes(ctx context.Context) (out []change, upto event.Seq, all bool, err error) {
	upto = d.lastSeq
	n := 0
	for ev, err := range d.s.Events.Events(ctx, d.s.Set, event.Range{After: d.lastSeq, Upto: math.MaxInt64}) {
		if err != nil {
			return nil, 0, false, err
		}
		if upto = ev.Seq; ev.Kind != event.Rejected {
			out = append(out, change{seq: ev.Seq, record: ev.Record, title: ev.Title, deleted: ev.Kind == event.Deleted, representation: toSubmit(ev)})
		}
		if n++; n == chunkLimit {
			break
		}
	}
	seqs := make([]event.Seq, len(out))
	for i := range out {
		seqs[i] = out[i].seq
	}
	latest, err := d.s.Events.Latest(ctx, seqs)
	out = slices.DeleteFunc(out, func(c change) bool { return !latest[c.seq] })
	return out, upto, n < chunkLimit, err
}

// toSubmit picks the XML of a record: the preferred representation if it is XML,
// else the first that is.
func toSubmit(ev *event.Event) representation {
	var first *event.Representation
	for i := range ev.Representations {
		r := &ev.Representations[i]
		if isXML(r.Type) && (first == nil || i == ev.Preferred) {
			first = r
		}
	}
	if first == nil {
		return representation{lacking: "no representation of it is XML"}
	}
	var out representation
	if n, err := hex.Decode(out.sum[:], []byte(first.SHA256())); err != nil || n != len(out.sum) {
		return representation{lacking: `its content is not kept here: only the records of a set with content = "mirror" can be submitted`}
	}
	out.length, out.mediaType = first.Length, first.Type
	return out
}

// isXML tells whether a media type is one of XML (RFC 7303).
func isXML(mediaType string) bool {
	t, _, _ := strings.Cut(strings.ToLower(mediaType), ";")
	t = strings.TrimSpace(t)
	return t == "application/xml" || t == "text/xml" || strings.HasSuffix(t, "+xml")
}

// row is a change as a new submission.
func (o *Submitter) row(c *change) event.Submission {
	s := event.Submission{Source: o.Source, Seq: c.seq, Record: c.record, SourceIdentifier: c.record, Title: c.title}
	var in submission.Input = submission.Enqueue{}
	switch {
	case c.deleted:
		in = submission.Unsendable{Reason: "a deletion: SIP has none"}
	case c.lacking != "":
		in = submission.Unsendable{Reason: c.lacking}
	default:
		s.Content, s.Length, s.Type = c.sum, c.length, c.mediaType
		s.SourceXML = sip.AppendSource(nil, sourceElement(o.Submitter, o.Sequence, &c.record))
		if o.Recipient != nil {
			s.Token = NewToken()
		}
	}
	s, _ = submission.Apply(s, in, o.Now())
	return s
}

// append commits steps of the target.
func (d *submitLoop) append(ctx context.Context, steps []event.SubmissionUpdate) (event.Appended, error) {
	return d.s.Store.Append(ctx, &event.Batch{Source: d.s.Source, Mode: event.ModeSubmission,
		Documents: []event.Document{{URL: d.s.URL}}, Submissions: &event.SubmissionBatch{Updates: steps}})
}

// commitUpdates returns what commits updates of which those that are stale have lost
// to a disposition.
func (d *submitLoop) commitUpdates(ctx context.Context) func([]event.SubmissionUpdate) error {
	return func(updates []event.SubmissionUpdate) error {
		_, err := d.append(ctx, updates)
		return err
	}
}
