package validate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// The rules of OAI-PMH that need several requests, and those that validate reports besides
// package oaipmh.
const (
	oaiDocument    = "oai-document"
	oaiErrors      = "oai-error-codes"
	oaiPost        = "oai-post"
	oaiMediaType   = "oai-media-type"
	oaiSame        = "oai-same-lists"
	oaiLastToken   = "oai-last-token"
	oaiFormat      = "oai-dc"
	oaiToken       = "oai-token"
	oaiTokenLost   = "oai-token-lost"
	oaiRange       = "oai-range"
	oaiGranularity = "oai-granularity"
	oaiBaseURL     = "oai-base-url"
	oaiTwice       = "oai-twice"
	oaiEmpty       = "oai-empty"
	oaiStatus      = "oai-status"
	oaiSize        = "oai-size"
)

// maxCompared is how many records a repository may have so that its two lists are compared.
var maxCompared = 1_000_000

// inBoth is the page of a record in ListRecords that ListIdentifiers has too.
const inBoth = -1

// oaiClause returns the clause of a rule, with the name of the specification.
func oaiClause(r oaipmh.Rule) string {
	if strings.HasPrefix(r.Clause, "guideline") {
		return "OAI-PMH " + r.Clause
	}
	return "OAI-PMH 2.0, " + r.Clause
}

// answer checks an OAI-PMH response. It returns the parsed response, nil when it cannot
// be parsed, and the codes of its errors.
func (r *run) answer(in input) (a *oaipmh.Answer, codes []oaipmh.Code) {
	d := r.begin(in.url)
	d.Kind = "OAI-PMH answer"
	rd := oaipmh.NewReader(in.body, oaipmh.ReadOptions{URL: in.url, ContentType: in.contentType, Strict: true, Lenient: true, Report: r.oaiProblem})
	for {
		_, err := rd.Next()
		if codes = errorCodes(err); errors.Is(err, io.EOF) || codes != nil {
			break
		}
		if stop := r.entryError(d, in.url, err); stop {
			return nil, nil
		}
	}
	// The media type of a file comes from its name.
	if media, _, err := mime.ParseMediaType(in.contentType); in.contentType != "" && !strings.HasPrefix(in.url, "file:") && (err != nil || media != "text/xml") {
		r.found(Finding{Rule: oaiMediaType, URL: in.url, Found: "Content-Type " + strconv.Quote(in.contentType), Expected: "text/xml"})
	}
	a = rd.Answer()
	d.Entries += len(a.Formats) + len(a.Sets)
	d.Kind = "OAI-PMH " + string(a.Verb)
	if codes != nil {
		d.Kind = fmt.Sprintf("OAI-PMH error %v", codes)
	}
	return a, codes
}

// errorCodes returns the codes of the protocol errors in err.
func errorCodes(err error) []oaipmh.Code {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var codes []oaipmh.Code
		for _, err := range joined.Unwrap() {
			codes = append(codes, errorCodes(err)...)
		}
		return codes
	}
	if e, ok := errors.AsType[*oaipmh.Error](err); ok {
		return []oaipmh.Code{e.Code}
	}
	return nil
}

func (r *run) oaiProblem(p oaipmh.Problem) {
	r.found(Finding{Rule: p.Rule, URL: p.URL, Line: p.Line, Column: p.Column, Record: p.Record, Found: p.Found, Expected: p.Expected})
}

// isRepository reports whether the target is the base URL of a repository. A repository may
// answer a request without a verb with an HTML page.
func (r *run) isRepository(ctx context.Context) bool {
	base, _, err := oaipmh.ParseURL(r.at)
	if err != nil || r.o.As != "" {
		return false
	}
	a, err := r.get.Get(ctx, (&oaipmh.Request{Verb: oaipmh.Identify}).URL(base), follow.Validators{})
	if err != nil {
		return false
	}
	defer a.Close()
	rd := oaipmh.NewReader(a.Body, oaipmh.ReadOptions{Lenient: true})
	return rd.Answer().Identity != nil
}

// repository is a check of a whole OAI-PMH repository.
type repository struct {
	*run
	client *follow.Client
	base   string
	asked  oaipmh.Request // the selection of the target's URL
	// met has the identifiers of ListRecords, each with its page, up to maxCompared.
	met    map[string]int
	record oaipmh.Header // one that exists
	token  string        // one of ListIdentifiers
	broken bool          // ListRecords failed before its end
	more   bool          // the last response that headers has read is not the whole list
}

