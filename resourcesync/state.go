package resourcesync

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// State is what a walk leaves for the next one: which lists the Source has, how far they were
// read, what makes the next requests conditional and, in an unfinished walk, which lists are
// still to be read. It belongs to the URL of its Walk: with another one everything is read, as
// with the zero State, which is that of a Source of which nothing was read. The URL of an
// unfinished walk is not checked.
//
// Its text is JSON. As a field of something that is stored as JSON it is an object.
type State struct{ m *memory }

// Unfinished reports whether the walk goes on with this State where another one
// was broken off.
func (s State) Unfinished() bool { return s.m != nil && s.m.Walk != nil }

// IsZero reports whether this is the State of a Source of which nothing was read.
func (s State) IsZero() bool { return s.m == nil || reflect.ValueOf(*s.m).IsZero() }

// Numbered returns a State that keeps the sets of resources and their numbers (List.Set),
// and nothing else: nothing of them was read. The Walk with it has to be Full.
func (s State) Numbered() State {
	if s.m == nil {
		return s
	}
	m := &memory{URL: s.m.URL, Numbers: s.m.Numbers}
	for i := range s.m.Streams {
		m.Streams = append(m.Streams, stream{Lists: s.m.Streams[i].Lists, Number: s.m.Streams[i].Number})
	}
	return State{m}
}

// Numbers counts the numbers that sets of resources have had.
func (s State) Numbers() int {
	if s.m == nil {
		return 0
	}
	return s.m.Numbers
}

// MarshalText returns the form in which a State is stored.
func (s State) MarshalText() ([]byte, error) {
	if s.m == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(s.m)
}

// UnmarshalText reads what MarshalText has returned. No text at all is an error.
func (s *State) UnmarshalText(text []byte) error {
	m := new(memory)
	if err := json.Unmarshal(text, m); err != nil {
		return fmt.Errorf("state of a walk: %w", err)
	}
	if w := m.Walk; w != nil && slices.ContainsFunc(w.Steps, func(s step) bool { return s.Stream < 0 || s.Stream >= len(w.Memory.Streams) }) {
		return errors.New("state of a walk: a list belongs to a set of resources that is not there")
	}
	s.m = m
	return nil
}

// MarshalJSON returns the text as it is.
func (s State) MarshalJSON() ([]byte, error) { return s.MarshalText() }

// UnmarshalJSON reads what MarshalJSON has returned.
func (s *State) UnmarshalJSON(text []byte) error { return s.UnmarshalText(text) }

// memory is what a State holds.
type memory struct {
	// URL is that of the Walk; for another one the memory is of no use.
	URL string `json:"url,omitempty"`
	// Descriptions are the Source Descriptions that led to the streams.
	Descriptions []naming `json:"descriptions,omitempty"`
	Streams      []stream `json:"streams,omitempty"`
	// Numbers counts the numbers that were given to streams.
	Numbers int `json:"numbers,omitempty"`
	// Hosts are others that the Walk's URL was redirected to, and where its
	// documents may be.
	Hosts []string `json:"hosts,omitempty"`
	// Partial: the Source has sets of resources that are not followed.
	Partial bool `json:"partial,omitempty"`
	// Moved counts the baselines in a row whose lists were changed while they were
	// read.
	Moved int `json:"moved,omitempty"`
	// Walk is an unfinished walk; nil when none is.
	Walk *cursor `json:"walk,omitempty"`
}

// naming is a Source Description, or an index of some.
type naming struct {
	URL        string            `json:"url"`
	Validators follow.Validators `json:"validators,omitzero"`
	// Sum is the digest of what it names.
	Sum string `json:"sum"`
}

