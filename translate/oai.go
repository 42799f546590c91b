package translate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/xml"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/oaipmh"
)

// SetScheme is the scheme of a category that is a set of an OAI-PMH repository. Its
// term is the setSpec, byte for byte; so it stays a setSpec by whatever protocol it is
// passed on.
const SetScheme = oaipmh.Namespace

// OAISource is what FromOAI needs besides the record itself.
type OAISource struct {
	// BaseURL is the base URL of the repository.
	BaseURL string
	// Prefix is the metadataPrefix that the record was asked for with, and Namespace
	// that of its format; "" is that of its element.
	Prefix, Namespace string
	// Named is the name that a set of another bridge had when it was first harvested, "" for
	// that in the BaseURL: the identifiers that the bridge makes keep a former name.
	Named string
	// Also are further formats: each is a representation of the record, with nothing known
	// but where it is.
	Also []oaipmh.Format
}

// FromOAI translates a record of an OAI-PMH repository into an observation. The record
// in one format is one representation: its Href is the GetRecord URL, which names the
// metadataPrefix (see [FormatOf]), its Profile the namespace of the format. In a mirror
// it has the hash of Metadata, which is Inline; where others will be sent to the URL
// (sel.Published) it has neither hash nor length, since the envelope around the bytes
// changes. Nor has it for a record without Metadata.
//
// The original is what the provenance names, else the record itself. A record of
// another bridge gets the identifier that it has there. The errors are ErrUnselected,
// ErrOwn and event.ErrTooMuch.
func FromOAI(rec *oaipmh.Record, from OAISource, sel *Selection) (event.Observation, error) {
	id := identifierFromOAI(&from, rec.Identifier)
	o := event.Observation{Deleted: rec.Deleted}
	o.Record, o.SourceIdentifier = sel.Identifier(id)
	o.Order, _ = event.StampOf(rec.Datestamp)
	o.Modified = o.Order
	if o.Deleted {
		return o, sel.accept(&o, getRecordURL(from.BaseURL, from.Prefix, rec.Identifier))
	}
	from.Namespace = cmp.Or(from.Namespace, rec.Root.Space)
	takeProvenance(rec.Provenance, &from, &o)
	o.Categories = categoriesOfSets(rec.Sets, o.Via.Href != "")
	r := event.Representation{Href: getRecordURL(from.BaseURL, from.Prefix, rec.Identifier), Type: "application/xml", Length: event.NoLength,
		Profile: profile(from.Namespace)}
	if rec.Metadata != nil {
		o.Title = firstTitle(rec.Metadata, true)
		if !sel.Published {
			r.Length, r.Hash, o.Inline = int64(len(rec.Metadata)), event.HashOf(sha256.Sum256(rec.Metadata)), rec.Metadata
		}
	}
	if r.Profile != "" {
		o.Links = append(o.Links, event.Link{Rel: event.RelProfile, Href: r.Profile, Length: event.NoLength})
	}
	t := taking{sel: sel, o: &o}
	t.take(r)
	for _, f := range from.Also {
		t.take(event.Representation{Href: getRecordURL(from.BaseURL, f.Prefix, rec.Identifier), Type: "application/xml", Length: event.NoLength, Profile: profile(f.Namespace)})
	}
	if err := t.finish(); err != nil {
		return o, err
	}
	return o, sel.accept(&o, r.Href)
}

// takeProvenance takes the original that a record names, and when it was last modified
// there.
func takeProvenance(p *oaipmh.Provenance, from *OAISource, o *event.Observation) {
	if p == nil {
		return
	}
	p = p.First()
	href := p.BaseURL
	if p.Identifier != p.BaseURL {
		// The namespace shows in which format the record was harvested. Every repository has
		// oai_dc.
		prefix := oaipmh.DC
		if p.MetadataNamespace == from.Namespace {
			prefix = from.Prefix
		}
		href = getRecordURL(p.BaseURL, prefix, p.Identifier)
	}
	if !event.Public(href) || !atompmh.CanBeID(href) {
		return
	}
	o.Via = event.Link{Href: href, Length: event.NoLength, Modified: datestamp(p.Datestamp)}
	if o.Via.Modified.Known() {
		o.Modified, o.CopyModified = o.Via.Modified, o.Order
	}
}

// datestamp reads a day or a second in UTC; unknown when it is neither.
func datestamp(text string) event.Stamp {
	for _, layout := range [...]string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, strings.TrimSpace(text)); err == nil {
			s, _ := event.StampOf(t)
			return s
		}
	}
	return event.Stamp{}
}