// repository checks the repository to which the target is a request: its description of
// itself, its list of records from the first page to the last, its list of headers, its
// selections, and its responses to invalid requests.
func (r *run) repository(ctx context.Context) error {
	base, asked, err := oaipmh.ParseURL(r.at)
	if err != nil {
		r.unread(r.typed, err)
		return nil
	}
	c, err := follow.New(follow.Options{
		HTTP: r.client, Start: base, AllowHost: r.allowHost, Accept: accept, Queries: true,
		Documents: func(status int) bool { return status < http.StatusInternalServerError },
	})
	if err != nil {
		r.unread(r.typed, err)
		return nil
	}
	asked.Prefix = cmp.Or(asked.Prefix, oaipmh.DC)
	p := repository{run: r, client: c, base: base, asked: asked, met: map[string]int{}}
	identify := oaipmh.Request{Verb: oaipmh.Identify}
	id, codes := p.ask(ctx, identify)
	if id == nil || id.Identity == nil {
		if id != nil {
			r.found(Finding{Rule: oaiErrors, URL: identify.URL(base), Found: what(codes), Expected: "the description of the repository"})
		}
		return context.Cause(ctx)
	}
	if !sameAddress(id.Identity.BaseURL, base) {
		r.found(Finding{Rule: oaiBaseURL, URL: identify.URL(base), Found: "baseURL " + strconv.Quote(id.Identity.BaseURL), Expected: "the address that answers, " + base})
	}
	formats := oaipmh.Request{Verb: oaipmh.ListMetadataFormats}
	isDC := func(f oaipmh.Format) bool { return f.Prefix == oaipmh.DC && f.Namespace == oaipmh.DCNamespace }
	if a, _ := p.ask(ctx, formats); a != nil && !slices.ContainsFunc(a.Formats, isDC) {
		r.found(Finding{Rule: oaiFormat, URL: formats.URL(base), Found: "no format oai_dc of the namespace " + oaipmh.DCNamespace, Expected: "one, beside the others"})
	}
	p.sets(ctx)
	for _, verb := range []oaipmh.Verb{oaipmh.ListRecords, oaipmh.ListIdentifiers} {
		if err := p.list(ctx, verb); err != nil {
			return err
		}
	}
	p.selected(ctx, id.Identity)
	p.again(ctx)
	p.wrong(ctx)
	p.post(ctx)
	return context.Cause(ctx)
}

// sameAddress compares base URLs. It ignores their scheme, a default port, and a slash at
// the end.
func sameAddress(a, b string) bool {
	plain := func(s string) string {
		u, err := url.Parse(s)
		if err != nil {
			return s
		}
		return follow.Host(u.Hostname()) + strings.TrimRight(u.Path, "/") + "?" + u.RawQuery
	}
	return plain(a) == plain(b)
}

// ask sends a request and checks the response. It returns the results of answer.
func (p *repository) ask(ctx context.Context, q oaipmh.Request) (*oaipmh.Answer, []oaipmh.Code) {
	return p.get(ctx, q.URL(p.base))
}

func (p *repository) get(ctx context.Context, at string) (*oaipmh.Answer, []oaipmh.Code) {
	a, err := p.client.Get(ctx, at, follow.Validators{})
	if err != nil {
		p.unread(at, err)
		return nil, nil
	}
	defer a.Close()
	answer, codes := p.answer(input{url: at, contentType: a.Header.Get("Content-Type"), body: a.Body})
	if answer != nil && a.Status != http.StatusOK {
		p.found(Finding{Rule: oaiStatus, URL: at, Found: fmt.Sprintf("an answer with HTTP status %d", a.Status), Expected: "status 200"})
	}
	return answer, codes
}

// sets reads the list of sets to its end.
func (p *repository) sets(ctx context.Context) {
	q := oaipmh.Request{Verb: oaipmh.ListSets}
	for range p.o.MaxDocuments {
		a, codes := p.ask(ctx, q)
		switch {
		case codes != nil && !slices.Contains(codes, oaipmh.NoSetHierarchy):
			p.found(Finding{Rule: oaiErrors, URL: q.URL(p.base), Found: what(codes), Expected: "the sets, or noSetHierarchy"})
			return
		case a == nil || a.Token == nil || a.Token.Value == "":
			return
		case a.Token.Value == q.Token:
			p.found(Finding{Rule: oaiToken, URL: q.URL(p.base), Found: "the resumptionToken that was sent", Expected: "its own one in each answer"})
			return
		}
		q.Token = a.Token.Value
	}
	p.unread(q.URL(p.base), fmt.Errorf("%d documents were checked; raise --max-documents for the others", p.o.MaxDocuments))
}

