package resourcesync

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Rule is one rule that documents have to keep.
type Rule struct {
	// ID is short and stable; Problem.Rule, EntryError.Rule and RuleError.Rule
	// hold it.
	ID string
	// Title says the rule in a few words.
	Title string
	// Clause names the specification and the section in it.
	Clause string
	// Severity is Must, Should or Note.
	Severity string
	// Once: a Reader reports only the first place of a document that
	// breaks it: such a habit of the Source would fill a report with every entry. A
	// strict Reader reports every place.
	Once bool
	// Strict: only a Reader with ReadOptions.Strict checks it, as no Destination
	// depends on it.
	Strict bool
	// Several: it is about how documents fit together, so that no single one shows it.
	Several bool
	// Contents: it is about packages and resources, which no Reader fetches.
	Contents bool
}

// The severities of rules. A rule that this implementation has added, or that is of a
// specification which Z39.99 does not build on, is a Note.
const (
	Must   = "must"   // what the specification says must be, is required or is mandatory
	Should = "should" // what it says should be, or is recommended
	Note   = "note"
)

// The ids of the rules.
const (
	ruleRoot       = "rs-root"
	ruleNamespace  = "rs-namespace"
	ruleCharset    = "rs-charset"
	ruleBase       = "rs-base"
	ruleHead       = "rs-head"
	rulePosition   = "rs-position"
	ruleCapability = "rs-capability"
	ruleAt         = "rs-at"
	ruleFrom       = "rs-from"
	ruleUntil      = "rs-until"
	ruleUp         = "rs-up"
	ruleIndex      = "rs-index"
	ruleEntries    = "rs-entries"
	ruleSize       = "rs-size"
	ruleOrder      = "rs-order"
	ruleInterval   = "rs-interval"
	ruleEntry      = "rs-entry"
	ruleLoc        = "rs-loc"
	ruleListed     = "rs-listed"
	ruleChange     = "rs-change"
	ruleDatetime   = "rs-datetime"
	ruleDate       = "rs-date"
	ruleUTC        = "rs-utc"
	ruleNaive      = "rs-naive"
	ruleHash       = "rs-hash"
	ruleLength     = "rs-length"
	rulePath       = "rs-path"
	rulePri        = "rs-pri"
	ruleLink       = "rs-link"
	ruleAttribute  = "rs-attribute"
	ruleSitemap    = "rs-sitemap"
	ruleDocument   = "rs-document"

	// Only a strict Reader checks these.
	ruleEntryTimes      = "rs-entry-times"
	ruleEntryAttributes = "rs-entry-attributes"
	ruleEntryFrom       = "rs-entry-from"
	ruleDescribed       = "rs-described"
	ruleCompleted       = "rs-completed"
	ruleCapabilities    = "rs-capabilities"
	ruleCapabilityIndex = "rs-capability-index"
	ruleDescribedBy     = "rs-describedby"
	ruleLastMod         = "rs-lastmod"
	ruleType            = "rs-type"
	ruleMediaType       = "rs-media-type"
	rulePackage         = "rs-package"
	rulePackages        = "rs-packages"
	ruleDumpOrder       = "rs-dump-order"
	ruleRelation        = "rs-relation"
	rulePatch           = "rs-patch"
	ruleAlternate       = "rs-alternate"
	ruleDuplicate       = "rs-duplicate"
	ruleMemento         = "rs-memento"
	ruleTimeGate        = "rs-timegate"
	ruleVia             = "rs-via"

	// Only several documents show these.
	ruleEmpty   = "rs-empty"
	ruleFull    = "rs-full"
	ruleStable  = "rs-stable"
	ruleNested  = "rs-nested"
	ruleHole    = "rs-hole"
	ruleMissing = "rs-missing"
	ruleNames   = "rs-names"
	ruleReach   = "rs-reach"
	ruleClosed  = "rs-closed"

	ruleIndexLink  = "rs-index-link"
	ruleIndexUntil = "rs-index-until"
	ruleWellKnown  = "rs-well-known"

	// Only packages and resources show these.
	rulePackageFile = "rs-package-file"
	ruleBitstream   = "rs-bitstream"
	ruleContents    = "rs-contents"
	ruleResource    = "rs-resource"
)

