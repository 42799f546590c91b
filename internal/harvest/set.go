package harvest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/translate"
)

// MemberOf returns the name of the set that a URL of kind Set stands for.
func MemberOf(url string) string { return strings.TrimPrefix(url, Set+":") }

// setMemory is what a walk over a set leaves for the next one.
type setMemory struct {
	// Feed identifies the set that was read, and its epoch: a set that is removed and made
	// again, or begins a new epoch, is read whole.
	Feed string `json:"feed,omitempty"`
	// After is the last event that was taken.
	After event.Seq `json:"after,omitempty"`
	// Complete: when the set was read whole, all its own Sources had been.
	Complete bool `json:"complete,omitempty"`
}

// setState is where an unfinished walk goes on.
type setState struct {
	Feed  string    `json:"feed"`
	After event.Seq `json:"after"`
	// Upto: as far as this event records are taken as they are now, and not event by
	// event; 0 in a walk over what is new.
	Upto event.Seq `json:"upto,omitempty"`
	// Last is the event with which the walk ends; 0 while that is not known.
	Last event.Seq `json:"last,omitempty"`
}

// setWalk is a walk over another set of the log, without a request. The first one takes
// each record as it is, then what has happened meanwhile; the next ones take each event,
// in the order of the log.
type setWalk struct {
	r       *run
	log     *eventlog.Log
	set     event.Set // as it was when the walk began
	state   setState
	all     bool // the walk reads all that the set has
	nothing bool // there is nothing new
	wants   translate.Selection
}

// setLog returns the log that has the set.
func (h *Harvester) setLog(src *Source) *eventlog.Log { return cmp.Or(src.From, h.Log) }

// plan returns where a walk over a set begins, and whether it reads all of it.
func (m *setMemory) plan(set *event.Set, full bool) (state setState, all bool) {
	if full || m.Feed != set.Feed || !m.Complete && !set.Partial {
		return setState{Feed: set.Feed, Upto: set.Last}, true
	}
	return setState{Feed: set.Feed, After: m.After, Last: set.Last}, false
}

// Behind reports whether a Source of kind Set has not taken all yet that its set has.
func (h *Harvester) Behind(ctx context.Context, src *Source) (bool, error) {
	set, err := h.setLog(src).Set(ctx, MemberOf(src.URL))
	if err != nil {
		return false, err
	}
	r, err := h.open(ctx, src)
	if err != nil {
		return false, err
	}
	state, all := r.memory.Set.plan(&set, false)
	return all || r.data != nil || state.After < state.Last || !set.Partial && r.memory.Whole != src.Epoch, nil
}

func (w *setWalk) begin(ctx context.Context, data []byte) (err error) {
	r := w.r
	*w = setWalk{r: r, log: r.h.setLog(r.src), wants: r.selection()}
	if w.set, err = w.log.Set(ctx, MemberOf(r.src.URL)); err != nil {
		return err
	}
	if mirror := w.set.Content == event.Mirror; mirror != (r.src.Content == event.Mirror) {
		return fmt.Errorf("set %s has content = %q, and set %s %q: contents are not fetched from here to there", w.set.Name, w.set.Content, r.src.Set, r.src.Content)
	}
	r.memberPartial = w.set.Partial
	if data == nil {
		w.state, w.all = r.memory.Set.plan(&w.set, r.opt.Full)
		w.nothing = !w.all && w.state.After >= w.state.Last
		return nil
	}
	if err := json.Unmarshal(data, &w.state); err != nil {
		return err
	}
	if w.state.Feed != w.set.Feed {
		return fmt.Errorf("set %s was made anew since", w.set.Name)
	}
	w.all = w.state.Upto > 0
	return nil
}

