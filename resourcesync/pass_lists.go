package resourcesync

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// expand puts the lists that an index names in its place.
func (p *pass) expand(l *List) error {
	s, head := l.step, l.Head()
	if s.Depth >= maxIndexes {
		l.close()
		return p.absent(s, fmt.Errorf("%s: indexes are nested more than %d deep", l.URL, maxIndexes))
	}
	if s.Depth > 0 {
		l.broken(ruleNested, "an index in an index", "a list; it is followed")
	}
	at := head.At.Time()
	var lists []step
	var sum digest
	whole, err := l.entries(func(e *Entry) {
		m := &e.Metadata
		sum.add(e.Loc, e.LastMod.String(), m.At.String())
		lists = append(lists, step{Stream: s.Stream, URL: e.Loc, Baseline: s.Baseline, Depth: s.Depth + 1,
			From: m.From.Time(), Until: m.Until.Time(), At: m.At.Time(), IndexAt: at})
	})
	var fault *DocumentError
	if errors.As(err, &fault) {
		return p.absent(s, err)
	}
	if err != nil {
		return err
	}
	if err := p.other(l.URL); err != nil {
		return err
	}
	p.read[follow.Key(l.Requested)], p.read[follow.Key(l.URL)] = true, true
	p.cur.Memory.validate(s.Stream, l)
	if len(lists) == 0 {
		l.broken(ruleEmpty, "an index without a list", "the lists of the Source")
	}
	if s.Baseline {
		p.cur.Incomplete = p.cur.Incomplete || !whole
		p.expandBaseline(l, lists, sum.String())
		return nil
	}
	return p.expandChanges(l, lists, whole)
}

func (p *pass) expandBaseline(l *List, lists []step, sum string) {
	s, stream := l.step, p.stream(l.step.Stream)
	if at := l.Head().At.Time(); !at.IsZero() {
		p.cur.moment(l, at)
	}
	if s.Depth == 0 {
		stream.Parts = nil
	}
	dated := true
	for i := range lists {
		dated = dated && !lists[i].At.IsZero()
		// One more than can be asked for tells settle that there are too many.
		if stream.ChangeList == "" && len(stream.Parts) <= keptValidators {
			stream.Parts = append(stream.Parts, lists[i].URL)
		}
	}
	if !dated {
		lists = append(lists, step{Stream: s.Stream, URL: l.Requested, Baseline: true, Depth: s.Depth, Sum: sum})
	}
	p.cur.Steps = merge(lists, p.cur.Steps)
}

func (p *pass) expandChanges(l *List, lists []step, whole bool) error {
	s, stream := l.step, p.stream(l.step.Stream)
	sorted := chronological(lists)
	if i := slices.IndexFunc(sorted, func(s step) bool { return s.From.IsZero() }); i >= 0 {
		l.broken(ruleFrom, "no from on "+sorted[i].URL, "one on every list, so that a Destination knows where it begins")
	}
	reach(sorted)
	if n := len(sorted); n > 0 && sorted[n-1].Until.IsZero() {
		sorted[n-1].Until = s.Until
	}
	for _, i := range holes(sorted) {
		l.broken(ruleHole, fmt.Sprintf("%s reaches to %s, and %s begins at %s", sorted[i-1].URL, stamp(sorted[i-1].Until), sorted[i].URL, stamp(sorted[i].From)),
			"no time between them")
	}
	if s.Depth == 0 {
		if turned, err := p.turns(l, oldest(l.Head(), sorted)); turned || err != nil {
			return err
		}
		stream.Open, stream.Closed = nil, true
	}
	if !whole {
		p.lost("which Change Lists there are cannot be told, since an entry of " + l.URL + " cannot be read")
	}
	for i := range sorted {
		sorted[i].Validators = stream.before[sorted[i].URL]
		if sorted[i].Until.IsZero() {
			stream.Open, stream.Closed = append(stream.Open, sorted[i].URL), false
		}
	}
	wanted := needed(sorted, p.since(stream))
	if n := len(sorted); n > 0 && len(stream.Open) == 0 {
		stream.Open = []string{sorted[n-1].URL}
		if len(wanted) == 0 && stream.Known {
			wanted = sorted[n-1:]
		}
	}
	unconditional(wanted)
	p.cur.Steps = merge(wanted, p.cur.Steps)
	return nil
}