// list walks a list as a harvester does. For both lists together it compares the
// identifiers.
func (p *repository) list(ctx context.Context, verb oaipmh.Verb) error {
	w := oaipmh.Walk{
		Client: p.run.client, URL: p.base, Verb: verb, Prefix: p.asked.Prefix, Set: p.asked.Set, From: p.asked.From, Until: p.asked.Until,
		Full: true, Strict: true, MaxDocuments: p.o.MaxDocuments, AllowHost: p.allowHost,
	}
	// Identify was checked before.
	identify := (&oaipmh.Request{Verb: oaipmh.Identify}).URL(p.base)
	w.Report = func(problem oaipmh.Problem) {
		if problem.URL != identify {
			p.oaiProblem(problem)
		}
	}
	last, missing, example, start, whole := p.base, 0, "", 0, true
	listed, claimed := int64(0), int64(-1)
	for doc, err := range w.Documents(ctx) {
		if err != nil {
			p.ended(ctx, last, err)
			p.broken, whole = p.broken || verb == oaipmh.ListRecords, false
			break
		}
		d := p.begin(doc.URL)
		d.Kind = "OAI-PMH " + string(verb)
		resumed := strings.Contains(doc.Requested, "resumptionToken=")
		if !resumed {
			start, listed = doc.Index, 0 // the list begins, perhaps again
		}
		for rec, bad := range doc.Entries() {
			identifier := ""
			if rec == nil {
				p.entryError(d, doc.URL, bad)
				identifier = bad.Header.Identifier
			} else {
				d.Entries++
				identifier = rec.Identifier
				p.record = rec.Header
			}
			page, known := p.met[identifier]
			switch {
			case identifier == "":
			case verb == oaipmh.ListIdentifiers && !known:
				if missing++; missing == 1 {
					example = identifier
				}
			case verb == oaipmh.ListIdentifiers:
				p.met[identifier] = inBoth
			case verb == oaipmh.ListRecords && known && page >= start && page != doc.Index && rec != nil:
				p.found(Finding{Rule: oaiTwice, URL: doc.URL, Line: rec.Line, Column: rec.Column, Record: identifier, Found: "a record that an earlier answer of the list had",
					Expected: "one; of several the latest datestamp counts"})
			case verb == oaipmh.ListRecords && len(p.met) < maxCompared:
				p.met[identifier] = doc.Index
			}
		}
		last = doc.URL
		if err := doc.Err(); err != nil {
			// The walk would try again and again: one attempt is enough here.
			p.ended(ctx, last, err)
			p.broken, whole = true, false
			break
		}
		token := doc.Answer().Token
		if listed += int64(doc.Records); !resumed && token != nil {
			claimed = token.Size
		}
		// The walk reports a list that is shorter than it claims.
		if (token == nil || token.Value == "") && claimed > 0 && listed > claimed {
			p.found(Finding{Rule: oaiSize, URL: doc.URL, Found: fmt.Sprintf("%d records, and completeListSize %d", listed, claimed), Expected: "as many records"})
		}
		if token == nil && resumed {
			p.found(Finding{Rule: oaiLastToken, URL: doc.URL, Found: "no resumptionToken in the last answer", Expected: "an empty one"})
		}
		if verb == oaipmh.ListIdentifiers && token != nil && p.token == "" {
			p.token = token.Value
		}
	}
	if verb == oaipmh.ListIdentifiers && !p.broken {
		p.compare(last, missing, example, whole)
	}
	return context.Cause(ctx)
}

