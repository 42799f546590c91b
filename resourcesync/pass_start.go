package resourcesync

import (
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// start plans a new walk.
func (p *pass) start() error {
	m := &p.cur.Memory
	if len(m.Streams) == 0 || p.w.Full {
		return p.discover()
	}
	for i := range m.Descriptions {
		same, err := p.describes(&m.Descriptions[i])
		if err != nil {
			return err
		}
		if !same {
			return p.discover()
		}
	}
	return p.plan()
}

// describes tells whether a Source Description still names the same documents.
func (p *pass) describes(d *naming) (bool, error) {
	l, err := p.open(d.URL, d.Validators)
	switch {
	case follow.Status(err) == http.StatusNotModified && d.Validators != follow.Validators{}:
		return true, nil
	case missing(err):
		return false, nil
	case err != nil:
		return false, err
	}
	var sum digest
	_, err = l.entries(func(e *Entry) { sum.add(e.Loc) })
	var fault *DocumentError
	switch {
	case errors.As(err, &fault):
		return false, nil
	case err != nil:
		return false, err
	}
	d.Validators = l.answer.Validators
	return sum.String() == d.Sum, nil
}

// discover finds the Source's lists from the beginning and plans the walk. It is
// done once in a run.
func (p *pass) discover() error {
	p.surveyed = true
	d := newDiscovery(p)
	err := d.run()
	if follow.Status(err) == http.StatusGone && d.entry {
		p.ended = true
		p.cur.Steps, p.cur.Due = nil, false
		return nil
	}
	if err != nil {
		return err
	}
	for _, g := range d.missing {
		p.gap(g)
	}
	p.cur.Memory.Descriptions, p.cur.Memory.Partial = d.descriptions, d.partial
	p.adopt(d.found.Sets, d.validators)
	return p.plan()
}

// adopt makes the streams those of the sets that were found. What is known of a
// stream goes on with it. validators are those of the Capability Lists.
func (p *pass) adopt(sets []Lists, validators map[string]follow.Validators) {
	before := p.cur.Memory.Streams
	streams := make([]stream, len(sets))
	known := 0
	for i, set := range sets {
		streams[i].Lists = set
		j := slices.IndexFunc(before, func(s stream) bool { return s.same(set) })
		if j >= 0 {
			known++
			streams[i] = before[j]
			p.rename(&streams[i], set)
		} else {
			streams[i].Number = p.cur.Memory.Numbers
			p.cur.Memory.Numbers++
			p.cur.Due = p.cur.Due || set.ResourceList != ""
		}
		streams[i].Named = validators[set.CapabilityList]
	}
	if known < len(before) {
		p.cur.Due = true
	}
	p.cur.Memory.Streams = streams
}

// same tells whether a stream is that of a set: the Capability List says so, or,
// where there is none, the lists.
func (s *stream) same(set Lists) bool {
	if s.CapabilityList != "" || set.CapabilityList != "" {
		return s.CapabilityList == set.CapabilityList
	}
	return s.Lists == set
}

// rename gives a stream the lists that its Capability List names now. A Change
// List that follows another one goes on from it; any other difference makes a
// baseline due.
func (p *pass) rename(s *stream, to Lists) {
	if s.ChangeList != to.ChangeList {
		s.Open, s.Closed, s.Final = nil, false, closing{}
		p.cur.Due = p.cur.Due || s.ChangeList == "" || to.ChangeList == ""
	}
	if s.ResourceList != to.ResourceList {
		s.Parts = nil
		p.cur.Due = true
	}
	s.Lists = to
}

// plan puts together the first steps, and finds out whether a baseline is due.
func (p *pass) plan() error {
	p.cur.Steps, p.cur.Planned = nil, false
	for i := range p.cur.Memory.Streams {
		s := p.stream(i)
		if s.Known && !p.surveyed && (s.ChangeList == "" || s.Closed) {
			switch err := p.ask(i); {
			case follow.Missing(err):
				return p.discover()
			case err != nil:
				if err := p.survives(err); err != nil {
					return err
				}
			}
		}
		if s.ChangeList != "" {
			p.cur.Steps = append(p.cur.Steps, step{Stream: i, URL: s.ChangeList, Validators: s.before[s.ChangeList]})
		}
	}
	for i := range p.cur.Memory.Streams {
		if s := p.stream(i); s.ChangeList == "" && !p.cur.Due {
			if replanned, err := p.probe(i); replanned || err != nil {
				return err
			}
		}
	}
	if !p.cur.Due {
		return nil
	}
	p.planBaseline()
	return p.peek()
}

// probe finds out whether a stream that has only a Resource List has changed. A
// baseline is due then. replanned tells that the Source was discovered anew.
func (p *pass) probe(stream int) (replanned bool, err error) {
	s := p.stream(stream)
	urls := append([]string{s.ResourceList}, s.Parts...)
	for _, url := range urls {
		if s.before[url] == (follow.Validators{}) {
			p.cur.Due = true
			return false, nil
		}
	}
	for i, url := range urls {
		l, err := p.open(url, s.before[url])
		switch {
		case err == nil:
			p.cur.Due = true
			if i == 0 {
				p.hold(l)
			} else {
				l.close()
			}
			return false, nil
		case follow.Status(err) == http.StatusNotModified:
		case i == 0 && follow.Missing(err) && !p.surveyed:
			return true, p.discover()
		case missing(err):
			p.cur.Due = true
			return false, nil
		default:
			return false, err
		}
	}
	s.Validators = maps.Clone(s.before)
	return false, nil
}

// planBaseline puts the Resource Lists of all streams at the end of the plan.
func (p *pass) planBaseline() {
	p.cur.Planned = true
	for i := range p.cur.Memory.Streams {
		if s := p.stream(i); s.ResourceList != "" {
			p.cur.Steps = append(p.cur.Steps, step{Stream: i, URL: s.ResourceList, Baseline: true})
		}
	}
}

// peek learns the at of the Resource Lists in streams that were never walked, to
// know which Change Lists go on from there.
func (p *pass) peek() error {
	for _, s := range slices.Clone(p.cur.Steps) {
		stream := p.stream(s.Stream)
		if !s.Baseline || stream.Known || stream.ChangeList == "" || slices.Contains(p.w.Accepted, s.URL) {
			continue
		}
		l, err := p.open(s.URL, follow.Validators{})
		if missing(err) {
			continue // said when its turn comes
		}
		if err != nil {
			return err
		}
		l.step, l.Baseline, l.Lists = s, true, stream.Lists
		if at := l.Head().At.Time(); !at.IsZero() && !l.Late(at) {
			stream.New.At = at
		}
		if !l.Head().Index {
			l.close()
			continue
		}
		p.cur.Steps = slices.DeleteFunc(p.cur.Steps, func(o step) bool { return o == s })
		if err := p.expand(l); err != nil {
			return err
		}
	}
	return nil
}
