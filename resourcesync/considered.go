package resourcesync

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// This file reads the three syntaxes that the paper in D-Lib Magazine 19 (1/2), 2013,
// shows as considered and not adopted: figures 9, 10 and 11. They are lists like those
// of DialectBeta, in other elements.

const (
	atomNamespace = "http://www.w3.org/2005/Atom"
	// relCapabilityList is the relation of the link to the Capability List in the three.
	relCapabilityList = BetaNamespace + "capabilitylist"
	// relTop is that relation in DialectBeta.
	relTop = "top"
)

// considered reports whether the dialect is one of the three.
func (d Dialect) considered() bool {
	return d == DialectAtomLinks || d == DialectAtomContents || d == DialectItems
}

// beta reports whether the dialect is of the time of the paper.
func (d Dialect) beta() bool { return d == DialectBeta || d.considered() }

// NewestFirst reports whether Change Lists of the dialect begin with their newest
// change, unless their entries show otherwise.
func (d Dialect) NewestFirst() bool { return d.beta() }

// IsConsidered reports whether a document is in one of the syntaxes that were considered
// and not adopted, see DialectAtomLinks. space and local are the name of its root, and
// attributes its attributes.
func IsConsidered(space, local string, attributes []xml.Attr) bool {
	if space == BetaNamespace {
		return local == "resync"
	}
	return space == atomNamespace && local == "feed" &&
		slices.ContainsFunc(attributes, func(a xml.Attr) bool { return a.Name == xml.Name{Space: BetaNamespace, Local: "type"} })
}

// startConsidered reads the root's start tag, if the document is of one of the three.
func (r *Reader) startConsidered() (ok bool, err error) {
	s := r.scan
	if !IsConsidered(s.Space, s.Local, s.Attrs) {
		return false, nil
	}
	kind, attribute := "", ""
	if s.Space == BetaNamespace {
		r.doc.Dialect, attribute = DialectItems, ` rstype="`
		kind, _ = s.Attr("", "rstype")
		if modified, ok := s.Attr("", "modified"); ok {
			r.doc.Modified = readStamp(r, r.here(), "modified", modified)
		}
	} else {
		r.doc.Dialect = DialectAtomLinks
		kind, _ = s.Attr(BetaNamespace, "type")
	}
	if c, known := strings.CutPrefix(strictxml.Trim(kind), BetaNamespace); known {
		r.doc.Capability = r.capability(r.here(), c)
	} else {
		r.problem(ruleCapability, s.Line, s.Column, "type "+strconv.Quote(strictxml.Clip(kind)), "a URI that begins with "+BetaNamespace)
	}
	r.seen.heads, r.seen.terms = 1, true
	if r.frame, r.end, err = s.Frame(); err != nil {
		return true, err
	}
	if r.doc.Dialect == DialectAtomLinks { // the frame needs a prefix that the root does not have
		prefix := "t"
		for bytes.Contains(r.frame, []byte(" xmlns:"+prefix+"=")) {
			prefix += "t"
		}
		attribute = " xmlns:" + prefix + `="` + BetaNamespace + `" ` + prefix + `:type="`
	}
	r.frame = append(r.frame[:len(r.frame)-1], attribute...)
	r.frame = append(strictxml.AppendEscaped(r.frame, strictxml.Clip(kind)), `">`...)
	return true, nil
}

// headConsidered reads a child of the root, unless it starts the next entry.
func (r *Reader) headConsidered() (entry bool, err error) {
	s := r.scan
	switch {
	case r.isEntry():
		return true, nil
	case s.Local == "link" && (s.Space == atomNamespace || s.Space == BetaNamespace):
		if r.seen.entries > 0 {
			r.problem(rulePosition, s.Line, s.Column, "<link> after an entry", "it inside the entry, or before all of them; it is read as a link of the document")
		}
		if l, _, ok := r.linkConsidered(); ok && len(r.doc.Links) < maxLinks {
			r.doc.Links = append(r.doc.Links, l)
		}
	case s.Space == atomNamespace && s.Local == "updated":
		at := r.here()
		text, _, err := s.Characters()
		if err == nil {
			r.doc.Modified = readStamp(r, at, "updated", text)
		}
		return false, err
	}
	return false, s.Skip()
}

// isEntry reports whether the current start tag is that of an entry.
func (r *Reader) isEntry() bool {
	s := r.scan
	if r.doc.Dialect == DialectItems {
		return s.Space == BetaNamespace && s.Local == "item"
	}
	return s.Space == atomNamespace && s.Local == "entry"
}

