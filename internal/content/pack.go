package content

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/database"
)

// A pack is a ZIP file whose entries are not compressed, and have the hashes of the contents
// for their names: unzip can read it, and one content of it can be read alone. A content of
// more than 256 KiB is an object of its own, as it is. The empty content is never moved: a pack
// is needed as long as it has bytes that are.

const (
	// packBytes is how many bytes of contents a pack has.
	packBytes = 16 << 20
	// largeAtOnce is how many large contents are looked for before the first is moved.
	largeAtOnce = 500
	// packWait is how long contents wait that do not fill a pack.
	packWait = time.Hour
	// keptBytes is how many bytes of packs are kept in the database too.
	keptBytes = 1 << 30
	// keepUnneeded is how long a pack is kept of which no content is left: who has just
	// looked up its place reads it, and so does a backup that is put back.
	keepUnneeded = 30 * 24 * time.Hour
	// retryFirst and retryMost are how long the packer waits after an error.
	retryFirst, retryMost = time.Minute, time.Hour
)

// Keys begin with these. The rest is never used again: a request that was given up may still
// arrive.
const packKeys, largeKeys = "packs/", "large/"

// said reports whether contents can be moved: each error, and that there is none any more.
func (p *packs) said(err error) {
	if failed := err != nil; p.failed.Swap(failed) || failed {
		p.report(err)
	}
}

// note wakes the packer when there is enough for a pack.
func (p *packs) note(n int64) {
	if p.arrived.Add(n) < p.full {
		return
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// start runs the packer until the store is closed.
func (p *packs) start() {
	p.ended = make(chan struct{})
	go func() {
		defer close(p.ended)
		p.run(p.open)
	}()
}

func (p *packs) run(ctx context.Context) {
	lastAll, retry := time.Now(), time.Duration(0) // retry is 0 while all goes well
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.kick:
			if retry > 0 {
				continue // its time comes
			}
		}
		all := time.Since(lastAll) >= packWait
		err := p.work(ctx, func(ctx context.Context) error { return p.move(ctx, all) })
		if ctx.Err() != nil {
			return
		}
		p.said(err)
		if err != nil {
			retry = min(max(2*retry, retryFirst), retryMost)
			timer.Reset(retry)
			continue
		}
		if all {
			lastAll = time.Now()
		}
		retry = 0
		timer.Reset(packWait)
	}
}

// move moves contents to the bucket: those that fill packs, or all, after which it tidies up.
func (p *packs) move(ctx context.Context, all bool) error {
	err := p.pack(ctx, all)
	if all {
		err = errors.Join(err, p.tidy(ctx, p.unneeded, &Tidied{}))
	}
	return err
}

// packing is what is moved next: a pack that is being made, and large contents.
type packing struct {
	rows  []packedContent
	large []packedContent
	held  int64 // bytes of contents in the pack
	last  int64 // all up to this id are here or in packs, but for damaged ones, which stay where they are
	more  bool  // there may be others behind it
	body  bytes.Buffer
	zip   *zip.Writer
}

// packedContent is a content that is in a pack, or is to be.
type packedContent struct {
	id   int64
	sum  Sum
	size int64
	at   int64 // where in the pack its bytes begin
}

func (g *packing) add(row packedContent, body []byte) error {
	if g.zip == nil {
		g.zip = zip.NewWriter(&g.body)
	}
	h := &zip.FileHeader{Name: row.sum.String(), Method: zip.Store, CRC32: crc32.ChecksumIEEE(body), CompressedSize64: uint64(row.size), UncompressedSize64: uint64(row.size)}
	h.SetMode(0o600)
	w, err := g.zip.CreateRaw(h)
	if err == nil {
		err = g.zip.Flush()
	}
	if err != nil {
		return err
	}
	row.at = int64(g.body.Len())
	g.rows = append(g.rows, row)
	g.held += row.size
	_, err = w.Write(body)
	return err
}

