package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// echo tells whether an item comes from a bridge that has the record from this
// set, or from a Source of this set: its via is the original that the set has,
// or had, from another Source. Were that a presence, what is deleted at its
// origin would live on in a ring of bridges.
func (b *batch) echo(it *event.Item, r *record) (bool, error) {
	if it.Via.Href == "" || it.Deleted || !b.source.others {
		return false, nil
	}
	if home := b.targets.home[it.SourceIdentifier]; home != nil {
		if echo, err := home.has(it.Via.Href, 0); echo || err != nil {
			return echo, err
		}
	}
	return r.has(it.Via.Href, b.source.id)
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
	if it.Deleted || r.last == nil && s == &r.says[0] { // nothing that counts has changed
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
func (b *batch) disown(it *event.Item, r *record) error {
	if it.Via.Href != "" || !b.source.others {
		return nil
	}
	own, via := r.by(b.source.id), it.ViaHref()
	for i := range r.says {
		s := &r.says[i]
		if s.source == b.source.id || !s.alive {
			continue
		}
		obs, err := r.word(i)
		if err != nil {
			return err
		}
		if obs != nil && obs.Via.Href != "" && (obs.Via.Href == via || own.had(obs.Via.Href)) {
			s.alive, s.shadow, s.dirty = false, nil, true
		}
	}
	return nil
}

// word returns what says[i] stands for, as far as it is known: the log has the
// first one's, alive or deleted.
func (r *record) word(i int) (*event.Observation, error) {
	s := &r.says[i]
	switch {
	case s.shadow != nil:
		var v body
		if err := readBody(s.shadow, &v); err != nil {
			return nil, fmt.Errorf("record %q: what Source %d says of it: %w: run bridge verify", r.identifier, s.source, err)
		}
		return &v.obs, nil
	case i > 0 || r.seq == 0:
		return nil, nil
	case r.last == nil:
		return nil, r.missing()
	}
	return &r.last.obs, nil
}

// takeEcho notes what the bridge said, so that it need not be looked at again,
// and takes its presence away if it had one.
func (b *batch) takeEcho(ctx context.Context, i int, r *record) (event.Outcome, error) {
	it := &b.in.Items[i]
	if err := b.unwait(ctx, r); err != nil {
		return 0, err
	}
	s := r.by(b.source.id)
	if s == nil {
		r.says = append(r.says, said{source: b.source.id})
		s = &r.says[len(r.says)-1]
	}
	s.alive, s.dirty = false, true
	s.say(it, it.Late)
	b.touch(r)
	out, err := b.speak(ctx, i, r, s)
	if out != event.Logged {
		out = event.Echoed
	}
	return out, err
}

// loadVias loads the last events of records that the items may echo.
func (b *batch) loadVias(ctx context.Context, q preparer) error {
	if !b.source.others {
		return nil
	}
	for i := range b.in.Items {
		if b.in.Items[i].Via.Href != "" {
			return errors.Join(b.loadHomes(ctx, q), b.loadLast(ctx, q))
		}
	}
	return nil
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
