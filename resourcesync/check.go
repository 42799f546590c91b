package resourcesync

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// broken is told of each broken rule: its id, what is there and what the rule
// wants.
type broken func(rule, found, expected string)

// draft tells whether the document is of a time when at, from and up were not
// asked for yet.
func (d *Document) draft() bool { return d.Dialect == DialectBeta || d.Dialect == Dialect091 }

// check applies the rules for the head of a document.
func (d *Document) check(report broken) {
	for i := range d.Links {
		d.Links[i].check(report)
	}
	if d.Dialect == DialectSitemap {
		return
	}
	d.checkTimes(report)
	c := d.Capability
	switch {
	case c == "":
		report(ruleHead, "no capability", "one on the root's rs:md")
	case !c.known():
		report(ruleCapability, strconv.Quote(strictxml.Clip(string(c))), "one that the specification defines")
	case d.Index && c == CapabilityList && !d.draft():
		report(ruleIndex, "an index of Capability Lists", "a Source Description")
	}
	up, index := d.count(RelUp), d.count(RelIndex)
	switch {
	case up > 1:
		report(ruleUp, fmt.Sprintf("%d links up", up), "one; the first is taken")
	case c != Description && d.Up() == "" && d.Dialect != DialectBeta:
		report(ruleUp, "no link up", "one")
	}
	if index > 1 {
		report(ruleIndex, fmt.Sprintf("%d links index", index), "at most one; the first is taken")
	}
}

// checkTimes applies Appendix A to the head.
func (d *Document) checkTimes(report broken) {
	c := d.Capability
	state, changes := !d.At.IsZero() || !d.Completed.IsZero(), !d.From.IsZero() || !d.Until.IsZero()
	switch {
	case c.state() && d.At.IsZero() && !d.draft():
		report(ruleAt, "no at on a "+string(c), "one")
	case c.state() && changes:
		report(ruleAt, "from or until on a "+string(c), "none")
	case c.changes() && d.From.IsZero() && !d.draft():
		report(ruleFrom, "no from on a "+string(c), "one")
	case c.changes() && state:
		report(ruleFrom, "at or completed on a "+string(c), "none")
	case c.lists() && (state || changes):
		report(ruleAt, "at, completed, from or until on a "+string(c), "none")
	}
	if !d.From.IsZero() && !d.Until.IsZero() && d.Until.before(d.From) {
		report(ruleUntil, "until "+d.Until.String()+" before from "+d.From.String(), "until at from or later")
	}
}

// count counts the links of a relation.
func (d *Document) count(rel string) int {
	n := 0
	for i := range d.Links {
		if d.Links[i].Rel == rel {
			n++
		}
	}
	return n
}

// changelog tells whether the entries of the document are changes of resources.
func (d *Document) changelog() bool {
	return !d.Index && (d.Capability == ChangeList || d.Capability == ChangeDumpManifest)
}

// moment is the time by which the entries of a document of changes are ordered:
// that of the change, or the begin of what the entry leads to.
func (e *Entry) moment(d *Document) Datetime {
	switch {
	case d.changelog():
		return e.Metadata.Datetime
	case d.Capability.changes():
		return e.Metadata.From
	}
	return Datetime{}
}

// check applies the rules for an entry of document d. after is the latest moment
// of the entries before it.
func (e *Entry) check(d *Document, after Datetime, report broken) {
	md := &e.Metadata
	if d.changelog() {
		switch md.Change {
		case Created, Updated, Deleted:
		case "":
			report(ruleChange, "no change", "created, updated or deleted")
		default:
			report(ruleChange, "change "+strconv.Quote(strictxml.Clip(md.Change)), "created, updated or deleted")
		}
		if t := md.Datetime; !t.IsZero() && (t.before(d.From) || !d.Until.IsZero() && d.Until.before(t)) {
			report(ruleInterval, "datetime "+t.String(), strings.TrimSpace("one from "+d.From.String()+" until "+d.Until.String()))
		}
	}
	if t := e.moment(d); !t.IsZero() && t.before(after) {
		report(ruleOrder, t.String()+" after "+after.String(), "changes that go forward in time")
	}
	if d.Capability == CapabilityList && !d.Index && md.Capability == "" {
		report(ruleListed, "an entry without capability", "that of the document that it leads to")
	}
	if d.Capability.manifest() && !d.Index && md.Path == "" && md.Change != Deleted {
		report(rulePath, "no path", "that of the bitstream in the package")
	}
	if md.Path != "" && md.Path[0] != '/' {
		report(rulePath, "path "+strconv.Quote(strictxml.Clip(md.Path)), "a leading slash")
	}
	for i := range e.Links {
		e.Links[i].check(report)
	}
}

