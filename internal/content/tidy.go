package content

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Tidied is what was done about the packs of a bucket.
type Tidied struct {
	Removed      int64 `json:"removed"`       // packs that nothing needed
	RemovedBytes int64 `json:"removed_bytes"` // their length
	Waiting      int64 `json:"waiting"`       // packs that nothing needs, and whose time has not come
	Rewritten    int64 `json:"rewritten"`     // packs of which less than half was needed: the rest goes into new ones
	Unknown      int64 `json:"unknown"`       // objects in the bucket that the store does not know
	UnknownBytes int64 `json:"unknown_bytes"` // their length
}

// Tidy moves all contents to the bucket that wait for it, removes the packs of which nothing
// was needed for a time, and writes those anew of which less than half is. It counts the
// objects that the store does not know, which a store that was put back from a backup may have
// left; with removeUnknown those that are older than that time are removed. Then it gives the
// disk what the database does not need. Nothing else may use the store meanwhile.
func (s *Store) Tidy(ctx context.Context, keep time.Duration, removeUnknown bool) (Tidied, error) {
	if err := s.needBucket(); err != nil {
		return Tidied{}, err
	}
	p := s.packs
	var t Tidied
	err := p.work(ctx, func(ctx context.Context) (err error) {
		if t, err = p.tidy(ctx, keep); err != nil {
			return err
		}
		if err = p.pack(ctx, true); err != nil {
			return err
		}
		if err = p.unknown(ctx, keep, removeUnknown, &t); err != nil {
			return err
		}
		return s.shrink(ctx)
	})
	return t, err
}

// tidy removes the packs of which nothing was needed for the time keep, and has the contents
// of those packed anew of which less than half is.
func (p *packs) tidy(ctx context.Context, keep time.Duration) (t Tidied, err error) {
	now := time.Now().Unix()
	if err := p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Exec(ctx, "UPDATE pack SET unneeded = $1 WHERE live = 0 AND unneeded IS NULL", now)
	}); err != nil {
		return t, err
	}
	type row struct {
		id, length, live, unneeded int64
		key                        string
	}
	var all []row
	rows, err := p.store.query.QueryContext(ctx, "SELECT id, length, live, coalesce(unneeded, 0), key FROM pack WHERE live * 2 < held ORDER BY id")
	if err := database.ScanAll(rows, err, func(rows *sql.Rows) error {
		var r row
		err := rows.Scan(&r.id, &r.length, &r.live, &r.unneeded, &r.key)
		all = append(all, r)
		return err
	}); err != nil {
		return t, p.store.coded(err)
	}
	for _, r := range all {
		switch {
		case r.live > 0:
			if err := p.unpack(ctx, r.id); err != nil {
				return t, err
			}
			t.Rewritten++
		case now-r.unneeded < int64(keep/time.Second):
			t.Waiting++
		default:
			if err := p.bucket.Remove(ctx, r.key); err != nil {
				return t, err
			}
			if err := p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
				return tx.Exec(ctx, "DELETE FROM pack WHERE id = $1 AND live = 0", r.id)
			}); err != nil {
				return t, err
			}
			t.Removed++
			t.RemovedBytes += r.length
		}
	}
	return t, nil
}

// unpack takes the contents of a pack back into the database. Those that are damaged stay.
func (p *packs) unpack(ctx context.Context, id int64) error {
	var sums []Sum
	rows, err := p.store.query.QueryContext(ctx, "SELECT sum FROM content WHERE id IN ("+inPack+") ORDER BY id", id)
	if err := database.ScanAll(rows, err, func(rows *sql.Rows) error {
		var raw sql.RawBytes
		err := rows.Scan(&raw)
		sums = append(sums, Sum(raw))
		return err
	}); err != nil {
		return p.store.coded(err)
	}
	var all []*Draft
	defer func() {
		for _, d := range all {
			_ = d.Close() // it was stored, or stays in its pack
		}
	}()
	for _, sum := range sums {
		switch d, err := p.store.draftOf(ctx, sum); {
		case errors.Is(err, ErrDamaged), errors.Is(err, fs.ErrNotExist): // it was removed since
		case err != nil:
			return err
		default:
			all = append(all, d)
		}
	}
	return p.store.Replace(ctx, all...)
}

