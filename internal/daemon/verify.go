package daemon

import (
	"context"
	"errors"
	"fmt"
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
// that an event names is there; and renders the closed documents again to
// compare them with those that are kept.
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

const restore = "restore content.db from a backup; without one, harvest into a new data folder"

// verifyContents reads every content, and then asks for each that an event
// names.
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
	for _, s := range sets {
		if s.Content != event.Mirror || s.Events == 0 {
			continue
		}
		if h.Contents == nil {
			report(Finding{"content.db", "it is not there, and set " + s.Name + " is a mirror", restore})
			return nil
		}
		if err := h.verifyNamed(ctx, s.Name, report); err != nil {
			return err
		}
	}
	return nil
}

// verifyNamed asks the store for every content that an event of a set names.
func (h *House) verifyNamed(ctx context.Context, set string, report func(Finding)) error {
	var sums []content.Sum
	ask := func() error {
		missing, err := h.Contents.Missing(ctx, sums)
		for _, m := range missing {
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

func (h *House) verifyDocuments(ctx context.Context, sets []event.Set, v *Verified, report func(Finding)) error {
	p, err := h.Publisher(h.Config.BaseURL)
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