// unconditional makes all lists newer than one that was not read before be read
// again, although they have not changed: else an older change would be the first
// that is met of its resource. lists begin with the newest.
func unconditional(lists []step) {
	oldest := len(lists) - 1
	for oldest >= 0 && lists[oldest].Validators != (follow.Validators{}) {
		oldest--
	}
	for i := range max(oldest, 0) {
		lists[i].Validators = follow.Validators{}
	}
}

// oldest is when the earliest of the lists begins. An index may say an earlier
// time, of lists that it has dropped since.
func oldest(index *Document, lists []step) time.Time {
	if len(lists) > 0 && !lists[0].From.IsZero() {
		return lists[0].From
	}
	return index.From.Time()
}

// since is the moment after which the changes of a stream are wanted.
func (p *pass) since(s *stream) time.Time {
	switch {
	case !s.Known:
		return s.New.At
	case s.Missed:
		return s.At
	case s.Mark.IsZero():
		return time.Time{}
	}
	return s.Mark.Add(-p.w.Overlap)
}

// turns looks at where the Change List, or the index, of a stream begins and
// ends. When something may come before or after it, the Capability List is asked
// once more; turned tells that the plan is another one then.
func (p *pass) turns(l *List, oldest time.Time) (turned bool, err error) {
	s, stream := l.step, p.stream(l.step.Stream)
	covered := latest(latest(stream.Mark, stream.Covered), s.Behind)
	late := stream.Known && !covered.IsZero() && oldest.After(covered)
	closed := !l.Head().Index && !l.open() && !p.surveyed && !p.asked[s.Stream] && stream.CapabilityList != ""
	if (late || closed) && !s.Again {
		return true, p.again(l, late)
	}
	switch {
	case late:
		p.lost(fmt.Sprintf("the changes from %s to %s are no longer in %s", stamp(covered), stamp(oldest), l.URL))
	case !stream.Known && !stream.New.At.IsZero() && oldest.After(stream.New.At):
		l.broken(ruleReach, "Change Lists that begin at "+stamp(oldest), "not later than the Resource List's at, "+stamp(stream.New.At)+"; what changed between is not to be had")
	}
	return false, nil
}

// again asks the Capability List whether the Change List is another one by now.
func (p *pass) again(l *List, late bool) error {
	s := l.step
	if err := p.survives(p.ask(s.Stream)); err != nil {
		l.close()
		return err
	}
	stream := p.stream(s.Stream)
	next := step{Stream: s.Stream, URL: stream.ChangeList}
	if next.URL == "" { // this one is read all the same
		next.URL = s.URL
	}
	if next.URL == s.URL {
		next.Again, next.Behind = true, s.Behind
		delete(p.read, follow.Key(l.Requested))
		delete(p.read, follow.Key(l.URL))
		if late {
			l.close()
		} else {
			p.hold(l)
		}
		p.cur.Steps = append([]step{next}, p.cur.Steps...)
		return nil
	}
	l.close()
	steps := []step{next}
	if until := l.Head().Until.Time(); !l.Head().Index && !until.IsZero() && !until.Before(p.since(stream)) {
		steps[0].Behind = until
		steps = append(steps, step{Stream: s.Stream, URL: s.URL, Again: true, Until: until})
	}
	p.cur.Steps = merge(steps, p.cur.Steps)
	return nil
}

// ask reads the Capability List of a stream again, if it has changed. When it
// names no list any more, the stream stays as it is. It is done once in a run,
// unless the Change List turns out to be behind.
func (p *pass) ask(stream int) error {
	s := p.stream(stream)
	p.asked[stream] = true
	if s.CapabilityList == "" {
		return nil
	}
	l, err := p.open(s.CapabilityList, s.Named)
	if follow.Status(err) == http.StatusNotModified && s.Named != (follow.Validators{}) {
		return nil
	}
	if err != nil {
		return err
	}
	lists := Lists{CapabilityList: s.CapabilityList}
	if _, err := lists.read(l, nil); err != nil {
		return err
	}
	s.Named = l.answer.Validators
	if lists.ChangeList != "" || lists.ResourceList != "" {
		p.rename(s, lists)
	}
	return nil
}

