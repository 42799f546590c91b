package harvest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/patch"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// A change may link to more than the resource itself: to a description of the changes
// from the version before to this one (clause 14.4), and to a copy of this version that
// stays when the resource changes again (clause 14.6).

// fetchPatch fetches the description of changes that a change names and applies it to the
// version before, if the store has that one. ok is false when the resource itself has to
// be fetched, as ever: there is no such description, or the result does not have the
// stated hash.
func (r *run) fetchPatch(ctx context.Context, j contentJob, it *event.Item, keep *contentWriter) (out contentJob, ok bool) {
	rep := &it.Representations[j.rep]
	wanted := newHashCheck(rep)
	if j.rep != 0 || r.src.Kind != ResourceSync || wanted.sha256 == "" || rep.Encoding != "" || rep.Length > patch.MaxBase || r.host(j.host).failing() {
		return j, false
	}
	for i := range it.Links {
		l := &it.Links[i]
		if l.Rel != resourcesync.RelPatch || !patch.Known(l.Type) || !event.OnTheWeb(l.Href) || l.Length > patch.MaxDescription || rep.Length >= 0 && l.Length >= rep.Length {
			continue
		}
		base, err := r.versionBefore(ctx, it.Record, rep.Href)
		if base == nil && err == nil {
			return j, false
		}
		var result []byte
		if err == nil {
			result, err = r.applyPatch(ctx, l, base, wanted.sha256)
		}
		if err != nil {
			r.problem("patch", fmt.Sprintf("%s, the changes of %s: %v; the whole resource is fetched", l.Href, rep.Href, err))
			return j, false
		}
		j.mediaType = rep.Type
		out = r.keepContent(ctx, j, rep, l.Href, bytes.NewReader(result), wanted, keep)
		return out, out.err == nil
	}
	return j, false
}

// versionBefore returns the bytes of the representation that a record has in the log from
// a URL; nil when it has none, or one that is too long to be patched.
func (r *run) versionBefore(ctx context.Context, record, href string) ([]byte, error) {
	e, err := r.h.Log.Record(ctx, r.src.Set, event.Key(record))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !e.Live():
		return nil, nil
	}
	for _, had := range e.Representations {
		if had.Href != href || had.Length > patch.MaxBase {
			continue
		}
		sum, err := content.ParseSum(had.SHA256())
		if err != nil {
			return nil, err
		}
		blob, err := r.h.Contents.Open(ctx, sum)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(io.LimitReader(blob, patch.MaxBase+1))
		return b, errors.Join(err, blob.Close())
	}
	return nil, nil
}

// applyPatch fetches a description of changes, whose own hash and length have to be as
// stated, and applies it.
func (r *run) applyPatch(ctx context.Context, l *event.Link, base []byte, sha256 string) ([]byte, error) {
	stated := event.Representation{Href: l.Href, Hash: l.Hash, Length: l.Length}
	check := newHashCheck(&stated)
	resp, err := r.get(fetch.WithCoded(ctx, &check.coded), l.Href)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New("it answered " + resp.Status)
	}
	description, err := io.ReadAll(io.TeeReader(fetch.Limit(resp.Body, patch.MaxDescription, "a description of changes"), check))
	if err != nil {
		return nil, err
	}
	got := contentJob{sum: content.NewDraft(description).Sum(), size: int64(len(description))}
	if why := check.compare(&got, l.Length); why != "" {
		return nil, errors.New(mismatch + why)
	}
	r.h.patching.Lock()
	defer r.h.patching.Unlock()
	return patch.Apply(l.Type, base, description, func(result []byte) bool {
		sum := content.NewDraft(result).Sum()
		return hex.EncodeToString(sum[:]) == sha256
	})
}

// fetchMemento fetches the version that a change names, of a resource that has moved on
// since: it has other bytes than the change states, or is gone. A later change of the
// Source has the present version.
func (r *run) fetchMemento(ctx context.Context, j contentJob, it *event.Item, document string, first contentJob, keep *contentWriter) (out contentJob, ok bool) {
	rep := &it.Representations[j.rep]
	movedOn := strings.HasPrefix(first.err.Error(), mismatch) || first.status != 0 && fetch.Gone(first.status)
	if j.rep != 0 || r.src.Kind != ResourceSync || !movedOn || !newHashCheck(rep).compares() {
		return first, false
	}
	left := mirrorsMost
	for i := range it.Links {
		l := &it.Links[i]
		if l.Rel != resourcesync.RelMemento || !fetchable(l.Href, document) {
			continue
		}
		if left--; left < 0 || ctx.Err() != nil {
			break
		}
		if out = r.fetchFrom(ctx, j, rep, l.Href, keep); out.err == nil {
			r.problem("memento", fmt.Sprintf("%v; the version of the list came from %s", first.err, l.Href))
			return out, true
		}
	}
	return first, false
}
