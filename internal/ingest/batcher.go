package ingest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/event"
)

// batcher is where batches lie until they are committed. What is put there while a
// commit is under way goes together into the next one, so that many who come at
// once share what a commit costs, and a single one never waits for others. When a
// commit fails, it has failed for all that are in it. The zero value is ready.
type batcher struct {
	once       sync.Once
	committing chan struct{} // has an element while somebody commits
	mu         sync.Mutex
	waiting    []*pendingBatch
}

// pendingBatch is a batch in the tray; out and err are set when done is closed.
type pendingBatch struct {
	batch *event.Batch
	done  chan struct{}
	out   event.Appended
	err   error
}

// append commits a batch of event.ModeSubmission. Of what the log answers it
// returns what is about steps and items.
func (t *batcher) append(ctx context.Context, store Store, b *event.Batch) (event.Appended, error) {
	if err := ctx.Err(); err != nil {
		return event.Appended{}, err
	}
	t.once.Do(func() { t.committing = make(chan struct{}, 1) })
	own := &pendingBatch{batch: b, done: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, own)
	t.mu.Unlock()
	for {
		select {
		case <-own.done:
			return own.out, own.err
		case t.committing <- struct{}{}:
			// What others have put there is committed whether or not ctx ends meanwhile.
			t.commit(context.WithoutCancel(ctx), store)
		}
	}
}

// errCut: a commit did not come to an end, as it panicked.
var errCut = errors.New("the commit was cut short")

// commit commits what is waiting, as far as it is of one Source, and gives the
// turn back.
func (t *batcher) commit(ctx context.Context, store Store) {
	sheets := t.take()
	var out event.Appended
	err := errCut
	defer func() {
		distribute(sheets, out, err)
		<-t.committing
	}()
	if len(sheets) > 0 {
		out, err = store.Append(ctx, merged(sheets))
	}
}

// distribute gives each its part of what has come of the commit.
func distribute(sheets []*pendingBatch, out event.Appended, err error) {
	item, step := 0, 0
	for _, s := range sheets {
		if s.err = err; err == nil {
			items, steps := item+len(s.batch.Items), step+len(s.batch.Submissions.Updates)
			s.out = event.Appended{Outcomes: out.Outcomes[item:items], IDs: out.IDs[step:steps]}
			for _, place := range out.Stale {
				if step <= place && place < steps {
					s.out.Stale = append(s.out.Stale, place-step)
				}
			}
			item, step = items, steps
		}
		close(s.done)
	}
}

// take removes from the tray what is of the same Source as the first, as much as
// goes into one commit.
func (t *batcher) take() (sheets []*pendingBatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = slices.DeleteFunc(t.waiting, func(s *pendingBatch) bool {
		goes := len(sheets) == 0 || len(sheets) < groupLimit && s.batch.Source == sheets[0].batch.Source
		if goes {
			sheets = append(sheets, s)
		}
		return goes
	})
	return sheets
}

// merged is one batch of several, which say the same of where they come from.
func merged(sheets []*pendingBatch) *event.Batch {
	if len(sheets) == 1 {
		return sheets[0].batch
	}
	b, x := *sheets[0].batch, &event.SubmissionBatch{}
	b.Items, b.Submissions = nil, x
	for _, s := range sheets {
		for _, step := range s.batch.Submissions.Updates {
			if step.Item > 0 {
				step.Item += len(b.Items)
			}
			x.Updates = append(x.Updates, step)
		}
		for _, n := range s.batch.Submissions.Incoming {
			if n.Item > 0 {
				n.Item += len(b.Items)
			}
			x.Incoming = append(x.Incoming, n)
		}
		b.Items = append(b.Items, s.batch.Items...)
		x.Rejections = append(x.Rejections, s.batch.Submissions.Rejections...)
		x.Outgoing = append(x.Outgoing, s.batch.Submissions.Outgoing...)
		x.Replies = append(x.Replies, s.batch.Submissions.Replies...)
	}
	return &b
}
