//go:build unix

package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// HeadName is the name of a small file in the data folder that records how far the log
// has come, so that a log that has lost its end is noticed. SQLite takes the first
// damaged frame of a write-ahead log for its end, and an older copy of a database is as
// whole as a newer one.
//
// It is written after each commit and before any caller returns, so the log never ends
// before it unless something was lost. It has two places that are written in turn, so
// that one of them is always whole.
const HeadName = "head"

const headPlace = 512

// head is how far the log had come.
type head struct {
	Commits int64 // of the log's whole life
	// Seq is that of the last event, 0 when there was none; the last that was lost when an
	// epoch has begun and has none yet.
	Seq      event.Seq
	Hash     string       // of that event, "" without one
	Observed event.Micros // of that event
	// Seen is the time of that commit, or a later moment at which the process still ran.
	Seen event.Micros
}

const headFormat = "bridge head 1: commits %d seq %d hash %s observed %d seen %d"

// line returns the head as it is written, with its checksum.
func (h *head) line() []byte {
	hash := cmp.Or(h.Hash, "-")
	b := fmt.Appendf(nil, headFormat, h.Commits, h.Seq, hash, h.Observed, h.Seen)
	b = fmt.Appendf(b, " crc %08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return append(append(b, bytes.Repeat([]byte(" "), headPlace-1-len(b))...), '\n')
}

func readHeadLine(b []byte) (h head, ok bool) {
	b, sum, found := bytes.Cut(bytes.TrimRight(b, " \n"), []byte(" crc "))
	if !found || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))) {
		return h, false
	}
	if _, err := fmt.Sscanf(string(b), headFormat, &h.Commits, &h.Seq, &h.Hash, &h.Observed, &h.Seen); err != nil {
		return h, false
	}
	if h.Hash == "-" {
		h.Hash = ""
	}
	return h, true
}

// readHead returns the later of the two heads and its place. Neither being there
// is fs.ErrNotExist; neither being whole is ErrDamaged.
func readHead(folder string) (h head, place int, err error) {
	path := filepath.Join(folder, HeadName)
	b, err := os.ReadFile(path)
	if err != nil {
		return h, 0, err
	}
	place = -1
	for i := range 2 {
		if len(b) < (i+1)*headPlace {
			break
		}
		if other, ok := readHeadLine(b[i*headPlace : (i+1)*headPlace]); ok && (place < 0 || other.Commits > h.Commits || other.Commits == h.Commits && other.Seen > h.Seen) {
			h, place = other, i
		}
	}
	if place < 0 {
		return h, 0, fmt.Errorf("%s: %w", path, ErrDamaged)
	}
	return h, place, nil
}

// headFile writes the head. Its user holds the log's mutex.
type headFile struct {
	f     *os.File
	place int // of the newer one
	now   head
}

// openHead opens the file, which it makes when it is missing.
func openHead(folder string, place int, now head) (*headFile, error) {
	path := filepath.Join(folder, HeadName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, database.Explain(path, err)
	}
	h := &headFile{f: f, place: place, now: now}
	// Write both places, so that the file has its disk space from now on.
	if err := errors.Join(h.write(), h.write(), f.Sync(), database.SyncDir(folder)); err != nil {
		return nil, errors.Join(database.Explain(path, err), f.Close())
	}
	return h, nil
}

// write writes the head into the older place.
func (h *headFile) write() error {
	h.place = 1 - h.place
	_, err := h.f.WriteAt(h.now.line(), int64(h.place*headPlace))
	return err
}

func (h *headFile) close() error { return errors.Join(h.f.Sync(), h.f.Close()) }

// seen records that the process runs now, if the clock can be trusted.
func (h *headFile) seen(g *clockGuard) {
	if wall, err := g.now(); err == nil {
		h.now.Seen = max(h.now.Seen, event.MicrosOf(wall))
	}
}

// advance records the last event. If that cannot be read now, verify will report it: the
// head stays as it was, and is still correct.
func (h *headFile) advance(ctx context.Context, tx *database.Tx) {
	_ = tx.Each(ctx, "SELECT "+eventColumns+" FROM event WHERE id = (SELECT last_event FROM log)", nil, h.now.scan)
}

// syncHead makes the head durable. When that fails it is done again, at the latest
// when the log is closed.
func (l *Log) syncHead() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head != nil && l.failed == nil {
		_ = l.head.f.Sync()
	}
}

// topOf reads the last event that is not after upto, and how many commits the log
// has seen.
func topOf(ctx context.Context, q database.Querier, upto event.Seq) (h head, err error) {
	if err := q.QueryRowContext(ctx, "SELECT commits FROM log").Scan(&h.Commits); err != nil {
		return h, err
	}
	last, err := lastUpto(ctx, q, upto)
	if err != nil {
		return h, err
	}
	if err := database.Each(ctx, q, "SELECT "+eventColumns+" FROM event WHERE id = $1", []any{last}, func(rows *sql.Rows) error { return h.scan(rows) }); err != nil || last == 0 || h.Seq != 0 {
		return h, err
	}
	removed, err := readRemoved(ctx, reading{q}) // it was the last one of a set that was removed
	for i := range removed {
		if r := &removed[i]; eventID(r.id, event.Seq(r.last)) == last {
			h.Seq, h.Hash, h.Observed = event.Seq(r.last), r.hash, r.observed
		}
	}
	return h, err
}