// compare adds findings for the records that only one of the two lists has: for those that
// ListIdentifiers has alone, one of which is example, and, when that list was read as a whole, for
// those of ListRecords. last is the URL of its last document.
func (p *repository) compare(last string, missing int, example string, whole bool) {
	if len(p.met) >= maxCompared {
		p.unread(last, fmt.Errorf("whether the headers are those of the same records was not checked: there are %d records or more", maxCompared))
		return
	}
	const expected = "the headers of the same records"
	if missing > 0 {
		p.found(Finding{Rule: oaiSame, URL: last, Record: example, Found: fmt.Sprintf("headers of %d records that ListRecords does not have", missing), Expected: expected})
	}
	var without []string
	for identifier, page := range p.met {
		if whole && page != inBoth {
			without = append(without, identifier)
		}
	}
	if len(without) > 0 {
		p.found(Finding{Rule: oaiSame, URL: last, Record: slices.Min(without), Found: fmt.Sprintf("no headers of %d records that ListRecords has", len(without)), Expected: expected})
	}
}

// ended adds a finding for the error that has ended a walk; last is the URL of its last
// document.
func (p *repository) ended(ctx context.Context, last string, err error) {
	var fault *oaipmh.DocumentError
	switch codes := errorCodes(err); {
	case ctx.Err() != nil:
	case errors.Is(err, oaipmh.ErrLoop):
		p.found(Finding{Rule: oaiToken, URL: last, Found: err.Error(), Expected: "a list that comes to its end"})
	case errors.Is(err, oaipmh.ErrIncomplete):
		// The walk has reported where the list was cut off.
	case errors.As(err, &fault):
		p.run.broken(oaiDocument, fault.URL, fault.Cap, fault.Line, fault.Column, fault.Reason)
	case codes != nil:
		p.found(Finding{Rule: oaiErrors, URL: last, Found: fmt.Sprintf("%v for a request that is right", codes), Expected: "records, or noRecordsMatch"})
	default:
		p.unread(last, err)
	}
}

// selected requests an existing record by its datestamp, and records older than all
// (2.7.1).
func (p *repository) selected(ctx context.Context, id *oaipmh.Identity) {
	q := oaipmh.Request{Verb: oaipmh.ListIdentifiers, Prefix: p.asked.Prefix, Set: p.asked.Set, Granularity: id.Granularity}
	if at := p.record.Datestamp; !p.broken && !at.IsZero() && (p.record.Day == (id.Granularity == oaipmh.Day)) {
		q.From, q.Until = at, at
		identifiers, codes := p.headers(ctx, q)
		switch {
		case slices.Contains(codes, oaipmh.BadArgument):
			p.found(Finding{Rule: oaiGranularity, URL: q.URL(p.base), Found: "badArgument", Expected: "that from and until are taken in the granularity that Identify says"})
		case codes != nil && !slices.Contains(codes, oaipmh.NoRecordsMatch): // reported already
		case identifiers != nil && !slices.Contains(identifiers, p.record.Identifier) && !p.more:
			p.found(Finding{Rule: oaiRange, URL: q.URL(p.base), Record: p.record.Identifier, Found: "a list without the record of this datestamp", Expected: "the record: from and until are inclusive"})
		}
	}
	if !id.Earliest.IsZero() {
		q.From, q.Until = time.Time{}, id.Earliest.AddDate(0, 0, -2)
		switch identifiers, codes := p.headers(ctx, q); {
		case codes != nil || identifiers == nil:
		case len(identifiers) == 0:
			p.found(Finding{Rule: oaiEmpty, URL: q.URL(p.base), Found: "a list without records", Expected: "noRecordsMatch"})
		default:
			p.found(Finding{Rule: oaiRange, URL: q.URL(p.base), Found: fmt.Sprintf("%d records from before earliestDatestamp", len(identifiers)), Expected: "noRecordsMatch"})
		}
	}
}

// headers returns the identifiers of the first page of ListIdentifiers, nil when it cannot
// be read.
func (p *repository) headers(ctx context.Context, q oaipmh.Request) (identifiers []string, codes []oaipmh.Code) {
	a, err := p.client.Get(ctx, q.URL(p.base), follow.Validators{})
	if err != nil {
		p.unread(q.URL(p.base), err)
		return nil, nil
	}
	defer a.Close()
	rd := oaipmh.NewReader(a.Body, oaipmh.ReadOptions{URL: a.URL, Lenient: true})
	for {
		rec, err := rd.Next()
		var bad *oaipmh.RecordError
		switch codes = errorCodes(err); {
		case rec != nil:
			identifiers = append(identifiers, rec.Identifier)
		case errors.As(err, &bad):
		case codes != nil, errors.Is(err, io.EOF):
			p.more = rd.Answer().Token != nil && rd.Answer().Token.Value != ""
			return append([]string{}, identifiers...), codes
		default:
			p.unread(q.URL(p.base), err)
			return nil, nil
		}
	}
}

