// Package harvest follows Sources into the log: one adapter per protocol, which
// turns documents into observations, fetches what a set keeps, and hands both
// to the log in batches with the walk's cursor.
//
// The way of an Atom-PMH entry: reading.take in document.go picks it as its
// record's winner and run.item translates it; pipe.go carries it to a batch;
// run.take in fetch.go gets its content in a mirror; Log.Append decides what it
// means. atom.go begins, resumes and ends a walk, waiting.go does what a walk's
// end allows and what was put off, control.go and replay.go what a person asks
// for.
package harvest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/translate"
)

// Log is where observations become events.
type Log interface {
	Append(context.Context, *event.Batch) (event.Appended, error)
	Verdicts(context.Context, event.SourceID, []event.Item) ([]event.Verdict, error)
	Progress(context.Context, event.SourceID) (event.Progress, error)
}

// Waiting is what the log keeps for the harvest: observations and deletions
// that wait.
type Waiting interface {
	StepBacks(context.Context, event.SourceID) ([]event.Kept, error)
	Pending(ctx context.Context, source event.SourceID, due event.Micros, after int64, limit int) ([]event.Kept, error)
	Held(ctx context.Context, source event.SourceID, all bool, since event.Micros) ([]string, error)
}

// Absences tells which records a complete enumeration did not have.
type Absences interface {
	CountAbsent(context.Context, event.SourceID) (absent, have int64, err error)
	Absent(ctx context.Context, source event.SourceID, after int64, limit int) (ids []string, next int64, err error)
}

// Contents keeps the bytes of representations. What Put returned for is durable.
type Contents interface {
	Draft(r io.Reader, limit int64) (Draft, error)
	Put(ctx context.Context, drafts []Draft) error
}

// Draft is a representation that has been read to its end.
type Draft interface {
	Sum() [32]byte
	Size() int64
	Close() error
}

// Limits caps what a harvest takes. Zero values are the defaults.
type Limits struct {
	Document   int64 // bytes of a feed document, 64 MiB
	Record     int64 // bytes of a representation, 64 MiB
	Text       int   // bytes of one text or attribute value, 8 MiB
	Depth      int   // of XML elements, 256
	Attributes int   // of one element, namespaces included, 256
}

// Source is one upstream server and what a set wants of it.
type Source struct {
	ID      event.SourceID
	Set     string
	Kind    string // atompmh
	URL     string
	Content event.Content
	Client  *http.Client
	// AllowHost tells whether the chain may lead to a host other than URL's.
	AllowHost    func(host string) bool
	Wants        translate.Wants
	Overlap      time.Duration
	MaxDocuments int
	// GuardWait is how long a deletion by absence is held before it is applied
	// by itself; 0 is 24 hours.
	GuardWait time.Duration
	// FullEvery is how often a walk climbs to the oldest document although
	// nothing asks for it; 0 is never.
	FullEvery time.Duration
	Limits    Limits
}

// Harvester harvests Sources. Its methods may be called from any goroutine, but
// for one Source only one at a time.
type Harvester struct {
	Log      Log
	Waiting  Waiting
	Absences Absences
	Contents Contents
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// BatchSize is how many observations commit at once, 0 is 32,000;
	// BatchTime how long they may wait for each other, 0 is a second.
	BatchSize int
	BatchTime time.Duration
	// Workers is how many representations are fetched at once, 0 is 32.
	Workers int
}

// Options are what a caller wants of one harvest.
type Options struct {
	// Full climbs to the oldest document.
	Full bool
	// AllPending asks for everything pending, due or not.
	AllPending bool
	// Every is the time until the next harvest, for status; 0 when none is
	// planned.
	Every time.Duration
	// Progress is told how far the harvest has come; nil is allowed. It is
	// called from several goroutines, never at the same time.
	Progress func(Progress)
}

// Progress is how far a harvest has come.
type Progress struct {
	Documents, Entries, Events, Fetched int64
}

// ErrKind: there is no adapter for the Source's kind.
var ErrKind = errors.New("this kind of Source cannot be harvested by this version")

// Harvest makes one pass over a Source. The report is filled as far as it came,
// with an error too.
func (h *Harvester) Harvest(ctx context.Context, src *Source, o Options) (Report, error) {
	r := &run{h: h, src: src, opt: o}
	r.report.Started = h.now().UTC()
	err := ErrKind
	if src.Kind == "atompmh" {
		err = r.atom(ctx)
	}
	return r.ended(err), err
}

func (h *Harvester) now() time.Time {
	if h.Now != nil {
		return h.Now()
	}
	return time.Now()
}

func (h *Harvester) batchSize() int {
	if h.BatchSize > 0 {
		return h.BatchSize
	}
	return 32_000
}

func (h *Harvester) workers() int {
	if h.Workers > 0 {
		return h.Workers
	}
	return 32
}
