package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/pmh-bridge/bridge/internal/database"
)

// Blob is a stored content, open for reading. It holds at most 256 KiB in memory
// and no connection between calls. It is for one goroutine at a time.
type Blob struct {
	ctx   context.Context
	store *Store
	id    int64
	sum   Sum
	size  int64
	pos   int64
	part  []byte // checked bytes, from at on
	at    int64
	done  bool
}

// Open opens a content for reading; ctx applies until the Blob is closed. If there is no
// such content the error is fs.ErrNotExist. A small content is checked here, a large one
// chunk by chunk as it is read: if it is damaged, Open or Read returns ErrDamaged, before
// any damaged byte.
func (s *Store) Open(ctx context.Context, sum Sum) (*Blob, error) {
	b := &Blob{ctx: ctx, store: s, sum: sum}
	var body []byte
	err := s.query.QueryRowContext(ctx, "SELECT id, CAST(length AS INTEGER), bytes FROM content WHERE sum = $1", sum[:]).Scan(&b.id, &b.size, &body)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("content %s: %w", sum, fs.ErrNotExist)
	case err != nil:
		return nil, fmt.Errorf("%s: read content %s: %w", s.path, sum, s.coded(err))
	}
	if b.size > chunkSize && body == nil {
		return b, nil
	}
	if err := checkSmall(sum, b.size, body); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	b.part = body
	return b, nil
}

// smallAtOnce is how many sums one statement of Small has.
const smallAtOnce = 32

var selectSmall = "SELECT sum, CAST(length AS INTEGER), bytes FROM content WHERE sum IN (" + database.Params(smallAtOnce) + ")"

// Small returns those contents that are stored in one piece, of at most 256 KiB, by their
// sums. It leaves out the others, which Open reads, and those that are not there. Many at
// once take a third of the time of one by one. The error is ErrDamaged if one is damaged.
func (s *Store) Small(ctx context.Context, sums []Sum) (map[Sum][]byte, error) {
	small := make(map[Sum][]byte, len(sums))
	args := make([]any, smallAtOnce)
	for part := range slices.Chunk(sums, smallAtOnce) {
		for i := range args {
			args[i] = part[min(i, len(part)-1)][:] // padded, so that one statement serves all
		}
		rows, err := s.query.QueryContext(ctx, selectSmall, args...)
		if err := database.ScanAll(rows, err, func(rows *sql.Rows) error {
			var raw, body sql.RawBytes
			var size int64
			if err := rows.Scan(&raw, &size, &body); err != nil || body == nil && size > chunkSize {
				return err
			}
			sum, body := Sum(raw), sql.RawBytes(bytes.Clone(body))
			small[sum] = body
			return checkSmall(sum, size, body)
		}); err != nil {
			return nil, fmt.Errorf("%s: read contents: %w", s.path, s.coded(err))
		}
	}
	return small, nil
}

func checkSmall(sum Sum, size int64, body []byte) error {
	if size != int64(len(body)) || sumOf(body) != sum {
		return damage(sum, "its bytes do not have its hash")
	}
	return nil
}

func damage(sum Sum, what string) error {
	return fmt.Errorf("content %s is %w (%s): restore the file from a backup", sum, ErrDamaged, what)
}

// Sum returns the name of the content.
func (b *Blob) Sum() Sum { return b.sum }

// Size returns its length in bytes.
func (b *Blob) Size() int64 { return b.size }

// Read is io.Reader.
func (b *Blob) Read(p []byte) (int, error) {
	switch {
	case b.done:
		return 0, fs.ErrClosed
	case b.pos >= b.size:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	if b.pos < b.at || b.pos >= b.at+int64(len(b.part)) {
		if err := b.load(b.pos / chunkSize); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.part[b.pos-b.at:])
	b.pos += int64(n)
	return n, nil
}

// load reads and checks chunk n.
func (b *Blob) load(n int64) error {
	var seal, part []byte
	err := b.store.query.QueryRowContext(b.ctx, "SELECT seal, bytes FROM chunk WHERE content = $1 AND n = $2", b.id, n).Scan(&seal, &part)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%s: %w", b.store.path, damage(b.sum, fmt.Sprintf("chunk %d is missing", n)))
	case err != nil:
		return fmt.Errorf("%s: read chunk %d of content %s: %w", b.store.path, n, b.sum, b.store.coded(err))
	}
	want := sealOf(b.sum, b.size, n, part)
	if string(seal) != string(want[:]) || int64(len(part)) != min(chunkSize, b.size-n*chunkSize) {
		return fmt.Errorf("%s: %w", b.store.path, damage(b.sum, fmt.Sprintf("chunk %d does not have its hash", n)))
	}
	b.part, b.at = part, n*chunkSize
	return nil
}

