package resourcesync

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// maxLinks is how many links an entry, or the document itself, may have.
const maxLinks = 10_000

// draftEntry is an entry while it is being read, with the first rule that makes it bad.
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
	r.links, r.openTime, r.openBorder = r.links[:0], 0, 0
	read := func() error { return r.scan.Children(func() error { return r.child(d) }) }
	if r.doc.Dialect.considered() {
		read = func() error { return r.entryConsidered(d) }
	}
	if err := read(); err != nil {
		return nil, err
	}
	if len(r.links) > 0 {
		d.Links = slices.Clone(r.links)
	}
	r.to = r.scan.Offset()
	if d.locs == 0 {
		d.bad(ruleLoc, "no loc")
	}
	if d.rule != "" {
		return nil, &EntryError{Rule: d.rule, URL: r.o.URL, Line: d.Line, Column: d.Column,
			Loc: d.Loc, ID: d.Metadata.ID, Datetime: d.Metadata.Datetime, Reason: d.reason, Input: r.Input()}
	}
	r.seen.good++
	e := &d.Entry
	e.check(&r.doc, r.seen.last, func(rule, found, expected string) {
		if rule != ruleLink { // links were checked where they stand
			r.problem(rule, e.Line, e.Column, found, expected)
		}
	})
	if r.o.Strict {
		r.strictEntry(e)
	}
	// The rest is reported at the end of the document.
	if t := e.moment(&r.doc); r.seen.last.before(t) {
		r.seen.last = t
	}
	if !e.Metadata.Datetime.IsZero() {
		r.seen.dated = true
	} else if r.seen.undated == nil {
		r.seen.undated = &Problem{Rule: ruleDatetime, Line: e.Line, Column: e.Column, Found: "a change without datetime", Expected: "a datetime on every change"}
	}
	switch t := e.LastMod; {
	case t.IsZero():
	case !t.before(r.seen.lastmod):
		r.seen.lastmod = t
	case r.seen.backwards == nil:
		r.seen.backwards = &Problem{Rule: ruleOrder, Line: e.Line, Column: e.Column,
			Found: "lastmod " + t.String() + " after " + r.seen.lastmod.String(), Expected: "changes in chronological order"}
	}
	return e, nil
}

func (r *Reader) child(d *draftEntry) error {
	s := r.scan
	switch r.element() {
	case "loc":
		return r.loc(d)
	case "lastmod":
		at := r.here()
		text, _, err := s.Characters()
		if err != nil {
			return err
		}
		if d.lastMods++; d.lastMods > 1 {
			r.problem(ruleEntry, at.line, at.column, "a second lastmod", "at most one; the first is used")
			return nil
		}
		d.LastMod = readStamp(r, at, "lastmod", text)
		return nil
	case "changefreq":
		return r.hint(&d.ChangeFreq, func(s string) bool {
			return slices.Contains([]string{"always", "hourly", "daily", "weekly", "monthly", "yearly", "never"}, s)
		})
	case "priority":
		return r.hint(&d.Priority, func(s string) bool {
			p, err := strconv.ParseFloat(s, 64)
			return err == nil && p >= 0 && p <= 1
		})
	case "rs:md":
		if d.heads++; d.heads > 1 {
			r.problem(ruleEntry, s.Line, s.Column, "a second rs:md", "one; it only adds what the first leaves out")
		}
		r.metadata(&d.Metadata, entryAttr)
	case "rs:ln":
		switch l, ok := r.link(); {
		case !ok:
		case len(r.links) == maxLinks:
			d.bad(ruleEntry, "more than %d links", maxLinks)
		default:
			r.links = append(r.links, l)
		}
	case "url", "sitemap":
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
		r.problem(ruleLoc, at.line, at.column, "a second loc", "one; the first is used")
		return nil
	}
	raw := string(text)
	ref := strictxml.Trim(raw)
	// Spaces are read as if they were escaped, but not in a host, which can have none.
	spaced := ref
	if strings.Contains(ref, " ") {
		escaped := strings.ReplaceAll(ref, " ", "%20")
		if _, err := url.Parse(escaped); err == nil {
			spaced = escaped
		}
	}
	loc, err := r.scan.Resolve(base, spaced)
	switch {
	case markup:
		d.bad(ruleLoc, "loc contains elements; want a URI")
		return nil
	case ref == "":
		d.bad(ruleLoc, "an empty loc")
		return nil
	case err != nil || !absolute(loc):
		d.bad(ruleLoc, "loc %q; want an absolute URI", strictxml.Clip(ref))
		return nil
	case loc != ref:
		r.problem(ruleLoc, at.line, at.column, strconv.Quote(strictxml.Clip(ref)), "an absolute URI without spaces and dot segments; it is read as "+strictxml.Clip(loc))
	case len(ref) != len(raw):
		r.problem(ruleLoc, at.line, at.column, "white space around "+strictxml.Clip(ref), "none; it is ignored")
	}
	d.Loc = loc
	return nil
}