// getRecordURL returns the URL of a record in a format. The log identifies the
// representation by it, so it is always written in the same way.
func getRecordURL(base, prefix, identifier string) string {
	r := oaipmh.Request{Verb: oaipmh.GetRecord, Prefix: prefix, Identifier: identifier}
	return r.URL(base)
}

// parseGetRecordURL reads what getRecordURL has written; ok is false for other URLs.
func parseGetRecordURL(href string) (base, prefix, identifier string, ok bool) {
	if !strings.Contains(href, "verb=GetRecord&identifier=") {
		return "", "", "", false
	}
	base, r, err := oaipmh.ParseURL(href)
	if err != nil {
		return "", "", "", false
	}
	_, identifier, _ = strings.Cut(href, "&identifier=")
	identifier, _, _ = strings.Cut(identifier, "&")
	identifier, err = url.QueryUnescape(identifier)
	return base, r.Prefix, identifier, err == nil && getRecordURL(base, r.Prefix, identifier) == href
}

// FormatOf returns the metadataPrefix and the namespace of the format that the i-th
// representation of a record is in: what it came with by OAI-PMH, to this bridge or to
// one before it. "" is unknown. The prefix is that of the GetRecord URL at the Source,
// else that of the original, else the usual one of the namespace.
func FormatOf(e *event.Event, i int) (prefix, namespace string) {
	r := &e.Representations[i]
	namespace = r.Profile
	if namespace == "" && i == e.Preferred { // a list says it of the record
		for _, l := range e.Links {
			if l.Rel == event.RelProfile {
				namespace = l.Href
				break
			}
		}
	}
	if prefix := PrefixOf(r.Href); prefix != "" {
		return prefix, namespace
	}
	if prefix := PrefixOf(e.Via.Href); prefix != "" && i == e.Preferred && (prefix != oaipmh.DC || namespace == oaipmh.DCNamespace) {
		return prefix, namespace
	}
	switch namespace {
	case oaipmh.DCNamespace:
		return oaipmh.DC, namespace
	case "http://www.loc.gov/mods/v3":
		return "mods", namespace
	case "http://www.loc.gov/MARC21/slim":
		return "marc21", namespace
	case "http://www.loc.gov/METS/":
		return "mets", namespace
	}
	return "", namespace
}

// PrefixOf returns the metadataPrefix in a GetRecord URL, as the representations and the
// original of a record have it; "" for other URLs. It is asked for each record of each
// list, and reads no more than it must.
func PrefixOf(href string) string {
	const name = "&metadataPrefix="
	at := strings.LastIndex(href, name)
	if at < 0 || !strings.Contains(href[:at], "verb=GetRecord&identifier=") {
		return ""
	}
	prefix, err := url.QueryUnescape(href[at+len(name):])
	if err != nil || strings.Contains(prefix, "&") {
		return ""
	}
	return prefix
}

// categoriesOfSets returns the setSpecs of a record as categories. For a record of
// another bridge it leaves out the set that only names the Source there.
func categoriesOfSets(specs []string, relayed bool) (out []event.Category) {
	for _, spec := range specs {
		if n, ok := strings.CutPrefix(spec, sourceSet); spec == "" || ok && relayed && isNumber(n) {
			continue
		}
		out = append(out, event.Category{Term: spec, Scheme: SetScheme})
	}
	return distinct(out)
}

// distinct leaves out what is repeated. It takes over the memory of all.
func distinct[T comparable](all []T) []T {
	const few = 8
	var seen map[T]bool
	if len(all) > few {
		seen = make(map[T]bool, len(all))
	}
	out := all[:0]
	for _, v := range all {
		if seen[v] || seen == nil && slices.Contains(out, v) {
			continue
		}
		if seen != nil {
			seen[v] = true
		}
		out = append(out, v)
	}
	return out
}

// sourceSet begins the setSpec of all records that came from one Source of a set.
const sourceSet = "source:"

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// maxSetSpec is how long a setSpec that is made of a category may be, in bytes: it
// stands in URLs. So does that of a set of an OAI-PMH repository, and in resumptionTokens.
const maxSetSpec, maxOwnSetSpec = 200, 2000

