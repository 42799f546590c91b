package daemon

import (
	"context"
	"io"

	"github.com/pmh-bridge/bridge/internal/content"
)

// contents lets a content store be what the server asks for.
type contents struct{ *content.Store }

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
