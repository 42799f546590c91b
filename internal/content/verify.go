package content

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"

	"github.com/pmh-bridge/bridge/internal/database"
)

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

// Verify checks every content and calls report for each: with nil when its bytes have its
// hash, else with an error that is ErrDamaged. It reads all that the database has. Of a pack
// in a bucket it looks whether it is there, in its length; with whole it reads it too, and
// waits up to an hour if the bucket cannot be reached meanwhile. It returns how many contents it
// has checked. Its own error is ErrDamaged when the database
// itself is damaged, as far as a file shows that: then some contents may not be found.
func (s *Store) Verify(ctx context.Context, whole bool, report func(Sum, error)) (Stats, error) {
	v := verification{store: s, whole: whole, report: report}
	err := v.lookForPacks(ctx)
	for last := int64(0); err == nil; {
		var page []checked
		if page, err = v.page(ctx, last); err != nil || len(page) == 0 {
			break
		}
		last = page[len(page)-1].id
		for i := range page {
			if err = v.check(ctx, &page[i]); err != nil {
				break
			}
		}
	}
	wrong := ""
	if err == nil {
		wrong, err = v.count(ctx)
	}
	if err != nil {
		return v.seen, fmt.Errorf("%s: verify: %w", s.name, s.coded(err))
	}
	if wrong != "" {
		return v.seen, fmt.Errorf("%s is %w (%s): restore it from a backup", s.name, ErrDamaged, wrong)
	}
	if database.OnServer(s.path) {
		return v.seen, nil
	}
	var verdict string
	if err := s.query.QueryRowContext(ctx, `PRAGMA integrity_check(1)`).Scan(&verdict); err != nil {
		return v.seen, fmt.Errorf("%s: verify: %w", s.name, s.coded(err))
	}
	if verdict != "ok" {
		return v.seen, fmt.Errorf("%s is %w (%s): restore it from a backup", s.name, ErrDamaged, verdict)
	}
	return v.seen, nil
}

// verification is a run of Verify.
type verification struct {
	store  *Store
	whole  bool
	report func(Sum, error)
	seen   Stats
	bad    map[string]error // what is wrong with packs, by key
}

// checked is a content that is to be checked, as far as the database has it.
type checked struct {
	packedContent
	here error // what is wrong with bytes that are here, and were read
	left bool  // they are in chunks, and to be read
	away bool  // the database has none
	in   place
}

// count finds a pack of which fewer bytes count as needed than are, which would be removed while
// it is needed. Each is looked at in one statement: others may write meanwhile.
func (v *verification) count(ctx context.Context) (wrong string, err error) {
	packs, err := database.All(ctx, v.store.each, "SELECT id FROM pack ORDER BY id", nil, database.Column[int64])
	for i := 0; i < len(packs) && err == nil; i++ {
		err = v.store.each(ctx, `SELECT p.key, CAST(p.live AS BIGINT), (SELECT CAST(coalesce(sum(c.length), 0) AS BIGINT) FROM place l JOIN content c ON c.id = l.content
WHERE l.pack = p.id AND l.content BETWEEN p.first AND p.last) FROM pack p WHERE p.id = $1`, []any{packs[i]}, func(rows *sql.Rows) error {
			var key string
			var live, there int64
			err := rows.Scan(&key, &live, &there)
			if err == nil && live < there && wrong == "" {
				wrong = fmt.Sprintf("%d bytes of contents were counted in %s, there are %d", live, key, there)
			}
			return err
		})
	}
	return wrong, err
}

// lookForPacks finds those that are not in the bucket as they were put there.
func (v *verification) lookForPacks(ctx context.Context) error {
	p := v.store.packs
	if p == nil {
		return nil
	}
	want := map[string]int64{} // before the list: what is put meanwhile is in neither
	if err := v.store.each(ctx, "SELECT key, length FROM pack WHERE live > 0", nil, func(rows *sql.Rows) error {
		var key string
		var length int64
		err := rows.Scan(&key, &length)
		want[key] = length
		return err
	}); err != nil {
		return v.store.coded(err)
	}
	v.bad = map[string]error{}
	for o, err := range p.bucket.Objects(ctx, "") {
		if err != nil {
			return unavailable(err)
		}
		p.answered.Store(true)
		if length, found := want[o.Key]; found && length != o.Size {
			v.bad[o.Key] = fmt.Errorf("%w: %s of %s has %d bytes, and had %d: put it back from a backup of the bucket; what the database still has of it bridge gc writes anew", ErrDamaged, o.Key, p.bucket, o.Size, length)
		}
		delete(want, o.Key)
	}
	for key := range want {
		v.bad[key] = fmt.Errorf("%w: %s is not in %s: put it back from a backup of the bucket; what the database still has of it bridge gc writes anew", ErrDamaged, key, p.bucket)
	}
	return nil
}