// SetSpec returns the setSpec of a category, "" for one without a term. That of a set of
// an OAI-PMH repository (SetScheme) is its term, unless that is too long. Of others it is made
// of the term alone: what the grammar of setSpecs does not have is escaped as in a URL, with a
// hyphen in place of the percent sign. Different terms have different setSpecs; a term that is
// a setSpec is its own, unless a part of it looks escaped.
func SetSpec(c event.Category) string {
	term := c.Term
	if c.Scheme == SetScheme && len(term) <= maxOwnSetSpec && oaipmh.CanBeSet(term) {
		return term
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(term)+16)
	for i := range len(term) {
		keep := isSetChar(term[i])
		switch term[i] {
		case ':': // between two names
			keep = len(b) > 0 && b[len(b)-1] != ':' && i+1 < len(term) && term[i+1] != ':'
		case '-':
			keep = i+2 >= len(term) || strings.IndexByte(digits, term[i+1]) < 0 || strings.IndexByte(digits, term[i+2]) < 0
		}
		if keep {
			b = append(b, term[i])
		} else {
			b = append(b, '-', digits[term[i]>>4], digits[term[i]&15])
		}
	}
	if len(b) <= maxSetSpec {
		return string(b)
	}
	key := event.Key(term)
	key = "." + key[len(key)-event.KeyLength:]
	return strings.TrimRight(string(b[:maxSetSpec-len(key)]), ":") + key
}

// isSetChar reports whether c may stand in a name of a setSpec: what RFC 2396 calls
// unreserved.
func isSetChar(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(`-_.!~*'()`, c) >= 0
}

// OAIEncoder translates the events of one set into records of an OAI-PMH repository. It
// is pure, but reuses its memory, so only one goroutine may use it at a time. What it
// returns stays valid.
type OAIEncoder struct {
	urls
	identifiers string         // what those that are no URIs begin with
	sources     map[string]int // number of a Source by its URL
}

// NewOAIEncoder returns an OAIEncoder for a set whose documents stand below base, an
// absolute URL without a slash at its end. Of the set its names and its content mode
// count. sources are the URLs of its Sources as events have them (Origin.Source), in the
// order of the configuration: where there are several, each is a set of the repository.
func NewOAIEncoder(base string, set *event.Set, sources []string) *OAIEncoder {
	o := &OAIEncoder{urls: urls{records: recordsURL(base, set.Name), content: set.Content}, sources: map[string]int{}}
	host := "localhost"
	if u, err := url.Parse(base); err == nil && u.Hostname() != "" {
		host = u.Hostname()
	}
	o.identifiers = "oai:" + host + ":" + set.IdentifierName() + "/"
	if len(sources) > 1 {
		for i, s := range sources {
			if o.sources[s] == 0 {
				o.sources[s] = i + 1
			}
		}
	}
	return o
}

// SourceSetSpec returns the setSpec of the records that came from the n-th Source of a
// set, from 1.
func SourceSetSpec(n int) string { return sourceSet + strconv.Itoa(n) }

// Identifier returns the OAI identifier of a record: its own, if that is a URI, else
// one of ours, from which another bridge restores the record's own.
func (o *OAIEncoder) Identifier(record string) string { return oaiIdentifier(o.identifiers, record) }

// Record returns the identifier of the record that an OAI identifier names: it is the
// inverse of Identifier.
func (o *OAIEncoder) Record(identifier string) string { return recordOf(o.identifiers, identifier) }

func oaiIdentifier(ours, record string) string {
	if atompmh.CanBeID(record) && recordOf(ours, record) == record {
		return record
	}
	return ours + percentEncode(record)
}

func recordOf(ours, identifier string) string {
	if escaped, ok := strings.CutPrefix(identifier, ours); ok {
		record, err := url.PathUnescape(escaped)
		if err == nil && oaiIdentifier(ours, record) == identifier {
			return record
		}
	}
	return identifier
}

// SetOf returns the name of the set that is a repository of a bridge, on any host, by its
// base URL; "" for other repositories.
func SetOf(base string) string {
	base, _, _ = strings.Cut(base, "?")
	path, ok := strings.CutSuffix(base, "/oai")
	set := path[strings.LastIndexByte(path, '/')+1:]
	if !ok || !strings.HasSuffix(path, "/sets/"+set) {
		return ""
	}
	return set
}

// identifierFromOAI returns the record's own identifier where another bridge has made
// an OAI identifier of it. It goes by the base URL, which has to be that of a bridge's
// set; other identifiers stay as they are.
func identifierFromOAI(from *OAISource, identifier string) string {
	set := SetOf(from.BaseURL)
	for _, name := range [...]string{set, from.Named} {
		if at := strings.Index(identifier, ":"+name+"/"); set != "" && name != "" && at > 0 && strings.HasPrefix(identifier, "oai:") {
			if record := recordOf(identifier[:at+len(name)+2], identifier); record != identifier {
				return record
			}
		}
	}
	return identifier
}

// Header returns the header of a record, which is the same in any format; e is its last
// event. The datestamp is that of the event, in seconds.
func (o *OAIEncoder) Header(e *event.Event) oaipmh.Header {
	h := oaipmh.Header{Identifier: o.Identifier(e.Record), Datestamp: e.Observed.Time().Truncate(time.Second), Deleted: !e.Live()}
	h.Sets = o.SetSpecs(e)
	return h
}

