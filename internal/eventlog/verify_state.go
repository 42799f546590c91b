package eventlog

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

func (v *verifier) readStates() error {
	if err := v.each("SELECT id, seq, digest, source_state FROM record", func(rows *sql.Rows) error {
		var record, seq int64
		var digest sql.NullInt64
		var raw sql.RawBytes
		if err := rows.Scan(&record, &seq, &digest, &raw); err != nil {
			return err
		}
		r := v.known(record)
		if r == nil {
			return nil
		}
		o := ordinal(record) - 1
		place := fmt.Sprintf("set %s, record %d", r.set.Name, o+1)
		if r.last[o] != 0 {
			r.missing--
		}
		live := r.live.has(o)
		if seq != r.last[o] || digest.Valid != live || live && digest.Int64 != r.digests[o] {
			v.found(place, "its state is not what the events make of it: last event %d, the log has %d", seq, r.last[o])
		}
		if raw == nil && seq == 0 {
			return nil
		}
		s, err := readSourceState(raw, nil, record)
		v.names(place, s.source, record, err == nil)
		v.holds(&s, record)
		if err == nil && live && !s.alive {
			v.found(place, "it is live, and Source %d, its authority, does not have it", s.source)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, r := range v.order {
		if r.missing > 0 {
			v.found("set "+r.set.Name, "%d records have events and no state", r.missing)
		}
	}
	return nil
}

func (v *verifier) readPresence() error {
	return v.each("SELECT record, source, source_state, suppressed FROM presence", func(rows *sql.Rows) error {
		var record int64
		var source event.SourceID
		var raw, suppressed []byte
		if err := rows.Scan(&record, &source, &raw, &suppressed); err != nil {
			return err
		}
		place := fmt.Sprintf("Source %d, record %d", source, ordinal(record))
		s, err := readSourceState(raw, suppressed, record)
		v.names(place, source, record, err == nil && s.source == source)
		v.holds(&s, record)
		if suppressed != nil {
			v.observed(place, suppressed)
		}
		if r := v.sets[record>>32]; err == nil && s.alive && (suppressed == nil || r != nil && !r.live.has(ordinal(record)-1)) {
			v.found(place, "the Source has the record, and the record is not live or what the Source says of it is missing")
		}
		return nil
	})
}

// holds collects which records a Source has.
func (v *verifier) holds(s *sourceState, record int64) {
	if !s.alive {
		return
	}
	if v.has[s.source] == nil {
		v.has[s.source] = new(seqs)
	}
	v.has[s.source].add(ordinal(record))
}

func (v *verifier) readHas() error {
	if err := v.each("SELECT source, page, bits FROM source_records", func(rows *sql.Rows) error {
		var at hasPage
		var sealed sql.RawBytes
		if err := rows.Scan(&at.source, &at.n, &sealed); err != nil {
			return err
		}
		place := fmt.Sprintf("Source %d, page %d", at.source, at.n)
		var p page
		if err := p.unseal(at, sealed); err != nil {
			v.found(place, "%v", err)
			return nil
		}
		has := v.has[at.source]
		if has == nil {
			has = new(seqs)
		}
		for o := at.n * pageBits; o < (at.n+1)*pageBits; o++ {
			there := p[o%pageBits/8]&(1<<(o%8)) != 0
			if there != has.has(o) {
				v.found(place, "it says %v of whether the Source has record %d", there, o)
			}
			has.remove(o)
		}
		return nil
	}); err != nil {
		return err
	}
	for source, has := range v.has {
		if has.n > 0 {
			v.found(fmt.Sprintf("Source %d", source), "%d records that it has are missing", has.n)
		}
	}
	return nil
}

func (v *verifier) readLocs() error {
	others := map[int64]int64{} // by key, so far as they were not found there
	if err := v.each("SELECT key, record FROM loc_other", func(rows *sql.Rows) error {
		var key, record int64
		err := rows.Scan(&key, &record)
		if err == nil {
			others[key]++
			v.located(key, record, false)
		}
		return err
	}); err != nil {
		return err
	}
	if err := v.each("SELECT key, owner, others FROM loc", func(rows *sql.Rows) error {
		var key, owner, n int64
		err := rows.Scan(&key, &owner, &n)
		if err == nil {
			v.located(key, owner, true)
			if n != others[key] {
				v.found(fmt.Sprintf("key %d", key), "%d records share that URI, %d were counted", others[key], n)
			}
			delete(others, key)
		}
		return err
	}); err != nil {
		return err
	}
	if len(others) > 0 {
		v.found("", "%d URIs that records share have no owner", len(others))
	}
	for _, r := range v.order {
		if r.located != 0 {
			v.found("set "+r.set.Name, "%d live records have no URI", r.located)
		}
	}
	return nil
}

// located checks that a record is at a URI, and whether it owns that.
func (v *verifier) located(key, record int64, owns bool) {
	r := v.known(record)
	if r == nil {
		return
	}
	o := ordinal(record) - 1
	if r.locs == nil || r.locs[o] != key || r.listed.has(o) != owns {
		v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o+1), "it is not at the URI that its last event has, or it is the wrong one that lists have")
		return
	}
	r.located--
}

func (v *verifier) readLinks() error {
	if err := v.each("SELECT key, record FROM link", func(rows *sql.Rows) error {
		var key, record int64
		if err := rows.Scan(&key, &record); err != nil {
			return err
		}
		r := v.known(record)
		if r == nil {
			return nil
		}
		o := ordinal(record) - 1
		at, ok := slices.BinarySearch(r.links[o], key)
		if !ok {
			v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o+1), "its last event has no such link")
			return nil
		}
		r.links[o] = slices.Delete(r.links[o], at, at+1)
		return nil
	}); err != nil {
		return err
	}
	for _, r := range v.order {
		for o, keys := range r.links {
			if len(keys) > 0 {
				v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o+1), "links of its last event are missing")
			}
		}
	}
	return nil
}