// page returns the contents behind an id, and checks the bytes that are in their rows.
func (v *verification) page(ctx context.Context, after int64) ([]checked, error) {
	return database.All(ctx, v.store.each, `SELECT c.id, c.sum, CAST(c.length AS BIGINT), c.bytes, coalesce(l.at, 0), coalesce(p.key, ''), coalesce(p.length, 0), coalesce(p.kept, 1)
FROM content c LEFT JOIN place l ON l.content = c.id AND l.content > $1 LEFT JOIN pack p ON p.id = l.pack WHERE c.id > $1 ORDER BY c.id LIMIT $2`, []any{after, verifyPage}, func(c *checked, rows *sql.Rows) error {
		var sum, body sql.RawBytes
		var kept bool
		if err := rows.Scan(&c.id, &sum, &c.size, &body, &c.in.at, &c.in.key, &c.in.length, &kept); err != nil {
			return err
		}
		copy(c.sum[:], sum)
		c.away = !kept
		switch {
		case len(sum) == len(c.sum) && c.size > chunkSize && body == nil:
			c.left = kept
		case kept || body != nil:
			c.here = checkSmall(c.sum, c.size, body)
		}
		return nil
	})
}

// check checks what is left to check of a content, and reports it. Its own error is that it
// could not be checked.
func (v *verification) check(ctx context.Context, c *checked) error {
	err := v.store.patiently(ctx, func() error { return v.read(ctx, c) })
	if errors.Is(err, ErrDamaged) {
		var there bool
		if err := v.store.query.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM content WHERE id = $1)", c.id).Scan(&there); err != nil {
			return err
		}
		if !there { // it was removed meanwhile, or replaced: then it has a higher id
			return nil
		}
	} else if err != nil {
		return err
	}
	v.seen.Count++
	v.seen.Bytes += c.size
	v.report(c.sum, err)
	return nil
}

// read reads what is left to check of a content.
func (v *verification) read(ctx context.Context, c *checked) error {
	err := c.here
	if err != nil && c.in.key != "" && v.store.packs != nil {
		_, err = v.store.packs.small(ctx, c.in, c.packedContent) // as Open does
	}
	if err == nil && c.left {
		err = v.readChunks(ctx, c)
	}
	if err == nil && c.in.key != "" && v.store.packs != nil {
		err = v.checkPacked(ctx, c)
	}
	return err
}

// readChunks reads a content that is in chunks, wherever their bytes are.
func (v *verification) readChunks(ctx context.Context, c *checked) error {
	b := v.store.blob(ctx, c.packedContent)
	return errors.Join(b.verify(), b.Close())
}

// checkPacked checks a content in its pack.
func (v *verification) checkPacked(ctx context.Context, c *checked) error {
	p := v.store.packs
	switch {
	case v.bad[c.in.key] != nil:
		return fmt.Errorf("content %s is %w", c.sum, v.bad[c.in.key])
	case !v.whole:
		return nil
	case c.size <= chunkSize:
		_, err := p.small(ctx, c.in, c.packedContent)
		return err
	}
	var unreadable error
	if c.away {
		if unreadable = v.readChunks(ctx, c); !errors.Is(unreadable, ErrDamaged) {
			return unreadable
		}
	}
	body, err := p.bucket.Stream(ctx, c.in.key, c.in.at)
	if err != nil {
		return p.coded(err)
	}
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(body, c.size))
	if err := errors.Join(err, body.Close()); err != nil {
		return p.coded(err)
	}
	if n != c.size || Sum(hash.Sum(nil)) != c.sum {
		return p.damage(c.packedContent, c.in.key)
	}
	return unreadable // although the object is sound: the hashes of its chunks, which the database has, are not
}

// verify reads a large content whole.
func (b *Blob) verify() error {
	hash := sha256.New()
	if _, err := io.Copy(hash, b); err != nil {
		return err
	}
	if Sum(hash.Sum(nil)) != b.sum {
		return fmt.Errorf("%s: %w", b.store.name, damage(b.sum, "its chunks together do not have its hash"))
	}
	return nil
}