// pack moves contents to the bucket that are in no pack yet, those that fill packs or all, and
// drops from the database what it is not to keep.
func (p *packs) pack(ctx context.Context, all bool) error {
	p.arrived.Store(0)
	if err := p.evict(ctx); err != nil { // it may be to keep less than before
		return err
	}
	for {
		g, err := p.next(ctx)
		if err != nil {
			return err
		}
		moved := len(g.rows) == 0 // all behind it can be looked at next
		for i := range g.large {
			did, err := p.putLarge(ctx, g.large[i])
			if err != nil {
				return err
			}
			moved = moved || did
		}
		switch {
		case len(g.rows) == 0 && g.last > 0:
			err = p.passed(ctx, g.last)
		case len(g.rows) == 0:
		case all || int64(g.body.Len()) >= p.full:
			if err := g.zip.Close(); err != nil {
				return err
			}
			moved = true
			err = p.put(ctx, packKeys+rand.Text()+".zip", bytes.NewReader(g.body.Bytes()), int64(g.body.Len()), g.rows, g.held, g.last)
		}
		if err != nil || !g.more || !moved {
			return err
		}
	}
}

// next returns the contents that are in no pack yet, up to those that fill one.
func (p *packs) next(ctx context.Context) (*packing, error) {
	g := &packing{}
	var after int64
	if err := p.store.query.QueryRowContext(ctx, "SELECT packed FROM bucket").Scan(&after); err != nil {
		return nil, p.store.coded(err)
	}
	for found := int64(nextRows); found == nextRows && !g.more; after = g.last {
		found = 0
		if err := p.store.each(ctx, `SELECT c.id, c.sum, CAST(c.length AS BIGINT), c.bytes FROM content c LEFT JOIN place l ON l.content = c.id AND l.content > $1
WHERE c.id > $1 AND c.length > 0 AND l.content IS NULL ORDER BY c.id LIMIT $2`, []any{after, nextRows}, func(rows *sql.Rows) error {
			found++
			if g.more = g.more || int64(g.body.Len()) >= p.full || len(g.large) >= p.largeAtOnce; g.more {
				return nil
			}
			row, body, err := scanContent(rows)
			if err != nil {
				return err
			}
			g.last = row.id
			switch {
			case row.size > chunkSize && body == nil:
				g.large = append(g.large, row)
			case checkSmall(row.sum, row.size, body) == nil:
				return g.add(row, body)
			}
			return nil
		}); err != nil {
			return nil, p.store.coded(err)
		}
	}
	return g, nil
}

// nextRows is how many contents one query of next has: a server sends all that it was asked
// for.
const nextRows = 128

// passed notes up to which id each content is in a pack.
func (p *packs) passed(ctx context.Context, last int64) error {
	return p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		return setPacked(ctx, tx, last)
	})
}

func setPacked(ctx context.Context, tx *database.Tx, last int64) error {
	return tx.Exec(ctx, "UPDATE bucket SET packed = $1 WHERE packed < $1", last)
}

// do runs work in a transaction of the store.
func (p *packs) do(ctx context.Context, work func(ctx context.Context, tx *database.Tx) error) error {
	if err := p.store.writer.Do(ctx, work); err != nil {
		return fmt.Errorf("%s: %w", p.store.name, p.store.coded(err))
	}
	return nil
}

// put puts an object into the bucket, and notes that it has some contents. Before it is put
// the store knows its key, and afterwards who has what: an object that nobody needs after a
// crash is found again. last is as passed takes it, 0 if it is not known.
func (p *packs) put(ctx context.Context, key string, body io.ReaderAt, length int64, rows []packedContent, held, last int64) error {
	var id int64
	if err := p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Each(ctx, "INSERT INTO pack (id, key, length, first, last, held, live, kept) VALUES ((SELECT coalesce(max(id), 0) + 1 FROM pack), $1, $2, $3, $4, $5, 0, 0) RETURNING id",
			[]any{key, length, rows[0].id, rows[len(rows)-1].id, held}, func(r *sql.Rows) error { return r.Scan(&id) })
	}); err != nil {
		return err
	}
	if err := p.bucket.Put(ctx, key, body, length); err != nil {
		return err
	}
	err := p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		places := tx.Bulk(ctx, "INSERT INTO place (content, pack, at) VALUES ", 3)
		for i := range rows {
			if err := places.Add(rows[i].id, id, rows[i].at); err != nil {
				return err
			}
		}
		if err := places.Flush(); err != nil {
			return err
		}
		there := 0
		if err := tx.Each(ctx, "SELECT count(*) FROM place l JOIN content c ON c.id = l.content WHERE l.content BETWEEN $1 AND $2 AND l.pack = $3",
			[]any{rows[0].id, rows[len(rows)-1].id, id}, func(r *sql.Rows) error { return r.Scan(&there) }); err != nil {
			return err
		}
		if there < len(rows) {
			return errMoved // some were removed or replaced meanwhile
		}
		if err := tx.Exec(ctx, "UPDATE pack SET live = held, kept = 1, unneeded = NULL WHERE id = $1", id); err != nil {
			return err
		}
		return setPacked(ctx, tx, last)
	})
	if errors.Is(err, errMoved) {
		return nil // what is left waits for the next pack
	}
	if err != nil {
		return err
	}
	return p.evict(ctx)
}

