//go:build unix

package database

import (
	"context"
	"database/sql/driver"
	"strings"
)

// rowsAtOnce is how many rows one INSERT of a Bulk adds. By measurement, more gains
// nothing.
const rowsAtOnce = 50

// Bulk collects rows of one table and writes them many at a time. It calls the driver
// directly: database/sql takes as long for some million arguments as hashing the records
// does.
type Bulk struct {
	tx    *Tx
	ctx   context.Context
	one   string // the INSERT of one row
	width int
	args  []driver.NamedValue
}

// Bulk returns a Bulk for an INSERT that ends in "VALUES ", of rows with width columns.
// ctx applies to all of its calls.
func (tx *Tx) Bulk(ctx context.Context, text string, width int) *Bulk {
	return &Bulk{tx: tx, ctx: ctx, one: text + "(" + Params(width) + ")", width: width}
}

// Params returns n parameters. They are plain question marks: the driver looks up the
// name of each named one, in a time that grows with the square of their number.
func Params(n int) string { return "?" + strings.Repeat(", ?", n-1) }

// Add adds a row of int64, string, []byte and nil. Bytes must not change before Flush.
func (b *Bulk) Add(values ...any) error {
	for _, v := range values {
		b.args = append(b.args, driver.NamedValue{Ordinal: len(b.args) + 1, Value: v})
	}
	if len(b.args) < b.width*rowsAtOnce {
		return nil
	}
	err := b.exec(b.tx.w.insertOf(rowsAtOnce, b.one, b.width), b.args)
	b.args = b.args[:0]
	return err
}

// insertText is the key of an INSERT of some rows: their number, and the INSERT of one
// row.
type insertText struct {
	rows int
	one  string
}

// insertOf returns the INSERT of a number of rows.
func (w *Writer) insertOf(rows int, one string, width int) string {
	name := insertText{rows, one}
	text := w.inserts[name]
	if text == "" {
		text = one + strings.Repeat(", ("+Params(width)+")", rows-1)
		w.inserts[name] = text
	}
	return text
}

// Flush writes the remaining rows: 32 at once, 16, 8 and so on, so that few statements
// serve any number.
func (b *Bulk) Flush() error {
	for rest, rows := b.args, 32; len(rest) > 0; rows /= 2 {
		n := rows * b.width
		if len(rest) < n {
			continue
		}
		some := rest[:n]
		for i := range some {
			some[i].Ordinal = i + 1
		}
		if err := b.exec(b.tx.w.insertOf(rows, b.one, b.width), some); err != nil {
			return err
		}
		rest = rest[n:]
	}
	b.args = b.args[:0]
	return nil
}

func (b *Bulk) exec(text string, args []driver.NamedValue) error {
	if b.tx.ended != nil {
		return b.tx.ended
	}
	return b.tx.check(b.tx.w.conn.Raw(func(conn any) error {
		_, err := conn.(driver.ExecerContext).ExecContext(b.ctx, text, args) //nolint:forcetypeassert // both kinds of connections can
		return err
	}))
}
