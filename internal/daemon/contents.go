package daemon

import (
	"context"
	"io"

	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// contents lets a content store be what harvest and server ask for.
type contents struct{ *content.Store }

type draft struct{ *content.Draft }

func (d draft) Sum() [32]byte { return d.Draft.Sum() }

// Draft reads a representation to its end.
func (c contents) Draft(r io.Reader, limit int64) (harvest.Draft, error) {
	d, err := c.Store.Draft(r, limit)
	if err != nil {
		return nil, err
	}
	return draft{d}, nil
}

// Put has the drafts on the disk when it returns nil.
func (c contents) Put(ctx context.Context, drafts []harvest.Draft) error {
	put := make([]*content.Draft, len(drafts))
	for i, d := range drafts {
		put[i] = d.(draft).Draft
	}
	return c.Store.Put(ctx, put...)
}

// records lets a content store be what submit asks for.
type records struct{ contents }

// Put has the records on the disk when it returns nil.
func (r records) Put(ctx context.Context, all ...[]byte) error {
	drafts := make([]*content.Draft, len(all))
	for i, b := range all {
		drafts[i] = content.NewDraft(b)
	}
	return r.Store.Put(ctx, drafts...)
}

// Open returns a stored content and its length.
func (c contents) Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	b, err := c.Store.Open(ctx, sum)
	if err != nil {
		return nil, 0, err
	}
	return b, b.Size(), nil
}