func (w *setWalk) documents(ctx context.Context) iter.Seq2[document[*event.Item], error] {
	return func(yield func(document[*event.Item], error) bool) {
		for !w.nothing {
			docs, more, err := w.page(ctx)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, d := range docs {
				if !yield(d, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

const (
	// setPage is how many events of a set are read at once, and setPageText about how many
	// bytes of them.
	setPage     = 1000
	setPageText = 8 << 20
)

// page reads some events, and returns what they say as documents: those of neighbours that
// came from one document of an original Source are together. It reports whether there are
// more.
func (w *setWalk) page(ctx context.Context) (docs []*setDocument, more bool, err error) {
	text, size := 0, min(setPage, w.r.batchSize())
	take := func(ev *event.Event) bool {
		if ev.Kind != event.Rejected {
			it := w.item(ev)
			docs = addSetItem(docs, w, ev, it)
			text += textOf(&it.Observation)
		}
		return text < setPageText
	}
	s := &w.state
	if s.After < s.Upto {
		// A record with a later event is passed over: that event is read below, since Last is
		// looked up after all of these were read.
		s.After, err = w.log.Newest(ctx, w.set.Name, event.Range{After: s.After, Upto: s.Upto}, size, take)
		more = true
	} else {
		if s.Last == 0 {
			now, err := w.log.Set(ctx, w.set.Name)
			if err != nil {
				return nil, false, err
			}
			if now.Feed != s.Feed {
				return nil, false, &startAnewError{fmt.Errorf("set %s was made anew meanwhile", w.set.Name)}
			}
			s.Last = max(now.Last, s.Upto)
		}
		n := 0
		for ev, failed := range w.log.Events(ctx, w.set.Name, event.Range{After: s.After, Upto: s.Last}) {
			if failed != nil {
				return nil, false, failed
			}
			n, s.After = n+1, ev.Seq
			if !take(ev) || n == size {
				more = true
				break
			}
		}
		if !more {
			s.After = s.Last
		}
	}
	if len(docs) > 0 {
		docs[len(docs)-1].after = s.After
	}
	return docs, more, err
}

// item translates an event into an item for the log. Its order is that of the log: the
// stamp counts events, and is no time.
func (w *setWalk) item(ev *event.Event) *event.Item {
	it := &event.Item{Observation: translate.FromEvent(ev, &w.wants), Current: true}
	it.Order = event.StampFromNanos(int64(ev.Seq))
	it.Fetched = w.r.src.Content == event.Mirror && !it.Deleted
	it.Claim = it.ClaimOf()
	if it.Deleted {
		it.Reason = ev.Origin.Reason
	} else if ev.Seq <= w.state.Upto {
		w.r.active++
	}
	return it
}

func (w *setWalk) result() walkResult {
	o := walkResult{NotModified: w.nothing, Memory: w.r.memory.walkMemory}
	if w.nothing {
		return o
	}
	o.Memory.Set.Feed, o.Memory.Set.After = w.state.Feed, w.state.Last
	if w.all {
		o.Whole, o.Full, o.Complete = true, true, !w.set.Partial
		o.Memory.Set.Complete = o.Complete
	}
	return o
}

func (w *setWalk) record(it *event.Item) string { return it.Record }

// setDocument is what some events say that came from one document.
type setDocument struct {
	w     *setWalk
	from  event.Document
	items []*event.Item
	after event.Seq // the last event
}

func addSetItem(docs []*setDocument, w *setWalk, ev *event.Event, it *event.Item) []*setDocument {
	o := &ev.Origin
	doc := event.Document{URL: cmp.Or(o.Document, w.r.src.URL), FeedID: o.FeedID, FeedTitle: o.FeedTitle, FeedUpdated: o.FeedUpdated, Feed: o.Feed}
	if n := len(docs); n == 0 || docs[n-1].from != doc {
		docs = append(docs, &setDocument{w: w, from: doc})
	}
	d := docs[len(docs)-1]
	d.items, d.after = append(d.items, it), ev.Seq
	return docs
}

func (d *setDocument) origin() event.Document { return d.from }

func (d *setDocument) read(b *backlog[*event.Item], afterEntry func() error) (whole bool, err error) {
	for _, it := range d.items {
		b.add(it, textOf(&it.Observation))
		if err := afterEntry(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// latest returns all of the items: each is an event, and the log has put them in order.
func (d *setDocument) latest(_ context.Context, b *backlog[*event.Item], items []*event.Item) ([]*event.Item, error) {
	b.values = nil
	return items, nil
}

func (d *setDocument) state() ([]byte, error) {
	s := d.w.state
	s.After = d.after
	return json.Marshal(s)
}