// check applies the rules for a link.
func (l *Link) check(report broken) {
	if l.Rel == "" || l.Href == "" {
		report(ruleLink, fmt.Sprintf("a link with rel %q and href %q", strictxml.Clip(l.Rel), strictxml.Clip(l.Href)), "both")
	}
	if l.Pri < 0 || l.Pri > 999_999 {
		report(rulePri, "pri "+strconv.Itoa(l.Pri), "1 to 999,999")
	}
}

// unwritable returns why the head has no XML form, nil when it has one.
func (d *Document) unwritable() *fault {
	if d.Dialect == DialectSitemap && (d.Capability != "" || len(d.Links) > 0 || len(d.Extra) > 0) {
		return &fault{ruleHead, "a capability or links in a plain sitemap", "none; or the dialect of a version"}
	}
	if f := unwritable(d.Extra, headAttr); f != nil {
		return f
	}
	return unwritableLinks(d.Links)
}

// unwritable returns why the entry has no XML form in a document of the dialect.
func (e *Entry) unwritable(in Dialect) *fault {
	if e.Loc == "" {
		return &fault{ruleLoc, "no loc", "one"}
	}
	if in == DialectSitemap && (!e.Metadata.isZero() || len(e.Links) > 0) {
		return &fault{ruleEntry, "metadata or links in a plain sitemap", "none; or the dialect of a version"}
	}
	if f := unwritable(e.Metadata.Extra, entryAttr); f != nil {
		return f
	}
	return unwritableLinks(e.Links)
}

func unwritableLinks(links []Link) *fault {
	for i := range links {
		if f := unwritable(links[i].Extra, linkAttr); f != nil {
			return f
		}
	}
	return nil
}

// unwritable looks for attributes that have a field of their own, are there
// twice, or have no name in XML.
func unwritable(extra []xml.Attr, defined func(xml.Name) bool) *fault {
	for i, a := range extra {
		name := a.Name
		taken := defined(name)
		for _, other := range extra[:i] {
			taken = taken || other.Name == name
		}
		if taken || name.Space == "xmlns" || !isName(name.Local) {
			return &fault{ruleAttribute, fmt.Sprintf("the extra attribute %q", strictxml.Clip(name.Local)), "a name in XML that no other attribute has"}
		}
	}
	return nil
}

// isName tells whether s can be the local name of an attribute. The judge is the
// reader, so that whatever was read can be written.
func isName(s string) bool {
	if s == "xmlns" {
		return false
	}
	t, err := xml.NewDecoder(strings.NewReader("<" + s + "/>")).RawToken()
	start, ok := t.(xml.StartElement)
	return err == nil && ok && start.Name == xml.Name{Local: s}
}

// headAttr, entryAttr and linkAttr tell which attributes have a field: on the
// head's rs:md, on that of an entry, and on an rs:ln.
func headAttr(name xml.Name) bool {
	if name.Space != "" {
		return false
	}
	switch name.Local {
	case "capability", "at", "completed", "from", "until", "modified":
		return true
	}
	return false
}

func entryAttr(name xml.Name) bool {
	if name.Space != "" {
		return name.Space == CarriedNamespace && (name.Local == "id" || name.Local == "title" || name.Local == "hreflang" || name.Local == "modified")
	}
	switch name.Local {
	case "change", "datetime", "encoding", "hash", "length", "path", "type", "etag":
		return true
	}
	return headAttr(name)
}

func linkAttr(name xml.Name) bool {
	if name.Space != "" {
		return name.Space == CarriedNamespace && (name.Local == "id" || name.Local == "hreflang")
	}
	switch name.Local {
	case "rel", "href", "modified", "encoding", "hash", "length", "path", "pri", "type", "profile":
		return true
	}
	return false
}