// stream is what is known of one set of resources.
type stream struct {
	Lists
	times
	// Number is that of the set of resources among all that the Source ever had. It
	// stays.
	Number int `json:"number,omitempty"`
	// New are the times of a walk that has not ended yet.
	New times `json:"new,omitzero"`
	// Known: a walk over the stream has ended whole.
	Known bool `json:"known,omitempty"`
	// Named makes the next request for the Capability List conditional.
	Named follow.Validators `json:"named,omitzero"`
	// Closed: no Change List is open, so that only the Capability List names
	// the next one (clause 12.1).
	Closed bool `json:"closed,omitempty"`
	// Open are the lists in the Change List Index that may still grow, or the
	// newest one when all are closed.
	Open []string `json:"open,omitempty"`
	// Final is the newest Change List as it was when it was found closed.
	Final closing `json:"final,omitzero"`
	// Parts are the lists in the Resource List Index, in a stream without a
	// Change List.
	Parts []string `json:"parts,omitempty"`
	// Validators of the lists, by URL.
	Validators map[string]follow.Validators `json:"validators,omitempty"`

	// ListOnly: in this walk the baseline is the Resource List, because the Resource Dump
	// is of no use.
	ListOnly bool `json:"list_only,omitempty"`

	// before are the Validators of the last walk, and opened the lists that were open in it.
	before map[string]follow.Validators
	opened []string
}

// closing is a closed Change List: its until, and how many entries it had.
type closing struct {
	URL     string    `json:"url"`
	Until   time.Time `json:"until"`
	Entries int       `json:"entries"`
}

func (c closing) String() string {
	return fmt.Sprintf("until %s and %d entries", stamp(c.Until), c.Entries)
}

// times say how far a stream has been read, by the Source's own clock.
type times struct {
	// Mark is the largest datetime that was read in the Change Lists and did not
	// lie after its answer's Date, or the latest border of one without any
	// datetime; without either, the at of the Resource List; without that, the
	// from of the Change List. It never falls.
	Mark time.Time `json:"mark,omitzero"`
	// Covered is up to when all changes have been read, as far as the Source's
	// own times tell: it is never before Mark. A Change List that begins later
	// leaves something out.
	Covered time.Time `json:"covered,omitzero"`
	// At is that of the last Resource List.
	At time.Time `json:"at,omitzero"`
	// Missed: a Change List failed, or was damaged. It is asked for again, with all
	// that reach to At or, without one, to Stale; once it can be read, a baseline is due.
	Missed bool `json:"missed,omitempty"`
	// Skipped: changes were left out because the dump that is read after them has them.
	Skipped bool `json:"skipped,omitempty"`
	// Stale is the earliest until of a Change List that failed, that was read as it was before it
	// was closed, or that its index does not name yet. All that reach to it are read again.
	Stale time.Time `json:"stale,omitzero"`
	// Owed: changes up to then could not be read in any Change List, and the last Resource List
	// shows an earlier moment. The first one that shows a later moment makes up for them.
	Owed time.Time `json:"owed,omitzero"`
}

// staleFor is how long after its until a Change List that has none may be a copy from before it.
// Later it is one of a Source that does not state it there.
const staleFor = time.Hour

// cursor is an unfinished walk.
type cursor struct {
	// Steps are the lists that are still to be read, in order.
	Steps []step `json:"steps,omitempty"`
	// Documents counts the lists that were read to their end.
	Documents int `json:"documents"`
	// Others counts indexes, and lists that were missing.
	Others int `json:"others,omitempty"`
	// Memory is the memory for the next walk, as far as it is known.
	Memory memory `json:"memory"`
	Full   bool   `json:"full,omitempty"`
	// Due: a baseline is due; Planned: its lists are among Steps, or were read.
	Due     bool `json:"due,omitempty"`
	Planned bool `json:"planned,omitempty"`
	// Incomplete: the baseline is no complete enumeration.
	Incomplete bool `json:"incomplete,omitempty"`
	// Empty: a list of the baseline had no entry.
	Empty bool `json:"empty,omitempty"`
	// Moved: the lists of the baseline were changed while they were read. A resource that moved
	// from an unread list into one that was read already may be missing.
	Moved bool `json:"moved,omitempty"`
	// Dumped: a package of a Resource Dump was read. Mixed: then a Resource List was, which
	// is of another time, so that the next walk reads a baseline again.
	Dumped bool `json:"dumped,omitempty"`
	Mixed  bool `json:"mixed,omitempty"`
	// At is the earliest at of the baseline; Timeless: some list has none, or one in the future.
	At       time.Time `json:"at,omitzero"`
	Timeless bool      `json:"timeless,omitempty"`
	Gap      *Gap      `json:"gap,omitempty"`
	// Lost describes what is lost, and MoreLost counts what it leaves out.
	Lost     []string `json:"lost,omitempty"`
	MoreLost int      `json:"more_lost,omitempty"`
	Dialects []string `json:"dialects,omitempty"`
}

