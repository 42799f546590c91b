package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/ingest"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Replaces returns the last event of the record that a submission under review would
// update, if it were accepted without an identifier; nil when it would be a new
// record.
func (b *Bridge) Replaces(ctx context.Context, s *submission.Submission) (*event.Event, error) {
	set, err := b.Log.Set(ctx, s.Set)
	if err != nil {
		return nil, err
	}
	identifier, err := ingest.IdentifierOf(ctx, b.SIP, set.Feed, s)
	if err != nil {
		return nil, err
	}
	ev, err := b.Log.Record(ctx, s.Set, event.Key(identifier))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !ev.Live() {
		return nil, nil
	}
	return ev, err
}

// Record returns the bytes of a submission's record.
func (b *Bridge) Record(ctx context.Context, s *submission.Submission) ([]byte, error) {
	return b.content(ctx, s.Content)
}

// Published returns the bytes of the preferred representation that an event has.
func (b *Bridge) Published(ctx context.Context, ev *event.Event) ([]byte, error) {
	var sum [32]byte
	if n, err := hex.Decode(sum[:], []byte(ev.Representations[ev.Preferred].SHA256())); err != nil || n != len(sum) {
		return nil, errors.New("the content of the record is not kept here")
	}
	return b.content(ctx, sum)
}

func (b *Bridge) content(ctx context.Context, sum [32]byte) ([]byte, error) {
	if b.Contents == nil {
		return nil, errors.New("there are no contents here")
	}
	blob, err := b.Contents.Open(ctx, sum)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(blob)
	return content, errors.Join(err, blob.Close())
}
