package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/translate"
)

// The feeds of a set (Atom-PMH): an archived one of all its events and, while the set
// is small, a complete one of its live records.

const (
	// completeLimit is how many records a complete feed has at most (P5).
	completeLimit = 50_000
	// completeBytes is how long it is at most: consumers, ours included, accept
	// documents of 64 MiB.
	completeBytes = 62_000_000
)

// TooManyError: a set has too many records for a complete feed (P5), or too long ones.
// A server answers 404 with its message.
type TooManyError struct {
	Path    string
	Records int64
	Limit   int64
	// Bytes is the length that the document would exceed; 0 when it has too many
	// records.
	Bytes int64
	// Instead is the URL of the feed in archives.
	Instead string
}

// Error says why there is no such document, and what to use instead.
func (e *TooManyError) Error() string {
	if e.Bytes > 0 {
		return fmt.Sprintf("%s: there is no complete feed of this set, because it would be longer than %d bytes: use %s, which leads to all of its records along its prev-archive links",
			e.Path, e.Bytes, e.Instead)
	}
	return fmt.Sprintf("%s: there is no complete feed of this set, because it has %d records, and a complete feed at most %d: use %s, which leads to all of them along its prev-archive links",
		e.Path, e.Records, e.Limit, e.Instead)
}

// planFeeds returns the set's feed documents, without the archive documents; none where
// feeds are switched off.
func planFeeds(set event.Set, segments []event.Segment) []Item {
	if set.NoFeeds {
		return nil
	}
	items := []Item{subscription(set, segments)}
	if set.Live <= completeLimit {
		items = append(items, completeFeed(set))
	}
	return items
}

// planArchives returns the archive documents of the set's feed.
func planArchives(set event.Set, segments []event.Segment) (items []Item) {
	if set.NoFeeds {
		return nil
	}
	for i, s := range segments {
		if !s.Open() {
			items = append(items, archive(set, segments[0].N, s, segments[i+1]))
		}
	}
	return items
}

// subscription returns the document of the open segment. Where segments were read later
// than set, it shows them as they were at the moment of set.
func subscription(set event.Set, segments []event.Segment) Item {
	open := segments[len(segments)-1]
	it := Item{Path: setPath(set.Name, "feed.atom"), Kind: Subscription, Set: set,
		N: open.N, Events: open.Range(), Entries: open.Events, From: open.From, At: set.LastObserved, First: open.N == segments[0].N}
	switch {
	case open.Events == 0 || set.Last < open.First:
		it.Events, it.Entries, it.At = event.Range{}, 0, open.From
	case set.Last < open.Last:
		it.Events.Upto, it.Entries = set.Last, -1
	}
	return it
}

// archivePath returns the path of the archive document of segment n.
func archivePath(set string, n int) string { return fmt.Sprintf("/sets/%s/feed/%d.atom", set, n) }

// archive returns the document of a closed segment. It is final when the next segment
// has closed too, and so has a document to link to (P2).
func archive(set event.Set, first int, s, next event.Segment) Item {
	return Item{Path: archivePath(set.Name, s.N), Kind: Archive, Set: set, Closed: !next.Open(),
		N: s.N, Events: s.Range(), Entries: s.Events, From: s.From, Until: s.Until, At: s.Until, Next: next.Until, First: s.N == first}
}

func completeFeed(set event.Set) Item {
	return Item{Path: setPath(set.Name, "complete.atom"), Kind: Complete, Set: set,
		Events: event.Range{Upto: set.Last}, Entries: int(set.Live), At: set.LastObserved}
}

func (it *Item) isFeed() bool { return it.Kind >= Subscription && it.Kind <= Complete }

// feedID is the atom:id of the logical feed.
func (it *Item) feedID() string {
	if it.Kind == Complete {
		return it.Set.Complete
	}
	return it.Set.Feed
}

// feedTitle is the title of the set, but its name in archive documents: an operator may
// change the title, and archive documents never change.
func (it *Item) feedTitle() string {
	if it.Kind == Archive {
		return it.Set.Name
	}
	return cmp.Or(strings.TrimSpace(it.Set.Title), it.Set.Name)
}

