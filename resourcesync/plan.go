package resourcesync

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// start plans a new walk.
func (k *walker) start() error {
	m := &k.cur.Memory
	if len(m.Streams) == 0 || k.w.Full || slices.ContainsFunc(m.Streams, func(s stream) bool { return !s.Known }) {
		return k.discover()
	}
	for i := range m.Descriptions {
		same, err := k.describes(&m.Descriptions[i])
		if err != nil {
			return err
		}
		if !same {
			return k.discover()
		}
	}
	return k.plan()
}

// describes reports whether a Source Description still names the same documents.
func (k *walker) describes(d *naming) (bool, error) {
	l, err := k.open(d.URL, d.Validators)
	if follow.Status(err) == http.StatusNotModified && d.Validators != (follow.Validators{}) {
		return true, nil
	}
	var locs []string
	if err == nil {
		_, err = l.entries(func(e *Entry) { locs = append(locs, e.Loc) })
	}
	switch {
	case missing(err):
		return false, nil
	case err != nil:
		return false, err
	}
	d.Validators = l.answer.Validators
	return digest(locs) == d.Sum, nil
}

// discover finds the Source's lists from the beginning and plans the walk. It is
// done once in a run.
func (k *walker) discover() error {
	k.surveyed = true
	d := discovery{walker: k}
	err := d.run()
	if d.ended {
		k.ended = true
		k.cur.Steps, k.cur.Due = nil, false
		return nil
	}
	if err != nil {
		return err
	}
	for i := range k.cur.Memory.Streams {
		s := &k.cur.Memory.Streams[i]
		if !slices.ContainsFunc(d.found.Sets, s.same) {
			d.missing = append(d.missing, k.cur.Memory.ways(s, d.absent)...)
		}
	}
	for _, g := range d.missing {
		k.noteGap(g)
	}
	// The lists of an index that was read in this run are planned again: those that were not
	// read yet would be left out.
	maps.DeleteFunc(k.read, func(_ string, as readAs) bool { return as == readIndex })
	k.cur.Due = k.cur.Due || k.cur.Memory.Partial && !d.partial // it may show now what is absent
	k.cur.Memory.Descriptions, k.cur.Memory.Partial = d.descriptions, d.partial
	k.adopt(d.found.Sets, d.validators)
	return k.plan()
}

// adopt replaces the streams by those of the sets that were found. A stream that was there
// before keeps its state. validators are those of the Capability Lists.
func (k *walker) adopt(sets []Lists, validators map[string]follow.Validators) {
	before := k.cur.Memory.Streams
	streams := make([]stream, len(sets))
	known := 0
	for i, set := range sets {
		streams[i].Lists = set
		j := slices.IndexFunc(before, func(s stream) bool { return s.same(set) })
		if j >= 0 {
			known++
			streams[i] = before[j]
			k.rename(&streams[i], set)
		} else {
			streams[i].Number = k.cur.Memory.Numbers
			k.cur.Memory.Numbers++
		}
		k.cur.Due = k.cur.Due || !streams[i].Known && set.baseline() != ""
		streams[i].Named = validators[set.CapabilityList]
	}
	if known < len(before) {
		k.cur.Due = true
	}
	k.cur.Memory.Streams = streams
}

// same reports whether both are of one set: they have the same Capability List or, where there
// is none, the same lists.
func (l Lists) same(set Lists) bool {
	if l.CapabilityList != "" || set.CapabilityList != "" {
		return l.CapabilityList == set.CapabilityList
	}
	return l == set
}

// ways returns those of some gaps that led to a stream before: its own documents, and the Source
// Descriptions. A stream that one of them would lead to has not come to its end.
func (m *memory) ways(s *stream, gaps []Gap) (own []Gap) {
	urls := []string{s.CapabilityList, s.ResourceList, s.ChangeList, s.ResourceDump, s.ChangeDump}
	for i := range m.Descriptions {
		urls = append(urls, m.Descriptions[i].URL)
	}
	for _, g := range gaps {
		if slices.Contains(urls, g.URL) {
			own = append(own, g)
		}
	}
	return own
}

// rename gives a stream the lists that its Capability List names now. A new Change List
// continues the one before; any other difference makes a baseline due.
func (k *walker) rename(s *stream, to Lists) {
	if s.changes() != to.changes() {
		s.Open, s.Closed, s.Final = nil, false, closing{}
		k.cur.Due = k.cur.Due || s.changes() == "" || to.changes() == ""
	}
	if s.baseline() != to.baseline() {
		s.Parts = nil
		k.cur.Due = true
	}
	s.Lists = to
}

