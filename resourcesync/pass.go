package resourcesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

const (
	defaultMaxDocuments = 10_000
	// maxIndexes is how deep indexes may be nested. The standard knows one level.
	maxIndexes = 4
	// keptValidators is how many lists a State can ask for conditionally.
	keptValidators = 2_000
	// keptProblems bounds what is remembered so as to report it once.
	keptProblems = 10_000
	// movedMost is how many baselines are read one after the other because the lists
	// of each were changed while they were read.
	movedMost = 5
	// keptLost is how many things that are lost a Result names.
	keptLost = 10

	accept = "application/xml, text/xml;q=0.9, text/html;q=0.5, */*;q=0.1"
)

// pass is one run of a Walk. Only the goroutine of the loop touches it; the one
// request that is under way ahead of it has its own.
type pass struct {
	w      *Walk
	ctx    context.Context
	client *follow.Client
	before memory // what the State of the Walk holds
	cur    cursor
	read   map[string]bool  // documents of this run, as asked for and as answered
	told   map[Problem]bool // of documents that may be opened again
	held   *List            // opened, and perhaps the next to be read
	asked  map[int]bool     // streams whose Capability List was asked in this run

	saved   bool // a cursor of this run was to be stored
	unsaved int  // lists since then

	ended    bool // the Source has ended
	surveyed bool // discovery was made in this run
	resumed  bool // an unfinished walk goes on
	resuming bool // its first document has not answered yet
}

func newPass(ctx context.Context, w *Walk) (*pass, error) {
	p := &pass{w: w, ctx: ctx, read: map[string]bool{}, told: map[Problem]bool{}, asked: map[int]bool{}}
	if w.State.m != nil {
		p.before = *w.State.m
	}
	unfinished := p.before.Walk
	p.before.Walk = nil
	switch {
	case unfinished != nil:
		p.cur, p.resumed, p.resuming = unfinished.clone(), true, true
		for i := range p.cur.Steps {
			p.cur.Steps[i].Validators = follow.Validators{}
		}
	case p.before.URL == w.URL:
		p.cur.Memory = p.before.clone()
		for i := range p.cur.Memory.Streams {
			s := &p.cur.Memory.Streams[i]
			if !w.Full {
				s.before = s.Validators
			}
			s.Validators = nil
		}
	}
	p.cur.Memory.URL = w.URL
	if unfinished == nil {
		p.cur.Full = w.Full
		p.cur.Due = w.Full || p.cur.Memory.Moved > 0 && p.cur.Memory.Moved < movedMost
		if w.Full {
			p.cur.Memory.Hosts = nil
		}
	}
	var err error
	p.client, err = follow.New(follow.Options{HTTP: w.Client, Start: w.URL, AllowHost: w.AllowHost, Led: p.cur.Memory.Hosts, Accept: accept, Refused: ErrRefused, Now: w.Now})
	if err != nil {
		return nil, fmt.Errorf("ResourceSync Source: %w", err)
	}
	return p, nil
}

// get asks for a document.
func (p *pass) get(url string, v follow.Validators) (*follow.Answer, error) {
	a, err := p.client.Get(p.ctx, url, v)
	p.cur.Memory.Hosts = p.client.Led()
	var status *follow.StatusError
	if errors.As(err, &status) {
		return nil, (*StatusError)(status)
	}
	return a, err
}

func (p *pass) close() {
	if p.held != nil {
		p.held.close()
	}
	p.client.Close()
}

func (p *pass) most() int { return cmp.Or(p.w.MaxDocuments, defaultMaxDocuments) }

func (p *pass) stream(i int) *stream { return &p.cur.Memory.Streams[i] }

// run hands out lists until there are no more, and reports whether the loop has taken
// them all.
func (p *pass) run(yield func(*List, error) bool) (ended bool, err error) {
	if !p.resumed {
		if err := p.start(); err != nil || p.ended {
			return true, err
		}
	}
	for {
		l, err := p.next()
		if err != nil || l == nil {
			return true, err
		}
		if more, err := p.visit(l, yield); !more || err != nil {
			return more, err
		}
	}
}

// next returns the list that is to be visited; nil when the walk has ended.
func (p *pass) next() (*List, error) {
	for {
		if len(p.cur.Steps) == 0 {
			if p.cur.Planned || !p.cur.Due && !p.found() {
				return nil, nil
			}
			p.planBaseline()
			continue
		}
		s := p.cur.Steps[0]
		p.cur.Steps = p.cur.Steps[1:]
		l, err := p.arrive(s)
		if l != nil || err != nil {
			return l, err
		}
	}
}

// found reports whether a Change List was read that an earlier pass went on without:
// what was absent from the Resource Lists meanwhile was not taken as deleted.
func (p *pass) found() bool {
	return slices.ContainsFunc(p.cur.Memory.Streams, func(s stream) bool { return s.Missed && !s.New.Missed && s.ResourceList != "" })
}

// arrive opens a list; nil when it is not to be visited.
func (p *pass) arrive(s step) (*List, error) {
	switch {
	case s.Sum != "":
		return nil, p.compare(s)
	case p.read[follow.Key(s.URL)]:
		return nil, nil
	case slices.Contains(p.w.Accepted, s.URL):
		p.cur.Incomplete = p.cur.Incomplete || s.Baseline
		return nil, nil
	}
	l, err := p.open(s.URL, s.Validators)
	resuming := p.resuming
	p.resuming = false
	switch {
	case follow.Status(err) == 304 && s.Validators != follow.Validators{}:
		p.unchanged(s)
		return nil, nil
	case resuming && follow.Missing(err):
		return nil, fmt.Errorf("%w (%w)", ErrStale, err)
	case missing(err), p.failsAtFirst(s, err):
		return nil, p.absent(s, err)
	case err != nil:
		return nil, err
	case p.read[follow.Key(l.URL)]:
		l.close()
		return nil, nil
	}
	l.step, l.Baseline, l.Lists, l.Set = s, s.Baseline, p.stream(s.Stream).Lists, p.stream(s.Stream).Number
	return p.judge(l)
}

