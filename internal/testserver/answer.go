package testserver

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// answer is one response while it is being written. The repository is locked.
type answer struct {
	r      *Repository
	args   url.Values
	base   string
	now    time.Time
	refuse bool // every token is refused

	b          bytes.Buffer
	namespaces map[string]bool // declarations for the root (RootNamespaces)
}

// refusal is an error of the protocol (3.6).
type refusal struct{ code, text string }

// arguments returns the required and the optional arguments of a verb.
func arguments(verb string) (required, optional []string, known bool) {
	switch verb {
	case "Identify":
		return nil, nil, true
	case "ListMetadataFormats":
		return nil, []string{"identifier"}, true
	case "ListSets":
		return nil, []string{"resumptionToken"}, true
	case "GetRecord":
		return []string{"identifier", "metadataPrefix"}, nil, true
	case "ListIdentifiers", "ListRecords":
		return []string{"metadataPrefix"}, []string{"from", "until", "set", "resumptionToken"}, true
	}
	return nil, nil, false
}

var (
	declarations    = regexp.MustCompile(` xmlns:[A-Za-z_]+="[^"]*"`)
	schemaLocations = regexp.MustCompile(`xsi:schemaLocation="[^"]*"`)
)

// write returns the document of the response.
func (a *answer) write() []byte {
	verb := a.args.Get("verb")
	errors := a.check(verb)
	if errors == nil {
		var e *refusal
		switch verb {
		case "Identify":
			a.identify()
		case "ListMetadataFormats":
			e = a.formats()
		case "ListSets":
			e = a.sets()
		case "GetRecord":
			e = a.record()
		default:
			e = a.list(verb)
		}
		if e != nil {
			errors = []refusal{*e}
		}
	}
	content := a.b.Bytes()
	a.b = bytes.Buffer{}
	lies := a.r.lies
	if lies[LeadingSpace] {
		a.b.WriteString("\n")
	}
	encoding := "UTF-8"
	if lies[WrongCharset] {
		encoding = "ISO-8859-1"
	}
	fmt.Fprintf(&a.b, `<?xml version="1.0" encoding="%s"?>`+"\n", encoding)
	a.b.WriteString(`<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"`)
	if !a.namespaces[` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"`] {
		a.b.WriteString(` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"`)
	}
	for _, d := range slices.Sorted(maps.Keys(a.namespaces)) {
		a.b.WriteString(d)
	}
	a.b.WriteString(` xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/ http://www.openarchives.org/OAI/2.0/OAI-PMH.xsd">`)
	date := a.now.Format(seconds)
	switch {
	case lies[DayResponse]:
		date = a.now.Format(time.DateOnly)
	case lies[SlowClock]:
		date = a.now.Add(-time.Hour).Format(seconds)
	}
	element(&a.b, "\n  ", "responseDate", date)
	a.request(errors)
	for _, e := range errors {
		fmt.Fprintf(&a.b, "\n  <error code=%q>%s</error>", e.code, escaped(e.text))
	}
	if errors == nil {
		fmt.Fprintf(&a.b, "\n  <%s>", verb)
		a.b.Write(content)
		fmt.Fprintf(&a.b, "\n  </%s>", verb)
	}
	a.b.WriteString("\n</OAI-PMH>\n")
	if lies[TrailingGarbage] {
		a.b.WriteString("<br />\nNotice: Undefined index: page in oai.php on line 214 & more\n")
	}
	return a.b.Bytes()
}

const seconds = "2006-01-02T15:04:05Z"

// request writes the request element: without arguments if they or the verb are wrong
// (3.2).
func (a *answer) request(errors []refusal) {
	a.b.WriteString("\n  <request")
	if !slices.ContainsFunc(errors, func(e refusal) bool { return e.code == "badVerb" || e.code == "badArgument" }) {
		for _, name := range slices.Sorted(maps.Keys(a.args)) {
			fmt.Fprintf(&a.b, ` %s="%s"`, name, escaped(a.args.Get(name)))
		}
	}
	fmt.Fprintf(&a.b, ">%s</request>", escaped(a.baseURL()))
}

