package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// recentItems is how many changes the feeds for people show, and recentEvents how many
// events are read to find them.
const recentItems, recentEvents = 50, 1000

// recentForm is one of the formats of the feed for people.
type recentForm struct {
	Name        string // last part of its URL
	Title       string
	ContentType string
	encode      func(f *recentFeed) ([]byte, error)
}

func recentForms() []recentForm {
	return []recentForm{
		{"recent.atom", "Recent changes (Atom)", "application/atom+xml", encodeAtom},
		{"recent.rss", "Recent changes (RSS)", "application/rss+xml", encodeRSS},
		{"recent.json", "Recent changes (JSON Feed)", "application/feed+json", encodeJSON},
	}
}

// Pages returns the paths of what a server answers of a set besides its documents and
// records: the set's page, and the feeds for feed readers.
func Pages(set string) []string {
	paths := []string{"/sets/" + set + "/"}
	for _, form := range recentForms() {
		paths = append(paths, "/sets/"+set+"/"+form.Name)
	}
	return paths
}

// recent answers with the newest changes of a set, for feed readers of people. It is
// not complete: programs read feed.atom and the Change Lists.
func (s *Server) recent(form recentForm) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, w := c.Request(), c.Response().Writer
		set, err := s.opt.Log.Set(r.Context(), c.Param("set"))
		if err != nil {
			return notFound(err)
		}
		if set.NoFeeds {
			return publish.ErrNotFound
		}
		m := publish.Meta{ContentType: form.ContentType, ETag: s.recentTag(form.Name, &set)}
		if m.Hubs = s.hubs(set.Name); len(m.Hubs) > 0 {
			m.Self = s.setURL(set.Name) + form.Name
		}
		maps.Copy(w.Header(), headerOf(&m))
		if answeredNotModified(w, r, &m) {
			return nil
		}
		key, forgotten := docKey{path: r.URL.Path + m.ETag}, s.docs.timesForgotten()
		d := s.docs.get(key)
		if d == nil {
			f, err := s.recentFeed(r.Context(), &set, form.Name)
			if err != nil {
				return notFound(err)
			}
			body, err := form.encode(f)
			if err != nil {
				return err
			}
			d = &cachedDoc{key: key, meta: m, body: body, forgotten: forgotten}
			s.docs.put(d)
		}
		send(w, r, &m, bytes.NewReader(d.body), int64(len(d.body)))
		return nil
	}
}

// recentTag returns the entity tag, made of everything that determines the bytes. Its
// first number changes with the form of these feeds.
func (s *Server) recentTag(form string, set *event.Set) string {
	tagged := fmt.Appendf(nil, "%d %q %q %q %q %q %d %q %d %d", 5, s.base, form, set.Name, set.Title, set.Description, set.Created, set.Feed, set.Last, set.LastObserved)
	if hubs := s.hubs(set.Name); len(hubs) > 0 {
		tagged = fmt.Appendf(tagged, " %q", hubs)
	}
	sum := sha256.Sum256(tagged)
	return fmt.Sprintf(`"%x"`, sum[:16])
}

// hubs returns the WebSub hubs of a set.
func (s *Server) hubs(set string) []string {
	if s.opt.Hubs == nil {
		return nil
	}
	return s.opt.Hubs(set)
}

// recentFeed has the content of all formats.
type recentFeed struct {
	Title, About string
	Self, Home   string
	Hubs         []string
	Updated      time.Time
	Items        []recentItem
}

// recentItem is the last change of a record.
type recentItem struct {
	Seq     event.Seq
	ID      string
	Title   string
	Kind    string
	Summary string
	Link    string // "" of a deletion
	At      time.Time
}

func (s *Server) recentFeed(ctx context.Context, set *event.Set, name string) (*recentFeed, error) {
	items, err := s.newest(ctx, set)
	if err != nil {
		return nil, err
	}
	return &recentFeed{Title: titleOf(set), About: cmp.Or(set.Description, "The newest changes of this set's records"),
		Self: s.setURL(set.Name) + name, Home: s.setURL(set.Name), Hubs: s.hubs(set.Name), Updated: set.LastObserved.Time(), Items: items}, nil
}

func (s *Server) recentItem(set *event.Set, e *event.Event) recentItem {
	item := recentItem{Seq: e.Seq, ID: fmt.Sprintf("%s#%d", s.setURL(set.Name), e.Seq), Title: cmp.Or(e.Title, e.Record), Kind: e.Kind.String(), Summary: summary(e), At: e.Observed.Time()}
	if e.Live() {
		item.Link = s.recentLink(set, e)
	}
	return item
}

