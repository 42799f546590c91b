package eventlog

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"math"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// quarantine keeps the bad input of the batch whole, the same input once (I8). If the
// batch has more than there is room for, only its last inputs are written: they would
// displace the others at once.
func (b *batch) quarantine(ctx context.Context) error {
	type input struct {
		digest    [32]byte
		at, times int // where it stands last, and how often
	}
	var inputs []input
	known := map[[32]byte]int{}
	for i := range b.in.Quarantine {
		digest := sha256.Sum256(b.in.Quarantine[i].Input)
		n, again := known[digest]
		if !again {
			n = len(inputs)
			known[digest], inputs = n, append(inputs, input{digest: digest})
		}
		inputs[n].at = i
		inputs[n].times++
	}
	if len(inputs) > quarantineInputs {
		n := len(inputs) - quarantineLeft
		has, err := b.quarantined(ctx)
		if err != nil {
			return err
		}
		for _, in := range inputs[:n] {
			if !has[in.digest] { // else it is counted when it leaves
				b.out.Dropped++
			}
		}
		inputs = inputs[n:]
	}
	for _, in := range inputs {
		if err := b.quarantineInput(ctx, &b.in.Quarantine[in.at], in.digest, in.times); err != nil {
			return err
		}
	}
	if err := b.trimQuarantine(ctx); err != nil || b.out.Dropped == 0 {
		return err
	}
	return b.tx.Exec(ctx, "UPDATE source SET dropped = dropped + $2 WHERE id = $1", int64(b.source.id), b.out.Dropped)
}

// quarantined returns the digests of what is in quarantine of the Source.
func (b *batch) quarantined(ctx context.Context) (map[[32]byte]bool, error) {
	has := map[[32]byte]bool{}
	return has, b.tx.Each(ctx, "SELECT digest FROM quarantine WHERE source = $1", []any{int64(b.source.id)}, func(rows *sql.Rows) error {
		var raw sql.RawBytes
		var digest [32]byte
		err := rows.Scan(&raw)
		copy(digest[:], raw)
		has[digest] = true
		return err
	})
}

// quarantineInput keeps an input that was seen that many times. If a replay has taken the
// input in before, and it is bad again, it waits again.
func (b *batch) quarantineInput(ctx context.Context, in *event.Quarantined, digest [32]byte, times int) error {
	q := *in
	q.Source, q.First, q.Last, q.Times, q.Replayed = b.source.id, b.now, b.now, times, 0
	if len(q.Record) > event.MaxIdentifier {
		q.Record = strings.ToValidUTF8(q.Record[:event.MaxIdentifier], "")
	}
	if q.Input == nil {
		q.Input = []byte{}
	}
	if err := b.tx.Each(ctx, "SELECT id, first, times FROM quarantine WHERE source = $1 AND digest = $2", []any{int64(q.Source), digest[:]}, func(rows *sql.Rows) error {
		err := rows.Scan(&q.ID, &q.First, &q.Times)
		q.Times += times
		return err
	}); err != nil {
		return err
	}
	if q.ID == 0 {
		return b.tx.Each(ctx, `INSERT INTO quarantine (id, source, digest, url, line, col, identifier, rule, reason, input, first, last, times, replayed, sum)
VALUES (1 + (SELECT max(n) FROM (SELECT coalesce(max(id), 0) AS n FROM quarantine UNION ALL SELECT CAST($15 AS BIGINT)) AS given), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) RETURNING id`,
			[]any{int64(q.Source), digest[:], q.URL, q.Line, q.Column, q.Record, q.Rule, q.Reason, q.Input, int64(q.First), int64(q.Last), q.Times, int64(q.Replayed), quarantineSum(&q), b.l.lastInput},
			func(rows *sql.Rows) error { return rows.Scan(&b.l.lastInput) })
	}
	return b.tx.Exec(ctx, `UPDATE quarantine SET url = $2, line = $3, col = $4, identifier = $5, rule = $6, reason = $7, last = $8, times = $9, replayed = $10, sum = $11
WHERE id = $1`, q.ID, q.URL, q.Line, q.Column, q.Record, q.Rule, q.Reason, int64(q.Last), q.Times, int64(q.Replayed), quarantineSum(&q))
}

