package ingest

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/sip"
)

// groupLimit is how many requests are committed together at most, groupBytes how
// much their records may hold before no other is added.
const (
	groupLimit = 256
	groupBytes = 16 << 20
)

// ingestQueue is where requests wait for their commit. Those that arrive while one is
// under way are committed together in the next, so that many clients share what a
// commit costs, and a single one never waits for others. The zero value is ready.
type ingestQueue struct {
	once    sync.Once
	in      chan *ingestRequest
	started chan struct{} // closed when takeIn runs
	unready chan struct{} // closed when it cannot begin yet
	why     error         // that is, written before held is closed
	ended   chan struct{} // closed when it runs no more
	reason  error         // why, written before ended is closed
}

// ingestRequest is one request on its way into the log.
type ingestRequest struct {
	request *sip.Request
	// reason of its rejection; "" when it is accepted.
	reason string
	// whole: repeats are known by the whole request, since no identifier tells;
	// digest is that of the request.
	whole  bool
	digest [32]byte
	// observation of its record, as it would be accepted.
	observation event.Observation
	answer      chan answer // takes one without waiting
}

type answer struct {
	disposition *sip.Disposition
	err         error
}

func (in *ingestQueue) init() {
	in.once.Do(func() {
		in.in, in.started, in.unready, in.ended = make(chan *ingestRequest), make(chan struct{}), make(chan struct{}), make(chan struct{})
	})
}

// setUnready lets nobody wait for the service to begin: that takes a while.
func (in *ingestQueue) setUnready(why error) {
	in.init()
	if in.why == nil {
		in.why = why
		close(in.unready)
	}
}

// ready waits until the service runs.
func (in *ingestQueue) ready(ctx context.Context) error {
	in.init()
	select {
	case <-in.started:
		return nil
	default:
	}
	select {
	case <-in.started:
		return nil
	case <-in.unready:
		return in.why
	case <-in.ended:
		return in.failure()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// submit gives a request to the next commit and returns what it was answered. When
// ctx ends first it is committed all the same, once it was taken.
func (in *ingestQueue) submit(ctx context.Context, p *ingestRequest) (*sip.Disposition, error) {
	p.answer = make(chan answer, 1)
	select {
	case in.in <- p:
	case <-in.ended:
		return nil, in.failure()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case a := <-p.answer:
		return a.disposition, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (in *ingestQueue) failure() error {
	if in.reason != nil {
		return in.reason
	}
	return errEnded
}

// end lets everybody who waits go.
func (in *ingestQueue) end(reason error) {
	in.init()
	in.reason = reason
	close(in.ended)
}

// runIngest commits group after group until ctx ends.
func (d *Server) runIngest(ctx context.Context) {
	in := &d.requests
	in.init()
	close(in.started)
	defer in.end(nil)
	group := make([]*ingestRequest, 0, groupLimit)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case p := <-in.in:
			group = append(group[:0], p)
		}
		// Those who were just answered come back with their next request when they
		// are let run: else every other group would be one of one.
		runtime.Gosched()
		group = in.fill(group)
		// What was taken is answered, whoever stops the service in between.
		d.commitRequests(context.WithoutCancel(ctx), group)
	}
}

// fill adds to a group of one those that are waiting, as many as fit.
func (in *ingestQueue) fill(group []*ingestRequest) []*ingestRequest {
	for size := len(group[0].request.Record.XML); len(group) < groupLimit && size < groupBytes; {
		select {
		case p := <-in.in:
			group = append(group, p)
			size += len(p.request.Record.XML)
		default:
			return group
		}
	}
	return group
}

// commitRequests takes a group into the content store and the log and answers it.
func (d *Server) commitRequests(ctx context.Context, group []*ingestRequest) {
	g := ingestBatch{desk: d, now: d.now(), answers: make([]answer, len(group)), seen: make(map[[32]byte]int)}
	err := defect.Guard(func() error {
		if err := g.build(ctx, group); err != nil {
			return err
		}
		return g.store(ctx)
	})
	for i, p := range group {
		if err != nil {
			g.answers[i] = answer{err: err}
		}
		p.answer <- g.answers[i]
	}
	clear(group)
}

// ingestBatch is a group on its way into one batch.
type ingestBatch struct {
	desk    *Server
	now     time.Time
	answers []answer
	// seen has the index of the first ingestRequest of each request whose repeats are
	// recognised whole.
	seen     map[[32]byte]int
	records  [][]byte
	items    []event.Item
	exchange event.SubmissionBatch
}
