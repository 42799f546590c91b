package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// Trouble is how a target fails. The log keeps it, so that another process can
// tell, and takes it in when it begins, has another reason or ends: not once more
// for each failure in between.
type Trouble struct {
	// Since is when it began: the first failure after the last answer that closed
	// the line.
	Since time.Time `json:"since"`
	// Reason of the first failure that had it.
	Reason string `json:"reason"`
	// Again is when the server was to be asked after that failure. Later it is asked
	// ever less often, at least once an hour.
	Again time.Time `json:"again"`
	// Properties: it fails when it is asked for its properties already.
	Properties bool `json:"properties,omitempty"`
}

// StoredTrouble reads it out of what the log keeps of a target, nil when the
// target answers.
func StoredTrouble(p *event.Progress) (*Trouble, error) {
	if len(p.Memory) == 0 {
		return nil, nil
	}
	t := new(Trouble)
	if err := json.Unmarshal(p.Memory, t); err != nil {
		return nil, fmt.Errorf("how a target fails cannot be read: %w", err)
	}
	return t, nil
}

// memory is what the log keeps of it, as the outbox knows it.
type memory struct {
	read    bool
	trouble *Trouble
	version int64 // compared and swapped
}

// remember reads what the log keeps, when the outbox begins.
func (d *submitLoop) remember(ctx context.Context) error {
	if d.memory.read {
		return nil
	}
	p, err := d.s.Store.Progress(ctx, d.s.Source)
	if err != nil {
		return err
	}
	t, err := StoredTrouble(&p)
	if err != nil {
		return err
	}
	d.breaker.trouble, d.memory = t, memory{true, t, p.Cursor.Version}
	return nil
}

// saveFailure has the log keep how the server fails, or that it answers, when that has
// changed.
func (d *submitLoop) saveFailure(ctx context.Context) error {
	t := d.breaker.troubled()
	if !d.memory.read || t.same(d.memory.trouble) {
		return nil
	}
	p := new(event.Progress)
	if t != nil {
		var err error
		if p.Memory, err = json.Marshal(t); err != nil {
			return err
		}
	}
	out, err := d.s.Store.Append(ctx, &event.Batch{Source: d.s.Source, Cursor: d.memory.version, Progress: p})
	if err != nil {
		return err
	}
	d.memory.trouble, d.memory.version = t, out.Cursor
	return nil
}

// warn tells of a failure that opens the breaker.
func (d *submitLoop) warn(pause time.Duration, err error) {
	if pause > 0 {
		d.s.Log.Warn("the ingest server fails, and is left alone for a while", "error", err, "again_in", pause)
	}
}

// same tells whether both say the same.
func (t *Trouble) same(u *Trouble) bool {
	if t == nil || u == nil {
		return t == u
	}
	return t.Since.Equal(u.Since) && t.Reason == u.Reason && t.Properties == u.Properties
}