// entryConsidered reads the entry whose start tag is the current token.
func (r *Reader) entryConsidered(d *draftEntry) error {
	if r.doc.Dialect == DialectItems {
		return r.item(d)
	}
	return r.scan.Children(func() error {
		s := r.scan
		if s.Space != atomNamespace {
			return s.Skip()
		}
		at := r.here()
		switch s.Local {
		case "updated":
			text, _, err := s.Characters()
			if err == nil && d.LastMod.IsZero() {
				d.LastMod = readStamp(r, at, "updated", text)
			}
			return err
		case "title":
			text, _, err := s.Characters()
			fill(&d.Metadata.Title, strictxml.Trim(string(text)))
			return err
		case "content":
			if _, ok := s.Attr("", "src"); ok {
				r.doc.Dialect = DialectAtomContents
				r.resource(d)
			}
		case "link":
			if rel, _ := s.Attr("", "rel"); slices.Contains(strings.Fields(rel), RelCanonical) {
				r.resource(d)
				break
			}
			l, change, ok := r.linkConsidered()
			if change != "" {
				r.problem(ruleChange, at.line, at.column, "rs:change on a link "+strictxml.Clip(l.Rel), "it on the link canonical")
			}
			r.keepLink(d, l, ok)
		}
		return s.Skip()
	})
}

// item reads an item and the links in it.
func (r *Reader) item(d *draftEntry) error {
	s := r.scan
	r.resource(d)
	link := func() error {
		if s.Space == BetaNamespace && s.Local == "link" {
			l, _, ok := r.linkConsidered()
			r.keepLink(d, l, ok)
		}
		return s.Skip()
	}
	return s.Children(link)
}

// keepLink keeps a link of an entry.
func (r *Reader) keepLink(d *draftEntry, l Link, ok bool) {
	switch {
	case !ok:
	case len(r.links) == maxLinks:
		d.bad(ruleEntry, "more than %d links", maxLinks)
	default:
		r.links = append(r.links, l)
	}
}

// resource reads the attributes of the current start tag that describe the resource. The tag is
// an item, a link canonical or a content.
func (r *Reader) resource(d *draftEntry) {
	at := r.here()
	if d.locs++; d.locs > 1 {
		r.problem(ruleLoc, at.line, at.column, "a second URI of the resource", "one; the first is used")
		return
	}
	ref := ""
	for _, a := range r.scan.Attrs {
		if a.Name.Space != "" && a.Name.Space != BetaNamespace {
			continue
		}
		switch a.Name.Local {
		case "href", "src":
			ref = a.Value
		case "change":
			d.Metadata.Change = r.change(at, a.Value)
		case "hash":
			d.Metadata.Hash = r.hash(at, a.Value)
		case "length":
			d.Metadata.Length = r.length(at, a.Value)
		case "type":
			d.Metadata.Type = strictxml.Trim(a.Value)
		case "modified":
			d.LastMod = readStamp(r, at, "modified", a.Value)
		}
	}
	trimmed := strictxml.Trim(ref)
	loc, err := r.scan.Resolve(r.scan.Base(), trimmed)
	switch {
	case trimmed == "":
		d.bad(ruleLoc, "no URI of the resource")
		return
	case err != nil || !absolute(loc):
		d.bad(ruleLoc, "%q; want an absolute URI", strictxml.Clip(trimmed))
		return
	case loc != ref:
		r.problem(ruleLoc, at.line, at.column, strconv.Quote(strictxml.Clip(ref)), "an absolute URI without white space; it is read as "+strictxml.Clip(loc))
	}
	d.Loc = loc
}

// linkConsidered reads a link, whose attributes may have the prefix of ResourceSync. change is
// its attribute change, which l does not have; ok is false when it has no usable href.
func (r *Reader) linkConsidered() (l Link, change string, ok bool) {
	s := r.scan
	for i := range s.Attrs {
		a := &s.Attrs[i]
		if a.Name.Space == BetaNamespace {
			a.Name.Space = ""
		}
		if a.Name == (xml.Name{Local: "change"}) {
			change = a.Value
			a.Name.Space = CarriedNamespace // so that link does not report it
		}
	}
	l, ok = r.link()
	l.Extra = slices.DeleteFunc(l.Extra, func(a xml.Attr) bool { return a.Name.Local == "change" })
	if l.Rel == relCapabilityList {
		l.Rel = relTop
	}
	return l, change, ok
}

// notAdopted returns the error for writing one of the three.
func (d Dialect) notAdopted() *RuleError {
	return ruleError(ruleRoot, fmt.Sprintf("a document in the syntax %q, which was never adopted", d), "another Dialect")
}