// Rules returns the table of all rules, in a fixed order.
func Rules() []Rule {
	const clause = "ANSI/NISO Z39.99-2017, "
	return []Rule{
		{ID: ruleRoot, Title: "the root element is urlset or sitemapindex in the sitemap namespace", Clause: clause + "7", Severity: Must, Once: true},
		{ID: ruleNamespace, Title: "the namespaces of sitemaps and ResourceSync are written exactly as specified", Clause: clause + "4", Severity: Must, Once: true},
		{ID: ruleCharset, Title: "Content-Type and the XML declaration name the same charset", Clause: "RFC 7303 3.2", Severity: Note, Once: true},
		{ID: ruleBase, Title: "xml:base is an IRI reference", Clause: "XML Base 3.1", Severity: Note},
		{ID: ruleHead, Title: "the root has exactly one rs:md, with a capability", Clause: clause + "7", Severity: Must},
		{ID: rulePosition, Title: "rs:md and rs:ln of the root precede the entries", Clause: clause + "7, Table 2", Severity: Should, Once: true},
		{ID: ruleCapability, Title: "a capability is one of those that the specification defines, and its document may have it", Clause: clause + "7", Severity: Must},
		{ID: ruleAt, Title: "a list, dump or manifest of resources has at, and neither from nor until", Clause: clause + "Appendix A", Severity: Must, Once: true},
		{ID: ruleFrom, Title: "a list, dump or manifest of changes has from, and neither at nor completed", Clause: clause + "Appendix A", Severity: Must, Once: true},
		{ID: ruleUntil, Title: "until is not earlier than from", Clause: clause + "12.1", Severity: Must},
		{ID: ruleUp, Title: "every document except a Source Description has one link with rel=up", Clause: clause + "9 to 13", Severity: Must, Once: true},
		{ID: ruleIndex, Title: "a document has at most one link with rel=index", Clause: clause + "6.2", Severity: Must, Once: true},
		{ID: ruleEntries, Title: "a document has at most 50,000 entries", Clause: clause + "7", Severity: Must, Once: true},
		{ID: ruleSize, Title: "a document has at most 50 MB", Clause: clause + "7", Severity: Must, Once: true},
		{ID: ruleOrder, Title: "changes are in chronological order", Clause: clause + "12.1, 12.2, 13.2", Severity: Must, Once: true},
		{ID: ruleInterval, Title: "the datetime of a change lies between from and until of its document", Clause: clause + "7", Severity: Must, Once: true},
		{ID: ruleEntry, Title: "entries of a urlset are url elements, those of a sitemapindex are sitemap elements; each element occurs at most once in an entry, except rs:ln", Clause: clause + "7", Severity: Must},
		{ID: ruleLoc, Title: "an entry has one loc: an absolute URI without surrounding white space", Clause: clause + "7", Severity: Must},
		{ID: ruleListed, Title: "an entry of a Capability List states the capability of the document at its loc", Clause: clause + "9", Severity: Must},
		{ID: ruleChange, Title: "a change is created, updated or deleted", Clause: clause + "12.1, 13.2", Severity: Must},
		{ID: ruleDatetime, Title: "every change has a datetime, so that a Destination recognizes the changes that it has read before", Clause: clause + "12.1 (recommended)", Severity: Note, Once: true},
		{ID: ruleDate, Title: "a time is a W3C Datetime", Clause: clause + "7", Severity: Must},
		{ID: ruleUTC, Title: "a time has date, hours, minutes and seconds, and is in UTC", Clause: clause + "7 (recommended)", Severity: Should, Once: true},
		{ID: ruleNaive, Title: "a time has a zone; without one it is read as UTC", Clause: "W3C NOTE-datetime", Severity: Must, Once: true},
		{ID: ruleHash, Title: "a hash is an algorithm, a colon and the number of hex digits that the algorithm has", Clause: clause + "7", Severity: Must, Once: true},
		{ID: ruleLength, Title: "a length is a number of bytes", Clause: clause + "7", Severity: Must},
		{ID: rulePath, Title: "in a manifest every resource that was not deleted has a path, with a leading slash", Clause: clause + "11.2, 13.2", Severity: Must},
		{ID: rulePri, Title: "pri is a whole number from 1 to 999,999", Clause: clause + "7", Severity: Must},
		{ID: ruleLink, Title: "a link has a rel and an href; the href is an absolute URI", Clause: clause + "7", Severity: Must},
		{ID: ruleAttribute, Title: "attributes that the specification defines have no prefix; all others have a namespace of their own", Clause: clause + "7", Severity: Must, Once: true},
		{ID: ruleSitemap, Title: "changefreq and priority have values that the sitemap format defines", Clause: "Sitemaps XML format", Severity: Must, Once: true},
		{ID: ruleDocument, Title: "a document is whole, well-formed XML without a document type, and its root is urlset or sitemapindex", Clause: clause + "7; XML 1.0 2.1", Severity: Must},
		{ID: ruleCapabilityIndex, Title: "Capability Lists have no index", Clause: clause + "9", Severity: Should, Once: true},
		{ID: ruleDumpOrder, Title: "the packages of a Change Dump are in chronological order", Clause: clause + "13.1", Severity: Should, Once: true},

		// What no Destination depends on.
		{ID: ruleEntryTimes, Title: "at and completed are on entries of dumps and indexes of resources only, from and until on those of changes only", Clause: clause + "7, Appendix A", Severity: Must, Strict: true},
		{ID: ruleEntryAttributes, Title: "entries have change and datetime only in lists and manifests of changes, path only in manifests, capability only in Source Descriptions and Capability Lists", Clause: clause + "7", Severity: Must, Strict: true},
		{ID: ruleDescribed, Title: "what an entry of a Source Description states of itself is the capability capabilitylist", Clause: clause + "8", Severity: Must, Strict: true},
		{ID: ruleCapabilities, Title: "a Capability List has one entry for each capability", Clause: clause + "9", Severity: Must, Strict: true},
		{ID: ruleRelation, Title: "a relation type is registered or a URI", Clause: clause + "7", Severity: Must, Strict: true},
		{ID: rulePatch, Title: "a patch link is in a list or manifest of changes and has a type; in a manifest it has a path", Clause: clause + "14.4", Severity: Must, Strict: true},
		{ID: ruleEntryFrom, Title: "an entry of a Change List Index, a Change Dump or an index of these has from", Clause: clause + "Appendix A", Severity: Should, Strict: true},
		{ID: ruleDescribedBy, Title: "a Source Description, each of its entries and a Capability List have a link describedby", Clause: clause + "8, 9", Severity: Should, Strict: true},
		{ID: ruleType, Title: "the entries of a manifest have a type", Clause: clause + "11.2, 13.2", Severity: Should, Strict: true},
		{ID: ruleMediaType, Title: "a type is a media type", Clause: clause + "7", Severity: Should, Strict: true},
		{ID: rulePackage, Title: "the entries of a dump have the type and length of their package", Clause: clause + "11.1", Severity: Should, Strict: true},
		{ID: rulePackages, Title: "the packages of a dump have one format", Clause: clause + "11.1, 13.1", Severity: Should, Strict: true},
		{ID: ruleAlternate, Title: "an alternate link has a type", Clause: clause + "14.3", Severity: Should, Strict: true},
		{ID: ruleDuplicate, Title: "a duplicate link leaves out what the entry says of the resource itself: encoding, hash, length and type", Clause: clause + "14.2", Severity: Should, Strict: true},
		{ID: ruleMemento, Title: "an entry has at most one link memento", Clause: clause + "14.6", Severity: Should, Strict: true},
		{ID: ruleTimeGate, Title: "a timegate link has no attributes but rel and href", Clause: clause + "14.6", Severity: Should, Strict: true},
		{ID: ruleVia, Title: "an entry has at most one link via", Clause: clause + "14.8", Severity: Should, Strict: true},
		{ID: ruleCompleted, Title: "completed is not earlier than at, and does not stand without it", Clause: clause + "7, Appendix A", Severity: Note, Strict: true},
		{ID: ruleLastMod, Title: "the entries of Source Descriptions and Capability Lists have no lastmod, unless every change of what they lead to changes it", Clause: clause + "8, 9", Severity: Note, Strict: true},

		// How documents fit together.
		{ID: ruleEmpty, Title: "a list does not become empty by mistake", Clause: "this implementation", Severity: Note, Several: true},
		{ID: ruleFull, Title: "a Source with more than 50,000 resources has an index of Resource Lists", Clause: clause + "7, 10.2", Severity: Note, Several: true},
		{ID: ruleStable, Title: "the lists of one snapshot do not change while they are read, and have the at that their index states", Clause: clause + "10.2", Severity: Note, Several: true},
		{ID: ruleNested, Title: "an index names lists, not other indexes", Clause: clause + "6.1", Severity: Must, Several: true},
		{ID: ruleHole, Title: "each Change List begins where the previous one ends", Clause: clause + "12.2", Severity: Note, Several: true},
		{ID: ruleMissing, Title: "every document that another one names exists and has the stated capability", Clause: clause + "6.2", Severity: Must, Several: true},
		{ID: ruleNames, Title: "the Capability List or index that a document names also names that document, and has one entry for each capability", Clause: clause + "6.2, 9", Severity: Must, Several: true},
		{ID: ruleReach, Title: "the Change Lists begin at or before the at of the Resource List", Clause: clause + "5.2, 12.1", Severity: Note, Several: true},
		{ID: ruleClosed, Title: "a Change List with until does not change any more", Clause: clause + "7, 12.1", Severity: Must, Several: true},
		{ID: ruleIndexLink, Title: "a document that an index names has a link with rel=index to it", Clause: clause + "10.1, 12.1, 13.1", Severity: Should, Several: true},
		{ID: ruleIndexUntil, Title: "an index states the until of a closed Change List, and none of an open one", Clause: clause + "12.2", Severity: Must, Several: true},
		{ID: ruleWellKnown, Title: "the Source Description is at /.well-known/resourcesync", Clause: clause + "6.3.2", Severity: Should, Several: true},

		// Packages and resources.
		{ID: rulePackageFile, Title: "a package is a ZIP file with a manifest.xml at its top level", Clause: clause + "11.2, 13.2", Severity: Must, Contents: true},
		{ID: ruleBitstream, Title: "the bitstreams of a package are where and what its manifest says", Clause: clause + "11.2, 13.2", Severity: Must, Contents: true},
		{ID: ruleContents, Title: "the manifest that contents leads to is the one in the package", Clause: clause + "11.1, 13.1", Severity: Must, Contents: true},
		{ID: ruleResource, Title: "a loc answers with the length, hash and type that are stated", Clause: clause + "7", Severity: Must, Contents: true},
	}
}

