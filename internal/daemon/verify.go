package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// Finding is something in the data folder that is not as it must be.
type Finding struct {
	Where string `json:"where"`
	What  string `json:"what"`
	Do    string `json:"do"`
}

// Verified counts what was looked at.
type Verified struct {
	Events    int64 `json:"events"`
	Contents  int64 `json:"contents"`
	Documents int64 `json:"documents"`
}

// Verify checks the data folder against itself: the log, the state of the
// records, the segments; every content against its hash, and that each content
// is there that an event names, or a submission about which something may still be
// done; and renders the closed documents again to compare them with those that are
// kept.
func (h *House) Verify(ctx context.Context, report func(Finding)) (Verified, error) {
	var v Verified
	if err := h.Log.Verify(ctx, func(f eventlog.Finding) { report(Finding(f)) }); err != nil {
		return v, err
	}
	sets, err := h.Log.Sets(ctx)
	if err != nil {
		return v, err
	}
	for _, s := range sets {
		v.Events += s.Events
	}
	if err := h.verifyContents(ctx, sets, &v, report); err != nil {
		return v, err
	}
	return v, h.verifyDocuments(ctx, sets, &v, report)
}

const (
	restore       = "restore content.db from a backup; without one, harvest into a new data folder"
	restoreRecord = "restore content.db from a backup; without one, reject it if it is under review, and have the record submitted again"
)

// verifyContents reads every content, and then asks for each that an event or a
// submission names.
func (h *House) verifyContents(ctx context.Context, sets []event.Set, v *Verified, report func(Finding)) error {
	if h.Contents != nil {
		stats, err := h.Contents.Verify(ctx, func(sum content.Sum, err error) {
			if err != nil {
				report(Finding{"content " + sum.String(), err.Error(), restore})
			}
		})
		v.Contents = stats.Count
		if errors.Is(err, content.ErrDamaged) {
			report(Finding{"content.db", err.Error(), restore})
		} else if err != nil {
			return err
		}
	}
	gone := map[content.Sum]bool{} // and reported
	for _, s := range sets {
		if s.Content != event.Mirror || s.Events == 0 {
			continue
		}
		if h.Contents == nil {
			report(Finding{"content.db", "it is not there, and set " + s.Name + " is a mirror", restore})
			return nil
		}
		if err := h.verifyNamed(ctx, s.Name, gone, report); err != nil {
			return err
		}
	}
	return h.verifySubmitted(ctx, gone, report)
}

// verifyNamed asks the store for every content that an event of a set names, and
// remembers which are gone.
func (h *House) verifyNamed(ctx context.Context, set string, gone map[content.Sum]bool, report func(Finding)) error {
	var sums []content.Sum
	ask := func() error {
		missing, err := h.Contents.Missing(ctx, sums)
		for _, m := range missing {
			gone[m] = true
			report(Finding{"content " + m.String(), "an event of set " + set + " names it, and it is not there", restore})
		}
		sums = sums[:0]
		return err
	}
	for ev, err := range h.Log.Events(ctx, set, event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			break // found by the log's own check
		}
		for _, r := range ev.Representations {
			sum, err := content.ParseSum(r.SHA256())
			if err != nil {
				report(Finding{fmt.Sprintf("event %d", ev.Seq), "a representation of a mirror has no SHA-256", restore})
				continue
			}
			sums = append(sums, sum)
		}
		if len(sums) >= 1000 {
			if err := ask(); err != nil {
				return err
			}
		}
	}
	return ask()
}

// verifySubmitted asks the store for the record of every submission that is still
// to be sent, to be decided about or to be sent again. That of an accepted one is
// in an event, if it is served.
func (h *House) verifySubmitted(ctx context.Context, gone map[content.Sum]bool, report func(Finding)) error {
	q := event.SubmissionQuery{Limit: 1000, States: []event.State{event.StateWaiting, event.StateForwarding, event.StateInDoubt, event.StateProvisional,
		event.StateUnresolved, event.StateUnsent}}
	for {
		page, err := h.Log.Submissions(ctx, q)
		if err != nil {
			return ctx.Err() // else found by the log's own check
		}
		for i := range page {
			s := &page[i]
			if s.Content == [32]byte{} || gone[s.Content] {
				continue
			}
			if h.Contents == nil {
				report(Finding{"content.db", "it is not there, and the records of submissions are kept in it", restoreRecord})
				return nil
			}
			what, err := h.recordFault(ctx, s)
			if err != nil {
				return err
			}
			if what != "" {
				gone[s.Content] = true
				report(Finding{"content " + content.Sum(s.Content).String(), fmt.Sprintf("submission %d of set %s, which is %s, %s", s.ID, s.Set, s.State, what), restoreRecord})
			}
		}
		if len(page) < q.Limit {
			return nil
		}
		q.After = page[len(page)-1].ID
	}
}

// recordFault says what is wrong with the record of a submission in the store; ""
// is nothing, or what is found when all contents are read.
func (h *House) recordFault(ctx context.Context, s *event.Submission) (string, error) {
	b, err := h.Contents.Open(ctx, s.Content)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "keeps its record there, and it is not there", nil
	case errors.Is(err, content.ErrDamaged):
		return "", nil
	case err != nil:
		return "", err
	}
	defer func() { _ = b.Close() }() // it was only read
	if b.Size() != s.Length {
		return fmt.Sprintf("says that its record there has %d bytes, and it has %d", s.Length, b.Size()), nil
	}
	return "", nil
}

func (h *House) verifyDocuments(ctx context.Context, sets []event.Set, v *Verified, report func(Finding)) error {
	// Where the system chooses the port, each run of serve has a base URL of its
	// own, and finds nothing of what another has kept: any will do to render.
	p, err := h.Publisher(cmp.Or(h.Config.BaseURL, "http://"+h.Config.Listen))
	if err != nil {
		return err
	}
	for _, s := range sets {
		segments, err := h.Log.Segments(ctx, s.Name)
		if err != nil {
			return err
		}
		for _, g := range segments {
			if g.Open() {
				continue
			}
			check, err := p.VerifySegment(ctx, s.Name, g.N)
			v.Documents++
			if err != nil {
				report(Finding{fmt.Sprintf("set %s, Change List %d", s.Name, g.N), err.Error(), "see what is said of the events"})
				continue
			}
			for _, file := range check.Damaged {
				report(Finding{file, "it is not what the log gives; it is never served", "delete it"})
			}
		}
		checks, err := p.VerifySnapshot(ctx, s.Name)
		if err != nil {
			report(Finding{"set " + s.Name + ", Resource List", err.Error(), "see what is said of the events"})
		}
		for _, c := range checks {
			v.Documents++
			for _, file := range c.Damaged {
				report(Finding{file, "it is not what the log gives; it is never served", "delete the folder snapshots; serve makes it anew"})
			}
		}
	}
	return nil
}
