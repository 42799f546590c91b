package publish

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/translate"
)

const (
	// DefaultChanges is how many events a page of changes is made of by default.
	DefaultChanges = 100
	// MostChanges is how many events a page is made of at most.
	MostChanges = 1000
	// changesBytes is about how many bytes of changes a page has before it ends. One event may
	// have as many as event.MaxMetadata, and a page stays in memory while a slow client reads it.
	changesBytes = 1 << 20
	// changesVersion changes whenever the bytes of a page do for the same events.
	changesVersion = 1
)

// ChangePage has the changes that a set has logged after a Seq, in the order of the log, each
// once. A page that is not complete never changes.
type ChangePage struct {
	Set string `json:"set"`
	// Feed is the id of the set's feed. It is another one when the log has lost events that
	// were published, or was made anew: then earlier values of After have no meaning.
	Feed    string             `json:"feed"`
	Changes []translate.Change `json:"changes"`
	// After is the Seq after which the next page begins.
	After event.Seq `json:"after"`
	// Complete: nothing had been logged after the page when it was made.
	Complete bool `json:"complete"`
	// Next is the URL of the next page.
	Next string `json:"next"`

	tag string
}

// ETag is a strong entity tag of the page as JSON.
func (p *ChangePage) ETag() string { return p.tag }

// ChangesURL returns the URL of a page of the changes of a set below a base URL.
func ChangesURL(base string, set *event.Set, after event.Seq, limit int) string {
	return fmt.Sprintf("%s%s?after=%d&feed=%s&limit=%d", base, setPath(set.Name, "changes.json"), after, set.Feed, limit)
}

// Changes reads a page of at most limit events after a Seq. Events that are not published
// count, and a page ends early where they are long, so that it may have fewer changes than
// limit, or none, and not be complete.
func Changes(ctx context.Context, log Log, base string, set *event.Set, after event.Seq, limit int) (*ChangePage, error) {
	page := &ChangePage{Set: set.Name, Feed: set.Feed, Changes: []translate.Change{}, After: after, Complete: true}
	if after < set.Last {
		encoder, read, said := translate.NewChangeEncoder(base, set.Name, set.Content), 0, 0
		for e, err := range log.Events(ctx, set.Name, event.Range{After: after, Upto: set.Last}) {
			if err != nil {
				return nil, err
			}
			if c, ok := encoder.Change(e); ok {
				page.Changes = append(page.Changes, c)
				said += jsonSize(&c)
			}
			page.After = e.Seq
			if read++; read == limit || said >= changesBytes {
				break
			}
		}
		page.Complete = page.After >= set.Last
	}
	page.Next = ChangesURL(base, set, page.After, limit)
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %q %q %q %d %d %d %t", changesVersion, base, set.Name, set.Feed, after, limit, page.After, page.Complete))
	page.tag = fmt.Sprintf(`"%x"`, sum[:16])
	return page, nil
}

// jsonSize is about how many bytes a change has as JSON.
func jsonSize(c *translate.Change) int {
	n := len(c.Identifier) + len(c.Title)
	add := func(l *translate.ChangeLink) {
		n += len(l.URL) + len(l.Type) + len(l.Language) + len(l.Profile) + len(l.Hash) + len(l.Encoding)
	}
	if c.Via != nil {
		add(c.Via)
	}
	for i := range c.Representations {
		add(&c.Representations[i])
	}
	return n
}