const (
	// quarantineInputs is how many bad inputs are kept of a Source, and
	// quarantineBytes how many bytes these have; quarantineLeft are left where these
	// were too many.
	quarantineInputs = 10_000
	quarantineLeft   = quarantineInputs / 10 * 9
	quarantineBytes  = 256 << 20
)

// trimQuarantine removes bad input of the Source when it has too much: first input that a
// replay has taken in, then the input that was last seen the longest time ago, until
// there is room for some more. Input that was never taken in is counted, so that nothing
// is dropped silently (I8).
func (b *batch) trimQuarantine(ctx context.Context) error {
	w := b.tx
	source := int64(b.source.id)
	var inputs, bytes int64
	if err := w.Each(ctx, "SELECT count(*), coalesce(sum(length(input)), 0) FROM quarantine WHERE source = $1", []any{source}, func(rows *sql.Rows) error {
		return rows.Scan(&inputs, &bytes)
	}); err != nil || inputs <= quarantineInputs && bytes <= quarantineBytes {
		return err
	}
	var gone []int64
	if err := w.Each(ctx, "SELECT id, length(input), replayed = 0 FROM quarantine WHERE source = $1 ORDER BY replayed = 0, last, id", []any{source}, func(rows *sql.Rows) error {
		var id, length int64
		var bad bool
		err := rows.Scan(&id, &length, &bad)
		if inputs > quarantineLeft || bytes > quarantineBytes/10*9 {
			gone = append(gone, id)
			inputs--
			bytes -= length
			if bad {
				b.out.Dropped++
			}
		}
		return err
	}); err != nil {
		return err
	}
	for _, id := range gone {
		if err := b.tx.Exec(ctx, "DELETE FROM quarantine WHERE id = $1", id); err != nil {
			return err
		}
	}
	return nil
}

func quarantineSum(q *event.Quarantined) int64 {
	digest := sha256.Sum256(q.Input)
	return sumOf(q.Source, digest[:], q.URL, q.Line, q.Column, q.Record, q.Rule, q.Reason, q.First, q.Last, q.Times, q.Replayed)
}

// Quarantined returns bad input, of one set or of all when set is "", without
// the input itself.
func (l *Log) Quarantined(ctx context.Context, set string) ([]event.Quarantined, error) {
	return l.QuarantinePage(ctx, event.QuarantineQuery{Set: set})
}

// QuarantinePage returns some bad input without the input itself.
func (l *Log) QuarantinePage(ctx context.Context, q event.QuarantineQuery) ([]event.Quarantined, error) {
	order := "q.id > $5 ORDER BY q.id"
	if q.Newest {
		order = "($5 = 0 OR q.id < $5) ORDER BY q.id DESC"
	}
	if q.Limit <= 0 {
		q.Limit = math.MaxInt32
	}
	return l.quarantined(ctx, "($1 = '' OR s.name = $1) AND ($2 = '' OR q.rule = $2) AND (q.source = $3 OR $3 = 0) AND ($4 = 0 OR q.replayed = 0) AND "+order+" LIMIT $6",
		q.Set, q.Rule, int64(q.Source), q.Waiting, q.After, q.Limit)
}

// QuarantineKinds returns which sets have bad input, and which rules it breaks.
func (l *Log) QuarantineKinds(ctx context.Context) (sets, rules []string, err error) {
	for query, out := range map[string]*[]string{
		"SELECT s.name FROM sets s WHERE EXISTS (SELECT 1 FROM source src JOIN quarantine q ON q.source = src.id WHERE src.set_id = s.id) ORDER BY s.name": &sets,
		"SELECT DISTINCT rule FROM quarantine ORDER BY rule": &rules,
	} {
		if *out, err = database.All(ctx, l.Each, query, nil, database.Column[string]); err != nil {
			return nil, nil, err
		}
	}
	return sets, rules, nil
}