// plan puts together the first steps, and finds out whether a baseline is due.
func (k *walker) plan() error {
	k.cur.Steps, k.cur.Planned = nil, false
	for i := range k.cur.Memory.Streams {
		s := k.stream(i)
		if s.Known && !k.surveyed && (s.changes() == "" || s.Closed) {
			switch err := k.ask(i); {
			case follow.Missing(err), k.mended:
				return k.discover()
			case err != nil:
				if err := k.tolerate(err, namesLists); err != nil {
					return err
				}
			}
		}
		if url := s.changes(); url != "" {
			k.cur.Steps = append(k.cur.Steps, step{Stream: i, URL: url, Dump: s.dumpedChanges(), Validators: s.before[url]})
		}
	}
	for i := range k.cur.Memory.Streams {
		switch s := k.stream(i); {
		case k.cur.Due:
		case s.changes() == "":
			if replanned, err := k.probe(i); replanned || err != nil {
				return err
			}
		case !s.Owed.IsZero() && s.baseline() != "":
			if err := k.probeOwed(i); err != nil {
				return err
			}
		}
	}
	if !k.cur.Due {
		return nil
	}
	k.planBaseline()
	return k.peek()
}

// failingParts is how many parts that fail a probe goes on behind: of more, it is the server that fails.
const failingParts = 10

// probe finds out whether a stream that has only a Resource List has changed. A
// baseline is due then. replanned: the Source was discovered anew.
func (k *walker) probe(stream int) (replanned bool, err error) {
	s := k.stream(stream)
	urls := append([]string{s.baseline()}, s.Parts...)
	for _, url := range urls {
		if s.before[url] == (follow.Validators{}) {
			k.cur.Due = true
			return false, nil
		}
	}
	var failed []error // a part does not keep the others from showing that they have changed
	for i, url := range urls {
		l, err := k.open(url, s.before[url])
		switch {
		case err == nil:
			k.cur.Due = true
			if i == 0 {
				k.hold(l)
			} else {
				l.close()
			}
			return false, nil
		case follow.Status(err) == http.StatusNotModified:
		case i == 0 && follow.Missing(err) && !k.surveyed:
			return true, k.discover()
		case missing(err):
			k.cur.Due = true
			return false, nil
		case i > 0 && len(failed) < failingParts && follow.Status(err) >= http.StatusBadRequest && !slices.Contains(notAtFault, follow.Status(err)) && !withheld(err) && !k.ends(err):
			failed = append(failed, err)
		default:
			return false, err
		}
	}
	if len(failed) > 0 {
		return false, failed[0]
	}
	s.Validators = maps.Clone(s.before)
	return false, nil
}

// probeOwed finds out whether the Resource List of a stream makes up by now for changes that no
// Change List has. A baseline is due then.
func (k *walker) probeOwed(stream int) error {
	s := k.stream(stream)
	url := k.baseline(stream).URL
	l, err := k.open(url, s.before[url])
	unchanged := s.before[url]
	switch {
	case err == nil:
		defer l.close()
		if at := l.Head().At.Time(); at.IsZero() || !at.Before(s.Owed) && !l.Late(at) {
			k.cur.Due = true
			return nil
		}
		unchanged = l.answer.Validators
	case follow.Status(err) == http.StatusNotModified:
	case k.ends(err):
		return err
	default: // the Change Lists are read all the same
		k.report(Problem{Rule: ruleMissing, URL: url, Found: err.Error(), Expected: "the Resource List, which may be a newer one"}, false)
		return nil
	}
	if s.Validators == nil {
		s.Validators = map[string]follow.Validators{}
	}
	s.Validators[url] = unchanged
	return nil
}

// planBaseline puts the Resource Lists, or dumps, of all streams at the end of the plan.
func (k *walker) planBaseline() {
	k.cur.Planned = true
	for i := range k.cur.Memory.Streams {
		if s := k.stream(i); s.baseline() != "" {
			k.cur.Steps = append(k.cur.Steps, k.baseline(i))
		}
	}
}

// baseline returns the step that begins the baseline of a stream. Where there is a list, a dump
// is read only in the first baseline, only if the bytes of all resources are wanted, and only
// if the stream has changes, because the list is newer.
func (k *walker) baseline(i int) step {
	s := k.stream(i)
	if s.ResourceDump != "" && (s.ResourceList == "" || k.w.Contents && !s.Known && !s.ListOnly && s.changes() != "") {
		return step{Stream: i, URL: s.ResourceDump, Baseline: true, Dump: true}
	}
	return step{Stream: i, URL: s.ResourceList, Baseline: true}
}

// readList replaces the dump of a stream by its Resource List.
func (k *walker) readList(i int) {
	k.cur.Steps = slices.DeleteFunc(k.cur.Steps, func(s step) bool { return s.Baseline && s.Stream == i })
	k.stream(i).ListOnly = true
	k.cur.Steps = append(k.cur.Steps, k.baseline(i))
}

