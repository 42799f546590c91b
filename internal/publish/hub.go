package publish

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// Documents of a set with hubs (WebSub) name them and, as the topic, themselves: those that
// change, and not those that stay as they are once they are closed. One more document is
// the channel of Change Notifications: the newest changes, which the hub fetches and sends
// on.

// notificationName is the last part of the channel's URL.
const notificationName = string(resourcesync.ChangeNotification) + ".xml"

// notificationSpan bounds the changes in a Change Notification: those among so many newest
// events of the log, as far as they are in the Change List of the newest segments.
const notificationSpan = 1_000

// notification is the document that the channel has now.
func notification(set event.Set, segments []event.Segment) Item {
	after := max(set.Last-notificationSpan, changeListWindow(set, segments).Events.After, 0)
	return Item{Path: setPath(set.Name, notificationName), Kind: Notification, Set: set, Entries: -1, From: set.Created, At: set.LastObserved,
		Events: event.Range{After: after, Upto: set.Last}}
}

// hubs returns those of a set.
func (p *Publisher) hubs(set string) []string {
	if p.opts.Hubs == nil {
		return nil
	}
	return p.opts.Hubs(set)
}

// addHubs gives an item the hubs that it names.
func (p *Publisher) addHubs(it *Item) {
	switch it.Kind {
	case CapabilityList, ChangeListIndex, ChangeListWindow, Subscription, Notification:
		it.hubs = p.hubs(it.Set.Name)
	}
}

// Topic is a document of whose changes hubs are notified.
type Topic struct {
	// Path follows the base URL.
	Path string
	// Tag is its entity tag, which changes whenever the document does.
	Tag string
	// Stale: clients still get an earlier rendering, for seconds.
	Stale bool
}

// Topics returns the documents of a set of whose changes hubs are notified, as they are now.
func (p *Publisher) Topics(ctx context.Context, set string) (all []Topic, err error) {
	s, err := p.set(ctx, set)
	if err != nil {
		return nil, err
	}
	names := []string{notificationName, "changelist.xml", "changelist-index.xml", "capabilitylist.xml", "feed.atom"}
	if s.NoFeeds {
		names = names[:len(names)-1]
	}
	for _, name := range names {
		it, err := p.item(ctx, set, name)
		if err != nil {
			return nil, err
		}
		p.addHubs(&it)
		last, recent := p.recent(&it)
		tag := it.Tag(p.base, false)
		all = append(all, Topic{Path: it.Path, Tag: tag, Stale: recent && last.Tag(p.base, false) != tag})
	}
	return all, nil
}

// hubLinks are the links of the head of a document that names hubs (WebSub 4, Change
// Notification 3).
func hubLinks(base string, it *Item) (links []resourcesync.Link) {
	if len(it.hubs) == 0 {
		return nil
	}
	for _, hub := range it.hubs {
		links = append(links, resourcesync.Link{Rel: resourcesync.RelHub, Href: hub})
	}
	return append(links, resourcesync.Link{Rel: resourcesync.RelSelf, Href: base + it.Path})
}

// renderNotification writes a Change Notification. Its interval begins with its first
// change, which only the events tell.
func renderNotification(w io.Writer, base string, it *Item, events iter.Seq2[*event.Event, error]) error {
	head := &resourcesync.Document{Capability: resourcesync.ChangeNotification, From: datetime(it.From),
		Links: append([]resourcesync.Link{upLink(base, it.Set.Name)}, hubLinks(base, it)...)}
	var doc *resourcesync.Writer
	encoder := translate.NewListEncoder(base, it.Set.Name, it.Set.Content)
	for e, err := range events {
		if err != nil {
			return err
		}
		if e.Observed <= it.From {
			continue // of an epoch that has ended
		}
		if doc == nil {
			head.From = datetime(e.Observed)
			doc = resourcesync.NewWriter(w, head)
		}
		entries := encoder.ChangeEntries(e)
		for i := range entries {
			if err := doc.Entry(&entries[i]); err != nil {
				return fmt.Errorf("event %d: %w", e.Seq, err)
			}
		}
	}
	if doc == nil {
		doc = resourcesync.NewWriter(w, head)
	}
	return finish(doc, it)
}