// archive finds the archive document of a closed segment.
func (p *Publisher) archive(ctx context.Context, st *state, n int64) (Item, error) {
	s, err := p.segment(ctx, st, n)
	if err != nil {
		return Item{}, err
	}
	if s.Open() {
		return Item{}, ErrNotFound
	}
	next, err := p.segment(ctx, st, n+1)
	if err != nil {
		return Item{}, err
	}
	st.mu.Lock()
	first := st.segments[0].N // segment has read them
	st.mu.Unlock()
	return archive(st.fixed, first, s, next), nil
}

func (p *Publisher) complete(set event.Set) (Item, error) {
	it := completeFeed(set)
	if err := requireComplete(&set, it.Path); err != nil {
		return it, err
	}
	it.most = p.completeBytes
	if set.Live > completeLimit {
		return it, &TooManyError{Path: it.Path, Records: set.Live, Limit: completeLimit, Instead: p.base + setPath(set.Name, "feed.atom")}
	}
	return it, nil
}

// completeDocument returns the complete feed. Only rendering it shows that it is too
// long. Then it is not tried again before the set is a tenth smaller.
func (p *Publisher) completeDocument(ctx context.Context, st *state, it Item, gzip bool) (*Document, error) {
	tooLong := &TooManyError{Path: it.Path, Records: it.Set.Live, Limit: completeLimit, Bytes: it.most, Instead: p.base + setPath(it.Set.Name, "feed.atom")}
	st.mu.Lock()
	over := st.tooLong
	st.mu.Unlock()
	if over > 0 && it.Set.Live > over-max(over/10, 1) {
		return nil, tooLong
	}
	doc := p.document(ctx, it, gzip)
	open := doc.open
	doc.open = func() (io.ReadSeekCloser, int64, error) {
		body, size, err := open()
		if errors.Is(err, errTooLong) {
			st.mu.Lock()
			st.tooLong = it.Set.Live
			st.mu.Unlock()
			err = tooLong
		}
		return body, size, err
	}
	write := doc.write
	doc.write = func(ctx context.Context, plain, packed io.Writer) error {
		err := write(ctx, plain, packed)
		if errors.Is(err, errTooLong) {
			err = tooLong
		}
		return err
	}
	return doc, nil
}

// errTooLong: a document is longer than it may be. No part of it is published.
var errTooLong = errors.New("the document is too long")

// limitedWriter fails after a number of bytes.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (b *limitedWriter) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errTooLong
	}
	return b.w.Write(p)
}

// renderFeed writes a document of a feed.
func renderFeed(w io.Writer, base string, it *Item, events iter.Seq2[*event.Event, error]) error {
	if it.most > 0 {
		w = &limitedWriter{w, it.most}
	}
	doc := atompmh.NewWriter(w, feedHead(base, it))
	doc.PrevUpdated = it.From.Time()
	feeder := translate.NewFeedEncoder(base, &it.Set)
	for e, err := range events {
		if err != nil {
			return err
		}
		entry := feeder.Entry(e)
		if entry == nil {
			continue
		}
		if err := doc.Entry(entry); err != nil {
			return fmt.Errorf("event %d: %w", e.Seq, err)
		}
	}
	return finish(doc, it)
}

func feedHead(base string, it *Item) *atompmh.Feed {
	// The software's version is left out: the same log gives the same bytes.
	head := &atompmh.Feed{ID: it.feedID(), Title: it.feedTitle(), Metadata: atompmh.Metadata{Authors: []atompmh.Person{{Name: it.feedTitle()}}}, Generator: "bridge",
		Updated: it.At.Time(), Self: base + it.Path}
	if it.Kind == Complete {
		head.Complete = true
		return head
	}
	for _, hub := range it.hubs { // WebSub 4; its self link is there anyway
		head.Links = append(head.Links, atompmh.Link{Rel: "hub", Href: hub, Length: atompmh.NoLength})
	}
	head.Archive = it.Kind == Archive
	head.Current = base + setPath(it.Set.Name, "feed.atom")
	if !it.First {
		head.PrevArchive = base + archivePath(it.Set.Name, it.N-1)
	}
	if it.Next != 0 {
		head.NextArchive = base + archivePath(it.Set.Name, it.N+1)
	}
	return head
}
