package eventlog

import (
	"context"
	"database/sql"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// submissionKeys are the columns that submissions are found by, besides state and
// due. They hardly ever change, and an UPDATE that names them writes more
// indexes, in places that are scattered.
type submissionKeys struct {
	source  event.SourceID
	seq     event.Seq
	token   string
	request [32]byte
	subject int64 // a hash
	created event.Micros
}

var (
	selectKeys        = "SELECT id, state, version, source, seq, token, request, subject, created FROM submission WHERE id IN (" + sqlite.Params(lookup) + ")"
	insertSubmissions = "INSERT OR FAIL INTO submission (id, source, state, version, due, seq, token, request, subject, created, changed, owed, body, sum) VALUES "
)

// scan reads a row of selectKeys.
func (k *submissionKeys) scan(rows *sql.Rows, id *int64, state *event.State, version *int64) error {
	var request sql.RawBytes
	err := rows.Scan(id, state, version, &k.source, &k.seq, &k.token, &request, &k.subject, &k.created)
	copy(k.request[:], request)
	return err
}

func keysOf(s *event.Submission) submissionKeys {
	return submissionKeys{s.Source, s.Seq, s.Token, s.Request, subjectKey(s.Subject()), s.Created}
}

func subjectKey(subject string) int64 {
	if subject == "" {
		return 0
	}
	return event.KeyBits(subject)
}

// saveSubmission writes the row of a step as it is. New ones are written together,
// by flush.
func (x *exchange) saveSubmission(ctx context.Context, b *batch, s *event.Submission, step int) error {
	raw := b.blob(func(to []byte) []byte { return appendSubmission(to, s) })
	sum := submissionSum(s, raw)
	if x.kept[step] {
		return b.tx.Exec(ctx, "UPDATE submission SET state = $2, version = $3, due = $4, changed = $5, owed = $6, body = $7, sum = $8 WHERE id = $1",
			s.ID, int64(s.State), s.Version, int64(s.Due), int64(s.Changed), boolArg(s.ImportPending), raw, sum)
	}
	k := keysOf(s)
	var request any
	if k.request != [32]byte{} {
		request = k.request[:]
	}
	args := []any{s.ID, int64(k.source), int64(s.State), s.Version, int64(s.Due), int64(k.seq), k.token, request, k.subject,
		int64(k.created), int64(s.Changed), boolArg(s.ImportPending), raw, sum}
	if x.in.Updates[step].Submission.ID == 0 {
		return x.fresh.Add(args...)
	}
	return b.tx.Exec(ctx, `UPDATE submission SET source = $2, state = $3, version = $4, due = $5, seq = $6, token = $7, request = $8, subject = $9,
	created = $10, changed = $11, owed = $12, body = $13, sum = $14 WHERE id = $1`, args...)
}

func submissionSum(s *event.Submission, raw []byte) int64 {
	return sumOf(s.ID, s.Source, int64(s.State), s.Version, s.Due, int64(s.Seq), s.Token, s.Request[:], s.Created, s.Changed, boolArg(s.ImportPending), raw)
}