// survives reports a Capability List that is not to be had, or fails, without
// which the walk can go on; any other error it returns.
func (p *pass) survives(err error) error {
	if !missing(err) && follow.Status(err) < http.StatusInternalServerError {
		return err
	}
	p.report(Problem{Rule: ruleMissing, URL: p.w.URL, Found: err.Error(), Expected: "the Capability List, which may name another list"}, false)
	return nil
}

// unchanged takes note of a list that answered 304. Of an index the open lists
// are asked all the same: they grow without it.
func (p *pass) unchanged(s step) {
	stream := p.stream(s.Stream)
	if stream.Validators == nil {
		stream.Validators = map[string]follow.Validators{}
	}
	stream.Validators[s.URL] = s.Validators
	if s.Depth > 0 {
		return
	}
	for url, v := range stream.before {
		stream.Validators[url] = v
	}
	var open []step
	for _, url := range slices.Backward(stream.Open) {
		open = append(open, step{Stream: s.Stream, URL: url, Depth: 1, Validators: stream.before[url]})
	}
	p.cur.Steps = merge(open, p.cur.Steps)
}

// absent deals with a list that is needed and not to be had.
func (p *pass) absent(s step, why error) error {
	stream := p.stream(s.Stream)
	if s.Depth == 0 && follow.Missing(why) && !p.surveyed && !p.resumed {
		return p.discover()
	}
	if err := p.other(s.URL); err != nil {
		return err
	}
	p.report(Problem{Rule: ruleMissing, URL: s.URL, Found: why.Error(), Expected: "a list of the Source"}, false)
	if s.Baseline || stream.ResourceList == "" {
		p.gap(Gap{URL: s.URL, Reason: why.Error()})
		return nil
	}
	due := p.cur.Due
	p.lost(fmt.Sprintf("the Change List %s is not to be had (%v)", s.URL, why))
	if !follow.Missing(why) { // it may be had later: until then nobody knows what it says is there
		p.cur.Incomplete, stream.New.Missed = true, true
		p.cur.Due = due || !stream.Missed // one baseline makes up for it, not one a pass
	}
	return nil
}

// other counts a document that is not handed out. Without a cap, an index of
// missing lists could keep a walk busy for days.
func (p *pass) other(at string) error {
	if p.cur.Others++; p.cur.Others > p.most() {
		return fmt.Errorf("%s: %w: %d were indexes or missing lists; if the Source is that large, raise the cap and go on", at, ErrTooManyDocuments, p.most())
	}
	return nil
}

// gap takes note of a list that nothing makes up for.
func (p *pass) gap(g Gap) {
	p.cur.Incomplete = true
	if p.cur.Gap == nil {
		p.cur.Gap = &g
	}
}

// lost takes note of changes that are not to be had. A baseline makes up for
// them.
func (p *pass) lost(what string) {
	p.cur.Due = true
	if len(p.cur.Lost) >= keptLost {
		p.cur.MoreLost++
		return
	}
	p.cur.Lost = append(p.cur.Lost, what)
}

// compare asks again for an index whose parts were read, since nothing in them
// tells whether they belong together.
func (p *pass) compare(s step) error {
	l, err := p.open(s.URL, follow.Validators{})
	var sum digest
	if err == nil {
		_, err = l.entries(func(e *Entry) { sum.add(e.Loc, e.LastMod.String(), e.Metadata.At.String()) })
	}
	switch {
	case err == nil && sum.String() == s.Sum:
		return nil
	case err != nil && !missing(err):
		return err
	}
	p.cur.Incomplete, p.cur.Moved = true, true
	p.report(Problem{Rule: ruleStable, URL: s.URL, Found: "an index that was changed while its lists were read",
		Expected: "one snapshot; nothing is taken as deleted"}, false)
	return nil
}