// judge decides by the head of a list whether it is to be visited.
func (p *pass) judge(l *List) (*List, error) {
	s, head, want := l.step, l.Head(), ChangeList
	if s.Baseline {
		want = ResourceList
	}
	if c := head.Capability; c != "" && c != want {
		l.close()
		return nil, p.absent(s, fmt.Errorf("%s is a %s, want a %s", l.URL, c, want))
	}
	if head.Index {
		return nil, p.expand(l)
	}
	if !s.Baseline && s.Depth == 0 {
		if turned, err := p.turns(l, head.From.Time()); turned || err != nil {
			return nil, err
		}
	}
	return l, nil
}

// open asks for a document of the framework and reads its head.
func (p *pass) open(url string, v follow.Validators) (*List, error) {
	if h := p.held; h != nil {
		p.held = nil
		if h.Requested == url && v == (follow.Validators{}) {
			return h, nil
		}
		h.close()
	}
	a, err := p.get(url, v)
	if err != nil {
		return nil, err
	}
	l, err := newList(p, a, unpacked(a.Body))
	if err != nil {
		a.Close()
		return nil, err
	}
	return l, nil
}

// hold keeps an open list for when it is the next one to be read.
func (p *pass) hold(l *List) {
	if p.held != nil {
		p.held.close()
	}
	p.held = l
}

// visit has a list read to its end. It reports whether the loop wants another.
func (p *pass) visit(l *List, yield func(*List, error) bool) (more bool, err error) {
	defer l.close()
	if p.cur.Documents >= p.most() {
		return true, &TooManyError{URL: l.Requested, Read: p.most()}
	}
	p.read[follow.Key(l.Requested)], p.read[follow.Key(l.URL)] = true, true
	l.Index = p.cur.Documents
	l.live = true
	p.lookAhead()
	if !yield(l, nil) {
		return false, nil
	}
	var fault *DocumentError
	switch {
	case errors.As(l.fatal, &fault):
		return true, p.absent(l.step, fault)
	case l.fatal != nil && l.fatal != io.EOF:
		return true, l.fatal
	case !l.ended:
		return true, fmt.Errorf("%s: %w: read it with Next until io.EOF", l.URL, ErrUnread)
	}
	return true, nil
}

// lookAhead asks for the next list already.
func (p *pass) lookAhead() {
	if len(p.cur.Steps) == 0 || p.cur.Documents+1 >= p.most() {
		return
	}
	s := &p.cur.Steps[0]
	if p.read[follow.Key(s.URL)] || slices.Contains(p.w.Accepted, s.URL) || p.client.Allowed(s.URL) != nil {
		return
	}
	p.client.Ahead(p.ctx, s.URL, s.Validators)
}

// report passes a problem on. Documents that are not visited may be opened
// several times; their problems are reported once.
func (p *pass) report(q Problem, live bool) {
	if p.w.Report == nil {
		return
	}
	if !live {
		if p.told[q] {
			return
		}
		if len(p.told) < keptProblems {
			p.told[q] = true
		}
	}
	p.w.Report(q)
}

// failsAtFirst reports whether a Change List fails that was never read: the
// Resource List, which is read anyway, makes up for it.
func (p *pass) failsAtFirst(s step, err error) bool {
	stream := p.stream(s.Stream)
	return follow.Status(err) >= http.StatusInternalServerError && !s.Baseline && !stream.Known && stream.ResourceList != ""
}

// missing tells whether a list is not to be had: it is gone, or is no document
// of the framework. 401, 403 and 5xx may pass.
func missing(err error) bool {
	var fault *DocumentError
	return follow.Missing(err) || errors.As(err, &fault)
}

func (p *pass) result(whole bool) Result {
	c := &p.cur
	r := Result{Ended: p.ended, Gap: c.Gap, Documents: c.Documents, Dialects: c.Dialects, Lost: strings.Join(c.Lost, "; ")}
	if c.Moved {
		r.Lost = strings.Join(append(slices.Clone(c.Lost), "the Resource Lists were changed while they were read, so that some resources may be missing"), "; ")
	}
	if c.MoreLost > 0 {
		r.Lost += fmt.Sprintf("; and %d times more", c.MoreLost)
	}
	lists := 0
	for i := range c.Memory.Streams {
		if c.Memory.Streams[i].ResourceList != "" {
			lists++
		}
		if c.Memory.Numbers > 1 {
			r.Sets = append(r.Sets, c.Memory.Streams[i].Number)
		}
	}
	r.Baseline = c.Planned && lists > 0
	whole = whole && !p.ended
	r.Complete = whole && r.Baseline && !c.Incomplete && !c.Memory.Partial && c.Gap == nil && lists == len(c.Memory.Streams)
	if r.Baseline && !c.Timeless {
		r.At = c.At
	}
	if whole && c.Gap == nil {
		r.NotModified = c.Documents == 0 && !c.Due && len(c.Lost) == 0
		m := c.Memory.clone()
		m.settle(r.Baseline, c.Moved)
		r.State, r.Mark = State{&m}, m.mark()
	} else {
		before := p.before
		r.State, r.Mark = State{&before}, c.Memory.mark()
	}
	return r
}

// mark is the earliest mark of the streams that have one.
func (m *memory) mark() time.Time {
	var earliest time.Time
	for i := range m.Streams {
		if t := m.Streams[i].Mark; !t.IsZero() && (earliest.IsZero() || t.Before(earliest)) {
			earliest = t
		}
	}
	return earliest
}
