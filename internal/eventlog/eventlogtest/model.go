package eventlogtest

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/pmh-bridge/bridge/event"
)

// model is a slow log that follows the rules word for word: what each Source last
// reported about each record, and the state that follows.
type model struct {
	reference bool
	rank      map[int]int // of a Source; the lowest is the authority
	records   map[string]*modelRecord
	walks     map[int]*modelWalk
	owners    map[string]*modelRecord // by URI, in mode reference
	events    []string
}

type modelRecord struct {
	id    string
	n     int // how many records were seen before it
	says  map[int]*modelReport
	state string // "" when the record does not exist
	title string
	loc   string
	hash  string
	stamp event.Stamp // of the last event
}

type modelReport struct {
	alive bool
	item  event.Item // the last report; after an absence the one before it, not alive
}

type modelWalk struct {
	met     map[string]event.Item // the newest item of each record
	present map[string]bool
	back    map[string]event.Item
}

func newModel(reference bool, sources int) *model {
	m := &model{reference: reference, rank: map[int]int{}, records: map[string]*modelRecord{}, walks: map[int]*modelWalk{}, owners: map[string]*modelRecord{}}
	for i := range sources {
		m.rank[i] = i
		m.start(i)
	}
	return m
}

func (m *model) start(source int) {
	m.walks[source] = &modelWalk{met: map[string]event.Item{}, present: map[string]bool{}, back: map[string]event.Item{}}
}

func (m *model) record(id string) *modelRecord {
	if m.records[id] == nil {
		m.records[id] = &modelRecord{id: id, n: len(m.records), says: map[int]*modelReport{}}
	}
	return m.records[id]
}

// meet applies an item of a walk. Even if the item itself is ignored, the authority is
// chosen anew: the order of the Sources may have changed since the record was last seen.
func (m *model) meet(source int, it event.Item) {
	w, r := m.walks[source], m.record(it.Record)
	s := r.says[source]
	defer m.settle(r, &it)
	// In a walk the newest item wins, of equal ones the first, whatever becomes of it.
	if met, again := w.met[it.Record]; again && (!met.Order.Known() || !it.Order.After(met.Order)) {
		return
	}
	w.met[it.Record] = it
	if !it.Deleted && !it.Unselected {
		w.present[it.Record] = true
	}
	delete(w.back, it.Record)
	if it.Quarantine || it.Unselected || it.Deleted && it.Complete {
		return
	}
	// The item that wins against the last report of the Source.
	switch {
	case s == nil || it.Order.After(s.item.Order):
	case it.Order.Before(s.item.Order):
		w.back[it.Record] = it
		return
	case s.alive == !it.Deleted && claim(&it) == claim(&s.item):
		return
	}
	m.say(source, it)
}

func claim(it *event.Item) int64 { return it.ClaimOf() }

// say sets the report of a Source about a record from now on.
func (m *model) say(source int, it event.Item) {
	r := m.record(it.Record)
	r.says[source] = &modelReport{alive: !it.Deleted, item: it}
	m.settle(r, &it)
}

// absent ends a Source's presence by absence, which has no stamp.
func (m *model) absent(source int, id string) {
	r := m.record(id)
	s := r.says[source]
	if s == nil || !s.alive {
		return
	}
	s.alive = false
	m.settle(r, &event.Item{Observation: event.Observation{Record: id, Deleted: true}})
}

// reorder gives the Sources another order.
func (m *model) reorder(order []int) {
	for rank, source := range order {
		m.rank[source] = rank
	}
}

// settle logs an event when the state is not the one that the highest-ranked Source that
// has the record reports.
func (m *model) settle(r *modelRecord, cause *event.Item) {
	authority := -1
	for source, s := range r.says {
		if s.alive && (authority < 0 || m.rank[source] < m.rank[authority]) {
			authority = source
		}
	}
	if authority < 0 {
		if r.state == "" {
			return
		}
		stamp := cause.Modified
		if !stamp.Known() {
			stamp = r.stamp
		}
		title := r.title
		if cause.Title != "" {
			title = cause.Title
		}
		r.state, r.title, r.stamp, r.hash = "", title, stamp, ""
		unlisted := m.reference && m.owners[r.loc] != r
		m.leave(r, r.loc, func() { m.log("deleted", r, unlisted, false, "") })
		return
	}
	it := r.says[authority].item
	loc := ""
	if m.reference {
		loc = it.Representations[it.Preferred].Href
	}
	rep := it.Representations[0]
	state := fmt.Sprintf("%q %q %q %q", it.Title, loc, rep.Hash, it.ViaHref())
	if rep.Hash == "" {
		state += rep.Href + it.Modified.String()
	}
	if state == r.state {
		return
	}
	kind, moved, gone := "created", false, ""
	old := r.loc
	if r.state != "" {
		kind = "updated"
		if moved = old != loc; moved && m.owners[old] == r {
			gone = old
		}
	}
	r.state, r.loc, r.title, r.stamp, r.hash = state, loc, it.Title, it.Modified, rep.Hash
	log := func() {
		if m.reference && m.owners[loc] == nil {
			m.owners[loc] = r
		}
		unlisted := m.reference && m.owners[loc] != r
		m.log(kind, r, unlisted, moved && !unlisted, gone)
	}
	if !moved {
		log()
		return
	}
	m.leave(r, old, log)
}

// leave removes a record from a URI and logs that. If the record owned the URI, the one
// at that URI that was first seen last becomes the owner (D109).
func (m *model) leave(r *modelRecord, loc string, log func()) {
	if m.owners[loc] != r {
		log()
		return
	}
	delete(m.owners, loc)
	log()
	var heir *modelRecord
	for _, other := range m.records {
		if other != r && other.state != "" && other.loc == loc && (heir == nil || other.n > heir.n) {
			heir = other
		}
	}
	if heir != nil {
		m.owners[loc] = heir
		m.log("updated", heir, false, true, "")
	}
}

func (m *model) log(kind string, r *modelRecord, unlisted, arrived bool, gone string) {
	m.events = append(m.events, line(kind, r.id, r.stamp, r.title, r.hash, r.loc, gone, arrived, unlisted))
}

// line writes an event for the comparison: all but its place and its time in the log.
func line(kind, record string, stamp event.Stamp, title, hash, loc, gone string, arrived, unlisted bool) string {
	return fmt.Sprintf("%s %s @%v %q %s at=%s gone=%s arrived=%v unlisted=%v", kind, record, stamp, title, hash, loc, gone, arrived, unlisted)
}

func lineOf(ev *event.Event) string {
	hash := ""
	if r, ok := ev.Pref(); ok {
		hash = r.Hash
	}
	return line(ev.Kind.String(), ev.Record, ev.Modified, ev.Title, hash, ev.Loc, ev.Gone, ev.Arrived, ev.Unlisted)
}

// live returns the records that exist.
func (m *model) live() string {
	var out []string
	for id, r := range m.records {
		if r.state != "" {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

// listed returns the entries of lists: the live records, in mode reference their URIs,
// each once.
func (m *model) listed() string {
	if !m.reference {
		return m.live()
	}
	var out []string
	for _, r := range m.records {
		if r.state != "" {
			out = append(out, r.loc)
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), " ")
}

// missing returns what a Source has and was not present in its walk.
func (m *model) missing(source int) []string {
	var out []string
	for id, r := range m.records {
		if s := r.says[source]; s != nil && s.alive && !m.walks[source].present[id] {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}