func (a *answer) baseURL() string {
	if a.r.lies[OtherBaseURL] {
		return "https://elsewhere.example/oai"
	}
	return a.base
}

// check returns the errors in the verb and its arguments (3.6).
func (a *answer) check(verb string) []refusal {
	required, optional, known := arguments(verb)
	if !known || len(a.args["verb"]) > 1 || verb == "ListIdentifiers" && a.r.lies[NoListIdentifiers] {
		return []refusal{{"badVerb", fmt.Sprintf("%q is no verb", verb)}}
	}
	var errors []refusal
	bad := func(format string, of ...any) {
		errors = append(errors, refusal{"badArgument", fmt.Sprintf(format, of...)})
	}
	token := a.args.Has("resumptionToken")
	for _, name := range slices.Sorted(maps.Keys(a.args)) {
		switch {
		case name == "verb":
		case !slices.Contains(required, name) && !slices.Contains(optional, name):
			bad("%s does not take %s", verb, name)
		case len(a.args[name]) > 1:
			bad("%s stands %d times", name, len(a.args[name]))
		case token && name != "resumptionToken" && !a.r.lies[TokenNotExclusive]:
			bad("resumptionToken is exclusive, and %s goes with it", name)
		}
	}
	for _, name := range required {
		if !a.args.Has(name) && (!token || a.r.lies[TokenNotExclusive]) {
			bad("%s is missing", name)
		}
	}
	return errors
}

