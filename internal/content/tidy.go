package content

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/pattern"
)

// TidyOptions say how far to go.
type TidyOptions struct {
	// Keep is how long what nothing needs any more is kept; a negative time is that of
	// Options.KeepUnneeded.
	Keep time.Duration
	// Adopt takes back contents that the store has lost from objects that it does not know.
	Adopt bool
	// Unknown does that too, and removes the others of these objects.
	Unknown bool
}

// Tidied is what was done about the packs of a bucket.
type Tidied struct {
	Removed       int64 `json:"removed"`        // objects that nothing needed
	RemovedBytes  int64 `json:"removed_bytes"`  // their length
	Waiting       int64 `json:"waiting"`        // objects that nothing needs, and whose time has not come
	Rewritten     int64 `json:"rewritten"`      // packs of which less than half was needed: the rest goes into new ones
	Adopted       int64 `json:"adopted"`        // objects that the store did not know, with contents that it had lost
	Contents      int64 `json:"contents"`       // those contents
	ContentsBytes int64 `json:"contents_bytes"` // their bytes
	Unknown       int64 `json:"unknown"`        // objects that the store still does not know
	UnknownBytes  int64 `json:"unknown_bytes"`  // their length
}

// Tidy moves all contents to the bucket that wait for it, removes the packs of which nothing
// was needed for a time, and writes those anew of which less than half is. It counts the
// objects that the store does not know: a store that was put back from a backup leaves some. What
// is not of a store at all it leaves alone.
func (s *Store) Tidy(ctx context.Context, o TidyOptions) (t Tidied, err error) {
	switch {
	case s.writer == nil:
		return t, errReadOnly
	case s.packs == nil:
		return t, fmt.Errorf("%w: %s has none: there is nothing to tidy unless the configuration names a bucket for the contents ([store] contents)", ErrBucket, s.name)
	}
	p := s.packs
	if o.Keep < 0 {
		o.Keep = p.unneeded
	}
	err = p.work(ctx, func(ctx context.Context) error {
		if err := p.heal(ctx); err != nil {
			return err
		}
		if err := p.lookThrough(ctx, o, &t); err != nil {
			return err
		}
		if err := p.pack(ctx, true); err != nil {
			return err
		}
		if err := p.tidy(ctx, o.Keep, &t); err != nil || t.Rewritten == 0 {
			return err
		}
		return p.pack(ctx, true)
	})
	if err == nil {
		p.said(nil)
	}
	return t, err
}

// tidy removes the packs of which nothing was needed for the time keep, and has the contents
// of those packed anew of which less than half is. While the clock is not trusted that time does
// not pass.
func (p *packs) tidy(ctx context.Context, keep time.Duration, t *Tidied) error {
	clock, untrusted := p.now()
	now := clock.Unix()
	if untrusted == nil {
		if err := p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
			return tx.Exec(ctx, "UPDATE pack SET unneeded = $1 WHERE live = 0 AND (unneeded IS NULL OR unneeded > $1)", now) // the clock may have been ahead
		}); err != nil {
			return err
		}
	}
	type row struct {
		id, length, live, unneeded int64
		key                        string
	}
	all, err := database.All(ctx, p.store.each, "SELECT id, length, live, coalesce(unneeded, $1), key FROM pack WHERE live * 2 < held ORDER BY id", []any{now}, func(r *row, rows *sql.Rows) error {
		return rows.Scan(&r.id, &r.length, &r.live, &r.unneeded, &r.key)
	})
	if err != nil {
		return p.store.coded(err)
	}
	for _, r := range all {
		switch {
		case r.live > 0:
			if err := p.unpack(ctx, r.id); err != nil {
				return err
			}
			var left int64 // damaged
			if err := p.store.query.QueryRowContext(ctx, "SELECT live FROM pack WHERE id = $1", r.id).Scan(&left); err != nil {
				return p.store.coded(err)
			}
			if left < r.live {
				t.Rewritten++
			}
		case keep > 0 && (untrusted != nil || now-r.unneeded < int64(keep/time.Second)):
			t.Waiting++
		default:
			if err := p.bucket.Remove(ctx, r.key); err != nil {
				return err
			}
			if err := p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
				return tx.Exec(ctx, "DELETE FROM pack WHERE id = $1 AND live = 0", r.id)
			}); err != nil {
				return err
			}
			t.Removed++
			t.RemovedBytes += r.length
		}
	}
	return nil
}

