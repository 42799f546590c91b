package eventlog

import (
	"database/sql"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// readSubmissions checks each submission, and what it says of the log: that a
// target's was made of an event of its set, and that what was accepted here is a
// record of the set.
//
// What the target of another set has taken is left out: the log does not tell
// since when a target passes its records on.
func (v *verifier) readSubmissions(has map[counted]int64) error {
	var group []event.Submission // to be looked up together
	if err := v.each("SELECT b.id, b.source, '', "+submissionColumns, func(rows *sql.Rows) error {
		s, err := scanSubmission(rows)
		if s.ID == 0 && err != nil {
			return err
		}
		has[counted{s.Source, tallySubmissions, int64(s.State)}]++
		if waitsForReview(s.State, &s) {
			has[counted{s.Source, tallyReview, 0}]++
		}
		if s.Conflicts > 0 {
			has[counted{s.Source, tallyContradicted, 0}]++
		}
		place := fmt.Sprintf("submission %d", s.ID)
		if _, known := v.sources[s.Source]; err != nil || !known {
			if err == nil {
				err = fmt.Errorf("its Source %d is missing", s.Source)
			}
			v.found(place, "%v", err)
			return nil
		}
		if s.Seq == 0 && s.State != event.StateAccepted && !s.ImportPending {
			return nil
		}
		if group = append(group, s); len(group) < lookup {
			return nil
		}
		err = v.published(group)
		group = group[:0]
		return err
	}); err != nil {
		return err
	}
	return v.published(group)
}

// published looks up what submissions have to do with events.
func (v *verifier) published(group []event.Submission) error {
	var keys, events []int64
	for i := range group {
		if s := &group[i]; s.Seq != 0 {
			events = append(events, eventID(v.sources[s.Source], s.Seq))
		} else {
			keys = append(keys, event.KeyBits(s.Assigned))
		}
	}
	records, err := v.recordsWith(keys)
	if err != nil {
		return err
	}
	made, err := v.recordsAt(events)
	if err != nil {
		return err
	}
	for i := range group {
		s := &group[i]
		set := v.sources[s.Source]
		place := fmt.Sprintf("submission %d", s.ID)
		if s.ImportPending && (s.Seq == 0 || s.State != event.StateAccepted) {
			v.found(place, "it is to be taken into another set, and is %s, made of event %d", s.State, s.Seq)
		}
		switch of, ok := made[s.Seq]; {
		case s.Seq == 0 && s.State == event.StateAccepted && !records[named{set, s.Assigned}]:
			v.found(place, "it was accepted as %q, and its set has no event of such a record", s.Assigned)
		case s.Seq != 0 && !ok:
			v.found(place, "it was made of event %d, which is missing", s.Seq)
		case s.Seq != 0 && of != named{} && of != named{set, s.Record}:
			v.found(place, "it was made of event %d, which is not one of record %q in its set", s.Seq, s.Record)
		}
	}
	return nil
}

// named is a record by its set and identifier.
type named struct {
	set        int64
	identifier string
}

var (
	selectNamed = "SELECT k.record, r.identifier FROM record_key k JOIN record r ON r.id = k.record WHERE k.key IN (" + sqlite.Params(lookup) + ")"
	selectMade  = "SELECT " + eventColumns + " FROM event WHERE id IN (" + sqlite.Params(lookup) + ")"
)

// recordsWith returns the records under some keys that have events.
func (v *verifier) recordsWith(keys []int64) (map[named]bool, error) {
	found := map[named]bool{}
	return found, each(v.ctx, reading{v.q}, selectNamed, keys, func(rows *sql.Rows) error {
		var id int64
		var identifier string
		err := rows.Scan(&id, &identifier)
		if r, o := v.sets[id>>32], ordinal(id); r != nil && 0 < o && o <= int64(len(r.last)) && r.last[o-1] != 0 {
			found[named{r.set.id, identifier}] = true
		}
		return err
	})
}

// recordsAt returns of which records the events at some places are; of nobody's a
// damaged one, which is found with the events.
func (v *verifier) recordsAt(places []int64) (map[event.Seq]named, error) {
	found := map[event.Seq]named{}
	return found, each(v.ctx, reading{v.q}, selectMade, places, func(rows *sql.Rows) error {
		var c columns
		var b body
		sealed, err := c.scan(rows)
		if err != nil {
			return err
		}
		found[event.Seq(c.seq)] = named{}
		if raw, err := unseal(c, sealed); err == nil && readBody(raw, &b) == nil {
			found[event.Seq(c.seq)] = named{c.set, b.obs.Record}
		}
		return nil
	})
}