func (a *answer) identify() {
	r := a.r
	granularity, earliest := "YYYY-MM-DDThh:mm:ssZ", r.Earliest
	if earliest.IsZero() {
		earliest = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	first := earliest.UTC().Format(seconds)
	if r.Days {
		granularity, first = "YYYY-MM-DD", first[:10]
	}
	deleted := cmp.Or(r.Deleted, "persistent")
	for _, e := range [][2]string{{"repositoryName", "Example Repository"}, {"baseURL", a.baseURL()}, {"protocolVersion", "2.0"},
		{"adminEmail", "admin@repository.example"}, {"earliestDatestamp", first}, {"deletedRecord", deleted}, {"granularity", granularity}} {
		element(&a.b, "\n    ", e[0], e[1])
	}
	if r.Gzip {
		element(&a.b, "\n    ", "compression", "gzip")
	}
}

func (a *answer) formats() *refusal {
	id := a.args.Get("identifier")
	it := a.r.items[id]
	if a.args.Has("identifier") && it == nil {
		return &refusal{"idDoesNotExist", id + " is not here"}
	}
	n := 0
	for _, f := range a.r.Formats {
		if it != nil && it.Metadata[f.Prefix] == "" {
			continue
		}
		n++
		a.b.WriteString("\n    <metadataFormat>")
		element(&a.b, "", "metadataPrefix", f.Prefix)
		element(&a.b, "", "schema", f.Schema)
		element(&a.b, "", "metadataNamespace", f.Namespace)
		a.b.WriteString("</metadataFormat>")
	}
	if n == 0 {
		return &refusal{"noMetadataFormats", id + " has no formats"}
	}
	return nil
}

func (a *answer) sets() *refusal {
	p, e := a.resume("ListSets")
	if e != nil {
		return e
	}
	all := a.r.Sets
	if len(all) == 0 {
		return &refusal{"noSetHierarchy", "there are no sets"}
	}
	end := min(p.Offset+a.size(), len(all))
	for _, s := range all[min(p.Offset, end):end] {
		a.b.WriteString("\n    <set>")
		element(&a.b, "", "setSpec", s.Spec)
		element(&a.b, "", "setName", s.Name)
		a.b.WriteString("</set>")
	}
	a.writeToken(p, "", end, len(all), end < len(all))
	return nil
}

func (a *answer) record() *refusal {
	id, prefix := a.args.Get("identifier"), a.args.Get("metadataPrefix")
	it := a.r.items[id]
	switch {
	case it == nil || it.Deleted && a.lies(it, HiddenDeletion):
		return &refusal{"idDoesNotExist", id + " is not here"}
	case it.Metadata[prefix] == "" && !a.lies(it, HeaderForFormat):
		return &refusal{"cannotDisseminateFormat", id + " is not here in " + prefix}
	}
	a.writeRecord(it, prefix)
	return nil
}

func (a *answer) size() int {
	if a.r.PageSize > 0 {
		return a.r.PageSize
	}
	return 100
}

// lies reports whether a lie is switched on for an item.
func (a *answer) lies(it *Item, l Lie) bool { return a.r.lies[l] || slices.Contains(it.Lies, l) }

// resume returns the place that a request names: the beginning of its list, or the place of
// its token.
func (a *answer) resume(verb string) (*place, *refusal) {
	token := a.args.Get("resumptionToken")
	if !a.args.Has("resumptionToken") {
		return &place{Verb: verb, Prefix: a.args.Get("metadataPrefix"), Set: a.args.Get("set"), From: a.args.Get("from"), Until: a.args.Get("until"), Page: 1}, nil
	}
	p := a.r.place(token)
	if a.refuse || p == nil || p.Verb != verb || p.Expires != 0 && a.now.Unix() > p.Expires || a.r.lies[TokenOnce] && a.r.used[token] {
		return nil, &refusal{"badResumptionToken", "the token is not known or has expired"}
	}
	a.r.used[token] = true
	return p, nil
}

// list writes a page of ListRecords or ListIdentifiers.
func (a *answer) list(verb string) *refusal {
	p, e := a.resume(verb)
	if e != nil {
		return e
	}
	lies := a.r.lies
	all := p.pinned
	if all == nil {
		if all, e = a.matching(p); e != nil {
			return e
		}
		if !a.r.Stateless {
			p.pinned = all
		}
	}
	if len(all) == 0 && p.Page == 1 {
		if lies[EmptyList] {
			return nil
		}
		return &refusal{"noRecordsMatch", "no records match"}
	}
	start := min(p.Offset, len(all))
	if a.r.Stateless && !lies[OffsetTokens] && p.Page > 1 {
		start = 0
		for start < len(all) && a.key(all[start]) <= p.After {
			start++
		}
	}
	end := min(start+a.size(), len(all))
	if start == end && p.Page > 1 {
		switch {
		case lies[EndlessTokens]:
			all, start = a.invent(p), 0
			end = len(all)
		case lies[StalePages], lies[LastPageRepeats]:
			start = max(0, end-a.size())
		}
	}
	after := p.After
	for _, it := range all[start:end] {
		after = a.key(it)
		if verb == "ListIdentifiers" {
			a.writeHeader(it, "\n    ")
			continue
		}
		if it.Deleted && a.lies(it, HiddenDeletion) {
			continue
		}
		if lies[DoubledHeaders] || slices.Contains(it.Lies, DoubledHeaders) {
			before := *it
			before.Datestamp, before.Deleted = it.Datestamp.AddDate(0, 0, -1), false
			a.writeRecord(&before, p.Prefix)
		}
		a.writeRecord(it, p.Prefix)
	}
	told := p.Offset + end - start
	more := end < len(all)
	if !more {
		switch {
		case lies[EndlessTokens], lies[StalePages], lies[LastPageRepeats] && told <= len(all), lies[EmptyLastPage] && start < end, lies[TokenLoop] && p.First != "":
			more = true
		}
	}
	a.writeToken(p, after, told, len(all), more)
	return nil
}

// invent returns a page of records that do not exist.
func (a *answer) invent(p *place) []*Item {
	var page []*Item
	for i := range a.size() {
		id := fmt.Sprintf("oai:repository.example:invented-%d", p.Offset+i)
		page = append(page, &Item{Identifier: id, Datestamp: a.now, Metadata: map[string]string{p.Prefix: DublinCore("Invented", id)}, put: 1<<30 + p.Offset + i})
	}
	return page
}

// writeToken writes the token after a page, if there is one.
func (a *answer) writeToken(p *place, after string, told, size int, more bool) {
	lies := a.r.lies
	if !more && (p.Page == 1 && !lies[TokenAlways] || lies[NoLastToken]) {
		return
	}
	cursor := p.Offset
	switch {
	case lies[SizeZero]:
		size = 0
	case lies[SizeWrong]:
		size, cursor = a.size(), 0
	}
	value, expires := "", ""
	if more {
		next := &place{Verb: p.Verb, Prefix: p.Prefix, Set: p.Set, From: p.From, Until: p.Until, Page: p.Page + 1, After: after, Offset: told, First: p.First, pinned: p.pinned}
		if a.r.TokenLife > 0 {
			until := a.now.Add(a.r.TokenLife)
			next.Expires, expires = until.Unix(), fmt.Sprintf(` expirationDate="%s"`, until.Format(seconds))
		}
		asked := a.args.Get("resumptionToken")
		next.First = cmp.Or(next.First, asked)
		switch {
		case lies[TokenTwice] && asked != "":
			value = asked
		case lies[TokenLoop] && told >= size && next.First != "":
			value = next.First
		default:
			value = a.r.token(next)
		}
	}
	fmt.Fprintf(&a.b, "\n    <resumptionToken%s completeListSize=\"%d\" cursor=\"%d\">%s</resumptionToken>", expires, size, cursor, escaped(value))
}

// matching returns the items of a list, in its order.
func (a *answer) matching(p *place) ([]*Item, *refusal) {
	r := a.r
	if !slices.ContainsFunc(r.Formats, func(f ItemFormat) bool { return f.Prefix == p.Prefix }) {
		return nil, &refusal{"cannotDisseminateFormat", p.Prefix + " is no format of this repository"}
	}
	if p.Set != "" && len(r.Sets) == 0 {
		return nil, &refusal{"noSetHierarchy", "there are no sets"}
	}
	from, until, e := a.window(p)
	if e != nil {
		return nil, e
	}
	var all []*Item
	for _, it := range r.items {
		inside := it.Metadata[p.Prefix] != "" &&
			(p.Set == "" || slices.ContainsFunc(it.Sets, func(s string) bool { return s == p.Set || strings.HasPrefix(s, p.Set+":") }))
		stamp := it.Datestamp
		if inside && !r.lies[FromIgnored] {
			inside = (from.IsZero() || stamp.After(from) || stamp.Equal(from) && !r.lies[FromExclusive]) && (until.IsZero() || !stamp.After(until))
		}
		if inside {
			all = append(all, it)
		}
	}
	slices.SortFunc(all, func(x, y *Item) int { return strings.Compare(a.key(x), a.key(y)) })
	return all, nil
}

// window returns from and until, both inclusive (3.3).
func (a *answer) window(p *place) (from, until time.Time, e *refusal) {
	bad := func(text string) (time.Time, time.Time, *refusal) {
		return time.Time{}, time.Time{}, &refusal{"badArgument", text}
	}
	for _, s := range []struct {
		text string
		to   *time.Time
	}{{p.From, &from}, {p.Until, &until}} {
		if s.text == "" {
			continue
		}
		t, err := time.Parse(time.DateOnly, s.text)
		if err != nil {
			if t, err = time.Parse(seconds, s.text); err != nil {
				return bad(s.text + " is no datestamp")
			}
			if a.r.Days || a.r.lies[SecondsRefused] {
				return bad(s.text + " is finer than the granularity")
			}
		} else if s.to == &until {
			t = t.Add(24*time.Hour - time.Second)
		}
		*s.to = t
	}
	switch {
	case p.From != "" && p.Until != "" && len(p.From) != len(p.Until):
		return bad("from and until differ in granularity")
	case p.From != "" && p.Until != "" && until.Before(from):
		return bad("until is before from")
	case a.r.lies[LateFromRefused] && from.After(a.now):
		return bad("from is in the future")
	}
	return from, until, nil
}

// key returns the sort key of an item in lists; it is unique.
func (a *answer) key(it *Item) string {
	if a.r.Scattered {
		return fmt.Sprintf("%016x", mix(uint64(it.put)))
	}
	return fmt.Sprintf("%s %010d", it.Datestamp.Format(seconds), it.put)
}

// writeHeader writes the header of an item, each line after the indent.
func (a *answer) writeHeader(it *Item, indent string) {
	a.b.WriteString(indent + "<header")
	id := it.Identifier
	if it.Deleted {
		a.b.WriteString(` status="deleted"`)
		if a.lies(it, EmptyIdentifier) {
			id = ""
		}
	}
	a.b.WriteString(">")
	stamp := a.stamp(it)
	if a.lies(it, SpaceAround) {
		id, stamp = "\n      "+id+" ", "\n      "+stamp+"\n      "
	}
	element(&a.b, "", "identifier", id)
	element(&a.b, "", "datestamp", stamp)
	for _, s := range it.Sets {
		element(&a.b, "", "setSpec", s)
	}
	a.b.WriteString("</header>")
}

// stamp returns the datestamp of an item as it is written.
func (a *answer) stamp(it *Item) string {
	t, day := it.Datestamp, a.r.Days
	if a.lies(it, FutureStamps) {
		t = a.now.AddDate(0, 0, 30)
	}
	switch {
	case a.lies(it, NoStamps):
		return ""
	case a.lies(it, FractionStamps):
		return t.Format("2006-01-02T15:04:05.000Z")
	case a.lies(it, OffsetStamps):
		return t.In(time.FixedZone("", 2*60*60)).Format(time.RFC3339)
	case a.lies(it, NaiveStamps):
		return t.Format("2006-01-02T15:04:05")
	case a.lies(it, FinerStamps):
		return t.Format(seconds)
	case day || a.lies(it, CoarserStamps):
		return t.Format(time.DateOnly)
	}
	return t.Format(seconds)
}

// writeRecord writes an item in a format.
func (a *answer) writeRecord(it *Item, prefix string) {
	const indent = "\n    "
	a.b.WriteString(indent + "<record>")
	a.writeHeader(it, indent+"  ")
	if (!it.Deleted || a.lies(it, DeletedWithMetadata)) && !a.lies(it, HeaderOnly) && it.Metadata[prefix] != "" {
		a.b.WriteString(indent + "  <metadata>")
		a.writeMetadata(it, it.Metadata[prefix])
		a.b.WriteString("</metadata>")
	}
	if !it.Deleted {
		for _, about := range it.About {
			a.b.WriteString(indent + "  <about>" + about + "</about>")
		}
	}
	a.b.WriteString(indent + "</record>")
}

// writeMetadata writes the element inside of metadata, or its replacement by a lie.
func (a *answer) writeMetadata(it *Item, xml string) {
	if a.lies(it, RootNamespaces) {
		if a.namespaces == nil {
			a.namespaces = map[string]bool{}
		}
		for _, d := range declarations.FindAllString(xml, -1) {
			a.namespaces[d] = true
		}
		xml = declarations.ReplaceAllString(xml, "")
	}
	if a.lies(it, WrongSchemaLocation) {
		xml = schemaLocations.ReplaceAllString(xml, `xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/ http://repository.example/lost.xsd"`)
	}
	for _, c := range []struct {
		lie  Lie
		text string
	}{{ForbiddenCharacter, "\x1f"}, {ForbiddenReference, "&#x1F;"}, {Latin1Bytes, "\xe9"}, {HTMLEntity, "&eacute;"}, {BareAmpersand, " & "},
		{OpenTag, "<br>"}, {UndeclaredPrefix, "<other:note/>"}} {
		if a.lies(it, c.lie) {
			text := strings.Index(xml, "</") // the end of the first text
			xml = xml[:text] + c.text + xml[text:]
		}
	}
	switch {
	case a.lies(it, NoElement):
	case a.lies(it, OnlyText):
		a.b.WriteString("see the web page")
	case a.lies(it, TwoElements):
		a.b.WriteString(xml + xml)
	default:
		a.b.WriteString(xml)
	}
}

func element(b *bytes.Buffer, indent, name, text string) {
	b.WriteString(indent + "<" + name + ">" + escaped(text) + "</" + name + ">")
}

// escaped returns a text or an attribute's value as XML.
func escaped(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
