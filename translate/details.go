package translate

import (
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
)

// What is taken of a feed's own metadata is bounded, since it stands in every
// entry that came from that feed. Texts are cut; a longer id or address names
// nobody any more and is left out, as are more of a kind than that.
const (
	maxSourceID    = 1000 // bytes
	maxSourceTitle = 200
	maxSourceText  = 1000
	maxSourceItems = 10
)

// cut shortens a text to so many bytes at most, without cutting a character.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// short returns an address that is not too long, else "".
func short(s string) string {
	if len(s) > maxSourceID {
		return ""
	}
	return s
}

// FeedOf returns what a feed says of itself besides its id, its title and when it
// was updated; nil when that is nothing.
func FeedOf(f *atompmh.Feed) *event.Feed {
	feed := feedOf(&f.Metadata, f.Links)
	if feed.Title.Language == "" && feed.Authors == nil && feed.Contributors == nil && feed.Rights.Value == "" && feed.Categories == nil && feed.Links == nil {
		return nil
	}
	return feed
}

func feedOf(m *atompmh.Metadata, links []atompmh.Link) *event.Feed {
	f := &event.Feed{Title: event.Text{Language: short(m.Language)}, Rights: event.Text{Value: cut(m.Rights.Value, maxSourceText), Language: short(m.Rights.Language)}}
	for _, p := range personsOf(m.Authors[:min(len(m.Authors), maxSourceItems)]) {
		f.Authors = append(f.Authors, event.Person{Name: cut(p.Name, maxSourceTitle), URI: short(p.URI), Email: short(p.Email)})
	}
	for _, p := range personsOf(m.Contributors[:min(len(m.Contributors), maxSourceItems)]) {
		f.Contributors = append(f.Contributors, event.Person{Name: cut(p.Name, maxSourceTitle), URI: short(p.URI), Email: short(p.Email)})
	}
	for _, c := range categoriesOf(m.Categories[:min(len(m.Categories), maxSourceItems)]) {
		if c.Term = short(c.Term); c.Term != "" {
			f.Categories = append(f.Categories, event.Category{Term: c.Term, Scheme: short(c.Scheme), Label: cut(c.Label, maxSourceTitle)})
		}
	}
	for i := range links {
		l := &links[i]
		if !describesFeed(l.Rel) || !event.Public(l.Href) || len(l.Href) > maxSourceID || len(f.Links) == maxSourceItems {
			continue
		}
		f.Links = append(f.Links, event.Link{Rel: l.Rel, Href: l.Href, Type: short(l.Type), Length: event.NoLength})
	}
	return f
}

// describesFeed reports whether a link of that relation tells of the feed. Others
// lead from page to page, or to services.
func describesFeed(rel string) bool {
	switch rel {
	case "self", "alternate", "related", "via", "license", "describedby":
		return true
	}
	return false
}

func personsOf(persons []atompmh.Person) (out []event.Person) {
	for _, p := range persons {
		out = append(out, event.Person(p))
	}
	return out
}

func categoriesOf(categories []atompmh.Category) (out []event.Category) {
	for _, c := range categories {
		out = append(out, event.Category(c))
	}
	return out
}

// detailsOf returns what an entry says besides what decides; nil when that is
// nothing.
func detailsOf(e *atompmh.Entry) *event.Details {
	if e.Language == "" && e.Authors == nil && e.Contributors == nil && e.Rights.Value == "" && e.Source == nil {
		return nil
	}
	d := &event.Details{Language: e.Language, Authors: personsOf(e.Authors), Contributors: personsOf(e.Contributors), Rights: event.Text(e.Rights)}
	if s := e.Source; s != nil {
		d.Source = feedOf(&s.Metadata, s.Links)
		d.Source.ID, d.Source.Title.Value = short(s.ID), cut(s.Title, maxSourceTitle)
		d.Source.Updated, _ = event.StampOf(s.Updated)
	}
	return d
}

// metadata returns what of a record goes into its entry. What RFC 4287 does not
// allow is left out.
func metadata(e *event.Event) (m atompmh.Metadata) {
	m.Categories = categories(e.Categories)
	d := e.Details
	if d == nil {
		return m
	}
	m.Language = language(d.Language)
	m.Authors, m.Contributors = persons(d.Authors), persons(d.Contributors)
	m.Rights = atompmh.Text{Value: d.Rights.Value, Language: language(d.Rights.Language)}
	return m
}

// source returns what the entry says of the feed that it was copied from (RFC
// 4287 4.2.11): what it said itself, else what that feed says; nil when nothing is
// known.
func source(e *event.Event) *atompmh.Source {
	o := &e.Origin
	f := &event.Feed{ID: short(o.FeedID), Title: event.Text{Value: cut(o.FeedTitle, maxSourceTitle)}, Updated: o.FeedUpdated}
	switch {
	case e.Details != nil && e.Details.Source != nil:
		f = e.Details.Source
	case o.Feed != nil:
		all := *o.Feed
		all.ID, all.Title.Value, all.Updated = f.ID, f.Title.Value, f.Updated
		f = &all
	case f.ID == "":
		return nil
	}
	s := &atompmh.Source{ID: f.ID, Title: f.Title.Value, Updated: f.Updated.Time(), Metadata: atompmh.Metadata{
		Language: language(f.Title.Language), Authors: persons(f.Authors), Contributors: persons(f.Contributors),
		Rights: atompmh.Text{Value: f.Rights.Value, Language: language(f.Rights.Language)}, Categories: categories(f.Categories)}}
	if !atompmh.CanBeID(s.ID) {
		s.ID = ""
	}
	for i := range f.Links {
		if l := &f.Links[i]; event.Public(l.Href) {
			s.Links = append(s.Links, atompmh.Link{Rel: l.Rel, Href: l.Href, Type: linkType(l.Type), Length: atompmh.NoLength})
		}
	}
	if s.ID == "" && s.Title == "" && s.Updated.IsZero() && s.Authors == nil && s.Contributors == nil && s.Rights.Value == "" && s.Categories == nil && s.Links == nil {
		return nil
	}
	return s
}

func persons(all []event.Person) (out []atompmh.Person) {
	for _, p := range all {
		if !atompmh.CanBeID(p.URI) {
			p.URI = ""
		}
		if !atompmh.CanBeEmail(p.Email) {
			p.Email = ""
		}
		if strings.TrimSpace(p.Name) != "" {
			out = append(out, atompmh.Person(p))
		}
	}
	return out
}

func categories(all []event.Category) (out []atompmh.Category) {
	for _, c := range all {
		if !atompmh.CanBeID(c.Scheme) {
			c.Scheme = ""
		}
		if c.Term != "" {
			out = append(out, atompmh.Category(c))
		}
	}
	return out
}

// language leaves out what is no language tag.
func language(tag string) string {
	if !atompmh.CanBeLanguage(tag) {
		return ""
	}
	return tag
}

// linkType leaves out what is no media type.
func linkType(t string) string {
	if !atompmh.CanBeType(t) {
		return ""
	}
	return t
}

// ServedType is the media type under which a copy of what has this type is
// served.
func ServedType(stated string) string {
	if t := linkType(stated); t != "" {
		return t
	}
	return "application/octet-stream"
}