// waits checks a row of one of the tables in which records wait. err is that of the
// row, raw its observation if it has one.
func (v *verifier) waits(key waitingKey, raw []byte, err error) error {
	if err != nil && !errors.Is(err, errDamaged) {
		return err
	}
	place := fmt.Sprintf("Source %d, record %d", key.source, ordinal(key.record))
	v.names(place, key.source, key.record, err == nil)
	if raw != nil {
		v.observed(place, raw)
	}
	return nil
}

func (v *verifier) readPending() error {
	return v.each("SELECT "+pendingColumns+" FROM pending", func(rows *sql.Rows) error {
		var p pendingRow
		err := p.scan(rows)
		return v.waits(p.waitingKey, p.raw, err)
	})
}

func (v *verifier) readRegressed() error {
	return v.each("SELECT "+regressedColumns+" FROM regressed", func(rows *sql.Rows) error {
		var g regressedRow
		err := g.scan(rows)
		return v.waits(g.waitingKey, g.raw, err)
	})
}

func (v *verifier) readOrders() error {
	return v.each("SELECT "+orderColumns+" FROM seen_order", func(rows *sql.Rows) error {
		var o orderRow
		err := o.scan(rows)
		return v.waits(o.waitingKey, nil, err)
	})
}

func (v *verifier) readHeld() error {
	return v.each("SELECT "+heldColumns+" FROM held_deletion", func(rows *sql.Rows) error {
		var h heldRow
		err := h.scan(rows)
		return v.waits(h.waitingKey, nil, err)
	})
}

func (v *verifier) readHosts() error {
	return v.each(selectHosts, func(rows *sql.Rows) error {
		name, _, err := scanHost(rows)
		if errors.Is(err, errDamaged) {
			v.found(fmt.Sprintf("host %q", name), "it is not what was stored")
			return nil
		}
		return err
	})
}

func (v *verifier) readSchedules() error {
	return v.each("SELECT source, "+scheduleColumns+" FROM schedule sch", func(rows *sql.Rows) error {
		var source event.SourceID
		var s scheduleRow
		if err := rows.Scan(append([]any{&source}, s.columns()...)...); err != nil {
			return err
		}
		if _, known := v.sources[source]; !known {
			v.found(fmt.Sprintf("Source %d", source), "it is missing")
		} else if _, err := s.schedule(source); err != nil {
			v.found(fmt.Sprintf("Source %d", source), "it is not what was stored")
		}
		return nil
	})
}

func (v *verifier) readMet() error {
	return v.each("SELECT source, page, bits FROM seen", func(rows *sql.Rows) error {
		var source, n int64
		var sealed sql.RawBytes
		if err := rows.Scan(&source, &n, &sealed); err != nil {
			return err
		}
		_, known := v.sources[event.SourceID(source)]
		if bits, err := unseal(columns{record: n, set: source}, sealed); err != nil || len(bits) != 2*len(page{}) || !known {
			v.found(fmt.Sprintf("Source %d, page %d", source, n), "it is not what was stored, or the Source is missing")
		}
		return nil
	})
}

func (v *verifier) readQuarantine() error {
	return v.each("SELECT "+quarantineColumns+", q.input, q.sum FROM quarantine q", func(rows *sql.Rows) error {
		var input []byte
		var sum int64
		q, err := scanQuarantined(rows, &input, &sum)
		if err != nil {
			return err
		}
		q.Input = input
		if _, known := v.sources[q.Source]; !known || sum != quarantineSum(&q) {
			v.found(fmt.Sprintf("number %d", q.ID), "it is not what was stored, or its Source %d is missing", q.Source)
		}
		return nil
	})
}
