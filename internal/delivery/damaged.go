package delivery

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/internal/submission"
)

// Damaged are the submissions that were found damaged in the log, or that need what is. They are left out, and must
// not keep others from being sent or answered. The zero value is ready, and its methods may be
// called from any goroutine.
type Damaged struct {
	mu    sync.Mutex
	known map[int64]bool
}

// Remove returns rows of a query with submission.Query.Damaged without those that are damaged,
// and logs each of these once.
func (d *Damaged) Remove(log *slog.Logger, rows []submission.Submission) []submission.Submission {
	return slices.DeleteFunc(rows, func(s submission.Submission) bool {
		if s.State != 0 {
			return false
		}
		if d.add(s.ID) {
			log.Error("a submission is damaged in the log, and is left out: run bridge verify", "submission", s.ID)
		}
		return true
	})
}

// add adds a submission, and reports whether it is new.
func (d *Damaged) add(id int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[int64]bool{}
	}
	known := d.known[id]
	d.known[id] = true
	return !known
}

// number returns how many there are.
func (d *Damaged) number() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.known)
}