// Seek is io.Seeker.
func (b *Blob) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += b.pos
	case io.SeekEnd:
		offset += b.size
	default:
		return 0, fmt.Errorf("seek in content %s: whence %d", b.sum, whence)
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek in content %s: before its start", b.sum)
	}
	b.pos = offset
	return offset, nil
}

// Close is io.Closer.
func (b *Blob) Close() error {
	b.done, b.part = true, nil
	return nil
}

// Check reads a content to its end. It returns nil if its bytes have its hash, else an
// error that is fs.ErrNotExist or ErrDamaged, or why it could not be read.
func (s *Store) Check(ctx context.Context, sum Sum) error {
	b, err := s.Open(ctx, sum)
	if err != nil {
		return err
	}
	return errors.Join(b.verify(), b.Close())
}

// verifyPage is how many contents Verify reads in one query; between two of them
// the database may be checkpointed.
const verifyPage = 1000

// Verify reads every content and calls report for each: with nil when its bytes have its
// hash, else with an error that is ErrDamaged. It returns how much it has read. Its own
// error is ErrDamaged when the database itself is damaged: then some contents may not be
// found.
func (s *Store) Verify(ctx context.Context, report func(Sum, error)) (Stats, error) {
	var seen Stats
	for after := int64(0); ; {
		last, large, err := s.verifySmall(ctx, after, &seen, report)
		if err != nil {
			return seen, fmt.Errorf("%s: verify: %w", s.path, s.coded(err))
		}
		for _, b := range large {
			seen.Count++
			seen.Bytes += b.size
			report(b.sum, b.verify())
		}
		if last == after {
			break
		}
		after = last
	}
	var verdict string
	if err := s.query.QueryRowContext(ctx, `PRAGMA integrity_check(1)`).Scan(&verdict); err != nil {
		return seen, fmt.Errorf("%s: verify: %w", s.path, s.coded(err))
	}
	if verdict != "ok" {
		return seen, fmt.Errorf("%s is %w (%s): restore it from a backup", s.path, ErrDamaged, verdict)
	}
	return seen, nil
}

// verifySmall checks a page of contents and returns the last one's id and those
// that are in chunks.
func (s *Store) verifySmall(ctx context.Context, after int64, seen *Stats, report func(Sum, error)) (last int64, large []*Blob, err error) {
	rows, err := s.query.QueryContext(ctx,
		`SELECT id, sum, CAST(length AS INTEGER), bytes FROM content WHERE id > $1 ORDER BY id LIMIT $2`, after, verifyPage)
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	last = after
	for rows.Next() {
		b := &Blob{ctx: ctx, store: s}
		var sum, body sql.RawBytes
		if err := rows.Scan(&b.id, &sum, &b.size, &body); err != nil {
			return 0, nil, err
		}
		last = b.id
		copy(b.sum[:], sum)
		if len(sum) == len(b.sum) && b.size > chunkSize && body == nil {
			large = append(large, b)
			continue
		}
		seen.Count++
		seen.Bytes += b.size
		report(b.sum, checkSmall(b.sum, b.size, body))
	}
	return last, large, rows.Err()
}

// verify reads a large content whole.
func (b *Blob) verify() error {
	hash := sha256.New()
	if _, err := io.Copy(hash, b); err != nil {
		return err
	}
	if Sum(hash.Sum(nil)) != b.sum {
		return fmt.Errorf("%s: %w", b.store.path, damage(b.sum, "its chunks together do not have its hash"))
	}
	return nil
}