// putLarge puts a content that is in chunks into the bucket, and reports whether it did. A
// damaged one stays where it is.
func (p *packs) putLarge(ctx context.Context, row packedContent) (bool, error) {
	b := p.store.blob(ctx, row)
	defer func() { _ = b.Close() }() // it was only read
	err := b.verify()
	if err == nil {
		err = p.put(ctx, largeKeys+row.sum.String()+"-"+rand.Text(), &blobAt{blob: b}, row.size, []packedContent{row}, row.size, 0)
	} else if errors.Is(err, ErrDamaged) {
		return false, nil
	}
	if err != nil {
		if has, failed := p.store.Has(ctx, row.sum); failed == nil && !has { // it was removed meanwhile
			return false, nil
		}
	}
	return err == nil, err
}

// blobAt reads a Blob from any place, for any number of goroutines.
type blobAt struct {
	sync.Mutex
	blob *Blob
}

func (a *blobAt) ReadAt(to []byte, at int64) (n int, err error) {
	a.Lock()
	defer a.Unlock()
	if _, err := a.blob.Seek(at, io.SeekStart); err != nil {
		return 0, err
	}
	n, err = io.ReadFull(a.blob, to)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

// evict drops the bytes of the oldest packs from the database, as far as it has more than it
// is to keep. Before the last bytes here go it looks whether the bucket has the others.
func (p *packs) evict(ctx context.Context) error {
	for {
		var kept, oldest, length int64
		var key string
		if err := p.store.query.QueryRowContext(ctx, `SELECT coalesce(sum(live), 0), coalesce(min(id), 0),
coalesce((SELECT key FROM pack WHERE kept = 1 ORDER BY id LIMIT 1), ''), coalesce((SELECT length FROM pack WHERE kept = 1 ORDER BY id LIMIT 1), 0) FROM pack WHERE kept = 1`).
			Scan(&kept, &oldest, &key, &length); err != nil {
			return p.store.coded(err)
		}
		if kept <= max(p.keep, 0) || oldest == 0 {
			return nil
		}
		there := false
		for o, err := range p.bucket.Objects(ctx, key) {
			if err != nil {
				return err
			}
			there = there || o.Key == key && o.Size == length
		}
		if !there {
			if err := p.unpack(ctx, oldest); err != nil {
				return err
			}
		}
		if err := p.do(ctx, func(ctx context.Context, tx *database.Tx) error { return drop(ctx, tx, oldest) }); err != nil {
			return err
		}
	}
}

// drop drops the bytes of a pack from the database. Small contents get new rows in the place of
// theirs: SQLite does not put together the pages that an UPDATE leaves nearly empty.
func drop(ctx context.Context, tx *database.Tx, pack int64) error {
	var all []packedContent
	if err := tx.Each(ctx, "SELECT id, sum, CAST(length AS BIGINT), NULL FROM content WHERE bytes IS NOT NULL AND id IN ("+inPack+")", []any{pack}, func(rows *sql.Rows) error {
		row, _, err := scanContent(rows)
		all = append(all, row)
		return err
	}); err != nil {
		return err
	}
	for _, text := range []string{
		"DELETE FROM content WHERE bytes IS NOT NULL AND id IN (" + inPack + ")",
		"UPDATE chunk SET bytes = x'' WHERE content IN (" + inPack + ")",
		"UPDATE pack SET kept = 0 WHERE id = $1",
	} {
		if err := tx.Exec(ctx, text, pack); err != nil {
			return err
		}
	}
	rows := tx.Bulk(ctx, "INSERT INTO content (id, sum, length, bytes) VALUES ", 4)
	for i := range all {
		if err := rows.Add(all[i].id, all[i].sum[:], all[i].size, nil); err != nil {
			return err
		}
	}
	return rows.Flush()
}

// inPack selects the contents of pack $1.
const inPack = "SELECT l.content FROM pack p JOIN place l ON l.content BETWEEN p.first AND p.last AND l.pack = p.id WHERE p.id = $1"
