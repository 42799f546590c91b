package content

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/database"
)

// A store that was put back from an older backup, or lost, finds what it lacks in the objects
// that it does not know. What an object says of itself is checked against the hashes.

// foundContent is a content in an object that is not known.
type foundContent struct {
	packedContent
	seals []Sum // of a large one, by chunk
}

// contentsOf returns the contents of an object, none if it is not one of ours. A content whose
// bytes do not have its hash is left out.
func (p *packs) contentsOf(ctx context.Context, o bucket.Object) ([]foundContent, error) {
	if name, isLarge := strings.CutPrefix(o.Key, largeKeys); isLarge {
		digits, _, _ := strings.Cut(name, "-")
		sum, err := ParseSum(digits)
		if err != nil {
			return nil, nil //nolint:nilerr // it is not one of ours
		}
		return p.sealsOf(ctx, o, sum)
	}
	if !strings.HasPrefix(o.Key, packKeys) || o.Size > 4*packBytes {
		return nil, nil
	}
	body, err := p.bucket.Get(ctx, o.Key, 0, o.Size)
	if err != nil {
		return nil, p.coded(err)
	}
	z, err := zip.NewReader(bytes.NewReader(body), o.Size)
	if err != nil {
		return nil, nil //nolint:nilerr // it is not one of ours, or damaged as a whole
	}
	var found []foundContent
	for _, f := range z.File {
		sum, err := ParseSum(f.Name)
		at, err2 := f.DataOffset()
		size := int64(f.UncompressedSize64)
		if errors.Join(err, err2) != nil || f.Method != zip.Store || size < 1 || size > chunkSize || at+size > o.Size || sumOf(body[at:at+size]) != sum {
			continue
		}
		found = append(found, foundContent{packedContent: packedContent{sum: sum, size: size, at: at}})
	}
	return found, nil
}

// sealsOf reads a large content.
func (p *packs) sealsOf(ctx context.Context, o bucket.Object, sum Sum) (_ []foundContent, err error) {
	body, err := p.bucket.Stream(ctx, o.Key, 0)
	if err != nil {
		return nil, p.coded(err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	found := foundContent{packedContent: packedContent{sum: sum, size: o.Size}}
	hash, part := sha256.New(), make([]byte, chunkSize)
	for n := int64(0); n*chunkSize < o.Size; n++ {
		part = part[:min(chunkSize, o.Size-n*chunkSize)]
		if _, err := io.ReadFull(body, part); err != nil {
			return nil, p.coded(err)
		}
		hash.Write(part)
		found.seals = append(found.seals, sealOf(sum, o.Size, n, part))
	}
	if Sum(hash.Sum(nil)) != sum || o.Size <= chunkSize {
		return nil, nil
	}
	return []foundContent{found}, nil
}

// adopt makes an object known, if the store lacks contents that it has: it knows nothing of
// them, or has them in one of the packs that are bad.
func (p *packs) adopt(ctx context.Context, o bucket.Object, found []foundContent, bad map[int64]error) (n, size int64, err error) {
	if len(found) == 0 {
		return 0, 0, nil
	}
	err = p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		n, size = 0, 0
		sums, held := make([]Sum, len(found)), int64(0)
		for i := range found {
			sums[i] = found[i].sum
			held += found[i].size
		}
		if err := removeLost(ctx, tx, sums, bad); err != nil {
			return err
		}
		missing, err := missingFrom(ctx, tx.Each, sums)
		if err != nil || len(missing) == 0 {
			return err
		}
		lacks := map[Sum]bool{}
		for _, sum := range missing {
			lacks[sum] = true
		}
		before, err := lastID(ctx, tx)
		if err != nil {
			return err
		}
		var pack int64
		if err := tx.Each(ctx, "INSERT INTO pack (key, length, first, last, held, live, kept) VALUES ($1, $2, 0, 0, $3, 0, 0) RETURNING id",
			[]any{o.Key, o.Size, held}, func(r *sql.Rows) error { return r.Scan(&pack) }); err != nil {
			return err
		}
		for i := range found {
			c := &found[i]
			if !lacks[c.sum] {
				continue
			}
			lacks[c.sum] = false // it may be there twice
			n++
			size += c.size
			if err := insertFound(ctx, tx, before+n, c, pack); err != nil {
				return err
			}
		}
		if err := tx.Exec(ctx, "UPDATE pack SET first = $1, last = $2, live = $3 WHERE id = $4", before+1, before+n, size, pack); err != nil {
			return err
		}
		return tx.Exec(ctx, "UPDATE total SET count = count + $1, length = length + $2", n, size)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", o.Key, err)
	}
	return n, size, nil
}

// removeLost removes those of some contents that are in bad packs, and nowhere else.
func removeLost(ctx context.Context, tx *database.Tx, sums []Sum, bad map[int64]error) error {
	if len(bad) == 0 {
		return nil
	}
	for _, sum := range sums {
		lost := false
		if err := tx.Each(ctx, "SELECT p.id FROM content c JOIN place l ON l.content = c.id JOIN pack p ON p.id = l.pack WHERE c.sum = $1 AND p.kept = 0", []any{sum[:]}, func(r *sql.Rows) error {
			var pack int64
			err := r.Scan(&pack)
			lost = bad[pack] != nil
			return err
		}); err != nil {
			return err
		}
		if lost {
			if err := remove(ctx, tx, sum); err != nil {
				return err
			}
		}
	}
	return nil
}

// insertFound stores where a content is.
func insertFound(ctx context.Context, tx *database.Tx, id int64, c *foundContent, pack int64) error {
	if err := tx.Exec(ctx, "INSERT INTO content (id, sum, length, bytes) VALUES ($1, $2, $3, NULL)", id, c.sum[:], c.size); err != nil {
		return err
	}
	for n, seal := range c.seals {
		if err := tx.Exec(ctx, "INSERT INTO chunk (content, n, seal, bytes) VALUES ($1, $2, $3, x'')", id, n, seal[:]); err != nil {
			return err
		}
	}
	return tx.Exec(ctx, "INSERT INTO place (content, pack, at) VALUES ($1, $2, $3)", id, pack, c.at)
}
