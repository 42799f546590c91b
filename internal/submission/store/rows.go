package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// ErrDamaged is that of the log, wrapped with the row where it was found.
var ErrDamaged = eventlog.ErrDamaged

// table describes how rows of a type are stored: it is the one list of columns that
// reading, writing and the checksum follow. The first column is the ID, 0 of a new row.
type table[T any] struct {
	name, label string // label names a row in messages
	columns     []string
	values      func(*T) []any // as SQLite has them
	fields      func(*T) []any // pointers, to be scanned into
}

// An update of a submission writes the columns from tokenColumn or the next one on. The
// columns before do not change.
var submissions = table[submission.Submission]{"submission", "submission",
	[]string{"id", "source", "seq", "request", "subject", "created", "token", "version", "state", "due", "changed", "import_pending", "source_xml", "source_identifier",
		"record", "content", "length", "type", "title", "recipient", "assigned", "reason", "deadline", "tries", "late", "conflicts"},
	func(s *submission.Submission) []any {
		return []any{s.ID, int64(s.Source), int64(s.Seq), digestArg(s.Request), subjectKey(s.Subject()), int64(s.Created), s.Token, s.Version, int64(s.State), int64(s.Due), int64(s.Changed),
			boolArg(s.ImportPending), blobArg(s.SourceXML), s.SourceIdentifier, s.Record, digestArg(s.Content), s.Length, s.Type, s.Title, s.Recipient, s.Assigned, s.Reason,
			int64(s.Deadline), int64(s.Tries), boolArg(s.Late), int64(s.Conflicts)}
	},
	func(s *submission.Submission) []any {
		return []any{&s.ID, &s.Source, &s.Seq, (*digest)(&s.Request), new(int64), &s.Created, &s.Token, &s.Version, &s.State, &s.Due, &s.Changed,
			&s.ImportPending, &s.SourceXML, &s.SourceIdentifier, &s.Record, (*digest)(&s.Content), &s.Length, &s.Type, &s.Title, &s.Recipient, &s.Assigned, &s.Reason,
			&s.Deadline, &s.Tries, &s.Late, &s.Conflicts}
	}}

const tokenColumn = 6

var outgoing = table[submission.OutgoingNotification]{"outgoing_notification", "outgoing notification",
	[]string{"id", "source", "submission", "created", "state", "due", "recipient", "disposition", "message", "tries", "reason"},
	func(n *submission.OutgoingNotification) []any {
		return []any{n.ID, int64(n.Source), n.Submission, int64(n.Created), int64(n.State), int64(n.Due), n.Recipient, blobArg(n.Disposition), n.Message, int64(n.Tries), n.Reason}
	},
	func(n *submission.OutgoingNotification) []any {
		return []any{&n.ID, &n.Source, &n.Submission, &n.Created, &n.State, &n.Due, &n.Recipient, &n.Disposition, &n.Message, &n.Tries, &n.Reason}
	}}

var incoming = table[submission.IncomingNotification]{"incoming_notification", "incoming notification",
	[]string{"id", "source", "digest", "submission", "verdict", "first", "last", "times", "anonymous", "outcome", "source_identifier", "assigned", "reason", "source_xml"},
	func(n *submission.IncomingNotification) []any {
		return []any{n.ID, int64(n.Source), n.Digest[:], n.Submission, int64(n.Verdict), int64(n.First), int64(n.Last), int64(n.Times), boolArg(n.Anonymous),
			int64(n.Outcome), n.SourceIdentifier, n.Assigned, n.Reason, blobArg(n.SourceXML)}
	},
	func(n *submission.IncomingNotification) []any {
		return []any{&n.ID, &n.Source, (*digest)(&n.Digest), &n.Submission, &n.Verdict, &n.First, &n.Last, &n.Times, &n.Anonymous,
			&n.Outcome, &n.SourceIdentifier, &n.Assigned, &n.Reason, &n.SourceXML}
	}}

var rejections = table[submission.Rejection]{"rejection", "rejection",
	[]string{"id", "source", "at", "record", "source_identifier", "reason", "title"},
	func(r *submission.Rejection) []any {
		return []any{r.ID, int64(r.Source), int64(r.At), r.Record, r.SourceIdentifier, r.Reason, r.Title}
	},
	func(r *submission.Rejection) []any {
		r.Anonymous = true
		return []any{&r.ID, &r.Source, &r.At, &r.Record, &r.SourceIdentifier, &r.Reason, &r.Title}
	}}

// reply is a row of table reply.
type reply struct {
	submission.StoredReply
	id     int64
	source event.SourceID
	at     event.Micros
}

