package resourcesync

import (
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// The rules of this file are checked by a strict Reader alone: what breaks them keeps no
// Destination from reading the document. Drafts and plain sitemaps have other rules.

// RelPatch is the relation of a description of changes (clause 14.4), and the others
// are those of clause 14.6.
const (
	RelPatch    = Namespace + "patch"
	RelMemento  = "memento"
	RelTimeGate = "timegate"
	RelTimeMap  = "timemap"
)

// strictHead checks the head once the document was read to its end.
func (r *Reader) strictHead() {
	d := &r.doc
	if d.Dialect == DialectSitemap || d.draft() {
		return
	}
	for i := range d.Links {
		d.Links[i].strictForm(r.whole)
	}
	if d.Capability.lists() && !d.Index && d.count(RelDescribedBy) == 0 {
		r.whole(ruleDescribedBy, "no link describedby on a "+string(d.Capability), "a link to a document about the Source, or about the set of resources")
	}
	checkCompleted(d.At, d.Completed, r.whole)
}

// strictEntry checks an entry that can be read.
func (r *Reader) strictEntry(e *Entry) {
	d := &r.doc
	if d.Dialect == DialectSitemap || d.draft() {
		return
	}
	report := func(rule, found, expected string) { r.problem(rule, e.Line, e.Column, found, expected) }
	e.strict(d, report)
	switch c := d.Capability; {
	case d.Index:
	case c == CapabilityList && e.Metadata.Capability != "":
		if r.seen.capabilities[e.Metadata.Capability] {
			report(ruleCapabilities, "a second entry for "+strconv.Quote(string(e.Metadata.Capability)), "one; several documents of a capability have an index")
		}
		if r.seen.capabilities == nil {
			r.seen.capabilities = map[Capability]bool{}
		}
		if len(r.seen.capabilities) < maxLinks {
			r.seen.capabilities[e.Metadata.Capability] = true
		}
	case c.dump() && e.Metadata.Type != "":
		if first := r.seen.packageType; first != "" && !strings.EqualFold(first, e.Metadata.Type) {
			report(rulePackages, "a package of type "+strictxml.Clip(e.Metadata.Type)+" beside one of type "+strictxml.Clip(first), "packages of one format")
		}
		fill(&r.seen.packageType, e.Metadata.Type)
	}
}

// dump reports whether entries of the capability's documents are packages.
func (c Capability) dump() bool { return c == ResourceDump || c == ChangeDump }

func (e *Entry) strict(d *Document, report broken) {
	md, c := &e.Metadata, d.Capability
	entries := "entries of a " + string(c)
	if d.Index {
		entries = "entries of an index of " + string(c)
	}
	// Where attributes belong.
	instants := d.Index && c.state() || c.dump() && c.state() || c.archive()
	intervals := d.Index && c.changes() || c.dump() && c.changes() || c.archive()
	if (!md.At.IsZero() || !md.Completed.IsZero()) && !instants {
		report(ruleEntryTimes, "at or completed on "+entries, "neither; the document itself has them")
	}
	if (!md.From.IsZero() || !md.Until.IsZero()) && !intervals {
		report(ruleEntryTimes, "from or until on "+entries, "neither; the document itself has them")
	}
	checkCompleted(md.At, md.Completed, report)
	if !md.From.IsZero() && !md.Until.IsZero() && md.Until.before(md.From) {
		report(ruleUntil, "until "+md.Until.String()+" before from "+md.From.String(), "until at from or later")
	}
	misplaced := func(name string, there, allowed bool) {
		if there && !allowed {
			report(ruleEntryAttributes, name+" on "+entries, "none")
		}
	}
	misplaced("change", md.Change != "", d.changelog())
	misplaced("datetime", !md.Datetime.IsZero(), d.changelog())
	misplaced("path", md.Path != "", c.manifest() && !d.Index)
	misplaced("capability", md.Capability != "", c.lists() || c == "")

	switch {
	case c == Description && !d.Index:
		if md.Capability != CapabilityList && (md.Capability != "" || !md.isZero()) {
			report(ruleDescribed, "capability "+strconv.Quote(strictxml.Clip(string(md.Capability))), strconv.Quote(string(CapabilityList)))
		}
		if !slices.ContainsFunc(e.Links, func(l Link) bool { return l.Rel == RelDescribedBy }) {
			report(ruleDescribedBy, "no link describedby on an entry", "a link to a document about the set of resources")
		}
	case c.dump() && !d.Index:
		if md.Type == "" || !md.Length.known {
			report(rulePackage, "a package without type or length", "both")
		}
	case c.manifest() && !d.Index:
		if md.Type == "" && md.Change != Deleted {
			report(ruleType, "a bitstream without type", "its media type")
		}
	}
	if c.lists() && !e.LastMod.IsZero() {
		report(ruleLastMod, "a lastmod on "+entries, "none, unless every change of the document at loc changes this one")
	}
	if intervals && !c.archive() && md.From.IsZero() {
		report(ruleEntryFrom, "no from on "+entries, "the from of the document or package at loc")
	}
	if md.Type != "" && !isMediaType(md.Type) {
		report(ruleMediaType, "type "+strconv.Quote(strictxml.Clip(md.Type)), "a media type, such as text/html")
	}
	mementos, vias := 0, 0
	for i := range e.Links {
		l := &e.Links[i]
		l.strict(d, report)
		switch l.Rel {
		case RelMemento:
			mementos++
		case RelVia:
			vias++
		}
	}
	if mementos > 1 {
		report(ruleMemento, fmt.Sprintf("%d links memento", mementos), "one, to the version of lastmod; a timemap names all of them")
	}
	if vias > 1 {
		report(ruleVia, fmt.Sprintf("%d links via", vias), "one, to the original Source")
	}
}

// checkCompleted checks the end of a snapshot against its begin.
func checkCompleted(at, completed Datetime, report broken) {
	switch {
	case completed.IsZero():
	case at.IsZero():
		report(ruleCompleted, "completed without at", "at beside it")
	case completed.before(at):
		report(ruleCompleted, "completed "+completed.String()+" before at "+at.String(), "completed at at or later")
	}
}

// strictForm checks a link of the document or of an entry.
func (l *Link) strictForm(report broken) {
	if l.Rel != "" && !isRelation(l.Rel) {
		report(ruleRelation, "relation "+strconv.Quote(strictxml.Clip(l.Rel)), "a relation that is registered with IANA, or a URI")
	}
	if l.Type != "" && !isMediaType(l.Type) {
		report(ruleMediaType, "type "+strconv.Quote(strictxml.Clip(l.Type))+" on a link "+strictxml.Clip(l.Rel), "a media type, such as text/html")
	}
}

// strict checks a link of an entry.
func (l *Link) strict(d *Document, report broken) {
	l.strictForm(report)
	if l.Path != "" && (!d.Capability.manifest() || d.Index) {
		report(ruleEntryAttributes, "path on a link "+strictxml.Clip(l.Rel)+" of a "+string(d.Capability), "none; only manifests have paths")
	}
	switch l.Rel {
	case RelAlternate:
		if l.Type == "" {
			report(ruleAlternate, "an alternate link without type to "+strictxml.Clip(l.Href), "the media type of the representation")
		}
	case RelDuplicate:
		if l.Encoding != "" || l.Hash != "" || l.Length.known || l.Type != "" {
			report(ruleDuplicate, "a duplicate link with encoding, hash, length or type", "none of them: they are those of the entry")
		}
	case RelTimeGate:
		if !l.Modified.IsZero() || l.Encoding != "" || l.Hash != "" || l.Length.known || l.Path != "" || l.Pri != 0 || l.Type != "" {
			report(ruleTimeGate, "a timegate link with attributes beside rel and href", "none: they have no meaning for a TimeGate")
		}
	case RelPatch:
		switch {
		case !d.changelog():
			report(rulePatch, "a patch link in a "+string(d.Capability), "none; patches lead from one state of a resource to the next")
		case l.Type == "":
			report(rulePatch, "a patch link without type", "the media type of the description of changes")
		case d.Capability.manifest() && l.Path == "":
			report(rulePatch, "a patch link without path in a manifest", "the path of the description of changes in the package")
		}
	}
}

// Named is a document, without its entries, and where it was found.
type Named struct {
	*Document
	// Requested is the URL that was asked for, URL the one that answered.
	Requested, URL string
}

func (n Named) is(url string) bool {
	return follow.Key(url) == follow.Key(n.Requested) || follow.Key(url) == follow.Key(n.URL)
}

// CheckEntry calls report with each rule that an entry of document d, a Source
// Description, a Capability List or an index, and the document that it leads to break
// together. A document that is not there breaks one too: say so with Missing.
func (d Named) CheckEntry(e *Entry, leads Named, report func(Problem)) {
	here := func(rule, found, expected string) {
		report(Problem{Rule: rule, URL: d.URL, Line: e.Line, Column: e.Column, Found: found, Expected: expected})
	}
	there := func(rule, found, expected string) {
		report(Problem{Rule: rule, URL: leads.URL, Found: found, Expected: expected})
	}
	want := e.Metadata.Capability
	if d.Index {
		want = d.Capability
	}
	if want != "" && want != leads.Capability {
		here(ruleMissing, "a document of capability "+strconv.Quote(strictxml.Clip(string(leads.Capability)))+" at "+strictxml.Clip(e.Loc), "one of capability "+strconv.Quote(strictxml.Clip(string(want))))
	}
	if leads.Dialect == DialectSitemap || leads.draft() || !d.Index {
		return
	}
	if d.Capability != Description && !leads.Index && !d.is(leads.Link(RelIndex)) {
		found := "no link with rel=index"
		if to := leads.Link(RelIndex); to != "" {
			found = "a link with rel=index to " + strictxml.Clip(to)
		}
		there(ruleIndexLink, found, "one to "+d.Requested+", which names this document")
	}
	if d.Capability == ChangeList {
		switch stated, until := e.Metadata.Until, leads.Until; {
		case stated.IsZero() && !until.IsZero():
			here(ruleIndexUntil, "no until of "+strictxml.Clip(e.Loc)+", which is closed", "until "+until.String())
		case !stated.IsZero() && until.IsZero():
			here(ruleIndexUntil, "until "+stated.String()+" of "+strictxml.Clip(e.Loc)+", which is open", "no until")
		}
	}
}

// CheckUp calls report with each rule that a document and the one that its link
// up leads to break together.
func (d Named) CheckUp(up Named, report func(Problem)) {
	want := CapabilityList
	if d.Capability == CapabilityList {
		want = Description
	}
	if up.Capability != want && up.Capability != d.Capability && !d.draft() {
		report(Problem{Rule: ruleNames, URL: d.URL, Found: "a link with rel=up to a document of capability " + strconv.Quote(strictxml.Clip(string(up.Capability))), Expected: "one to a " + string(want)})
	}
}

// CheckPlace calls report if the document is a Source Description, not a part of one, and
// not where one should be.
func (d Named) CheckPlace(report func(Problem)) {
	u, err := url.Parse(d.Requested)
	if err != nil || u.Scheme == "file" || d.Capability != Description || d.draft() || d.Link(RelIndex) != "" || u.Path == knownPlaces[0] {
		return
	}
	report(Problem{Rule: ruleWellKnown, URL: d.URL, Found: "a Source Description at " + strictxml.Clip(u.Path), Expected: "it at " + knownPlaces[0]})
}

// Missing is the problem of a document that another one names and that is not there, or
// is none.
func Missing(at string, line, column int, to, why string) Problem {
	return Problem{Rule: ruleMissing, URL: at, Line: line, Column: column, Found: strictxml.Clip(to) + ": " + why, Expected: "a document"}
}

// isMediaType reports whether s has the form of a media type (RFC 6838 4.2), with or
// without parameters.
func isMediaType(s string) bool {
	t, _, err := mime.ParseMediaType(s)
	return err == nil && strings.Count(t, "/") == 1
}

// isRelation reports whether s is a registered relation type, or a URI (RFC 8288 2.1).
// Of a list of several each has to be one.
func isRelation(s string) bool {
	for rel := range strings.FieldsSeq(s) {
		if strings.Contains(rel, ":") && strictxml.HasScheme(rel) {
			continue
		}
		if !strings.Contains(registered, " "+strings.ToLower(rel)+" ") {
			return false
		}
	}
	return true
}

// registered are the relation types of the IANA Link Relations registry, each between
// blanks.
const registered = " about acl alternate amphtml api-catalog appendix apple-touch-icon apple-touch-startup-image archives author blocked-by " +
	"bookmark c2pa-manifest canonical chapter cite-as collection compression-dictionary contents convertedfrom copyright " +
	"create-form current deprecation describedby describes disclosure dns-prefetch duplicate edit edit-form edit-media " +
	"enclosure external first geofeed glossary help hosts hub ice-server icon index intervalafter intervalbefore " +
	"intervalcontains intervaldisjoint intervalduring intervalequals intervalfinishedby intervalfinishes intervalin " +
	"intervalmeets intervalmetby intervaloverlappedby intervaloverlaps intervalstartedby intervalstarts item last " +
	"latest-version license linkset lrdd manifest mask-icon me media-feed memento micropub modulepreload monitor monitor-group next " +
	"next-archive nofollow noopener noreferrer opener openid2.local_id openid2.provider original p3pv1 payment pingback " +
	"preconnect predecessor-version prefetch preload prerender prev prev-archive preview previous privacy-policy profile " +
	"publication rdap-active rdap-bottom rdap-down rdap-top rdap-up related replies resourcesync restconf ruleinput search " +
	"section self service service-desc service-doc service-meta sip-trunking-capability sponsored start status stylesheet " +
	"subsection successor-version sunset tag terms-of-service timegate timemap type ugc up version-history via webmention " +
	"working-copy working-copy-of "
