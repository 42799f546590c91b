package content

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"io"
	"io/fs"
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

// contentsOf returns the contents of an object whose key has our form, none if it is not one of
// ours for all that. A content whose bytes do not have its hash is left out.
func (p *packs) contentsOf(ctx context.Context, o bucket.Object) ([]foundContent, error) {
	if name, isLarge := strings.CutPrefix(o.Key, largeKeys); isLarge {
		digits, _, _ := strings.Cut(name, "-")
		sum, err := ParseSum(digits)
		if err != nil {
			return nil, err
		}
		return p.sealsOf(ctx, o, sum)
	}
	if o.Size > 4*packBytes {
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

// lostOf returns those of some contents that the store cannot read, each once: it does not know
// them, or has damaged bytes of them.
func (p *packs) lostOf(ctx context.Context, found []foundContent) (lost []foundContent, err error) {
	seen := map[Sum]bool{}
	for i := range found {
		sum := found[i].sum
		if seen[sum] {
			continue
		}
		seen[sum] = true
		switch err := p.store.Check(ctx, sum); {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrDamaged):
			lost = append(lost, found[i])
		case err != nil:
			return nil, err
		}
	}
	return lost, nil
}

// adopt makes an object known, which has some contents that are lost.
func (p *packs) adopt(ctx context.Context, o bucket.Object, found, lost []foundContent) error {
	held, live := int64(0), int64(0)
	for i := range found {
		held += found[i].size
	}
	for i := range lost {
		live += lost[i].size
	}
	return p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		for i := range lost {
			if err := remove(ctx, tx, lost[i].sum); err != nil {
				return err
			}
		}
		id, err := lastID(ctx, tx)
		if err != nil {
			return err
		}
		var pack int64
		if err := tx.Each(ctx, "INSERT INTO pack (id, key, length, first, last, held, live, kept) VALUES ((SELECT coalesce(max(id), 0) + 1 FROM pack), $1, $2, $3, $4, $5, $6, 0) RETURNING id",
			[]any{o.Key, o.Size, id + 1, id + int64(len(lost)), held, live}, func(r *sql.Rows) error { return r.Scan(&pack) }); err != nil {
			return err
		}
		for i := range lost {
			if err := insertFound(ctx, tx, id+1+int64(i), &lost[i], pack); err != nil {
				return err
			}
		}
		return tx.Exec(ctx, "UPDATE total SET count = count + $1, length = length + $2", len(lost), live)
	})
}

// insertFound stores where a content is.
func insertFound(ctx context.Context, tx *database.Tx, id int64, c *foundContent, pack int64) error {
	if err := tx.Exec(ctx, "INSERT INTO content (id, sum, length, bytes) VALUES ($1, $2, $3, NULL)", id, c.sum[:], c.size); err != nil {
		return err
	}
	for n, seal := range c.seals {
		if err := tx.Exec(ctx, "INSERT INTO chunk (id, content, n, seal, bytes) VALUES ((SELECT coalesce(max(id), 0) + 1 FROM chunk), $1, $2, $3, x'')", id, n, seal[:]); err != nil {
			return err
		}
	}
	return tx.Exec(ctx, "INSERT INTO place (content, pack, at) VALUES ($1, $2, $3)", id, pack, c.at)
}
