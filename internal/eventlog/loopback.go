package eventlog

import (
	"context"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// isLoopback reports whether an item comes from a bridge that has the record from this
// set, or from a Source of this set: its via is the original that the set has, or had,
// from another Source. If that counted as a presence, a record deleted at its origin
// would live on in a cycle of bridges.
func (a *decider) isLoopback(r *record, it *event.Item) (bool, error) {
	if it.Via.Href == "" || it.Deleted || !a.others || a.members[a.source] {
		return false, nil
	}
	if own := a.targets.ownIDs[it.SourceIdentifier]; own != nil {
		if loopback, err := own.hasOriginal(it.Via.Href, 0); loopback || err != nil {
			return loopback, err
		}
	}
	return r.hasOriginal(it.Via.Href, a.source)
}

// hasOriginal reports whether a Source other than except reports via as the original of
// the record, or was the last to do so.
func (r *record) hasOriginal(via string, except event.SourceID) (bool, error) {
	for i := range r.sources {
		if r.sources[i].source == except {
			continue
		}
		obs, err := r.observation(i)
		if err != nil {
			return false, err
		}
		if obs != nil && sameOriginal(obs.ViaHref(), via) || r.sources[i].hadVia(via) {
			return true, nil
		}
	}
	return false, nil
}

// sameOriginal reports whether two URLs are of one original, in whatever format: a bridge
// publishes as a URI what its Source writes otherwise.
func sameOriginal(a, b string) bool { return a == b || event.Original(a) == event.Original(b) }

// hadVia reports whether the Source has reported via as the original before. Formerly it was
// stored as it is written.
func (s *sourceState) hadVia(via string) bool {
	return len(s.vias) > 0 && (slices.Contains(s.vias, event.KeyBits(event.Original(via))) || slices.Contains(s.vias, event.KeyBits(via)))
}

// rememberVia stores the URL of the original that a Source has reported so far, when it reports
// another one, or that report is dropped: then via is "".
func (r *record) rememberVia(s *sourceState, via string) error {
	if r.last == nil && s == &r.sources[r.authority] { // nothing that counts has changed
		return nil
	}
	obs, err := r.observation(slices.IndexFunc(r.sources, func(o sourceState) bool { return o.source == s.source }))
	if err != nil || obs == nil {
		return err
	}
	if was := obs.ViaHref(); was != "" && !sameOriginal(was, via) && !s.hadVia(was) {
		s.vias = append(s.vias[max(0, len(s.vias)-maxVias+1):len(s.vias):len(s.vias)], event.KeyBits(event.Original(was)))
	}
	return nil
}

// dropLoopback removes the presence of bridges that returned the record before a Source
// of the set itself reported the original.
func (a *decider) dropLoopback(r *record, it *event.Item) error {
	if it.Via.Href != "" || !a.others || a.members[a.source] {
		return nil
	}
	own, via := r.of(a.source), it.ViaHref()
	for i := range r.sources {
		s := &r.sources[i]
		if s.source == a.source || !s.alive || a.members[s.source] {
			continue
		}
		obs, err := r.observation(i)
		if err != nil {
			return err
		}
		if obs != nil && obs.Via.Href != "" && (sameOriginal(obs.Via.Href, via) || own.hadVia(obs.Via.Href)) {
			s.alive, s.suppressed, s.unsaved, s.dirty = false, nil, nil, true
		}
	}
	return nil
}

// observation returns what sources[i] last reported, as far as it is known. The observation
// of the authority is in the log, alive or deleted.
func (r *record) observation(i int) (*event.Observation, error) {
	switch v, err := r.sources[i].suppressedBody(r); {
	case v != nil:
		return &v.obs, nil
	case err != nil, i != r.authority || r.seq == 0:
		return nil, err
	case r.last == nil:
		return nil, r.missingEvent()
	}
	return &r.last.obs, nil
}

// modified returns when the record was modified, by the last report of a Source; unknown
// when the report does not state it.
func (r *record) modified(source event.SourceID) event.Stamp {
	i := slices.IndexFunc(r.sources, func(s sourceState) bool { return s.source == source })
	if p := r.pending; p != nil && !p.partial {
		return p.v.obs.Modified
	}
	if i < 0 {
		return event.Stamp{}
	}
	obs, err := r.observation(i)
	if err != nil || obs == nil {
		return event.Stamp{}
	}
	return obs.Modified
}

// applyLoopback stores the bridge's report, so that the same report need not be checked
// again, and removes its presence if it had one.
func (a *decider) applyLoopback(r *record, it *event.Item, h *hashes, d *decision) error {
	s := r.of(a.source)
	if s == nil {
		s = r.addSource(a.source)
	}
	s.alive, s.dirty = false, true
	s.set(it, it.Late, a.ordering)
	d.pending, d.changed = remove, true
	err := a.publishState(r, s, it, h, d)
	if d.outcome != event.Logged {
		d.outcome = event.Loopback
	}
	return err
}

// loadOwnIDs looks up the records that may come back under another identifier.
func (b *batch) loadOwnIDs(ctx context.Context, q preparer) error {
	var names []*event.Item
	for i := range b.in.Items {
		if it := b.in.Items[i]; it.SourceIdentifier != "" && it.Via.Href != "" && !it.Deleted {
			names = append(names, &event.Item{Observation: event.Observation{Record: it.SourceIdentifier}})
		}
	}
	if len(names) == 0 || !b.source.others {
		return nil
	}
	look := &batch{l: b.l, in: &event.Batch{Source: b.in.Source, Items: names}, set: b.set, source: b.source, late: b.late}
	var err error
	if look.records, err = look.find(ctx, q); err != nil {
		return err
	}
	if err := look.loadLast(ctx, q); err != nil {
		return err
	}
	b.targets.ownIDs = make(map[string]*record, len(names))
	for _, r := range look.records {
		b.targets.ownIDs[r.identifier] = r
	}
	return nil
}