var replies = table[reply]{"reply", "reply",
	[]string{"id", "source", "request", "at", "disposition"},
	func(r *reply) []any {
		return []any{r.id, int64(r.source), r.Request[:], int64(r.at), blobArg(r.Disposition)}
	},
	func(r *reply) []any {
		return []any{&r.id, &r.source, (*digest)(&r.Request), &r.at, &r.Disposition}
	}}

// insert is the text of a statement that adds rows, for a database.Bulk.
func (t *table[T]) insert() string {
	return "INSERT INTO " + t.name + " (" + strings.Join(t.columns, ", ") + ", sum) VALUES "
}

// row returns the values of all columns, the checksum last.
func (t *table[T]) row(v *T) []any {
	values := t.values(v)
	return append(values, checksum(values))
}

// add inserts a row, which gets its ID here: the checksum covers it.
func (t *table[T]) add(ctx context.Context, tx *Tx, v *T) error {
	values := t.values(v)
	if err := tx.Each(ctx, "SELECT coalesce(max(id), 0) + 1 FROM "+t.name, nil, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		values[0] = id
		return err
	}); err != nil {
		return err
	}
	return tx.Exec(ctx, t.insert()+"("+database.Params(len(values)+1)+")", append(values, checksum(values))...)
}

// update replaces the columns of a row from one column on.
func (t *table[T]) update(ctx context.Context, tx *Tx, v *T, from int) error {
	row := t.row(v)
	return tx.Exec(ctx, "UPDATE "+t.name+" SET "+strings.Join(t.columns[from:], " = ?, ")+" = ?, sum = ? WHERE id = ?", append(row[from:], row[0])...)
}

// selection is the text of a query for whole rows, with the table as "t", and the names
// of their sets.
func (t *table[T]) selection() string {
	return "SELECT " + t.list() + ", s.name FROM " + t.name + " t JOIN source src ON src.id = t.source JOIN sets s ON s.id = src.set_id WHERE "
}

// list names the columns that scan takes.
func (t *table[T]) list() string { return "t." + strings.Join(t.columns, ", t.") + ", t.sum" }

// scan reads a row of a query for list, and what the query asks for after that. Where
// the error is ErrDamaged the row holds what is stored.
func (t *table[T]) scan(rows *sql.Rows, more ...any) (v T, err error) {
	var sum int64
	err = rows.Scan(slices.Concat(t.fields(&v), []any{&sum}, more)...)
	if err != nil {
		// A value that its column cannot have is damage too: a State of 300.
		anything := make([]any, len(t.columns)+1)
		for i := range anything {
			anything[i] = new(any)
		}
		if rows.Scan(append(anything, more...)...) != nil {
			return v, err
		}
	}
	if values := t.values(&v); err != nil || checksum(values) != sum {
		return v, fmt.Errorf("%s %d: %w: run bridge verify", t.label, values[0], ErrDamaged)
	}
	return v, nil
}

// find returns rows in a transaction, without the names of their sets.
func (t *table[T]) find(ctx context.Context, q querier, where string, args ...any) ([]T, error) {
	return database.All(ctx, q.Each, "SELECT "+t.list()+" FROM "+t.name+" t WHERE "+where, args, func(v *T, rows *sql.Rows) (err error) {
		*v, err = t.scan(rows)
		return err
	})
}

// digest scans a SHA-256, which may be NULL.
type digest [32]byte

func (d *digest) Scan(v any) error {
	b, _ := v.([]byte)
	*d = digest{}
	if n := copy(d[:], b); n != len(b) || n != 0 && n != len(d) {
		return fmt.Errorf("a SHA-256 of %d bytes", len(b))
	}
	return nil
}

func digestArg(d [32]byte) any {
	if d == [32]byte{} {
		return nil
	}
	return d[:]
}

func blobArg(b []byte) any {
	if len(b) == 0 { // which is read back as NULL
		return nil
	}
	return b
}

func boolArg(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func subjectKey(subject string) int64 {
	if subject == "" {
		return 0
	}
	return event.KeyBits(subject)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is a CRC-32C over values, each with its kind and length, so that no two rows
// look alike.
func checksum(values []any) int64 {
	b := make([]byte, 0, 512)
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			b = append(b, 0)
		case int64:
			b = binary.AppendVarint(append(b, 1), v)
		case string:
			b = append(binary.AppendUvarint(append(b, 2), uint64(len(v))), v...)
		case []byte:
			b = append(binary.AppendUvarint(append(b, 3), uint64(len(v))), v...)
		default:
			panic(fmt.Sprintf("store: a value of type %T", v))
		}
	}
	return int64(crc32.Checksum(b, castagnoli))
}
