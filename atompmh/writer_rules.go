package atompmh

import (
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// check applies the rules for the head of a document.
func (f *Feed) check() error {
	if err := f.broken(); err != nil {
		err.Place = "feed"
		return err
	}
	return nil
}

func (f *Feed) broken() *RuleError {
	switch {
	case f.ID == "" || f.Title == "" || len(f.Authors) == 0:
		return breaks(ruleFeed, "id %q, title %q, %d authors: all three are mandatory", clip(f.ID), clip(f.Title), len(f.Authors))
	case !strictxml.IsIRI(f.ID):
		return breaks(ruleID, "id %q is no absolute IRI", clip(f.ID))
	case !dated(f.Updated):
		return breaks(ruleFeed, "updated is missing or has no year from 1678 to 2261")
	case f.Complete && f.PrevArchive != "":
		return breaks(ruleS11, "prev-archive %s beside fh:complete", clip(f.PrevArchive))
	}
	if err := f.Metadata.broken(); err != nil {
		return err
	}
	return brokenLink(f.Links)
}

// check applies the rules for an entry.
func (w *Writer) check(e *Entry) error {
	if err := w.broken(e); err != nil {
		err.Place = "entry " + clip(e.ID)
		return err
	}
	return nil
}

func (w *Writer) broken(e *Entry) *RuleError {
	switch {
	case e.ID == "" || e.Title == "":
		return breaks(ruleEntry, "id %q and title %q: both are mandatory", clip(e.ID), clip(e.Title))
	case !strictxml.IsIRI(e.ID):
		return breaks(ruleID, "id %q is no absolute IRI", clip(e.ID))
	case !dated(e.Updated):
		return breaks(ruleEntry, "updated is missing or has no year from 1678 to 2261")
	case e.Updated.After(w.head.Updated):
		return breaks(ruleS1, "updated %v is later than the feed's, %v", exact(e.Updated), exact(w.head.Updated))
	case e.Updated.Before(w.PrevUpdated):
		return breaks(ruleS2, "updated %v is earlier than that of the document behind prev-archive, %v", exact(e.Updated), exact(w.PrevUpdated))
	}
	if err := w.brokenKind(e); err != nil {
		return err
	}
	if l := duplicate(e.Links); l != nil {
		return breaks(ruleAlternates, "two alternate links of type %q, hreflang %q: let the further one have the relation %s",
			clip(l.Type), clip(l.Hreflang), RelFurtherAlternate)
	}
	if err := e.broken(); err != nil {
		return err
	}
	if s := e.Source; s != nil {
		if s.ID != "" && !strictxml.IsIRI(s.ID) {
			return breaks(ruleSource, "id %q of atom:source is no absolute IRI", clip(s.ID))
		}
		if err := s.broken(); err != nil {
			return err
		}
		if err := brokenLink(s.Links); err != nil {
			return err
		}
	}
	return brokenLink(e.Links)
}

// brokenKind applies S10 and S7.
func (w *Writer) brokenKind(e *Entry) *RuleError {
	alternates, further := 0, 0
	for i := range e.Links {
		switch e.Links[i].Rel {
		case relAlternate, "":
			alternates++
		case RelFurtherAlternate:
			further++
		default:
			continue
		}
		if e.Links[i].Type == "" {
			return breaks(ruleType, "an alternate link without type: %s", clip(e.Links[i].Href))
		}
	}
	c := e.Content
	switch {
	case e.Kind == Active && alternates == 0:
		return breaks(ruleS10, "no alternate link")
	case e.Kind == Active && c != nil:
		return breaks(ruleS10, "atom:content beside an alternate link")
	case e.Kind == Active:
		return nil
	case e.Kind != Deletion:
		return breaks(ruleS10, "kind %d is neither active nor deletion", e.Kind)
	case alternates+further > 0:
		return breaks(ruleS10, "a deletion entry with an alternate link")
	case c != nil && (!c.Empty || c.HasSrc):
		return breaks(ruleS10, "a deletion entry with a content that is not empty, or has src")
	case w.head.Complete:
		return breaks(ruleS7, "a deletion entry beside fh:complete")
	}
	return nil
}

func brokenLink(links []Link) *RuleError {
	for i := range links {
		switch l := &links[i]; {
		case l.Href == "":
			return breaks(ruleLink, "link %s without href", clip(l.Rel))
		case l.Type != "" && !CanBeType(l.Type):
			return breaks(ruleType, "link %s with type %q", clip(l.Href), clip(l.Type))
		case l.Hreflang != "" && !CanBeLanguage(l.Hreflang):
			return breaks(ruleLanguage, "link %s with hreflang %q", clip(l.Href), clip(l.Hreflang))
		}
	}
	return nil
}

// dated tells whether ParseTime reads t back.
func dated(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 1678 && y <= 2261
}

func exact(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func breaks(rule, format string, args ...any) *RuleError {
	return &RuleError{Rule: rule, Broken: fmt.Sprintf(format, args...)}
}
