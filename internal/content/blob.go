package content

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Blob is a stored content, open for reading. It holds at most 256 KiB in memory, and
// between calls no connection but one to a bucket. It is for one goroutine at a time.
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
	waits bool // for a server that is away

	fetched  int64         // the chunk behind the one that was fetched from the bucket last; 0 is none
	stream   io.ReadCloser // of the object in the bucket that has the content, if it is there
	streamAt int64         // where the next byte of it is
}

// Open opens a content for reading; ctx applies until the Blob is closed. If there is no
// such content the error is fs.ErrNotExist. A small content is checked here, a large one
// chunk by chunk as it is read: if it is damaged, Open or Read returns ErrDamaged, before
// any damaged byte. The error is an event.ErrUnavailable if it is in a bucket that cannot be
// reached.
func (s *Store) Open(ctx context.Context, sum Sum) (b *Blob, err error) {
	for range 3 { // it may be moved between two looks, but not again and again
		if b, err = s.openOnce(ctx, sum); !errors.Is(err, errMoved) {
			return b, err
		}
	}
	return nil, fmt.Errorf("%s: %w", s.name, damage(sum, "its bytes are missing"))
}

// OpenPatiently is Open for a long job: it, and Read, wait for a bucket that cannot be reached,
// up to an hour.
func (s *Store) OpenPatiently(ctx context.Context, sum Sum) (b *Blob, err error) {
	err = s.patiently(ctx, func() (err error) {
		b, err = s.Open(ctx, sum)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.waits = true
	return b, nil
}

func (s *Store) openOnce(ctx context.Context, sum Sum) (*Blob, error) {
	row := packedContent{sum: sum}
	var body []byte
	err := s.query.QueryRowContext(ctx, "SELECT id, CAST(length AS BIGINT), bytes FROM content WHERE sum = $1", sum[:]).Scan(&row.id, &row.size, &body)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, database.Missing("there is no content %s", sum)
	case err != nil:
		return nil, fmt.Errorf("%s: read content %s: %w", s.name, sum, s.coded(err))
	}
	b := s.blob(ctx, row)
	switch {
	case body == nil && row.size > chunkSize:
		if s.packs == nil {
			return b, nil
		}
		if err := b.load(0); err != nil { // what is wrong with the bucket is known at once
			return nil, errors.Join(err, b.Close())
		}
		return b, nil
	case body == nil && row.size > 0:
		body, err = s.small(ctx, row)
	default:
		if err = checkSmall(sum, row.size, body); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			whole, packErr := s.small(ctx, row) // it may be in its pack too
			if packErr == nil || errors.Is(packErr, event.ErrUnavailable) {
				body, err = whole, packErr
			}
		}
	}
	if err != nil {
		return nil, err
	}
	b.part = body
	return b, nil
}

// blob returns a content that is to be read chunk by chunk.
func (s *Store) blob(ctx context.Context, row packedContent) *Blob {
	return &Blob{ctx: ctx, store: s, id: row.id, sum: row.sum, size: row.size}
}

// smallAtOnce is how many sums one statement of Small has.
const smallAtOnce = 32

var selectSmall = "SELECT id, sum, CAST(length AS BIGINT), bytes FROM content WHERE sum IN (" + database.Params(smallAtOnce) + ")"

// Small returns those contents that are stored in one piece, of at most 256 KiB, by their
// sums. It leaves out the others, which Open reads, and those that are not there. Many at
// once take a third of the time of one by one. The error is ErrDamaged if one is damaged.
func (s *Store) Small(ctx context.Context, sums []Sum) (map[Sum][]byte, error) {
	small := make(map[Sum][]byte, len(sums))
	var packed []packedContent
	args := make([]any, smallAtOnce)
	for part := range slices.Chunk(sums, smallAtOnce) {
		for i := range args {
			args[i] = part[min(i, len(part)-1)][:] // padded, so that one statement serves all
		}
		if err := s.each(ctx, selectSmall, args, func(rows *sql.Rows) error {
			row, body, err := scanContent(rows)
			switch {
			case err != nil:
				return err
			case body == nil && row.size > chunkSize:
				return nil
			case body == nil && row.size > 0:
				packed = append(packed, row)
				return nil
			}
			err = checkSmall(row.sum, row.size, body)
			if err != nil && s.packs != nil {
				packed = append(packed, row) // as Open does
				return nil
			}
			small[row.sum] = bytes.Clone(body)
			return err
		}); err != nil {
			return nil, fmt.Errorf("%s: read contents: %w", s.name, s.coded(err))
		}
	}
	slices.SortFunc(packed, func(a, b packedContent) int { return cmp.Compare(a.id, b.id) }) // as they are in their packs
	for _, row := range packed {
		switch b, err := s.Open(ctx, row.sum); {
		case errors.Is(err, fs.ErrNotExist): // it was removed since
		case err != nil:
			return nil, err
		default:
			small[row.sum] = b.part
		}
	}
	return small, nil
}