// SetSpecs returns the sets of the repository that a record is in, each once: its
// categories, and its Source where the set has several. A deleted record is still in
// those that it was in.
func (o *OAIEncoder) SetSpecs(e *event.Event) (out []string) {
	for _, c := range e.Categories {
		if spec := SetSpec(c); spec != "" {
			out = append(out, spec)
		}
	}
	if n := o.sources[e.Origin.Source]; n > 0 {
		out = append(out, SourceSetSpec(n))
	}
	return distinct(out)
}

// Encode returns the record of an event in one format. metadata is a representation of
// it as a document of its own, without an XML declaration; nil makes oai_dc of what is
// known of the record. A deleted record has neither metadata nor a provenance (OAI-PMH
// 2.5.1).
func (o *OAIEncoder) Encode(e *event.Event, metadata []byte) *oaipmh.Record {
	rec := &oaipmh.Record{Header: o.Header(e)}
	if rec.Deleted {
		return rec
	}
	made := metadata == nil
	if made {
		metadata, rec.Root = DublinCore(e), xml.Name{Space: oaipmh.DCNamespace, Local: "dc"}
	}
	rec.Metadata, rec.Provenance = metadata, o.provenance(e, made)
	return rec
}

// provenance returns where a record comes from, so that another bridge can name its
// original: the repository that has it, else the original itself as both repository and
// identifier. A record without an original elsewhere is its own, at the URL under which
// we serve it.
func (o *OAIEncoder) provenance(e *event.Event, made bool) *oaipmh.Provenance {
	via, ok := original(e)
	if !ok || !atompmh.CanBeID(via.Href) {
		via = event.Link{Href: o.loc(e), Modified: e.Modified}
		if !atompmh.CanBeID(via.Href) || !event.Public(via.Href) {
			return nil
		}
	}
	p := &oaipmh.Provenance{BaseURL: via.Href, Identifier: via.Href, Harvested: e.Observed.Time().Truncate(time.Second), Altered: made, MetadataNamespace: oaipmh.DCNamespace}
	if base, _, identifier, ok := parseGetRecordURL(via.Href); ok && atompmh.CanBeID(identifier) {
		p.BaseURL, p.Identifier = base, identifier
	}
	if i := e.Preferred; i >= 0 && i < len(e.Representations) {
		if _, namespace := FormatOf(e, i); namespace != "" {
			p.MetadataNamespace = namespace
		}
	}
	modified := e.Observed.Time()
	for _, s := range [...]event.Stamp{e.Modified, via.Modified} {
		if s.Known() {
			modified = s.Time()
		}
	}
	p.Datestamp = oaipmh.Second.Format(modified)
	return p
}

// DublinCore returns a record in oai_dc, made of what is known of it besides its
// representations.
func DublinCore(e *event.Event) []byte {
	var b bytes.Buffer
	element := func(name, value, lang string) {
		if value = strings.TrimSpace(value); value == "" {
			return
		}
		b.WriteString("<dc:" + name)
		if lang = language(lang); lang != "" {
			b.WriteString(` xml:lang="` + lang + `"`)
		}
		b.WriteByte('>')
		_ = xml.EscapeText(&b, []byte(value)) // a buffer takes everything
		b.WriteString("</dc:" + name + ">")
	}
	b.WriteString(`<oai_dc:dc xmlns:oai_dc="` + oaipmh.DCNamespace + `" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="` +
		oaipmh.DCNamespace + ` http://www.openarchives.org/OAI/2.0/oai_dc.xsd">`)
	d := e.Details
	if d == nil {
		d = &event.Details{}
	}
	element("title", cmp.Or(strings.TrimSpace(e.Title), e.Record), d.Language)
	for _, p := range d.Authors {
		element("creator", p.Name, "")
	}
	for _, c := range e.Categories {
		element("subject", cmp.Or(strings.TrimSpace(c.Label), c.Term), "")
	}
	for _, p := range d.Contributors {
		element("contributor", p.Name, "")
	}
	if e.Modified.Known() {
		element("date", oaipmh.Second.Format(e.Modified.Time()), "")
	}
	element("identifier", e.Record, "")
	if via, ok := original(e); ok && via.Href != e.Record {
		element("identifier", via.Href, "")
	}
	if r, ok := e.Pref(); ok {
		element("format", r.Type, "")
		element("language", cmp.Or(r.Hreflang, d.EntryLanguage), "")
	}
	element("rights", d.Rights.Value, d.Rights.Language)
	b.WriteString("</oai_dc:dc>")
	return b.Bytes()
}
