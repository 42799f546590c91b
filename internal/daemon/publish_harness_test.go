package daemon_test

import (
	"context"
	"encoding/xml"
	"fmt"
	"slices"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// The documents of ResourceSync as this test reads them, with encoding/xml and
// nothing of ours.
type (
	listDoc struct {
		url     string
		size    int
		XMLName xml.Name
		Meta    listMeta    `xml:"http://www.openarchives.org/rs/terms/ md"`
		Links   []listLink  `xml:"http://www.openarchives.org/rs/terms/ ln"`
		URLs    []listEntry `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 url"`
		Maps    []listEntry `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 sitemap"`
	}
	listEntry struct {
		Loc     string     `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 loc"`
		LastMod string     `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 lastmod"`
		Meta    listMeta   `xml:"http://www.openarchives.org/rs/terms/ md"`
		Links   []listLink `xml:"http://www.openarchives.org/rs/terms/ ln"`
	}
	listMeta struct {
		Capability string `xml:"capability,attr"`
		Change     string `xml:"change,attr"`
		Datetime   string `xml:"datetime,attr"`
		Hash       string `xml:"hash,attr"`
		Length     string `xml:"length,attr"`
		Type       string `xml:"type,attr"`
		ID         string `xml:"urn:x-bridge:terms:1 id,attr"`
		Title      string `xml:"urn:x-bridge:terms:1 title,attr"`
		At         string `xml:"at,attr"`
		Completed  string `xml:"completed,attr"`
		From       string `xml:"from,attr"`
		Until      string `xml:"until,attr"`
	}
	listLink struct {
		Rel      string `xml:"rel,attr"`
		Href     string `xml:"href,attr"`
		Modified string `xml:"modified,attr"`
		Hash     string `xml:"hash,attr"`
		Length   string `xml:"length,attr"`
		Type     string `xml:"type,attr"`
	}
)

const sitemapSpace = "http://www.sitemaps.org/schemas/sitemap/0.9"

// list reads a document, which must be one of that root element and capability.
func (o *harness) list(url, root, capability string) *listDoc {
	o.t.Helper()
	r := o.get(url)
	doc, err := parseList(r)
	if err != nil {
		o.t.Fatal(err)
	}
	if doc.XMLName.Local != root || doc.Meta.Capability != capability {
		o.t.Fatalf("%s is a %s with capability %q, want a %s with %q", url, doc.XMLName.Local, doc.Meta.Capability, root, capability)
	}
	return doc
}

func parseList(r webReply) (*listDoc, error) {
	doc := &listDoc{url: r.url, size: len(r.body)}
	if err := xml.Unmarshal(r.body, doc); err != nil {
		return nil, fmt.Errorf("%s: %w", r.url, err)
	}
	if doc.XMLName.Space != sitemapSpace {
		return nil, fmt.Errorf("%s: its root element is of namespace %q", r.url, doc.XMLName.Space)
	}
	return doc, nil
}

// linked returns where a document or an entry links with a relation.
func linked(links []listLink, rel string) []listLink {
	return slices.DeleteFunc(slices.Clone(links), func(l listLink) bool { return l.Rel != rel })
}

// wantLink fails unless the document has just this link of that relation.
func (d *listDoc) wantLink(t testing.TB, rel, href string) {
	t.Helper()
	if l := linked(d.Links, rel); len(l) != 1 || l[0].Href != href {
		t.Errorf("%s: links with rel %q: %v, want one to %s", d.url, rel, l, href)
	}
}

func (o *harness) setURL(name string) string { return o.base + "/sets/main/" + name }

// changeLists reads the index and every Change List that it names, in order.
func (o *harness) changeLists() []*listDoc {
	o.t.Helper()
	var lists []*listDoc
	for _, e := range o.list(o.setURL("changelist-index.xml"), "sitemapindex", "changelist").Maps {
		lists = append(lists, o.list(e.Loc, "urlset", "changelist"))
	}
	return lists
}

// changes reads the entries of all Change Lists.
func (o *harness) changes() []listEntry {
	o.t.Helper()
	var all []listEntry
	for _, l := range o.changeLists() {
		all = append(all, l.URLs...)
	}
	return all
}

// resources reads the Resource List, with its parts when it is an index.
func (o *harness) resources() []listEntry {
	o.t.Helper()
	r := o.get(o.setURL("resourcelist.xml"))
	doc, err := parseList(r)
	if err != nil {
		o.t.Fatal(err)
	}
	all := doc.URLs
	for _, m := range doc.Maps {
		all = append(all, o.list(m.Loc, "urlset", "resourcelist").URLs...)
	}
	return all
}

// logged returns the events of the set in a range.
func (o *harness) logged(r event.Range) []event.Event {
	o.t.Helper()
	var all []event.Event
	for ev := range o.checked(o.bridge.Log.Events(context.Background(), "main", r)) {
		kept := *ev // what it points at is used again
		kept.Representations = slices.Clone(ev.Representations)
		all = append(all, kept)
	}
	return all
}