// unpack takes the contents of a pack back into the database. Those that are damaged stay.
func (p *packs) unpack(ctx context.Context, id int64) error {
	sums, err := database.All(ctx, p.store.each, "SELECT id, sum, CAST(length AS BIGINT), NULL FROM content WHERE id IN ("+inPack+") ORDER BY id", []any{id}, func(sum *Sum, rows *sql.Rows) error {
		row, _, err := scanContent(rows)
		*sum = row.sum
		return err
	})
	if err != nil {
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
	return p.store.replace(ctx, id, all)
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
// objects stay where they are. It waits for a bucket that cannot be reached, up to an hour.
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
			err = p.store.patiently(ctx, func() error { return p.unpack(ctx, id) })
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
		for _, text := range []string{"DELETE FROM pack", "UPDATE bucket SET address = '', packed = 0"} {
			if err := tx.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
}

// ourKey is the form of our keys, and of no other bridge's below this one.
var ourKey = pattern.Of(`^(packs/[A-Z2-7]{26}\.zip|large/[0-9a-f]{64}-[A-Z2-7]{26})$`)

// heal takes what the database still has of packs that are not in the bucket, or have another
// length there, to be packed anew.
func (p *packs) heal(ctx context.Context) error {
	v := verification{store: p.store}
	if err := v.lookForPacks(ctx); err != nil {
		return err
	}
	for key := range v.bad {
		var id int64
		err := p.store.query.QueryRowContext(ctx, "SELECT id FROM pack WHERE key = $1 AND kept = 1", key).Scan(&id)
		if err == nil {
			err = p.unpack(ctx, id)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return p.store.coded(err)
		}
	}
	return nil
}

// lookThrough looks at the objects that the store does not know.
func (p *packs) lookThrough(ctx context.Context, o TidyOptions, t *Tidied) error {
	clock, untrusted := p.now()
	before := clock.Add(-o.Keep)
	look := func(obj bucket.Object) error {
		t.Unknown++
		t.UnknownBytes += obj.Size
		if !o.Adopt && !o.Unknown {
			return nil
		}
		found, err := p.contentsOf(ctx, obj)
		if errors.Is(err, bucket.ErrRefused) || errors.Is(err, ErrDamaged) {
			return nil // it cannot be read, and so stays unknown
		}
		if err != nil || len(found) == 0 {
			return err
		}
		lost, err := p.lostOf(ctx, found)
		switch {
		case err != nil:
			return err
		case len(lost) > 0:
			t.Adopted++
			t.Contents += int64(len(lost))
			for i := range lost {
				t.ContentsBytes += lost[i].size
			}
			err = p.adopt(ctx, obj, found, lost)
		case o.Unknown && (o.Keep == 0 || untrusted == nil && obj.Modified.Before(before)):
			t.Removed++
			t.RemovedBytes += obj.Size
			err = p.bucket.Remove(ctx, obj.Key)
		default:
			return nil
		}
		t.Unknown--
		t.UnknownBytes -= obj.Size
		return err
	}
	for _, front := range []string{packKeys, largeKeys} {
		for obj, err := range p.bucket.Objects(ctx, front) {
			if err != nil {
				return err
			}
			var known bool
			if err := p.store.query.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pack WHERE key = $1)", obj.Key).Scan(&known); err != nil {
				return p.store.coded(err)
			}
			if known || !ourKey().MatchString(obj.Key) {
				continue
			}
			if err := look(obj); err != nil {
				return err
			}
		}
	}
	return nil
}