// absolute reports whether s looks like an absolute URI: it has a scheme, no white space or
// control characters and, with http or https, a host. Other characters are not checked, so that
// IRIs are accepted.
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
		r.problem(ruleSitemap, at.line, at.column, name+" "+strconv.Quote(strictxml.Clip(value)), "a value that the sitemap format defines")
	}
	fill(to, value)
	return nil
}

// metadata reads the attributes of the current rs:md into the fields of m that are not set yet.
// defined reports which of them have a field.
func (r *Reader) metadata(m *Metadata, defined func(xml.Name) bool) {
	at := r.here()
	for i := range r.scan.Attrs {
		name, value := r.named(at, &r.scan.Attrs[i]), r.scan.Attrs[i].Value
		stamp := func(to *Datetime) {
			if to.IsZero() {
				*to = readStamp(r, at, name.Local, value)
			}
		}
		if !defined(name) {
			m.Extra = r.extra(m.Extra, at, name, value)
			continue
		}
		switch name.Local {
		case "capability":
			if m.Capability == "" {
				m.Capability = r.capability(at, value)
			}
		case "at":
			stamp(&m.At)
		case "completed":
			stamp(&m.Completed)
		case "from":
			stamp(&m.From)
			r.openBorder = max(r.openBorder, openIn(trimmed(value), m.From))
		case "until":
			stamp(&m.Until)
			r.openBorder = max(r.openBorder, openIn(trimmed(value), m.Until))
		case "datetime":
			if m.Datetime.IsZero() {
				stamp(&m.Datetime)
				r.openTime = openIn(trimmed(value), m.Datetime)
			}
		case "modified":
			if name.Space == CarriedNamespace {
				stamp(&m.CarriedModified)
				continue
			}
			stamp(&m.Modified)
			r.seen.draft = r.seen.draft || !m.Modified.IsZero()
			r.name()
		case "change":
			if m.Change == "" {
				m.Change = r.change(at, value)
			}
		case "hash":
			if m.Hash == "" {
				m.Hash = r.hash(at, value)
			}
		case "length":
			if !m.Length.known {
				m.Length = r.length(at, value)
			}
		case "encoding":
			fill(&m.Encoding, value)
		case "path":
			fill(&m.Path, value)
		case "type":
			fill(&m.Type, strictxml.Trim(value))
		case "etag":
			fill(&m.ETag, value)
		case "id":
			fill(&m.ID, value)
		case "title":
			fill(&m.Title, value)
		case "hreflang":
			fill(&m.Hreflang, value)
		case "details":
			fill(&m.Details, r.details(at, value))
		}
	}
}

// details reads the details that another bridge carries, "" if they are none.
func (r *Reader) details(at place, value string) string {
	switch {
	case len(value) > MaxDetails:
		r.problem(ruleAttribute, at.line, at.column, fmt.Sprintf("details of %d bytes", len(value)), fmt.Sprintf("at most %d; they are left out", MaxDetails))
	case !strings.HasPrefix(value, "{") || !json.Valid([]byte(value)):
		r.problem(ruleAttribute, at.line, at.column, "details "+strconv.Quote(strictxml.Clip(value)), "a JSON object; they are left out")
	default:
		return value
	}
	return ""
}

