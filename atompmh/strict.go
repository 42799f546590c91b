package atompmh

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// The rules of this file are checked by a strict Reader alone: every consumer can read
// a document that breaks them.

// maxStamps is how many entries strictStamp remembers.
const maxStamps = 1_000_000

// single lists the elements that a feed or an entry has at most once (RFC 4287 4.1.1,
// 4.1.2), and that are not counted by every Reader.
func single(rule string) []string {
	if rule == ruleFeed {
		return []string{"generator", "icon", "logo", "rights", "subtitle"}
	}
	return []string{"published", "rights", "source", "summary"}
}

// strictElement checks the start tag of an element of Atom in a feed or an entry. met has
// a bit for each single element that was met before, and rule is ruleFeed or ruleEntry.
func (r *Reader) strictElement(met *uint, record, rule string) {
	s := r.scan
	report := func(rule, found, expected string) {
		r.problem(Problem{Rule: rule, Line: s.Line, Column: s.Column, Record: record, Found: found, Expected: expected})
	}
	for i, name := range single(rule) {
		if s.Local != name {
			continue
		}
		if *met&(1<<i) != 0 {
			report(rule, "a second atom:"+name, "at most one")
		}
		*met |= 1 << i
	}
	if language, ok := s.Attr(strictxml.Namespace, "lang"); ok && language != "" && !CanBeLanguage(language) {
		report(ruleLanguage, "xml:lang "+strconv.Quote(clip(language)), "a language tag")
	}
	switch s.Local {
	case "title", "subtitle", "summary", "rights":
		if typ, ok := s.Attr("", "type"); ok && typ != "text" && typ != "html" && typ != "xhtml" {
			report(ruleText, "type "+strconv.Quote(clip(typ)), "text, html or xhtml")
		}
	case "link":
		rel, _ := s.Attr("", "rel")
		if typ, ok := s.Attr("", "type"); ok && strictxml.Trim(typ) != "" && !CanBeType(typ) {
			broken := ruleLinkType
			if relation(rel) == relAlternate {
				broken = ruleType
			}
			report(broken, "type "+strconv.Quote(clip(typ)), "a media type, such as text/html")
		}
		if language, ok := s.Attr("", "hreflang"); ok && !CanBeLanguage(language) {
			report(ruleLanguage, "hreflang "+strconv.Quote(clip(language)), "a language tag")
		}
	case "category":
		if term, ok := s.Attr("", "term"); !ok {
			report(ruleCategory, "a category without a term", "one")
		} else if scheme, ok := s.Attr("", "scheme"); ok && !strictxml.IsIRI(scheme) {
			report(ruleCategory, "scheme "+strconv.Quote(clip(scheme))+" of category "+strconv.Quote(clip(term)), "an IRI")
		}
	}
}

// strictPerson checks a Person construct, of which p has what can be used.
func (r *Reader) strictPerson(p *Person, names, uris, emails, line, column int) {
	report := func(found, expected string) {
		r.problem(Problem{Rule: rulePerson, Line: line, Column: column, Found: found, Expected: expected})
	}
	if names != 1 || uris > 1 || emails > 1 {
		report(fmt.Sprintf("a person with %d name, %d uri, %d email", names, uris, emails), "one name, and at most one of the others")
	}
	if p.Email != "" && !CanBeEmail(p.Email) {
		report("email "+strconv.Quote(clip(p.Email)), "an address")
	}
	if uris > 0 && p.URI == "" {
		report("a uri that is no IRI reference", "an IRI reference")
	}
}

// strictStamp looks for an entry of the same record with the same stamp.
func (r *Reader) strictStamp(e *Entry, report reporter) {
	if len(r.seen.stamps) >= maxStamps {
		return
	}
	if r.seen.stamps == nil {
		r.seen.stamps = map[[16]byte]bool{}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", e.Updated.UnixNano(), e.ID))
	key := [16]byte(sum[:16])
	if r.seen.stamps[key] {
		report(ruleStamp, "a second entry of the record with updated "+clip(e.UpdatedRaw), "a later stamp for each change, which says what the newest state is")
	}
	r.seen.stamps[key] = true
}

// strictFeed checks the feed once the document was read to its end.
func (r *Reader) strictFeed() {
	f := &r.feed
	report := func(rule, found, expected string) { r.problem(Problem{Rule: rule, Found: found, Expected: expected}) }
	if f.Self == "" {
		report(ruleSelf, "no link self in the feed", "the URI of this document")
	}
	if dup := duplicate(f.Links); dup != nil {
		report(ruleAlternates, fmt.Sprintf("two alternate links of the feed of type %q, hreflang %q", clip(dup.Type), clip(dup.Hreflang)), "one of each")
	}
	// Only an archive document has a newer one.
	if f.NextArchive != "" && !f.Archive {
		report(ruleArchiveMark, "next-archive without fh:archive", "fh:archive")
	}
	if f.Archive && f.Current == "" {
		report(ruleCurrentLink, "fh:archive without a link current", "a link current to the subscription document")
	}
}

// strictArchive checks the head of a document that a prev-archive link led to; newest:
// it is the first one.
func (d *Document) strictArchive(newest bool) {
	feed := &d.reader.feed
	broken := func(rule, found, expected string) {
		d.problem(Problem{Rule: rule, URL: d.URL, Found: found, Expected: expected})
	}
	if !feed.Archive && feed.NextArchive == "" { // with it the Reader reports that
		broken(ruleArchiveMark, "an archive document without fh:archive", "fh:archive before its entries")
	}
	if !newest && feed.NextArchive == "" {
		broken(ruleNextArchive, "an archive document without next-archive before its entries", "a link to the archive document after it")
	}
}

// Unreachable is the problem of an archive document that is missing, is no Atom Feed
// Document, or was met in the chain before. why describes what was found.
func Unreachable(at, why string) Problem {
	return Problem{Rule: ruleChain, URL: at, Found: why, Expected: "the Atom Feed Document before this one in the chain"}
}