// scanContent scans the columns id, sum, length and bytes. What it returns of the bytes lasts
// until the next row; nil is that they are elsewhere.
func scanContent(rows *sql.Rows) (row packedContent, body sql.RawBytes, err error) {
	var sum sql.RawBytes
	if err = rows.Scan(&row.id, &sum, &row.size, &body); err != nil {
		return row, nil, err
	}
	if len(sum) != len(row.sum) {
		return row, nil, fmt.Errorf("%w: content %d has no SHA-256", ErrDamaged, row.id)
	}
	row.sum = Sum(sum)
	return row, body, nil
}

func checkSmall(sum Sum, size int64, body []byte) error {
	if size != int64(len(body)) || sumOf(body) != sum {
		return damage(sum, "its bytes do not have its hash")
	}
	return nil
}

func damage(sum Sum, what string) error {
	return fmt.Errorf("content %s is %w (%s): restore it from a backup", sum, ErrDamaged, what)
}

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
		load := func() error { return b.load(b.pos / chunkSize) }
		if b.waits {
			load = func() error { return b.store.patiently(b.ctx, func() error { return b.load(b.pos / chunkSize) }) }
		}
		if err := load(); err != nil {
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
	none := errors.Is(err, sql.ErrNoRows)
	if none {
		var moved bool
		if moved, err = b.hasMoved(); moved {
			return b.load(n)
		}
	}
	switch {
	case none && err == nil:
		return fmt.Errorf("%s: %w", b.store.name, damage(b.sum, fmt.Sprintf("chunk %d is missing", n)))
	case err != nil:
		return fmt.Errorf("%s: read chunk %d of content %s: %w", b.store.name, n, b.sum, b.store.coded(err))
	}
	isSealed := func() bool {
		want := sealOf(b.sum, b.size, n, part)
		return string(seal) == string(want[:]) && int64(len(part)) == min(chunkSize, b.size-n*chunkSize)
	}
	if !isSealed() && b.store.packs != nil {
		if part, err = b.fetch(n); err != nil {
			return err
		}
	}
	if !isSealed() {
		return fmt.Errorf("%s: %w", b.store.name, damage(b.sum, fmt.Sprintf("chunk %d does not have its hash", n)))
	}
	b.part, b.at = part, n*chunkSize
	return nil
}

// hasMoved reports whether the content has another id by now: it was replaced.
func (b *Blob) hasMoved() (bool, error) {
	was := b.id
	err := b.store.query.QueryRowContext(b.ctx, "SELECT id FROM content WHERE sum = $1 AND length = $2", b.sum[:], b.size).Scan(&b.id)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil && b.id != was, err
}

// fetch reads chunk n from the bucket: those that follow one another with one request, others
// each with its own.
func (b *Blob) fetch(n int64) ([]byte, error) {
	at, found, err := b.store.placeOf(b.ctx, b.id)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: read chunk %d of content %s: %w", b.store.name, n, b.sum, b.store.coded(err))
	case !found:
		return nil, fmt.Errorf("%s: %w", b.store.name, damage(b.sum, fmt.Sprintf("chunk %d does not have its hash", n)))
	}
	size := min(chunkSize, b.size-n*chunkSize)
	follows := b.fetched > 0 && n == b.fetched
	b.fetched = n + 1
	if !follows {
		return b.store.packs.get(b.ctx, at.key, at.at+n*chunkSize, size)
	}
	part := make([]byte, size)
	for try := 0; ; try++ {
		err := b.follow(at, n*chunkSize)
		if err == nil {
			var did int
			did, err = io.ReadFull(b.stream, part)
			b.streamAt += int64(did)
		}
		switch {
		case err == nil:
			return part, nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("content %s is %w (%s of %s is too short)", b.sum, ErrDamaged, at.key, b.store.packs.bucket)
		}
		err = errors.Join(err, b.leave())
		if try > 0 || !errors.Is(err, bucket.ErrAway) || b.ctx.Err() != nil {
			return nil, fmt.Errorf("content %s: %w", b.sum, b.store.packs.coded(err))
		}
	}
}

// follow makes the next byte of the stream the one at a place of the content.
func (b *Blob) follow(at place, pos int64) (err error) {
	if b.stream != nil && b.streamAt == pos {
		return nil
	}
	if err := b.leave(); err != nil {
		return err
	}
	b.stream, err = b.store.packs.bucket.Stream(b.ctx, at.key, at.at+pos)
	b.streamAt = pos
	return err
}

// leave ends the stream.
func (b *Blob) leave() error {
	if b.stream == nil {
		return nil
	}
	err := b.stream.Close()
	b.stream = nil
	return err
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
	return b.leave()
}