// draftOf returns a content of the store as a Draft.
func (s *Store) draftOf(ctx context.Context, sum Sum) (*Draft, error) {
	b, err := s.Open(ctx, sum)
	if err != nil {
		return nil, err
	}
	defer func() { _ = b.Close() }() // it was only read
	return s.Draft(b, b.size)
}

// Unpack takes all contents back from the bucket, which the store then has no more. Its
// objects stay where they are.
func (s *Store) Unpack(ctx context.Context) error {
	if s.writer == nil {
		return errReadOnly
	}
	if s.packs == nil {
		return nil
	}
	return s.packs.work(ctx, s.packs.unpackAll)
}

func (p *packs) unpackAll(ctx context.Context) error {
	for {
		var id, live int64
		err := p.store.query.QueryRowContext(ctx, "SELECT id FROM pack WHERE live > 0 ORDER BY id LIMIT 1").Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err == nil {
			err = p.unpack(ctx, id)
		}
		if err == nil {
			err = p.store.query.QueryRowContext(ctx, "SELECT live FROM pack WHERE id = $1", id).Scan(&live)
		}
		if err == nil && live > 0 {
			err = fmt.Errorf("%w: %d bytes of contents in %s: bridge verify --contents names them", ErrDamaged, live, p.bucket)
		}
		if err != nil {
			return p.store.coded(err)
		}
	}
	return p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		for _, text := range []string{"DELETE FROM pack", "UPDATE bucket SET address = '', identity = '', packed = 0"} {
			if err := tx.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
}

// unknown counts the objects that the store does not know, or removes the old ones of them.
func (p *packs) unknown(ctx context.Context, keep time.Duration, remove bool, t *Tidied) error {
	before := time.Now().Add(-keep)
	return p.eachUnknown(ctx, func(o bucket.Object) error {
		if !remove || !o.Modified.Before(before) {
			t.Unknown++
			t.UnknownBytes += o.Size
			return nil
		}
		t.Removed++
		t.RemovedBytes += o.Size
		return p.bucket.Remove(ctx, o.Key)
	})
}

// eachUnknown calls do for each object in the bucket that the store does not know.
func (p *packs) eachUnknown(ctx context.Context, do func(o bucket.Object) error) error {
	for o, err := range p.bucket.Objects(ctx, "") {
		if err != nil {
			return err
		}
		var known bool
		if err := p.store.query.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pack WHERE key = $1)", o.Key).Scan(&known); err != nil {
			return p.store.coded(err)
		}
		if known || o.Key == markKey || strings.HasPrefix(o.Key, bucket.CheckName) {
			continue
		}
		if err := do(o); err != nil {
			return err
		}
	}
	return nil
}

// needBucket returns why the store can change nothing in a bucket.
func (s *Store) needBucket() error {
	switch {
	case s.writer == nil:
		return errReadOnly
	case s.packs == nil:
		return fmt.Errorf("%w: %s has none", ErrBucket, s.path)
	}
	return nil
}

// shrink makes the database's file smaller if half of it is unused.
func (s *Store) shrink(ctx context.Context) error {
	var pages, free int64
	if err := errors.Join(s.query.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages), s.query.QueryRowContext(ctx, "PRAGMA freelist_count").Scan(&free)); err != nil {
		return s.coded(err)
	}
	if free*2 < pages {
		return nil
	}
	return s.coded(s.writer.Use(ctx, func(ctx context.Context, tx *database.Tx) error { return tx.Exec(ctx, "VACUUM") }))
}
