package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pmh-bridge/bridge/internal/database"
)

// chunkSize is the length of a chunk in bytes, and of the largest content that is stored
// in its row. It is part of the file's format.
const chunkSize = 256 << 10

// Draft is a content that is read to its end and hashed, and not yet stored. Close frees
// its file, whether or not it was stored.
type Draft struct {
	sum   Sum
	size  int64
	bytes []byte
	file  *os.File // instead of bytes when it was spooled
}

// NewDraft returns a draft of b, which must not change until the draft has been
// stored.
func NewDraft(b []byte) *Draft {
	return &Draft{sum: sumOf(b), size: int64(len(b)), bytes: b}
}

// Draft reads r to its end. Up to 256 KiB stay in memory; more goes to a temporary file
// in the folder of Options.Spool (in a dry run, in the system's folder for temporary files). The
// error is ErrTooLarge if r has more than limit bytes, ErrFull if the disk is full; an
// error of r is wrapped.
func (s *Store) Draft(r io.Reader, limit int64) (*Draft, error) {
	if s.writer == nil {
		return nil, errReadOnly
	}
	var head bytes.Buffer
	n, err := io.Copy(&head, io.LimitReader(r, min(limit, chunkSize)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read content: %w", err)
	case n > limit:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	case n <= chunkSize:
		return NewDraft(head.Bytes()), nil
	}
	file, err := os.CreateTemp(s.spool, s.spoolPattern())
	if err != nil {
		return nil, fmt.Errorf("spool content: %w", full(err))
	}
	d := &Draft{file: file} // without a name from here on
	if err := errors.Join(os.Remove(file.Name()), d.fill(io.MultiReader(&head, r), limit)); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// spoolPattern is the pattern of temporary file names. The files lose their names as soon
// as they are made, so that a crash leaves nothing behind, except in the moment between.
func (s *Store) spoolPattern() string {
	name := FileName
	if !database.OnServer(s.path) {
		name = filepath.Base(s.path)
	}
	return "." + name + "-*.tmp"
}

// sweep removes the files that such a crash has left.
func (s *Store) sweep() error {
	entries, err := os.ReadDir(s.spool)
	if err != nil {
		return err
	}
	// No Glob: it would read some characters of the store's own name as a pattern.
	prefix, suffix, _ := strings.Cut(s.spoolPattern(), "*")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), suffix) {
			if err := os.Remove(filepath.Join(s.spool, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Draft) fill(r io.Reader, limit int64) error {
	hash := sha256.New()
	buf := make([]byte, 64<<10)
	for {
		n, readErr := r.Read(buf)
		d.size += int64(n)
		if d.size > limit {
			return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
		}
		hash.Write(buf[:n])
		if _, err := d.file.Write(buf[:n]); err != nil {
			return fmt.Errorf("spool content: %w", full(err))
		}
		switch {
		case readErr == io.EOF:
			hash.Sum(d.sum[:0])
			return nil
		case readErr != nil:
			return fmt.Errorf("read content: %w", readErr)
		}
	}
}

func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// Sum returns the name of the content.
func (d *Draft) Sum() Sum { return d.sum }

// Size returns its length in bytes.
func (d *Draft) Size() int64 { return d.size }

// Close frees the file of a large draft.
func (d *Draft) Close() error {
	if d.file == nil {
		return nil
	}
	if err := d.file.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return err
	}
	return nil
}

// Put stores the drafts, all or none of them. They are durable when it returns nil (in a
// dry run, they last as long as the store is open). A content that is stored already, or
// comes twice, is not stored again. The drafts stay the caller's: after an error the same
// call may be made again. The error is ErrFull if the disk is full.
func (s *Store) Put(ctx context.Context, drafts ...*Draft) error {
	if s.writer == nil {
		return errReadOnly
	}
	bySum := make(map[Sum]*Draft, len(drafts))
	for _, d := range drafts {
		bySum[d.sum] = d
	}
	// In the order of their sums: then the contents of a large call touch each page of
	// the index once.
	sums := slices.SortedFunc(maps.Keys(bySum), func(a, b Sum) int { return bytes.Compare(a[:], b[:]) })
	anyLarge := slices.ContainsFunc(drafts, func(d *Draft) bool { return d.size > chunkSize })
	if err := s.writer.Do(ctx, func(inside context.Context, tx *database.Tx) error {
		// Nearly always all are new, or hardly one is, and the first ones show which. So the
		// others are looked up only where not all of these are new, or they may be large;
		// insert passes over small ones that are known. A few are not worth a look.
		missing := sums
		if len(sums) > few || anyLarge {
			first := min(len(sums), lookups)
			var err error
			missing, err = missingFrom(inside, tx.Each, sums[:first])
			if err == nil && (len(missing) < first || anyLarge) {
				var more []Sum
				more, err = missingFrom(inside, tx.Each, sums[first:])
				missing = append(missing, more...)
			} else {
				missing = append(missing, sums[first:]...)
			}
			if err != nil || len(missing) == 0 {
				return err
			}
		}
		fresh := make([]*Draft, len(missing))
		for i, sum := range missing {
			fresh[i] = bySum[sum]
		}
		return insert(ctx, inside, tx, fresh)
	}); err != nil {
		return fmt.Errorf("%s: store %d contents: %w", s.name, len(drafts), s.coded(err))
	}
	s.arrived(drafts)
	return nil
}

// arrived tells the packer that contents were stored.
func (s *Store) arrived(drafts []*Draft) {
	if s.packs == nil {
		return
	}
	n := int64(0)
	for _, d := range drafts {
		n += d.size
	}
	s.packs.note(n)
}

// Replace stores drafts in the place of contents that are damaged or missing: those with
// the same hashes, of which each comes once. All of them are stored or none.
func (s *Store) Replace(ctx context.Context, drafts ...*Draft) error {
	return s.replace(ctx, 0, drafts)
}

// replace is Replace of those contents that are in a pack, unless that is 0.
func (s *Store) replace(ctx context.Context, pack int64, drafts []*Draft) error {
	if s.writer == nil {
		return errReadOnly
	}
	if err := s.writer.Do(ctx, func(inside context.Context, tx *database.Tx) error {
		var put []*Draft
		for _, d := range drafts {
			if pack != 0 {
				in := false
				if err := tx.Each(inside, "SELECT 1 FROM content c JOIN place l ON l.content = c.id WHERE c.sum = $1 AND l.pack = $2", []any{d.sum[:], pack}, func(*sql.Rows) error {
					in = true
					return nil
				}); err != nil {
					return err
				}
				if !in {
					continue
				}
			}
			if err := remove(inside, tx, d.sum); err != nil {
				return err
			}
			put = append(put, d)
		}
		return insert(ctx, inside, tx, put)
	}); err != nil {
		return fmt.Errorf("%s: replace %d contents: %w", s.name, len(drafts), s.coded(err))
	}
	s.arrived(drafts)
	return nil
}

// Remove removes contents, all or none of them. It ignores sums that are not stored.
// Nobody may call Put meanwhile: it might count on a content that is being removed.
func (s *Store) Remove(ctx context.Context, sums ...Sum) error {
	if s.writer == nil {
		return errReadOnly
	}
	if err := s.writer.Do(ctx, func(inside context.Context, tx *database.Tx) error {
		for _, sum := range sums {
			if err := remove(inside, tx, sum); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("%s: remove contents: %w", s.name, s.coded(err))
	}
	return nil
}

func remove(ctx context.Context, tx *database.Tx, sum Sum) error {
	for _, text := range []string{
		`UPDATE total SET (count, length) = (SELECT total.count - count(*), total.length - coalesce(sum(c.length), 0) FROM content c WHERE c.sum = $1)`,
		`UPDATE pack SET live = live - (SELECT c.length FROM content c WHERE c.sum = $1) WHERE id = (SELECT l.pack FROM content c JOIN place l ON l.content = c.id WHERE c.sum = $1)`,
		`UPDATE bucket SET removed = (SELECT id FROM content WHERE sum = $1) WHERE removed < (SELECT id FROM content WHERE sum = $1)`,
		`DELETE FROM place WHERE content IN (SELECT id FROM content WHERE sum = $1)`,
		`DELETE FROM chunk WHERE content IN (SELECT id FROM content WHERE sum = $1)`,
		`DELETE FROM content WHERE sum = $1`,
	} {
		if err := tx.Exec(ctx, text, sum[:]); err != nil {
			return err
		}
	}
	return nil
}

// lastID returns the highest id that a content has or had.
func lastID(ctx context.Context, tx *database.Tx) (last int64, err error) {
	err = tx.Each(ctx, "SELECT max(n) FROM (SELECT coalesce(max(id), 0) AS n FROM content UNION ALL SELECT removed FROM bucket) AS given", nil, func(rows *sql.Rows) error { return rows.Scan(&last) })
	return last, err
}

// insert stores contents. Large ones must not be in the store, small ones may be. ctx is
// the caller's, which may end at any time; inside is that of the transaction, which must
// not.
func insert(ctx, inside context.Context, tx *database.Tx, drafts []*Draft) error {
	var large []*Draft
	last, err := lastID(inside, tx)
	if err != nil {
		return err
	}
	id := last
	before, err := tx.Changes(inside)
	if err != nil {
		return err
	}
	var length int64
	// IGNORE: the constraints on sum and length hold of every draft but for a known one.
	rows := tx.Bulk(inside, "INSERT OR IGNORE INTO content (id, sum, length, bytes) VALUES ", 4)
	count := int64(0)
	for _, d := range drafts {
		if d.size > chunkSize {
			large = append(large, d)
			continue
		}
		id, count = id+1, count+1
		if err := rows.Add(id, d.sum[:], d.size, d.bytes); err != nil {
			return err
		}
		length += d.size
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	after, err := tx.Changes(inside)
	if err != nil {
		return err
	}
	if after-before != count { // some were known
		if err := tx.Each(inside, "SELECT count(*), coalesce(sum(length), 0) FROM content WHERE id > $1", []any{last}, func(rows *sql.Rows) error {
			return rows.Scan(&count, &length)
		}); err != nil {
			return err
		}
	}
	for _, d := range large {
		id++
		if err := insertLarge(ctx, inside, tx, id, d); err != nil {
			return err
		}
		count, length = count+1, length+d.size
	}
	if count == 0 {
		return nil
	}
	return tx.Exec(inside, "UPDATE total SET count = count + $1, length = length + $2", count, length)
}

// insertLarge stores a content in chunks. Most come from a file, so the bytes are
// hashed once more: what is sealed here is what was read from the Source.
func insertLarge(ctx, inside context.Context, tx *database.Tx, id int64, d *Draft) error {
	if err := tx.Exec(inside, "INSERT INTO content (id, sum, length, bytes) VALUES ($1, $2, $3, NULL)", id, d.sum[:], d.size); err != nil {
		return err
	}
	var body io.ReaderAt = bytes.NewReader(d.bytes)
	if d.file != nil {
		body = d.file
	}
	hash := sha256.New()
	buf := make([]byte, chunkSize)
	for n := int64(0); n*chunkSize < d.size; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(chunkSize, d.size-n*chunkSize)]
		if _, err := body.ReadAt(part, n*chunkSize); err != nil && err != io.EOF {
			return fmt.Errorf("read spooled content: %w", err)
		}
		hash.Write(part)
		seal := sealOf(d.sum, d.size, n, part)
		if err := tx.Exec(inside, "INSERT INTO chunk (id, content, n, seal, bytes) VALUES ((SELECT coalesce(max(id), 0) + 1 FROM chunk), $1, $2, $3, $4)", id, n, seal[:], part); err != nil {
			return err
		}
	}
	if Sum(hash.Sum(nil)) != d.sum {
		return fmt.Errorf("content %s changed while it was spooled: fetch it again", d.sum)
	}
	return nil
}

// sealOf returns the check of chunk n of a content.
func sealOf(sum Sum, size, n int64, part []byte) Sum {
	hash := sha256.New()
	hash.Write(sum[:])
	var place [16]byte
	binary.BigEndian.PutUint64(place[:8], uint64(size))
	binary.BigEndian.PutUint64(place[8:], uint64(n))
	hash.Write(place[:])
	hash.Write(part)
	return Sum(hash.Sum(nil))
}
