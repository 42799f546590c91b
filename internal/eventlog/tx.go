package eventlog

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Tx is a transaction of the log that others have joined: what they write to their own
// tables of the database commits together with the events of Append, or not at all.
// It is theirs until their work returns.
type Tx struct {
	*database.Tx
	// Now is the moment of the transaction, by the log's clock.
	Now event.Micros

	l        *Log
	wall     event.Micros // that of the clock, which may have been set back
	appended bool
}

// Append commits a batch in a transaction of its own: see Tx.Append.
func (l *Log) Append(ctx context.Context, in *event.Batch) (out event.Appended, err error) {
	err = l.Do(ctx, func(ctx context.Context, tx *Tx) (err error) {
		out, err = tx.Append(ctx, in)
		return err
	})
	if err != nil {
		return event.Appended{}, fmt.Errorf("appending to the log: %w", err)
	}
	return out, nil
}

// Do runs work in a transaction, which the work of other callers may share (see
// database.Writer.Do). All of it is durable when Do returns nil, and none of it has
// happened when Do returns an error. The work must not call methods of the Log that
// write. An error of the clock is ErrClock.
func (l *Log) Do(ctx context.Context, work func(ctx context.Context, tx *Tx) error) error {
	return l.join(ctx, l.write, work)
}

// DoFirst is Do for work that takes long, or appends many events: see
// database.Writer.DoFirst.
func (l *Log) DoFirst(ctx context.Context, work func(ctx context.Context, tx *Tx) error) error {
	return l.join(ctx, l.writeFirst, work)
}

func (l *Log) join(ctx context.Context, write func(context.Context, func(context.Context, *database.Tx) error) error, work func(ctx context.Context, tx *Tx) error) error {
	var joined *Tx
	var began event.Micros
	defer func() { l.observing.end(began) }()
	err := write(ctx, func(ctx context.Context, tx *database.Tx) error {
		l.observing.end(began) // work that runs a second time
		now, wall, err := l.beginObserving()
		if err != nil {
			return err
		}
		began = now
		joined = &Tx{Tx: tx, Now: now, l: l, wall: wall}
		tx.OnUndo(l.late.undoable())
		return work(ctx, joined)
	})
	if err == nil && joined.appended {
		l.announce()
	}
	return err
}

// Append is the only mutation of the log. It decides on each item, in order (I5, A1,
// A15), appends the events, and writes them with the state they change and the walk's
// cursor. The error is event.ErrConflict when the stored cursor is not the one that the
// batch names. After any error the work of the transaction has to fail. A transaction may
// have many batches, of one walk too.
func (tx *Tx) Append(ctx context.Context, in *event.Batch) (event.Appended, error) {
	if err := check(in); err != nil {
		return event.Appended{}, err
	}
	l, b := tx.l, &batch{l: tx.l, tx: tx.Tx, now: tx.Now, wall: tx.wall, in: in, late: &tx.l.late}
	if err := b.run(ctx); err != nil {
		return event.Appended{}, err
	}
	// The functions that run after the COMMIT must not keep the batch of a walk in
	// memory: it is large.
	logged := b.out.Last != 0
	tx.OnCommit(func() { l.appended = l.appended || logged })
	if source, version := in.Source, b.out.Cursor; in.Mode == event.ModeSubmission {
		tx.OnCommit(b.remember)
	} else if !b.deferred {
		tx.OnCommit(func() { l.unsaved.forget(source, version) })
	}
	tx.appended = tx.appended || b.out.Last != 0
	return b.out, nil
}

// Snapshot runs do with one moment of the database, which others may write meanwhile.
func (l *Log) Snapshot(ctx context.Context, do func(q database.Querier) error) error {
	return l.read(ctx, func(q database.Querier) error {
		conn, ok := q.(*sql.Conn)
		if !ok || l.opt.DryRun { // of which the writer's transaction is under way
			return do(q)
		}
		tx, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // nothing was written
		return do(tx)
	})
}
