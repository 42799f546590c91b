package eventlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Pause stops the requests to a Source, until a time or until it is resumed.
type Pause struct {
	Since  event.Micros
	Until  event.Micros // 0: until it is resumed
	Reason string
}

// Over reports whether the pause has ended by a time.
func (p *Pause) Over(now event.Micros) bool { return p.Until != 0 && p.Until <= now }

const selectPauses = "SELECT source, since, until, reason, sum FROM pause"

func (p *Pause) sum(source event.SourceID) int64 {
	return sumOf(source, p.Since, p.Until, p.Reason)
}

func (p *Pause) scan(rows *sql.Rows) (source event.SourceID, err error) {
	var sum int64
	err = rows.Scan(&source, &p.Since, &p.Until, &p.Reason, &sum)
	if err == nil && sum != p.sum(source) {
		err = ErrDamaged
	}
	return source, err
}

// Pauses returns the Sources that are paused, and those whose pause has ended by itself.
func (l *Log) Pauses(ctx context.Context) (map[event.SourceID]Pause, error) {
	all := map[event.SourceID]Pause{}
	err := l.Each(ctx, selectPauses, nil, func(rows *sql.Rows) error {
		var p Pause
		source, err := p.scan(rows)
		if errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("the pause of Source %d: %w: run bridge verify", source, err)
		}
		all[source] = p
		return err
	})
	return all, err
}

// SetPause pauses a Source, or changes why and until when; nil resumes it.
func (l *Log) SetPause(ctx context.Context, source event.SourceID, p *Pause) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		if p == nil {
			return tx.Exec(ctx, "DELETE FROM pause WHERE source = $1", int64(source))
		}
		return tx.Exec(ctx, "INSERT OR REPLACE INTO pause (source, since, until, reason, sum) VALUES ($1, $2, $3, $4, $5)",
			int64(source), int64(p.Since), int64(p.Until), p.Reason, p.sum(source))
	})
}