// Problem is one place where a document breaks a rule and could be read all the
// same.
type Problem struct {
	Rule         string
	URL          string
	Line, Column int // from 1; 0 when the place is the document as a whole
	// Found is what is there, Expected what the rule wants, and how the place was read.
	Found, Expected string
}

// String returns the problem in one line.
func (p Problem) String() string {
	at := p.URL
	if p.Line > 0 || at == "" {
		at = strictxml.Place(p.URL, p.Line, p.Column)
	}
	return fmt.Sprintf("%s: %s: found %s, expected %s", at, p.Rule, p.Found, p.Expected)
}

// broken is called with each broken rule: its id, what is there and what the rule
// wants.
type broken func(rule, found, expected string)

// draft reports whether the document is of a time when at, from and up were not
// asked for yet.
func (d *Document) draft() bool { return d.Dialect.beta() || d.Dialect == Dialect091 }

// check applies the rules for the head of a document.
func (d *Document) check(report broken) {
	for i := range d.Links {
		d.Links[i].check(report)
	}
	if d.Dialect == DialectSitemap {
		return
	}
	c := d.Capability
	// Appendix A.
	state, changes := !d.At.IsZero() || !d.Completed.IsZero(), !d.From.IsZero() || !d.Until.IsZero()
	switch {
	case c.state() && d.At.IsZero() && !d.draft():
		report(ruleAt, "no at on a "+string(c), "an at, the time of the snapshot")
	case c.state() && changes:
		report(ruleAt, "from or until on a "+string(c), "neither")
	case c.changes() && d.From.IsZero() && !d.draft():
		report(ruleFrom, "no from on a "+string(c), "a from, the start of the interval")
	case c.changes() && state:
		report(ruleFrom, "at or completed on a "+string(c), "neither")
	case c.lists() && (state || changes):
		report(ruleAt, "at, completed, from or until on a "+string(c), "none of them")
	}
	if !d.From.IsZero() && !d.Until.IsZero() && d.Until.before(d.From) {
		report(ruleUntil, "until "+d.Until.String()+" before from "+d.From.String(), "until at from or later")
	}
	switch {
	case c == "":
		report(ruleHead, "no capability", "a capability on the root's rs:md")
	case !c.known():
		report(ruleCapability, strconv.Quote(strictxml.Clip(string(c))), "a capability that the specification defines")
	case d.Index && c == CapabilityList && !d.draft():
		report(ruleCapabilityIndex, "an index of Capability Lists", "a Source Description")
	}
	up, index := d.count(RelUp), d.count(RelIndex)
	switch {
	case up > 1:
		report(ruleUp, fmt.Sprintf("%d links with rel=up", up), "one; the first is used")
	case c != Description && d.Up() == "" && !d.Dialect.beta():
		report(ruleUp, "no link with rel=up", "a link to the Capability List, or from that to the Source Description")
	}
	if index > 1 {
		report(ruleIndex, fmt.Sprintf("%d links with rel=index", index), "at most one; the first is used")
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

// changelog reports whether the entries of the document are changes of resources.
func (d *Document) changelog() bool {
	return !d.Index && (d.Capability == ChangeList || d.Capability == ChangeDumpManifest || d.Capability == ChangeNotification)
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
		rule := ruleOrder
		if d.Capability == ChangeDump && !d.Index {
			rule = ruleDumpOrder
		}
		report(rule, t.String()+" after "+after.String(), "changes in chronological order")
	}
	if d.Capability == CapabilityList && !d.Index && md.Capability == "" {
		report(ruleListed, "an entry without a capability", "the capability of the document at its loc")
	}
	if d.Capability.manifest() && !d.Index && md.Path == "" && md.Change != Deleted {
		report(rulePath, "no path", "the path of the bitstream in the package")
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
		report(ruleLink, fmt.Sprintf("a link with rel %q and href %q", strictxml.Clip(l.Rel), strictxml.Clip(l.Href)), "a rel and an href")
	}
	if l.Pri < 0 || l.Pri > 999_999 {
		report(rulePri, "pri "+strconv.Itoa(l.Pri), "1 to 999,999")
	}
}

// unwritable returns why the head has no XML form, nil when it has one.
func (d *Document) unwritable() *RuleError {
	if d.Dialect.considered() {
		return d.Dialect.notAdopted()
	}
	if d.Dialect == DialectSitemap && (d.Capability != "" || len(d.Links) > 0 || len(d.Extra) > 0) {
		return ruleError(ruleHead, "a capability or links in a plain sitemap", "none; set another Dialect to write them")
	}
	return unwritable(d.Extra, headAttr, d.Links)
}

// unwritable returns why the entry has no XML form in a document of the dialect.
func (e *Entry) unwritable(in Dialect) *RuleError {
	if e.Loc == "" {
		return ruleError(ruleLoc, "no loc", "a loc")
	}
	if in == DialectSitemap && (!e.Metadata.isZero() || len(e.Links) > 0) {
		return ruleError(ruleEntry, "metadata or links in a plain sitemap", "none; set another Dialect to write them")
	}
	return unwritable(e.Metadata.Extra, entryAttr, e.Links)
}

// unwritable looks for attributes that have a field of their own, are there
// twice, or have no name in XML: on an rs:md and on the links beside it.
func unwritable(extra []xml.Attr, defined func(xml.Name) bool, links []Link) *RuleError {
	for i, a := range extra {
		name := a.Name
		taken := defined(name)
		for _, other := range extra[:i] {
			taken = taken || other.Name == name
		}
		if taken || name.Space == "xmlns" || name.Space == "http://www.w3.org/2000/xmlns/" || !strictxml.Holds(name.Space) || !isName(name.Local) {
			return ruleError(ruleAttribute, fmt.Sprintf("the extra attribute %q", strictxml.Clip(name.Local)), "a valid XML name that occurs once")
		}
	}
	for i := range links {
		if e := unwritable(links[i].Extra, linkAttr, nil); e != nil {
			return e
		}
	}
	return nil
}

// isName reports whether s can be the local name of an attribute. It asks the XML reader,
// so that whatever was read can be written.
func isName(s string) bool {
	if s == "xmlns" {
		return false
	}
	t, err := xml.NewDecoder(strings.NewReader("<" + s + "/>")).RawToken()
	start, ok := t.(xml.StartElement)
	return err == nil && ok && start.Name == xml.Name{Local: s}
}

// headAttr, entryAttr and linkAttr report which attributes have a field: on the
// head's rs:md, on that of an entry, and on an rs:ln.
func headAttr(name xml.Name) bool {
	switch name.Local {
	case "capability", "at", "completed", "from", "until", "modified":
		return name.Space == ""
	}
	return false
}

func entryAttr(name xml.Name) bool {
	switch name.Local {
	case "id", "title", "hreflang", "details":
		return name.Space == CarriedNamespace
	case "modified":
		return name.Space == "" || name.Space == CarriedNamespace
	case "change", "datetime", "encoding", "hash", "length", "path", "type", "etag":
		return name.Space == ""
	}
	return headAttr(name)
}

func linkAttr(name xml.Name) bool {
	switch name.Local {
	case "id", "hreflang":
		return name.Space == CarriedNamespace
	case "rel", "href", "modified", "encoding", "hash", "length", "path", "pri", "type", "profile":
		return name.Space == ""
	}
	return false
}
