package eventlog

import (
	"context"
	"database/sql"

	"github.com/pmh-bridge/bridge/event"
)

// submissionKeys are the columns that submissions are found by, besides state and
// due. They hardly ever change, and an UPDATE that names them writes three more
// indexes, in places that are scattered.
type submissionKeys struct {
	source        event.SourceID
	seq           event.Seq
	token         string
	request       [32]byte
	block, record int64 // hashes
	told          event.Told
	created       event.Micros
}

var (
	selectKeys        = "SELECT id, state, version, source, seq, token, request, block, record, told, created FROM submission WHERE id IN (" + in(lookup) + ")"
	insertSubmissions = "INSERT OR FAIL INTO submission (id, source, state, version, due, seq, token, request, block, record, told, created, changed, owed, body, sum) VALUES "
)

// scan reads a row of selectKeys.
func (k *submissionKeys) scan(rows *sql.Rows, id *int64, state *event.State, version *int64) error {
	var request sql.RawBytes
	err := rows.Scan(id, state, version, &k.source, &k.seq, &k.token, &request, &k.block, &k.record, &k.told, &k.created)
	copy(k.request[:], request)
	return err
}

func keysOf(s *event.Submission) submissionKeys {
	return submissionKeys{s.Source, s.Seq, s.Token, s.Request, blockKey(s.Block), recordKey(s.Record), s.Told(), s.Created}
}

func blockKey(block []byte) int64 {
	if block == nil {
		return 0
	}
	return event.KeyBits(string(block))
}

func recordKey(record string) int64 {
	if record == "" {
		return 0
	}
	return event.KeyBits(record)
}

// saveSubmission writes the row of a step as it is. New ones are written together,
// by flush.
func (x *exchange) saveSubmission(ctx context.Context, b *batch, s *event.Submission, step int) error {
	raw := b.blob(func(to []byte) []byte { return appendSubmission(to, s) })
	sum := submissionSum(s, raw)
	if x.kept[step] {
		return b.l.exec(ctx, "UPDATE submission SET state = $2, version = $3, due = $4, changed = $5, owed = $6, body = $7, sum = $8 WHERE id = $1",
			s.ID, int64(s.State), s.Version, int64(s.Due), int64(s.Changed), boolArg(s.Owed), raw, sum)
	}
	k := keysOf(s)
	var request any
	if k.request != [32]byte{} {
		request = k.request[:]
	}
	args := []any{s.ID, int64(k.source), int64(s.State), s.Version, int64(s.Due), int64(k.seq), k.token, request, k.block, k.record, int64(k.told),
		int64(k.created), int64(s.Changed), boolArg(s.Owed), raw, sum}
	if x.in.Steps[step].Submission.ID == 0 {
		return x.fresh.add(args...)
	}
	return b.l.exec(ctx, `UPDATE submission SET source = $2, state = $3, version = $4, due = $5, seq = $6, token = $7, request = $8, block = $9, record = $10, told = $11,
	created = $12, changed = $13, owed = $14, body = $15, sum = $16 WHERE id = $1`, args...)
}

func submissionSum(s *event.Submission, raw []byte) int64 {
	return sumOf(s.ID, s.Source, int64(s.State), s.Version, s.Due, int64(s.Seq), s.Token, s.Request[:], s.Created, s.Changed, boolArg(s.Owed), raw)
}