// summary describes a change in one line: "Updated, from Maps (origin.example): text/html,
// text/xml".
func summary(e *event.Event) string {
	kind := e.Kind.String()
	var b strings.Builder
	b.WriteString(strings.ToUpper(kind[:1]) + kind[1:])
	host := ""
	if publicName(e.Origin.Source) {
		host = (sourceView{URL: e.Origin.Source}).Host()
	}
	switch title := clip(e.Origin.FeedTitle, 120); {
	case title != "" && host != "":
		b.WriteString(", from " + title + " (" + host + ")")
	case title != "" || host != "":
		b.WriteString(", from " + title + host)
	}
	var kinds []string
	for i := range e.Representations {
		if kind := clip(e.Representations[i].Type, 80); kind != "" && !slices.Contains(kinds, kind) && e.Live() {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > 0 {
		b.WriteString(": " + strings.Join(kinds, ", "))
	}
	return b.String()
}

// newest returns the last changes of the records that changed last, the newest first. A
// Seq counts the events of all sets, so the range that has enough of this one is not
// known: newest tries longer and longer ranges, up to the set's segments.
func (s *Server) newest(ctx context.Context, set *event.Set) ([]recentItem, error) {
	_, segments, err := s.opt.Documents.Segments(ctx, set.Name)
	if err != nil {
		return nil, err
	}
	floor, count := set.Last, 0
	for i := len(segments) - 1; i >= 0 && count < recentEvents; i-- {
		if g := &segments[i]; g.Events > 0 && g.First <= set.Last {
			floor = g.First - 1
			count += g.Events
		}
	}
	for span := event.Seq(2 * recentItems); ; span *= 4 {
		after := max(set.Last-span, floor)
		found, seen, err := s.last(ctx, set, event.Range{After: after, Upto: set.Last})
		if err != nil || len(found) == recentItems || after == floor || seen >= recentEvents {
			return found, err
		}
	}
}

// last returns the last change of each record in a range, the newest first, and the
// number of events in the range.
func (s *Server) last(ctx context.Context, set *event.Set, r event.Range) (found []recentItem, seen int, err error) {
	byRecord := map[string]recentItem{} // the events themselves may have megabytes of links each
	for e, err := range s.opt.Log.Events(ctx, set.Name, r) {
		if err != nil {
			return nil, seen, err
		}
		if seen++; e.Kind != event.Rejected {
			byRecord[e.Record] = s.recentItem(set, e)
		}
	}
	found = slices.SortedFunc(maps.Values(byRecord), func(a, b recentItem) int { return cmp.Compare(b.Seq, a.Seq) })
	return found[:min(len(found), recentItems)], seen, nil
}

// recentLink returns the URL of a record for people: ours where we serve it, else the
// original's, if that is on the web.
func (s *Server) recentLink(set *event.Set, e *event.Event) string {
	switch {
	case set.Content != event.Reference:
		return s.setURL(set.Name) + "records/" + event.Key(e.Record)
	case isWeb(e.Loc):
		return event.URI(e.Loc)
	}
	return s.setURL(set.Name)
}

func (s *Server) setURL(set string) string { return s.base + "/sets/" + set + "/" }

func titleOf(set *event.Set) string { return cmp.Or(strings.TrimSpace(set.Title), set.Name) }

type atomLink struct {
	Rel  string `xml:"rel,attr"`
	Type string `xml:"type,attr,omitempty"`
	Href string `xml:"href,attr"`
}

type atomFeed struct {
	XMLName  xml.Name    `xml:"http://www.w3.org/2005/Atom feed"`
	ID       string      `xml:"id"`
	Title    string      `xml:"title"`
	Subtitle string      `xml:"subtitle"`
	Updated  string      `xml:"updated"`
	Author   string      `xml:"author>name"`
	Links    []atomLink  `xml:"link"`
	Entries  []atomEntry `xml:"entry"`
}

type atomEntry struct {
	ID       string       `xml:"id"`
	Title    string       `xml:"title"`
	Updated  string       `xml:"updated"`
	Links    []atomLink   `xml:"link"`
	Category atomCategory `xml:"category"`
	Summary  string       `xml:"summary,omitempty"`
	Content  string       `xml:"content,omitempty"` // of an entry without a link (RFC 4287 4.1.2)
}

type atomCategory struct {
	Term string `xml:"term,attr"`
}

// hubLinks are the links to the hubs in feeds of XML.
func hubLinks(f *recentFeed) (links []atomLink) {
	for _, hub := range f.Hubs {
		links = append(links, atomLink{Rel: "hub", Href: hub})
	}
	return links
}

func encodeAtom(f *recentFeed) ([]byte, error) {
	doc := atomFeed{ID: f.Self, Title: f.Title, Subtitle: f.About, Updated: f.Updated.UTC().Format(time.RFC3339), Author: f.Title,
		Links: []atomLink{{"self", "application/atom+xml", f.Self}, {"alternate", "text/html", f.Home}}}
	doc.Links = append(doc.Links, hubLinks(f)...)
	for _, item := range f.Items {
		e := atomEntry{ID: item.ID, Title: item.Title, Updated: item.At.UTC().Format(time.RFC3339), Category: atomCategory{item.Kind}, Summary: item.Summary}
		if item.Link != "" {
			e.Links = []atomLink{{Rel: "alternate", Href: item.Link}}
		} else {
			e.Summary, e.Content = "", e.Summary
		}
		doc.Entries = append(doc.Entries, e)
	}
	return encodeXML(doc)
}

type rssFeed struct {
	XMLName xml.Name `xml:"rss"`
	Version string   `xml:"version,attr"`
	Atom    string   `xml:"xmlns:atom,attr"`
	Channel struct { // its own URL is in an element of Atom, since RSS has none for that
		Title       string     `xml:"title"`
		Link        string     `xml:"link"`
		Description string     `xml:"description"`
		Links       []atomLink `xml:"atom:link"`
		Built       string     `xml:"lastBuildDate"`
		Items       []rssItem  `xml:"item"`
	} `xml:"channel"`
}

type rssItem struct {
	Title       string  `xml:"title"`
	Link        string  `xml:"link,omitempty"`
	Description string  `xml:"description"`
	Category    string  `xml:"category"`
	GUID        rssGUID `xml:"guid"`
	Published   string  `xml:"pubDate"`
}

type rssGUID struct {
	PermaLink bool   `xml:"isPermaLink,attr"`
	ID        string `xml:",chardata"`
}

func encodeRSS(f *recentFeed) ([]byte, error) {
	doc := rssFeed{Version: "2.0", Atom: "http://www.w3.org/2005/Atom"}
	c := &doc.Channel
	c.Title, c.Link, c.Description, c.Built = f.Title, f.Home, f.About, f.Updated.UTC().Format(time.RFC1123Z)
	c.Links = append([]atomLink{{"self", "application/rss+xml", f.Self}}, hubLinks(f)...)
	for _, item := range f.Items {
		c.Items = append(c.Items, rssItem{item.Title, item.Link, item.Summary, item.Kind, rssGUID{ID: item.ID}, item.At.UTC().Format(time.RFC1123Z)})
	}
	return encodeXML(doc)
}

func encodeXML(doc any) ([]byte, error) {
	text, err := xml.MarshalIndent(doc, "", "  ")
	return slices.Concat([]byte(xml.Header), text, []byte("\n")), err
}

type jsonFeed struct {
	Version     string     `json:"version"`
	Title       string     `json:"title"`
	Home        string     `json:"home_page_url"`
	Self        string     `json:"feed_url"`
	Description string     `json:"description"`
	Hubs        []jsonHub  `json:"hubs,omitempty"`
	Items       []jsonItem `json:"items"`
}

type jsonHub struct {
	Type string `json:"type"`
	URL  string `json:"url"`
}

type jsonItem struct {
	ID        string   `json:"id"`
	URL       string   `json:"url,omitempty"`
	Title     string   `json:"title"`
	Content   string   `json:"content_text"`
	Published string   `json:"date_published"`
	Tags      []string `json:"tags"`
}

func encodeJSON(f *recentFeed) ([]byte, error) {
	doc := jsonFeed{"https://jsonfeed.org/version/1.1", f.Title, f.Home, f.Self, f.About, nil, []jsonItem{}}
	for _, hub := range f.Hubs {
		doc.Hubs = append(doc.Hubs, jsonHub{"WebSub", hub})
	}
	for _, item := range f.Items {
		doc.Items = append(doc.Items, jsonItem{item.ID, item.Link, item.Title, item.Summary, item.At.UTC().Format(time.RFC3339), []string{item.Kind}})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(doc)
	return b.Bytes(), err
}
