package harvest

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/translate"
)

// untyped is the media type of bytes of which nothing is known (RFC 2046 4.5.1).
const untyped = "application/octet-stream"

// types asks the servers of a set that fetches no contents for the media types
// that a Source does not state: an alternate link of Atom-PMH must have one. Each
// is asked for once, when the record has changed.
func (r *run) types(ctx context.Context, b *event.Batch) error {
	if r.src.Content == event.Mirror || !slices.ContainsFunc(b.Items, func(it event.Item) bool { return lacksType(&it) }) {
		return nil
	}
	needs := make([]bool, len(b.Items))
	if b.Mode == event.ModeWalk {
		b.Source = r.src.ID
		var err error
		if needs, err = r.h.Log.NeedsContent(ctx, b); err != nil {
			return err
		}
	}
	jobs := make(chan *event.Item)
	workers := make(chan error)
	for range r.h.workers() {
		go func() {
			var err error
			for it := range jobs {
				err = errors.Join(err, defect.Guard(func() error {
					r.findTypes(ctx, it)
					return nil
				}))
			}
			workers <- err
		}()
	}
	for i := range b.Items {
		if it := &b.Items[i]; lacksType(it) && (needs[i] || b.Mode != event.ModeWalk) {
			jobs <- it
		}
	}
	close(jobs)
	var err error
	for range r.h.workers() {
		err = errors.Join(err, <-workers)
	}
	return errors.Join(err, context.Cause(ctx))
}

// lacksType tells whether an item has a representation without a media type.
func lacksType(it *event.Item) bool {
	return slices.ContainsFunc(it.Representations, func(rep event.Representation) bool { return rep.Type == "" })
}

// findTypes gives an item's representations the media types that HTTP states.
func (r *run) findTypes(ctx context.Context, it *event.Item) {
	it.Representations = slices.Clone(it.Representations)
	for i := range it.Representations {
		rep := &it.Representations[i]
		if rep.Type != "" {
			continue
		}
		var why string
		if rep.Type, why = r.head(ctx, rep.Href); why != "" {
			rep.Type = untyped
			r.problem("type", fmt.Sprintf("%s has no media type: %s; it is published as %s", rep.Href, why, untyped))
		}
	}
	it.Preferred = translate.Preferred(r.src.Selection.Prefer, it.Representations)
}

// head returns the media type of what is at a URL, or why it is not known.
func (r *run) head(ctx context.Context, href string) (mediaType, why string) {
	if !fetchable(href, r.src.URL) {
		return "", "only http and https are asked"
	}
	host := r.host(hostOf(href))
	if host.failing() { // a type is not worth more
		return "", "the last requests to its host failed"
	}
	resp, err := r.send(ctx, http.MethodHead, r.src.local(href))
	host.took(&fetched{err: err}, r.h.now())
	if err != nil {
		return "", err.Error()
	}
	_ = resp.Body.Close() // it is empty
	if resp.StatusCode != http.StatusOK {
		return "", "HEAD answered " + resp.Status
	}
	stated := resp.Header.Get("Content-Type")
	if parsed, _, err := mime.ParseMediaType(stated); err != nil || !strings.Contains(parsed, "/") || len(stated) > event.MaxType {
		return "", fmt.Sprintf("HEAD answered with Content-Type %q", strictxml.Clip(stated))
	}
	return stated, ""
}

// local returns the URL of the local file that is published at a URL, else the
// URL itself.
func (src *Source) local(href string) string {
	w := &src.Selection
	if rest, ok := strings.CutPrefix(href, w.PublicURL); ok && w.PublicURL != "" && w.LocalURL != "" {
		return w.LocalURL + rest
	}
	return href
}