// again uses a token twice, as a harvester must after a lost connection (3.5).
func (p *repository) again(ctx context.Context) {
	q := oaipmh.Request{Verb: oaipmh.ListIdentifiers, Prefix: p.asked.Prefix, Set: p.asked.Set}
	if p.token == "" {
		return
	}
	a, _ := p.ask(ctx, q)
	if a == nil || a.Token == nil || a.Token.Value == "" {
		return
	}
	q.Token = a.Token.Value
	for range 2 {
		if _, codes := p.ask(ctx, q); slices.Contains(codes, oaipmh.BadResumptionToken) {
			p.found(Finding{Rule: oaiTokenLost, URL: q.URL(p.base), Found: "badResumptionToken for the most recent token", Expected: "the same answer, as often as it is asked for"})
			return
		}
	}
}

// wrong sends invalid requests, each of which has its own error code (3.6), and a valid one
// for an existing record.
func (p *repository) wrong(ctx context.Context) {
	for _, c := range []struct {
		query string
		want  oaipmh.Code
	}{
		{"", oaipmh.BadVerb},
		{"verb=ListEverything", oaipmh.BadVerb},
		{"verb=Identify&set=x", oaipmh.BadArgument},
		{"verb=ListRecords", oaipmh.BadArgument},
		{"verb=ListRecords&metadataPrefix=oai_dc&from=yesterday", oaipmh.BadArgument},
		{"verb=ListRecords&metadataPrefix=oai_dc&from=2002-02-01&until=2001-02-01", oaipmh.BadArgument},
		{"verb=ListRecords&metadataPrefix=no_such_format", oaipmh.CannotDisseminateFormat},
		{"verb=ListRecords&resumptionToken=no-such-token", oaipmh.BadResumptionToken},
		{"verb=GetRecord&metadataPrefix=oai_dc&identifier=oai:nowhere.invalid:0", oaipmh.IDDoesNotExist},
	} {
		at := p.with(c.query)
		if a, codes := p.get(ctx, at); a != nil && !slices.Contains(codes, c.want) {
			p.found(Finding{Rule: oaiErrors, URL: at, Found: what(codes), Expected: string(c.want)})
		}
	}
	if p.record.Identifier != "" {
		q := oaipmh.Request{Verb: oaipmh.GetRecord, Identifier: p.record.Identifier, Prefix: p.asked.Prefix}
		if _, codes := p.ask(ctx, q); codes != nil {
			p.found(Finding{Rule: oaiErrors, URL: q.URL(p.base), Record: p.record.Identifier, Found: what(codes), Expected: "the record, which the lists have"})
		}
	}
}

// post sends Identify by POST (3.1.1). A base URL that redirects is not checked: clients
// then send a GET.
func (p *repository) post(ctx context.Context) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base, strings.NewReader("verb="+string(oaipmh.Identify)))
	if err != nil {
		p.unread(p.base, err)
		return
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := p.run.client.Do(q)
	if err != nil {
		p.unread(p.base, err)
		return
	}
	defer resp.Body.Close()
	if resp.Request.Method != http.MethodPost {
		return
	}
	rd := oaipmh.NewReader(resourcesync.Unpack(p.base, resp.Body), oaipmh.ReadOptions{URL: p.base, Lenient: true})
	if _, err := rd.Next(); resp.StatusCode != http.StatusOK || !errors.Is(err, io.EOF) || rd.Answer().Identity == nil {
		p.found(Finding{Rule: oaiPost, URL: p.base, Found: fmt.Sprintf("no answer to Identify by POST (HTTP status %d)", resp.StatusCode), Expected: "the answer that GET has"})
	}
}

// what returns the names of the errors of a response.
func what(codes []oaipmh.Code) string {
	if codes == nil {
		return "no error"
	}
	return fmt.Sprintf("%v", codes)
}

// with returns the base URL with a query.
func (p *repository) with(query string) string {
	switch {
	case query == "":
		return p.base
	case strings.Contains(p.base, "?"):
		return p.base + "&" + query
	}
	return p.base + "?" + query
}