// link reads the current rs:ln; ok is false when it has no usable href.
func (r *Reader) link() (l Link, ok bool) {
	at, href := r.here(), ""
	for i := range r.scan.Attrs {
		name, value := r.named(at, &r.scan.Attrs[i]), r.scan.Attrs[i].Value
		if !linkAttr(name) {
			l.Extra = r.extra(l.Extra, at, name, value)
			continue
		}
		switch name.Local {
		case "href":
			href = value
		case "rel":
			l.Rel = strictxml.Trim(value)
			if !strings.Contains(l.Rel, ":") {
				l.Rel = strings.ToLower(l.Rel)
			}
		case "modified":
			l.Modified = readStamp(r, at, name.Local, value)
		case "encoding":
			l.Encoding = value
		case "hash":
			l.Hash = r.hash(at, value)
		case "length":
			l.Length = r.length(at, value)
		case "path":
			l.Path = value
		case "pri":
			n, err := strconv.Atoi(strictxml.Trim(value))
			if err != nil || n < 1 || n > 999_999 {
				r.problem(rulePri, at.line, at.column, "pri "+strconv.Quote(strictxml.Clip(value)), "1 to 999,999; it is left out")
				continue
			}
			l.Pri = n
		case "type":
			l.Type = strictxml.Trim(value)
		case "profile":
			if !absolute(value) {
				r.problem(ruleLink, at.line, at.column, "profile "+strconv.Quote(strictxml.Clip(value)), "an absolute URI; it is kept as it stands")
			}
			l.Profile = value
		case "id":
			l.ID = value
		case "hreflang":
			l.Hreflang = value
		}
	}
	ref := strictxml.Trim(href)
	target, err := r.scan.Resolve(r.scan.Base(), ref)
	switch {
	case ref == "" || err != nil || target == "":
		r.problem(ruleLink, at.line, at.column, "a link "+strconv.Quote(strictxml.Clip(l.Rel))+" with href "+strconv.Quote(strictxml.Clip(href)), "a URI; the link is left out")
		return l, false
	case l.Rel == "":
		r.problem(ruleLink, at.line, at.column, "a link without rel to "+strictxml.Clip(ref), "a relation type in rel")
	case target != href:
		r.problem(ruleLink, at.line, at.column, "href "+strconv.Quote(strictxml.Clip(href)), "an absolute URI; it is read as "+strictxml.Clip(target))
	}
	l.Href = target
	return l, true
}

// named returns what the name of an attribute means: with a prefix of
// ResourceSync it is read as one without.
func (r *Reader) named(at place, a *xml.Attr) xml.Name {
	name := a.Name
	switch name.Space {
	case "", CarriedNamespace, strictxml.Namespace:
		return name
	}
	if space := knownNamespace(name.Space); space == Namespace || space == BetaNamespace {
		r.problem(ruleAttribute, at.line, at.column, name.Local+" with the prefix of ResourceSync", "no prefix; it is read as that")
		name.Space = ""
	}
	return name
}

// maxExtra is how many attributes without a field are kept of an element, or of all rs:md of
// one entry or head together.
const maxExtra = 256

// extra appends an attribute that has no field.
func (r *Reader) extra(to []xml.Attr, at place, name xml.Name, value string) []xml.Attr {
	if name.Space == strictxml.Namespace && name.Local == "base" {
		return to // the scanner has applied it
	}
	if len(to) == maxExtra {
		return to
	}
	for i := range to {
		if to[i].Name == name {
			return to
		}
	}
	if name.Space == "" {
		r.problem(ruleAttribute, at.line, at.column, "attribute "+strconv.Quote(strictxml.Clip(name.Local)), "one that the specification defines here, or a namespace of its own; it is kept")
	}
	return append(to, xml.Attr{Name: name, Value: value})
}

// fill sets what is not set yet.
func fill(to *string, value string) {
	if *to == "" {
		*to = value
	}
}

