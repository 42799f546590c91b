package harvest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/pmh-bridge/bridge/internal/websub"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// maxTopics is how many topics of one Source count: a ResourceSync Source has one for each of
// its sets of resources.
const maxTopics = 16

// Topics asks the Source which of its documents are topics of WebSub hubs, and at which
// hubs: the channels of Change Notifications that a ResourceSync Source advertises,
// else its Change Lists; of other Sources the document at the URL itself. A Source
// without hubs has none.
func (src *Source) Topics(ctx context.Context) (all []websub.Links, err error) {
	add := func(l websub.Links) {
		known := func(o websub.Links) bool { return o.Self == l.Self }
		if len(l.Hubs) > 0 && len(all) < maxTopics && !slices.ContainsFunc(all, known) {
			all = append(all, l)
		}
	}
	if src.Kind == ResourceSync {
		found, err := src.lists().Discover(ctx)
		if err != nil {
			return nil, err
		}
		for i := range found.Sets[:min(len(found.Sets), maxTopics)] {
			links, err := src.channel(ctx, &found.Sets[i])
			if err != nil {
				return nil, err
			}
			add(links)
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	links, err := websub.Discover(ctx, src.Client, src.URL)
	add(links)
	return all, err
}

// channel returns the channel of Change Notifications of a set of resources, or the hubs of
// its Change List.
func (src *Source) channel(ctx context.Context, lists *resourcesync.Lists) (websub.Links, error) {
	if lists.CapabilityList != "" {
		links, err := src.advertised(ctx, lists.CapabilityList)
		if err != nil || len(links.Hubs) > 0 {
			return links, err
		}
	}
	if lists.ChangeList == "" {
		return websub.Links{}, nil
	}
	return websub.Discover(ctx, src.Client, lists.ChangeList)
}

// advertised reads the channel that a Capability List names.
func (src *Source) advertised(ctx context.Context, url string) (links websub.Links, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return links, err
	}
	resp, err := src.Client.Do(req)
	if err != nil {
		return links, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return links, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	in := resourcesync.NewReader(resp.Body, resourcesync.ReadOptions{URL: url, Limits: resourcesync.Limits(src.Limits.list())})
	for {
		e, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return links, nil
		case errors.As(err, new(*resourcesync.EntryError)):
			continue
		case err != nil:
			return links, err
		case e.Metadata.Capability != resourcesync.ChangeNotification:
			continue
		}
		links.Add(resourcesync.RelSelf, e.Loc, resp.Request.URL)
		if links.Self == "" { // there is nothing to subscribe to
			continue
		}
		for i := range e.Links {
			if e.Links[i].Rel == resourcesync.RelHub {
				links.Add(resourcesync.RelHub, e.Links[i].Href, resp.Request.URL)
			}
		}
		if len(links.Hubs) == 0 { // then the channel itself names them
			return websub.Discover(ctx, src.Client, links.Self)
		}
		return links, nil
	}
}
