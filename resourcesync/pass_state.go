package resourcesync

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// take moves the cursor behind a list that was read to its end.
func (c *cursor) take(l *List, overlap time.Duration) {
	c.Documents++
	head := l.Head()
	if d := string(head.Dialect); d != "" && !slices.Contains(c.Dialects, d) {
		c.Dialects = append(c.Dialects, d)
	}
	if l.Baseline {
		c.enumerated(l)
	} else {
		c.changed(l, overlap)
	}
	c.Memory.validate(l.step.Stream, l)
}

// changed takes in what a whole Change List says of time.
func (c *cursor) changed(l *List, overlap time.Duration) {
	s, head := &c.Memory.Streams[l.step.Stream], l.Head()
	t := &s.New
	t.Mark = latest(t.Mark, l.mark())
	t.Covered = l.later(l.later(t.Covered, head.From), head.Until)
	if l.step.Until.IsZero() && l.open() {
		// What was written at a moment has all that was published up to then.
		if written := l.modified(); !written.IsZero() {
			t.Covered = latest(t.Covered, written.Add(-overlap))
		}
		s.Closed = false
	} else if l.step.Depth == 0 && l.step.Until.IsZero() {
		s.Closed = true
	}
	if s.Closed && (l.Requested == s.ChangeList || slices.Contains(s.Open, l.Requested)) {
		s.closes(l)
	}
}

// closes compares the newest Change List, which is closed, with what it was.
func (s *stream) closes(l *List) {
	now := closing{URL: l.Requested, Until: latest(l.Head().Until.Time(), l.step.Until), Entries: l.read}
	if was := s.Final; was.URL == now.URL && (!was.Until.Equal(now.Until) || was.Entries != now.Entries) {
		l.broken(ruleClosed, now.String(), was.String()+", as before, since until means that the list does not change any more; what is new in it is taken")
	}
	s.Final = now
}

func (c closing) String() string {
	return fmt.Sprintf("until %s and %d entries", stamp(c.Until), c.Entries)
}

// enumerated takes in what a whole Resource List is worth as an enumeration.
func (c *cursor) enumerated(l *List) {
	s, head := &l.step, l.Head()
	if l.nameless > 0 {
		c.Incomplete = true
	}
	if s.Depth == 0 {
		c.Memory.Streams[s.Stream].Parts = nil // it was an index before, perhaps
	}
	if l.read == 0 {
		l.broken(ruleEmpty, "no entry", "the resources of the Source; if it has none any more, that is meant")
	}
	if s.Depth == 0 && l.read >= MaxEntries {
		c.Incomplete = true
		l.broken(ruleFull, fmt.Sprintf("%d entries and no index", l.read),
			fmt.Sprintf("an index of lists: one that ends at %d entries may leave out the others, so nothing is taken as deleted", MaxEntries))
	}
	if !head.At.IsZero() && !s.At.IsZero() && !head.At.Time().Equal(s.At) {
		c.Incomplete, c.Moved = true, true
		l.broken(ruleStable, "at "+head.At.String(), "at "+stamp(s.At)+" as its index says: it was changed while being read, so nothing is taken as deleted")
	}
	at := head.At.Time()
	for _, t := range []time.Time{s.At, s.IndexAt} {
		if at.IsZero() {
			at = t
		}
	}
	c.moment(l, at)
}

// moment takes in the at of a part of the baseline.
func (c *cursor) moment(l *List, at time.Time) {
	if at.IsZero() {
		c.Timeless = true
		return
	}
	c.At = earliest(c.At, at)
	if !l.Late(at) {
		t := &c.Memory.Streams[l.step.Stream].New
		t.At = earliest(t.At, at)
	}
}

// validate remembers what makes the next request for a list conditional. Resource
// Lists beside a Change List are read only when a baseline is due.
func (m *memory) validate(stream int, l *List) {
	s := &m.Streams[stream]
	v := l.answer.Validators
	if v == (follow.Validators{}) || l.Baseline && s.ChangeList != "" {
		return
	}
	n := 0
	for i := range m.Streams {
		n += len(m.Streams[i].Validators)
	}
	if n >= keptValidators {
		return
	}
	if s.Validators == nil {
		s.Validators = map[string]follow.Validators{}
	}
	s.Validators[l.Requested] = v
}

// settle completes the memory of a walk that has ended whole.
func (m *memory) settle(baseline, moved bool) {
	if baseline {
		if m.Moved++; !moved {
			m.Moved = 0
		}
	}
	for i := range m.Streams {
		s := &m.Streams[i]
		s.before, s.Known = nil, true
		if baseline && !s.New.At.IsZero() {
			s.At = s.New.At
		}
		s.Mark = latest(s.Mark, s.New.Mark)
		s.Covered = latest(latest(s.Covered, s.New.Covered), s.At)
		if s.Mark.IsZero() {
			if s.Mark = s.At; s.Mark.IsZero() {
				s.Mark = s.Covered
			}
		}
		s.Covered = latest(s.Covered, s.Mark)
		if s.Missed = s.New.Missed; s.Missed {
			s.Validators = nil // an index that has not changed would hide the list
		}
		s.New = times{}
		for _, part := range s.Parts {
			if _, ok := s.Validators[part]; !ok {
				// The index alone does not say that nothing has changed.
				s.Parts, s.Validators = nil, nil
				break
			}
		}
	}
}

func (c *cursor) clone() cursor {
	d := *c
	d.Steps = slices.Clone(c.Steps)
	d.Memory = c.Memory.clone()
	d.Lost = slices.Clone(c.Lost)
	d.Dialects = slices.Clone(c.Dialects)
	return d
}

func (m *memory) clone() memory {
	n := *m
	n.Descriptions = slices.Clone(m.Descriptions)
	n.Streams = slices.Clone(m.Streams)
	n.Hosts = slices.Clone(m.Hosts)
	for i := range n.Streams {
		s := &n.Streams[i]
		s.Open = slices.Clone(s.Open)
		s.Parts = slices.Clone(s.Parts)
		s.Validators = maps.Clone(s.Validators)
	}
	return n
}

// latest and earliest take a zero time as none.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// digest sums up what a document names. The zero value is ready.
type digest struct{ h hash.Hash }

func (d *digest) add(fields ...string) {
	if d.h == nil {
		d.h = sha256.New()
	}
	for _, f := range fields {
		// Writing to a hash cannot fail.
		_, _ = io.WriteString(d.h, strconv.Itoa(len(f))+":"+f)
	}
}

// String returns the digest in hex.
func (d *digest) String() string {
	d.add()
	return hex.EncodeToString(d.h.Sum(nil))
}