// capability reads a capability, which is a word in lower case.
func (r *Reader) capability(at place, value string) Capability {
	c := Capability(strictxml.Clip(strings.ToLower(strictxml.Trim(value))))
	if string(c) != value {
		r.problem(ruleCapability, at.line, at.column, strconv.Quote(strictxml.Clip(value)), "a word in lower case; it is read as "+strictxml.Clip(string(c)))
	}
	if c == "resourcelistindex" || c == "changelistindex" {
		list := c[:len(c)-len("index")]
		r.problem(ruleCapability, at.line, at.column, strconv.Quote(string(c)), strconv.Quote(string(list))+", which an index has too; it is read as that")
		return list
	}
	return c
}

// change reads a change. It returns an unknown one as it is; Entry.check reports that.
func (r *Reader) change(at place, value string) string {
	word := strings.ToLower(strictxml.Trim(value))
	for _, change := range [...]string{Created, Updated, Deleted} {
		if word != change {
			continue
		}
		if value != change {
			r.problem(ruleChange, at.line, at.column, strconv.Quote(strictxml.Clip(value)), "a word in lower case; it is read as "+change)
		}
		return change
	}
	return value
}

func (r *Reader) length(at place, value string) Length {
	n, err := strconv.ParseInt(strictxml.Trim(value), 10, 64)
	if err != nil || n < 0 {
		r.problem(ruleLength, at.line, at.column, "length "+strconv.Quote(strictxml.Clip(value)), "a number of bytes; it is left out")
		return Length{}
	}
	return Bytes(n)
}

// hash reads a list of hashes, with one blank between them.
func (r *Reader) hash(at place, value string) string {
	if isHash(value) {
		return value
	}
	if strings.ContainsAny(value, " \t\r\n") {
		value = strings.Join(strings.Fields(value), " ")
	}
	if reported := r.once[ruleHash]; reported && !r.o.Strict {
		return value
	}
	for one := range strings.FieldsSeq(value) {
		if !isHash(one) {
			r.problem(ruleHash, at.line, at.column, strconv.Quote(strictxml.Clip(one)), "an algorithm, a colon and its number of hex digits; it is kept as it stands")
		}
	}
	return value
}

// isHash reports whether s is a hash in the form of clause 7. For an unknown algorithm it
// accepts any number of digits.
func isHash(s string) bool {
	algorithm, digest, ok := strings.Cut(s, ":")
	if !ok || algorithm == "" || digest == "" {
		return false
	}
	for i := range len(digest) {
		c := digest[i] | 0x20
		if (digest[i] < '0' || digest[i] > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	bits := 0
	switch strings.ToLower(algorithm) {
	case "md5":
		bits = 128
	case "sha-1":
		bits = 160
	case "sha-224":
		bits = 224
	case "sha-256":
		bits = 256
	case "sha-384":
		bits = 384
	case "sha-512":
		bits = 512
	}
	return bits == 0 || len(digest)*4 == bits
}

// readStamp reads a time and reports what is wrong with it. One that cannot be read
// is absent.
func readStamp[T string | []byte](r *Reader, at place, name string, raw T) Datetime {
	d, form := readTime(trimmed(raw))
	if form == asRecommended {
		return d
	}
	rule, expected := ruleDate, "a W3C Datetime; it is read as "+d.String()
	switch form {
	case otherwise:
		rule, expected = ruleUTC, "a complete time in UTC, such as "+d.String()
	case naive:
		rule, expected = ruleNaive, "a zone; it is read as "+d.String()
	case noTime:
		expected = "a W3C Datetime; it is left out"
	}
	r.problem(rule, at.line, at.column, name+" "+strconv.Quote(strictxml.Clip(string(raw))), expected)
	return d
}

// trimmed cuts the white space of XML off both ends.
func trimmed[T string | []byte](s T) T {
	for len(s) > 0 && s[0] <= ' ' {
		s = s[1:]
	}
	for len(s) > 0 && s[len(s)-1] <= ' ' {
		s = s[:len(s)-1]
	}
	return s
}