func (h *head) scan(rows *sql.Rows) error {
	var c columns
	body, err := c.scan(rows)
	if err != nil {
		return err
	}
	hash := sha256.New()
	for _, n := range []int64{c.seq, c.set, c.record, c.kind, c.observed} {
		_ = binary.Write(hash, binary.BigEndian, n) // writing to a hash never fails
	}
	hash.Write(body)
	h.Seq, h.Observed, h.Hash = event.Seq(c.seq), event.Micros(c.observed), hex.EncodeToString(hash.Sum(nil)[:16])
	return nil
}

// Loss is what a log has lost since it was last written: it ends before the head, or the
// loss is unknown because the head is missing.
type Loss struct {
	// Unknown is why the head does not show the loss; "" when it does.
	Unknown string
	// Backup: the head is missing, as it is in a copy of the databases alone.
	Backup bool
	// Last is the last event that the log has, Lost the last that it had. They are
	// equal when only other things were lost: submissions, or how far Sources had
	// been harvested.
	Last, Lost event.Seq
	// Commits is how many transactions were lost.
	Commits int64
	// At is when the last of them was made.
	At event.Micros
}

// String describes the loss.
func (l *Loss) String() string {
	switch {
	case l.Unknown != "":
		return fmt.Sprintf("it is not known whether the log is whole (%s): it ends at Seq %d", l.Unknown, l.Last)
	case l.Lost > l.Last:
		return fmt.Sprintf("the log ends at Seq %d, but Seq %d to %d were committed, the last at %v: they are lost, with %d transactions", l.Last, l.Last+1, l.Lost, l.At, l.Commits)
	case l.Commits > 0:
		return fmt.Sprintf("the last %d transactions of the log are lost, none of them with an event: submissions that were acknowledged until %v may be missing", l.Commits, l.At)
	}
	return fmt.Sprintf("the log has another event at Seq %d than was committed there at %v: it is not the same log any more", l.Lost, l.At)
}

// Events reports whether events were lost, or may have been.
func (l *Loss) Events() bool { return l.Unknown != "" || l.Commits <= 0 || l.Lost > l.Last }

// lossSince compares the log with its head; nil is no loss. The head was read
// before: a log that is being written only grows.
func lossSince(ctx context.Context, q database.Querier, h head, headErr error) (*Loss, error) {
	has, err := topOf(ctx, q, 1<<62)
	if err != nil {
		return nil, err
	}
	loss := &Loss{Last: has.Seq, Lost: h.Seq, At: h.Seen, Commits: max(h.Commits-has.Commits, 0)}
	switch {
	case errors.Is(headErr, fs.ErrNotExist) && has.Commits == 0:
		return nil, nil // it was made just now
	case errors.Is(headErr, fs.ErrNotExist):
		loss.Unknown, loss.Backup = "the file "+HeadName+" is not there, as after a backup was put back", true
		return loss, nil
	case errors.Is(headErr, ErrDamaged):
		loss.Unknown = "the file " + HeadName + " is damaged"
		return loss, nil
	case headErr != nil:
		return nil, headErr
	case h.Seq > has.Seq, loss.Commits > 0:
		return unaccounted(ctx, q, loss, h)
	}
	then, err := topOf(ctx, q, h.Seq)
	if err != nil || then.Seq == h.Seq && then.Hash == h.Hash {
		return nil, err
	}
	removed, err := readRemoved(ctx, reading{q})
	if err != nil || then.Seq < h.Seq && beforeGaps(nil, removed, h.Seq+1) < h.Seq {
		return nil, err // it has gone with its set, which had later ones
	}
	return unaccounted(ctx, q, loss, h)
}

// unaccounted returns a loss, nil if another node has begun an epoch that accounts for it.
func unaccounted(ctx context.Context, q database.Querier, loss *Loss, h head) (*Loss, error) {
	all, err := readEpochs(ctx, reading{q})
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if h.Seq > e.After && h.Seq <= e.Upto || !loss.Events() && h.Seen < e.Started {
			return nil, nil
		}
	}
	return loss, nil
}

// Loss returns what the log had lost when it was opened, nil when nothing. A log that was
// opened for writing has begun a new epoch since. That of a log that is read beside the node
// that writes it may change with each Follow.
func (l *Log) Loss() *Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loss
}

// Seen returns when the log was last seen to be in use.
func (l *Log) Seen() time.Time { return l.guard.seen }

// RecordAlive records that the process still runs, so that a later start or a status command can
// distinguish a pause from a clock that has jumped.
func (l *Log) RecordAlive() error {
	if err := l.writable(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head == nil {
		return nil
	}
	l.head.seen(&l.guard) // callers that append get the clock's error
	return l.head.write()
}
