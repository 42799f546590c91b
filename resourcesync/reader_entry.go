package resourcesync

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// maxLinks is how many links an entry, or the document itself, may have.
const maxLinks = 10_000

// draftEntry is an entry while it is being read, with what it breaks.
type draftEntry struct {
	Entry
	locs, lastMods, heads int
	rule, reason          string // why it is bad; the first reason stands
}

func (d *draftEntry) bad(rule, format string, args ...any) {
	if d.rule == "" {
		d.rule, d.reason = rule, fmt.Sprintf(format, args...)
	}
}

// entry reads the entry whose start tag is the current token.
func (r *Reader) entry() (*Entry, error) {
	d := &draftEntry{}
	d.Line, d.Column = r.scan.Line, r.scan.Column
	r.seen.entries++
	if err := r.children(d); err != nil {
		return nil, err
	}
	r.to = r.scan.Offset()
	if d.locs == 0 {
		d.bad(ruleLoc, "no loc")
	}
	if d.rule != "" {
		return nil, &EntryError{Rule: d.rule, URL: r.o.URL, Line: d.Line, Column: d.Column,
			Loc: d.Loc, ID: d.Metadata.ID, Datetime: d.Metadata.Datetime, Reason: d.reason, Input: r.Input()}
	}
	r.judge(&d.Entry)
	return &d.Entry, nil
}

// children reads the entry's elements up to its end.
func (r *Reader) children(d *draftEntry) error {
	r.links = r.links[:0]
	err := r.scan.Children(func() error { return r.child(d) })
	if len(r.links) > 0 {
		d.Links = slices.Clone(r.links)
	}
	return err
}

func (r *Reader) child(d *draftEntry) error {
	s := r.scan
	switch r.element() {
	case elementLoc:
		return r.loc(d)
	case elementLastMod:
		at := r.here()
		text, _, err := s.Characters()
		if err != nil {
			return err
		}
		if d.lastMods++; d.lastMods > 1 {
			r.problem(ruleEntry, at.line, at.column, "a second lastmod", "at most one; the first is taken")
			return nil
		}
		d.LastMod = readStamp(r, at, "lastmod", text)
		return nil
	case elementChangeFreq:
		return r.hint(&d.ChangeFreq, isFrequency)
	case elementPriority:
		return r.hint(&d.Priority, isPriority)
	case elementMetadata:
		if d.heads++; d.heads > 1 {
			r.problem(ruleEntry, s.Line, s.Column, "a second rs:md", "one; what the first has not said is taken")
		}
		r.metadata(&d.Metadata, entryAttr)
	case elementLink:
		switch l, ok := r.link(); {
		case !ok:
		case len(r.links) == maxLinks:
			d.bad(ruleEntry, "more than %d links", maxLinks)
		default:
			r.links = append(r.links, l)
		}
	case elementURL, elementSitemap:
		d.bad(ruleEntry, "<%s> inside an entry", strictxml.Clip(s.Local))
	}
	return s.Skip()
}

// loc reads a loc: the entry's own URI, resolved.
func (r *Reader) loc(d *draftEntry) error {
	at, base := r.here(), r.scan.Base()
	text, markup, err := r.scan.Characters()
	if err != nil {
		return err
	}
	if d.locs++; d.locs > 1 {
		r.problem(ruleLoc, at.line, at.column, "a second loc", "one; the first is taken")
		return nil
	}
	raw := string(text)
	ref := strictxml.Trim(raw)
	loc, err := r.scan.Resolve(base, spaced(ref))
	switch {
	case markup:
		d.bad(ruleLoc, "loc holds elements; want a URI")
		return nil
	case ref == "":
		d.bad(ruleLoc, "an empty loc")
		return nil
	case err != nil || !absolute(loc):
		d.bad(ruleLoc, "loc %q; want an absolute URI", strictxml.Clip(ref))
		return nil
	case loc != ref:
		r.problem(ruleLoc, at.line, at.column, strconv.Quote(strictxml.Clip(ref)), "an absolute URI without spaces and dot segments; it is taken as "+strictxml.Clip(loc))
	case len(ref) != len(raw):
		r.problem(ruleLoc, at.line, at.column, "white space around "+strictxml.Clip(ref), "none; it is cut off")
	}
	d.Loc = loc
	return nil
}

// spaced escapes the spaces of a reference, which mean what they would escaped. A
// host can have none.
func spaced(ref string) string {
	if !strings.Contains(ref, " ") {
		return ref
	}
	escaped := strings.ReplaceAll(ref, " ", "%20")
	if _, err := url.Parse(escaped); err != nil {
		return ref
	}
	return escaped
}

// absolute tells whether s is an absolute URI as far as its beginning and its
// characters show: one of http or https has a host. Other characters than those of
// URIs (RFC 3986) are let pass above ASCII, as in IRIs.
func absolute(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	if !strictxml.HasScheme(s) {
		return false
	}
	scheme, rest, _ := strings.Cut(s, ":")
	if !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return rest != ""
	}
	rest, ok := strings.CutPrefix(rest, "//")
	return ok && rest != "" && rest[0] != '/' && rest[0] != '?' && rest[0] != '#'
}

// hint reads a changefreq or priority.
func (r *Reader) hint(to *string, good func(string) bool) error {
	at, name := r.here(), r.scan.Local
	text, _, err := r.scan.Characters()
	if err != nil {
		return err
	}
	value := strictxml.Trim(string(text))
	if !good(value) {
		r.problem(ruleSitemap, at.line, at.column, name+" "+strconv.Quote(strictxml.Clip(value)), "a value that sitemaps define")
	}
	if *to == "" {
		*to = value
	}
	return nil
}

func isFrequency(s string) bool {
	switch s {
	case "always", "hourly", "daily", "weekly", "monthly", "yearly", "never":
		return true
	}
	return false
}

func isPriority(s string) bool {
	p, err := strconv.ParseFloat(s, 64)
	return err == nil && p >= 0 && p <= 1
}

// judge reports what a good entry breaks, and remembers what shows only later.
func (r *Reader) judge(e *Entry) {
	r.seen.good++
	e.check(&r.doc, r.seen.last, func(rule, found, expected string) {
		if rule != ruleLink {
			r.problem(rule, e.Line, e.Column, found, expected)
		}
	})
	if t := e.moment(&r.doc); r.seen.last.before(t) {
		r.seen.last = t
	}
	if !e.Metadata.Datetime.IsZero() {
		r.seen.dated = true
	} else if r.seen.undated == nil {
		r.seen.undated = &Problem{Rule: ruleDatetime, Line: e.Line, Column: e.Column, Found: "a change without datetime", Expected: "one on each"}
	}
	switch t := e.LastMod; {
	case t.IsZero():
	case !t.before(r.seen.lastmod):
		r.seen.lastmod = t
	case r.seen.backwards == nil:
		r.seen.backwards = &Problem{Rule: ruleOrder, Line: e.Line, Column: e.Column,
			Found: "lastmod " + t.String() + " after " + r.seen.lastmod.String(), Expected: "changes that go forward in time"}
	}
}
