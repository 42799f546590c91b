package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strconv"

	"github.com/gorilla/feeds"
	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// recentItems is how many changes the feeds for people show.
const recentItems = 50

// recentForm is one of the formats of the feed for people.
type recentForm struct {
	Name        string // last part of its URL
	Title       string
	ContentType string
	write       func(w io.Writer, self string, f *feeds.Feed) error
}

func recentForms() []recentForm {
	return []recentForm{
		{"recent.atom", "Recent changes (Atom)", "application/atom+xml", writeAtom},
		{"recent.rss", "Recent changes (RSS)", "application/rss+xml", writeRSS},
		{"recent.json", "Recent changes (JSON Feed)", "application/feed+json", writeJSON},
	}
}

// recent answers with the newest changes of a set for people's feed readers. For
// programs there are feed.atom and the Change Lists: this one forgets.
func (s *Server) recent(form recentForm) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, w := c.Request(), c.Response().Writer
		set, err := s.opt.Sets.Set(r.Context(), c.Param("set"))
		if err != nil {
			return notFound(err)
		}
		m := publish.Meta{ContentType: form.ContentType, ETag: s.recentTag(form.Name, &set)}
		maps.Copy(w.Header(), headerOf(&m))
		if headed(w, r, &m) {
			return nil
		}
		events, err := s.newest(r.Context(), &set)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := form.write(&b, s.setPage(set.Name)+form.Name, s.recentFeed(&set, events)); err != nil {
			return err
		}
		send(w, r, &m, bytes.NewReader(b.Bytes()), int64(b.Len()))
		return nil
	}
}

// recentTag is made of all that decides the bytes. The first number changes with
// the looks of these feeds.
func (s *Server) recentTag(form string, set *event.Set) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %q %q %q %q %q %d %d", 1, s.base, form, set.Name, set.Title, set.Description, set.Created, set.Last))
	return fmt.Sprintf(`"%x"`, sum[:16])
}

// newest returns the newest events of a set, the last one first. The log counts
// over all sets, so how far back they reach is not known: the segments bound it,
// and within them it is tried with longer and longer ranges.
func (s *Server) newest(ctx context.Context, set *event.Set) ([]event.Event, error) {
	segments, err := s.opt.Sets.Segments(ctx, set.Name)
	if err != nil {
		return nil, err
	}
	floor, count := set.Last, 0
	for i := len(segments) - 1; i >= 0 && count < recentItems; i-- {
		if g := &segments[i]; g.Events > 0 && g.First <= set.Last {
			floor = g.First - 1
			count += g.Events
		}
	}
	for span := event.Seq(2 * recentItems); ; span *= 4 {
		after := max(set.Last-span, floor)
		found, err := s.last(ctx, set.Name, event.Range{After: after, Upto: set.Last})
		if err != nil || len(found) == recentItems || after == floor {
			return found, err
		}
	}
}

// last returns the last events of a range, the very last one first.
func (s *Server) last(ctx context.Context, set string, r event.Range) ([]event.Event, error) {
	var ring [recentItems]event.Event
	n := 0
	for e, err := range s.opt.Records.Events(ctx, set, r) {
		if err != nil {
			return nil, err
		}
		if e.Kind != event.Rejected {
			ring[n%recentItems] = *e
			n++
		}
	}
	found := make([]event.Event, 0, recentItems)
	for i := n - 1; i >= max(0, n-recentItems); i-- {
		found = append(found, ring[i%recentItems])
	}
	return found, nil
}

func (s *Server) recentFeed(set *event.Set, events []event.Event) *feeds.Feed {
	f := &feeds.Feed{Title: titleOf(set), Description: set.Description, Updated: set.LastObserved.Time(), Link: &feeds.Link{Href: s.setPage(set.Name)}}
	if f.Description == "" {
		f.Description = "The newest changes of this set's records"
	}
	for i := range events {
		e := &events[i]
		item := &feeds.Item{Title: e.Title, Id: s.setPage(set.Name) + "#" + strconv.FormatInt(int64(e.Seq), 10), IsPermaLink: "false",
			Description: "The record was " + e.Kind.String() + ".", Created: e.Observed.Time(), Link: &feeds.Link{Href: s.recentLink(set, e)}}
		if item.Title == "" {
			item.Title = e.Record
		}
		f.Items = append(f.Items, item)
	}
	return f
}

// recentLink is where a person sees the record: where we serve it, else at its
// own place, when that is on the web.
func (s *Server) recentLink(set *event.Set, e *event.Event) string {
	switch {
	case set.Content != event.Reference:
		return s.setPage(set.Name) + "records/" + event.Key(e.Record)
	case isWeb(e.Loc):
		return e.Loc
	}
	return s.setPage(set.Name)
}

func (s *Server) setPage(set string) string { return s.base + "/sets/" + set + "/" }

func titleOf(set *event.Set) string {
	if set.Title == "" {
		return set.Name
	}
	return set.Title
}

// writeAtom gives the feed an id of its own and an author, both of which RFC 4287
// demands.
func writeAtom(w io.Writer, self string, f *feeds.Feed) error {
	f.Author = &feeds.Author{Name: f.Title}
	a := (&feeds.Atom{Feed: f}).AtomFeed()
	a.Id = self
	return feeds.WriteXML(a, w)
}

func writeRSS(w io.Writer, _ string, f *feeds.Feed) error { return f.WriteRss(w) }

// writeJSON adds what JSON Feed 1.1 demands besides: where the feed is, a text of
// each item, and items even when there are none.
func writeJSON(w io.Writer, self string, f *feeds.Feed) error {
	doc := struct {
		*feeds.JSONFeed
		Items []*feeds.JSONItem `json:"items"`
	}{(&feeds.JSON{Feed: f}).JSONFeed(), []*feeds.JSONItem{}}
	doc.FeedUrl = self
	for _, item := range doc.JSONFeed.Items {
		item.ContentText, item.Summary = item.Summary, ""
		doc.Items = append(doc.Items, item)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}