// peek reads the at of the Resource Lists in streams that were never walked, to find the Change
// Lists that continue from there.
func (k *walker) peek() error {
	for _, s := range slices.Clone(k.cur.Steps) {
		stream := k.stream(s.Stream)
		if !s.Baseline || stream.Known || stream.changes() == "" || slices.Contains(k.w.Accepted, s.URL) {
			continue
		}
		l, err := k.open(s.URL, follow.Validators{})
		switch {
		case err != nil && k.replaceable(s) && !k.ends(err):
			if err := k.handleMissing(s, err); err != nil {
				return err
			}
			return k.peek()
		case missing(err), follow.Status(err) >= http.StatusInternalServerError && k.dispensable(s, err):
			continue // reported when its step is read
		case err != nil:
			return err
		}
		l.step, l.Baseline, l.Lists = s, true, stream.Lists
		if at := l.Head().At.Time(); !at.IsZero() && !l.Late(at) {
			stream.New.At = at
		} else if s.Dump && stream.ResourceList != "" {
			l.close()
			k.readList(s.Stream)
			return k.peek()
		}
		if !l.Head().Index && !s.Dump {
			l.close()
			continue
		}
		k.cur.Steps = slices.DeleteFunc(k.cur.Steps, func(o step) bool { return o == s })
		if err := k.expand(l); err != nil {
			return err
		}
	}
	return nil
}

// step is one document that a walk is to read.
type step struct {
	// Stream is the index of its stream.
	Stream int    `json:"stream"`
	URL    string `json:"url"`
	// Baseline: it is a Resource List, and no Change List.
	Baseline bool `json:"baseline,omitempty"`
	// Dump: it is a dump, or an index of some; then what it leads to are packages.
	Dump    bool        `json:"dump,omitempty"`
	Package *packageRef `json:"package,omitempty"`
	// Depth is the number of indexes that lead to it.
	Depth int `json:"depth,omitempty"`
	// From and At are those that its index states for it, IndexAt is the at of the index
	// itself; of a Change List Index, the date of its answer. Until is the time up to which it has
	// changes; zero when that is unknown.
	From    time.Time `json:"from,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	At      time.Time `json:"at,omitzero"`
	IndexAt time.Time `json:"index_at,omitzero"`
	// Validators make the request conditional.
	Validators follow.Validators `json:"validators,omitzero"`
	// Again: the Capability List was asked again and still names it.
	Again bool `json:"again,omitempty"`
	// Behind is the until of the previous list, which this one continues, and which is read
	// after it.
	Behind time.Time `json:"behind,omitzero"`
	// Sum is the digest of an index whose parts were read, which is asked again
	// to see that it has not changed meanwhile.
	Sum string `json:"sum,omitempty"`
}

// chronological returns the lists of a Change List Index in the order of their
// times (clause 12.2), in which they should stand. Lists without times stay
// behind the one that they follow.
func chronological(lists []step) []step {
	// Their time is their from, else their until. Where no list has a from, one without until
	// is the open one, and the last.
	times := make([]time.Time, len(lists))
	open := time.Time{}
	if !slices.ContainsFunc(lists, func(s step) bool { return !s.From.IsZero() }) && slices.ContainsFunc(lists, func(s step) bool { return !s.Until.IsZero() }) {
		open = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	forward, backward := true, true
	var last time.Time
	for i := range lists {
		t := lists[i].From
		if t.IsZero() {
			t = lists[i].Until
		}
		if t.IsZero() {
			t = open
		}
		switch {
		case t.IsZero():
			t = last
		case !last.IsZero():
			forward = forward && !t.Before(last)
			backward = backward && !t.After(last)
		}
		times[i], last = t, t
	}
	order := make([]int, len(lists))
	for i := range order {
		order[i] = i
	}
	if !forward && backward {
		slices.Reverse(order)
	} else {
		slices.SortStableFunc(order, func(a, b int) int {
			if c := times[a].Compare(times[b]); c != 0 || lists[a].From.IsZero() || lists[b].From.IsZero() {
				return c
			}
			// Of lists that begin in the same second the one that is open is the last.
			return newer(&lists[a], &lists[b])
		})
	}
	sorted := make([]step, len(lists))
	for i, at := range order {
		sorted[i] = lists[at]
	}
	return sorted
}

// reach sets Until of each list that has none, of some lists in chronological order, to the
// from of the next one that begins later.
func reach(lists []step) {
	var next, after time.Time // when the next lists begin, and those behind them
	for i := len(lists) - 1; i >= 0; i-- {
		until := next
		switch from := lists[i].From; {
		case from.IsZero():
		case from.Equal(next):
			until = after
		default:
			next, after = from, next
		}
		if lists[i].Until.IsZero() {
			lists[i].Until = until
		}
	}
}

// merge puts two sequences of steps, each newest first, into one. Resource Lists
// stay behind all Change Lists.
func merge(a, b []step) []step {
	out := make([]step, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if newer(&a[0], &b[0]) >= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// newer is positive when a comes before b.
func newer(a, b *step) int {
	switch {
	case a.Baseline != b.Baseline:
		if b.Baseline {
			return 1
		}
		return -1
	case a.Baseline:
		return 0
	case a.Until.IsZero() != b.Until.IsZero():
		if a.Until.IsZero() {
			return 1
		}
		return -1
	}
	return a.Until.Compare(b.Until)
}
