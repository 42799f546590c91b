package eventlog

import (
	"database/sql"
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// replay is the state that follows from the events of one set, for Verify to compare with
// the stored state. Slices are by ordinal less one.
type replay struct {
	set setRow // as stored

	keys    []int64
	last    []int64 // Seq of the last event
	digests []int64
	locs    []int64 // keys of the URIs; nil when the mode is not reference
	live    seqs
	listed  seqs              // those that own their URI
	links   map[int64][]int64 // of records that link to others: the keys of these, sorted

	events   int64
	clock    event.Micros // Observed of the last event
	lastSeq  event.Seq    // of the last event that is in a segment
	observed event.Micros // of that event
	missing  int64        // records with events and, so far, without a state
	located  int64        // live records with a URI

	segments []segmentRow
	at       int        // the segment that the next event is in
	sum      segmentRow // computed from its events
}

// know adds the key of the next record, and makes room for its state; the key of missing
// records is 0.
func (r *replay) know(ordinal, key int64) {
	for int64(len(r.keys)) < ordinal {
		r.keys, r.last, r.digests = append(r.keys, 0), append(r.last, 0), append(r.digests, 0)
		if r.set.Content == event.Reference {
			r.locs = append(r.locs, 0)
		}
	}
	r.keys[ordinal-1] = key
}

// readSegments reads the segments from the one on that the last event is in.
func (v *verifier) readSegments() error {
	for _, r := range v.order {
		r.segments = r.segments[:min(r.at, len(r.segments))]
		after := r.set.baseN
		if n := len(r.segments); n > 0 {
			after = r.segments[n-1].N
		}
		if err := v.each(selectSegments+" AND n > $2 ORDER BY n", func(rows *sql.Rows) error {
			s, err := scanSegment(rows)
			if err != nil {
				return err
			}
			from := r.set.Created
			if n := len(r.segments); n > 0 {
				from = r.segments[n-1].Until
			}
			if s.From != from && (len(r.segments) == 0 && r.set.base > 0 || v.epochs.began(s.From)) {
				from = s.From
			}
			if s.N != r.set.baseN+len(r.segments)+1 || s.From != from || len(r.segments) > 0 && r.segments[len(r.segments)-1].Open() {
				v.found(fmt.Sprintf("set %s, segment %d", r.set.Name, s.N), "it does not begin where the one before ends")
			}
			r.segments = append(r.segments, s)
			return nil
		}, r.set.id, after); err != nil {
			return err
		}
		if n := len(r.segments); n == 0 || !r.segments[n-1].Open() {
			v.found("set "+r.set.Name, "it has no open segment")
		}
	}
	return v.each("SELECT set_id, n FROM segment g WHERE NOT EXISTS (SELECT 1 FROM sets s WHERE s.id = g.set_id AND g.n > s.base_n)", func(rows *sql.Rows) error {
		var set, n int64
		err := rows.Scan(&set, &n)
		v.found(fmt.Sprintf("segment %d", n), "there is no set %d, or it has no such segment", set)
		return err
	})
}

// findEnd finds the last event that the log has now.
func (v *verifier) findEnd() error {
	last, err := lastUpto(v.ctx, v.q, maxSeq)
	if v.upto = int64(seqOf(last)); err != nil {
		return err
	}
	if err := v.each("SELECT last_event, sum FROM log", func(rows *sql.Rows) error {
		var id, sum int64
		err := rows.Scan(&id, &sum)
		if err == nil && (id != last || sum != sumOf(id)) {
			v.found("", "the last event is %d; the log has noted %d", v.upto, seqOf(id))
		}
		return err
	}); err != nil {
		return err
	}
	return v.each(fmt.Sprintf(`WITH RECURSIVE found (n) AS (SELECT min(id) >> %d FROM event UNION ALL SELECT (SELECT min(id) >> %[1]d FROM event WHERE id >= n + 1 << %[1]d) FROM found WHERE n IS NOT NULL)
SELECT n FROM found WHERE n IS NOT NULL AND n NOT IN (SELECT id FROM sets)`, seqBits), func(rows *sql.Rows) error {
		var set int64
		err := rows.Scan(&set)
		v.found("", "it has events of set %d, and there is no such set", set)
		return err
	})
}

// replay reads the events that it has not read yet.
func (v *verifier) replay() error {
	var b body
	return eachRow(v.ctx, v.q, 0, event.Range{After: event.Seq(v.last), Upto: event.Seq(v.upto)}, nil, func(c columns, sealed []byte) error {
		place := fmt.Sprintf("event %d", c.seq)
		if before := beforeGaps(v.epochs, v.removed, event.Seq(c.seq)); int64(before) > v.last || c.seq <= v.last {
			if err := v.sameSets(); err != nil {
				return err
			}
			v.found(place, "it follows event %d", v.last)
		}
		v.missingSeqs += c.seq - 1 - v.last - v.epochs.lost(event.Seq(v.last), event.Seq(c.seq))
		v.last = c.seq
		raw, err := unseal(c, sealed)
		if err == nil {
			err = readBody(raw, &b)
		}
		if err != nil {
			v.found(place, "%v", err)
			return nil
		}
		if r := v.sets[c.set]; r != nil && event.Kind(c.kind) == event.Rejected && c.record == 0 {
			v.observedAt(r, &c, &b, place)
		} else if r == nil || c.record>>32 != c.set {
			v.found(place, "record %d is not in its set %d, or there is no such set", c.record, c.set)
		} else if v.known(c.record) != nil {
			v.event(r, &c, &b, place)
		}
		return nil
	})
}

// endSegments compares the open segments too: all events have been read.
func (v *verifier) endSegments() error {
	for _, r := range v.order {
		sum := r.sum
		v.endSegment(r)
		r.sum = sum
		for n := r.at + 1; n < len(r.segments); n++ {
			if s := &r.segments[n]; s.Events != 0 || !s.Open() {
				v.found(fmt.Sprintf("set %s, segment %d", r.set.Name, s.N), "its events are missing")
			}
		}
	}
	return nil
}

// event adds one event to the state.
func (v *verifier) event(r *replay, c *columns, b *body, place string) {
	o, kind, observed := ordinal(c.record)-1, event.Kind(c.kind), event.Micros(c.observed)
	if event.KeyBits(b.obs.Record) != r.keys[o] {
		v.found(place, "it is of %q, which is not its record's identifier", b.obs.Record)
	}
	v.observedAt(r, c, b, place)
	live := r.live.has(o)
	if kind < event.Created || kind > event.Deleted || live == (kind == event.Created) || b.obs.Deleted != (kind == event.Deleted) {
		v.found(place, "%v, but the record was %s before", kind, map[bool]string{true: "there", false: "not there"}[live])
	}
	if before := event.Seq(c.seq - b.back); b.back == 0 && r.lastSeq != 0 || b.back != 0 && before != r.lastSeq {
		v.found(place, "it names event %d of set %s as the one before it; in the log that is %d", before, r.set.Name, r.lastSeq)
	}
	v.inSegment(r, event.Seq(c.seq), kind, observed, b, place)
	if r.last[o] == 0 {
		r.missing++
	}
	if r.locs != nil && r.locs[o] != 0 {
		r.locs[o] = 0
		r.located--
		r.listed.remove(o)
	}
	if (kind != event.Created || b.before != 0) && c.seq-b.before != r.last[o] {
		v.found(place, "it names event %d of its record as the one before it; in the log that is %d", c.seq-b.before, r.last[o])
	}
	r.relate(o, kind, b.obs.Links)
	r.last[o] = c.seq
	r.lastSeq, r.observed = event.Seq(c.seq), observed
	if kind == event.Deleted {
		r.live.remove(o)
		return
	}
	r.live.add(o)
	r.digests[o] = b.obs.Digest(r.set.Content)
	if r.locs != nil && b.obs.Loc != "" {
		r.locs[o] = locKey(r.set.id, b.obs.Loc)
		r.located++
		if !b.unlisted {
			r.listed.add(o)
		}
	}
}

// relate sets the links of a record after an event.
func (r *replay) relate(o int64, kind event.Kind, links []event.Link) {
	delete(r.links, o)
	if kind == event.Deleted {
		return
	}
	var keys []int64
	for i := range links {
		if links[i].Record != "" {
			keys = append(keys, linkKey(r.set.id, links[i].Record))
		}
	}
	if len(keys) == 0 {
		return
	}
	if r.links == nil {
		r.links = map[int64][]int64{}
	}
	slices.Sort(keys)
	r.links[o] = slices.Compact(keys)
}

// observedAt counts an event of any kind.
func (v *verifier) observedAt(r *replay, c *columns, b *body, place string) {
	observed, after := event.Micros(c.observed), r.clock
	if c.seq > r.set.base {
		after = max(after, r.set.Created)
	}
	if b.document != 0 && !v.documents.has(b.document) {
		v.found(place, "its document %d is missing", b.document)
	} else if b.document != 0 && v.ofSet[b.document] != c.set { // the sum of its row leaves out the number
		v.found(place, "its document %d is of a Source that does not feed set %s", b.document, r.set.Name)
	}
	if observed <= after {
		v.found(place, "it was observed at %v, not after the event before in set %s (%v)", observed, r.set.Name, after)
	}
	r.clock = max(r.clock, observed)
	r.events++
}

// inSegment counts an event to its segment.
func (v *verifier) inSegment(r *replay, seq event.Seq, kind event.Kind, observed event.Micros, b *body, place string) {
	for r.at < len(r.segments) && !r.segments[r.at].Open() && seq > r.segments[r.at].Last {
		v.endSegment(r)
		r.at++
	}
	if r.at >= len(r.segments) {
		v.found(place, "it is in no segment")
		return
	}
	g := &r.segments[r.at]
	if observed <= g.From || !g.Open() && observed > g.Until {
		v.found(place, "it was observed at %v, outside of segment %d", observed, g.N)
	}
	s := &r.sum
	if s.Events == 0 {
		s.First, s.start = seq, observed
	}
	s.Last, s.Until = seq, observed
	s.Events++
	entries := entriesOf(kind, b)
	s.Entries += entries
	w := weightOf(b, r.set.Content, entries, v.weights[b.document])
	s.Weight += w.list
	s.feed += w.feed
}

// endSegment compares a segment with the one computed from its events.
func (v *verifier) endSegment(r *replay) {
	if r.at >= len(r.segments) {
		return
	}
	has, want := r.segments[r.at], r.sum
	want.N, want.From = has.N, has.From
	if has.Open() {
		want.Until = 0
	}
	if has != want {
		v.found(fmt.Sprintf("set %s, segment %d", r.set.Name, has.N), "it is stored as %s; its events add up to %s", words(&has), words(&want))
	}
	r.sum = segmentRow{}
}

func words(s *segmentRow) string {
	return fmt.Sprintf("%d to %d, %d events, %d entries, weights %d and %d, from %v to %v, first at %v", s.First, s.Last, s.Events, s.Entries, s.Weight, s.feed, s.From, s.Until, s.start)
}

// compareSets compares the sets' counters with those computed from the events.
func (v *verifier) compareSets() error {
	if missing := v.missingSeqs + v.upto - v.last - v.epochs.lost(event.Seq(v.last), event.Seq(v.upto)); missing != v.removedEvents && len(v.removed) > 0 {
		v.found("", "%d events are missing, and the sets that were removed had %d", missing, v.removedEvents)
	}
	for _, r := range v.order {
		s := &r.set
		last, clock := r.observed, max(r.clock, s.Created)
		if int64(r.lastSeq) <= r.set.base {
			last = s.Created
		}
		if s.Last != r.lastSeq || s.LastObserved != last || s.Live != r.live.n || s.Events != r.events || s.Newest != clock {
			v.found("set "+s.Name, "it is stored with %d events, %d live, the last %d at %v, clock %v; the log has %d, %d, %d at %v, %v",
				s.Events, s.Live, s.Last, s.LastObserved, s.Newest, r.events, r.live.n, r.lastSeq, last, clock)
		}
	}
	return nil
}