// QuarantinedInput returns one piece of bad input whole; fs.ErrNotExist when
// there is none of that number.
func (l *Log) QuarantinedInput(ctx context.Context, id int64) (event.Quarantined, error) {
	return quarantinedInput(ctx, l, id)
}

// quarantinedInput reads it with one query: a harvest that finds the input again changes
// the row.
func quarantinedInput(ctx context.Context, from preparer, id int64) (q event.Quarantined, err error) {
	var set string
	var input []byte
	var sum int64
	err = from.Each(ctx, "SELECT "+quarantineColumns+", s.name, q.input, q.sum"+fromQuarantine+"q.id = $1", []any{id}, func(rows *sql.Rows) (err error) {
		q, err = scanQuarantined(rows, &set, &input, &sum)
		return err
	})
	q.Set, q.Input = set, input
	switch {
	case err != nil:
		return q, err
	case q.ID == 0:
		return q, database.Missing("nothing in quarantine has number %d", id)
	case sum != quarantineSum(&q):
		return q, fmt.Errorf("number %d in quarantine: %w: run bridge verify", id, ErrDamaged)
	}
	return q, nil
}

func (l *Log) quarantined(ctx context.Context, where string, args ...any) ([]event.Quarantined, error) {
	return database.All(ctx, l.Each, selectQuarantined+where, args, func(q *event.Quarantined, rows *sql.Rows) (err error) {
		var set string
		*q, err = scanQuarantined(rows, &set)
		q.Set = set
		return err
	})
}

const (
	quarantineColumns = "q.id, q.source, q.url, q.line, q.col, q.identifier, q.rule, q.reason, q.first, q.last, q.times, q.replayed"
	fromQuarantine    = " FROM quarantine q JOIN source src ON src.id = q.source JOIN sets s ON s.id = src.set_id WHERE "
	selectQuarantined = "SELECT " + quarantineColumns + ", s.name" + fromQuarantine
)

// scanQuarantined scans quarantineColumns, which leave out the input, and what a query
// asks for after them.
func scanQuarantined(rows *sql.Rows, more ...any) (q event.Quarantined, err error) {
	err = rows.Scan(append([]any{&q.ID, &q.Source, &q.URL, &q.Line, &q.Column, &q.Record, &q.Rule, &q.Reason, &q.First, &q.Last, &q.Times, &q.Replayed}, more...)...)
	return q, err
}

// Replayed marks bad input as taken in after all.
func (l *Log) Replayed(ctx context.Context, id int64) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		q, err := quarantinedInput(ctx, tx, id)
		if err != nil {
			return err
		}
		if q.Replayed, err = l.now(); err != nil {
			return err
		}
		return tx.Exec(ctx, "UPDATE quarantine SET replayed = $2, sum = $3 WHERE id = $1", id, int64(q.Replayed), quarantineSum(&q))
	})
}

// Discard removes bad input for good; fs.ErrNotExist when there is none of that number.
func (l *Log) Discard(ctx context.Context, id int64) error {
	if _, err := l.QuarantinedInput(ctx, id); err != nil {
		return err
	}
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Exec(ctx, "DELETE FROM quarantine WHERE id = $1", id)
	})
}

// dropDamagedInput removes bad input of a Source that is not what was stored.
func dropDamagedInput(ctx context.Context, tx *database.Tx, source event.SourceID) error {
	return dropDamagedRows(ctx, tx, "SELECT "+quarantineColumns+", q.input, q.sum FROM quarantine q WHERE q.source = $1", []any{int64(source)}, func(rows *sql.Rows) ([]any, error) {
		var sum int64
		var input []byte
		q, err := scanQuarantined(rows, &input, &sum)
		if q.Input = input; err == nil && sum != quarantineSum(&q) {
			err = ErrDamaged
		}
		return []any{q.ID}, err
	}, "DELETE FROM quarantine WHERE id = $1")
}
