package eventlog

import (
	"context"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// echo tells whether an item comes from a bridge that has the record from this
// set, or from a Source of this set: its via is the original that the set has,
// or had, from another Source. Were that a presence, what is deleted at its
// origin would live on in a ring of bridges.
func (a *asker) echo(r *record, it *event.Item) (bool, error) {
	if it.Via.Href == "" || it.Deleted || !a.others {
		return false, nil
	}
	if home := a.targets.home[it.SourceIdentifier]; home != nil {
		if echo, err := home.has(it.Via.Href, 0); echo || err != nil {
			return echo, err
		}
	}
	return r.has(it.Via.Href, a.source)
}

// has tells whether a Source, but for one, says that this is the original, or was
// the last to say so.
func (r *record) has(via string, but event.SourceID) (bool, error) {
	for i := range r.says {
		if r.says[i].source == but {
			continue
		}
		obs, err := r.word(i)
		if err != nil {
			return false, err
		}
		if obs != nil && obs.ViaHref() == via || r.says[i].had(via) {
			return true, nil
		}
	}
	return false, nil
}

// had tells whether the Source has said before that this is the original.
func (s *said) had(via string) bool {
	return len(s.vias) > 0 && slices.Contains(s.vias, event.KeyBits(via))
}

// remember keeps where the original was, when an item says that it is elsewhere.
func (r *record) remember(s *said, it *event.Item) error {
	if it.Deleted || r.last == nil && s == &r.says[r.speaker] { // nothing that counts has changed
		return nil
	}
	obs, err := r.word(slices.IndexFunc(r.says, func(o said) bool { return o.source == s.source }))
	if err != nil || obs == nil {
		return err
	}
	if via := obs.ViaHref(); via != "" && via != it.ViaHref() && !s.had(via) {
		s.vias = append(s.vias[max(0, len(s.vias)-keptVias+1):len(s.vias):len(s.vias)], event.KeyBits(via))
	}
	return nil
}

// disown takes the presence of bridges away that have given the record before
// its original came from a Source of the set itself.
func (a *asker) disown(r *record, it *event.Item) error {
	if it.Via.Href != "" || !a.others {
		return nil
	}
	own, via := r.by(a.source), it.ViaHref()
	for i := range r.says {
		s := &r.says[i]
		if s.source == a.source || !s.alive {
			continue
		}
		obs, err := r.word(i)
		if err != nil {
			return err
		}
		if obs != nil && obs.Via.Href != "" && (obs.Via.Href == via || own.had(obs.Via.Href)) {
			s.alive, s.shadow, s.word, s.dirty = false, nil, nil, true
		}
	}
	return nil
}

// word returns what says[i] stands for, as far as it is known: the log has that
// of the speaker, alive or deleted.
func (r *record) word(i int) (*event.Observation, error) {
	switch v, err := r.says[i].kept(r); {
	case v != nil:
		return &v.obs, nil
	case err != nil, i != r.speaker || r.seq == 0:
		return nil, err
	case r.last == nil:
		return nil, r.missing()
	}
	return &r.last.obs, nil
}

// modified is when the record was modified, by the last word of a Source;
// unknown when that does not say.
func (r *record) modified(source event.SourceID) event.Stamp {
	i := slices.IndexFunc(r.says, func(s said) bool { return s.source == source })
	if p := r.pending; p != nil && !p.partial {
		return p.modified
	}
	if i < 0 {
		return event.Stamp{}
	}
	obs, err := r.word(i)
	if err != nil || obs == nil {
		return event.Stamp{}
	}
	return obs.Modified
}

// takeEcho notes what the bridge said, so that it need not be looked at again,
// and takes its presence away if it had one.
func (a *asker) takeEcho(r *record, it *event.Item, h *hashes, d *decision) error {
	s := r.by(a.source)
	if s == nil {
		s = r.add(a.source)
	}
	s.alive, s.dirty = false, true
	s.say(it, it.Late, a.ordering)
	d.pending, d.said = remove, true
	err := a.speak(r, s, it, h, d)
	if d.outcome != event.Logged {
		d.outcome = event.Loopback
	}
	return err
}

// loadHomes looks up what may come back under another identifier.
func (b *batch) loadHomes(ctx context.Context, q preparer) error {
	var names []event.Item
	for i := range b.in.Items {
		if it := &b.in.Items[i]; it.SourceIdentifier != "" && it.Via.Href != "" && !it.Deleted {
			names = append(names, event.Item{Observation: event.Observation{Record: it.SourceIdentifier}})
		}
	}
	if len(names) == 0 || !b.source.others {
		return nil
	}
	look := &batch{l: b.l, in: &event.Batch{Source: b.in.Source, Items: names}, set: b.set, source: b.source}
	var err error
	if look.records, err = look.find(ctx, q); err != nil {
		return err
	}
	if err := look.loadLast(ctx, q); err != nil {
		return err
	}
	b.targets.home = make(map[string]*record, len(names))
	for _, r := range look.records {
		b.targets.home[r.identifier] = r
	}
	return nil
}