// advance moves the cursor behind a list that was read to its end.
func (c *cursor) advance(l *List, overlap time.Duration) {
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

// changed updates the times of a stream with those of a Change List that was read to its end.
func (c *cursor) changed(l *List, overlap time.Duration) {
	s, head := &c.Memory.Streams[l.step.Stream], l.Head()
	t := &s.New
	// The mark is the largest time of a change. Where no change has one it is the latest border
	// of the list, which the Source gives as its own time; lastmod is not the time when a
	// change was listed.
	t.Mark = latest(t.Mark, l.datetime)
	if l.datetime.IsZero() && l.read > 0 {
		t.Mark = latest(t.Mark, l.later(l.later(time.Time{}, head.From), head.Until))
	}
	t.Covered = l.later(l.later(t.Covered, head.From), head.Until)
	if l.pack != nil {
		return // its dump states whether another package follows
	}
	if until := l.step.Until; l.step.Depth > 0 && head.Until.Time().Before(until) && l.Date.Before(until.Add(staleFor)) {
		l.broken(ruleIndexUntil, "until "+cmp.Or(head.Until.String(), "is missing"), "until "+stamp(until)+", as its index says: this is an earlier copy, and the next walk reads the list again")
		t.Stale = earliest(t.Stale, until)
	}
	// One that begins later than an earlier copy of its index says or, where the index has not
	// changed, than what was read: the list before it is not named yet.
	if from, said := head.From.Time(), l.step.From; l.step.Depth > 0 && l.step.Until.IsZero() && !l.Late(from) {
		if said.IsZero() && s.Known && from.After(s.Covered) || !said.IsZero() && from.After(said) && l.step.IndexAt.Before(from) {
			t.Stale = earliest(t.Stale, from)
		}
	}
	if l.step.Until.IsZero() && l.open() {
		// A list that was written at a moment has all changes that were published up to then.
		if written, err := http.ParseTime(l.answer.Header.Get("Last-Modified")); err == nil && !l.Late(written) {
			t.Covered = latest(t.Covered, written.Add(-overlap))
		}
		s.Closed = false
	} else if l.step.Depth == 0 && l.step.Until.IsZero() {
		s.Closed = true
	}
	if s.Closed && (l.Requested == s.changes() || slices.Contains(s.Open, l.Requested)) {
		// It is the newest: does it stay as it was when it was found closed?
		now := closing{URL: l.Requested, Until: latest(head.Until.Time(), l.step.Until), Entries: l.read}
		if was := s.Final; was.URL == now.URL && (!was.Until.Equal(now.Until) || was.Entries != now.Entries) {
			l.broken(ruleClosed, now.String(), was.String()+", as before, because a list with until does not change any more; its new entries are read")
		}
		s.Final = now
	}
}

// enumerated notes whether a Resource List that was read to its end is a complete enumeration.
func (c *cursor) enumerated(l *List) {
	s, head := &l.step, l.Head()
	c.Dumped = c.Dumped || l.pack != nil
	if l.nameless > 0 {
		c.Incomplete = true
	}
	if s.Depth == 0 {
		c.Memory.Streams[s.Stream].Parts = nil // it was an index before, perhaps
	}
	if l.read == 0 {
		c.Empty = true
		l.broken(ruleEmpty, "no entry", "the resources of the Source; ignore this if it has none any more")
	}
	if s.Depth == 0 && l.read >= MaxEntries {
		c.Incomplete = true
		l.broken(ruleFull, fmt.Sprintf("%d entries and no index", l.read),
			fmt.Sprintf("an index of lists: one that ends at %d entries may leave out the others, so nothing counts as deleted", MaxEntries))
	}
	if !head.At.IsZero() && !s.At.IsZero() && !head.At.Time().Equal(s.At) {
		c.Incomplete, c.Moved = true, true
		l.broken(ruleStable, "at "+head.At.String(), "at "+stamp(s.At)+" as its index says: it was changed while being read, so nothing counts as deleted")
	}
	c.moment(l, l.At().Time())
}

// moment takes in the at of a part of the baseline.
func (c *cursor) moment(l *List, at time.Time) {
	if at.IsZero() || l.Late(at) { // a time that is still to come cannot be that of the list
		c.Timeless = true
		return
	}
	c.At = earliest(c.At, at)
	t := &c.Memory.Streams[l.step.Stream].New
	t.At = earliest(t.At, at)
}

// validate keeps what makes the next request for a list conditional. Resource Lists beside a
// Change List are read only when a baseline is due.
func (m *memory) validate(stream int, l *List) {
	s := &m.Streams[stream]
	v := l.answer.Validators
	if v == (follow.Validators{}) || l.Baseline && s.changes() != "" || l.substitute() {
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

// takeNumbers takes over the numbers that a walk which has not ended whole has given to sets of
// resources: the lists that were taken in have them.
func (m *memory) takeNumbers(given *memory, most int) {
	if given.Numbers == 0 || m.URL == given.URL && m.Numbers == given.Numbers {
		return
	}
	if m.URL != given.URL {
		*m = memory{URL: given.URL}
	}
	m.Numbers, m.Streams = given.Numbers, slices.Clip(m.Streams)
	for i := range given.Streams {
		s := &given.Streams[i]
		if len(m.Streams) < most && !slices.ContainsFunc(m.Streams, func(o stream) bool { return o.same(s.Lists) }) {
			m.Streams = append(m.Streams, stream{Lists: s.Lists, Number: s.Number})
		}
	}
}

// complete completes the memory of a walk that has ended whole. moved: another baseline is
// due.
func (m *memory) complete(baseline, moved bool) {
	if baseline {
		if m.Moved++; !moved {
			m.Moved = 0
		}
	}
	for i := range m.Streams {
		s := &m.Streams[i]
		s.before, s.Known, s.ListOnly = nil, true, false
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
		s.Owed = latest(s.Owed, s.New.Owed)
		if baseline && (s.New.At.IsZero() || !s.At.Before(s.Owed)) { // one without an at may show anything
			s.Owed = time.Time{}
		}
		s.Missed, s.Stale = s.New.Missed, s.New.Stale
		if s.Missed || !s.Stale.IsZero() {
			s.Validators = nil // an index that has not changed would hide the list
		}
		s.New = times{}
		for _, part := range s.Parts {
			if _, ok := s.Validators[part]; !ok {
				// An unchanged index alone does not show that its lists are unchanged.
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

// digest returns the SHA-256 of fields, in hexadecimal digits.
func digest(fields []string) string {
	h := sha256.New()
	writeFields(h, fields...)
	return hex.EncodeToString(h.Sum(nil))
}

// writeFields adds fields to a digest, so that no others add the same.
func writeFields(to io.Writer, fields ...string) {
	for _, f := range fields {
		fmt.Fprintf(to, "%d:%s", len(f), f)
	}
}
