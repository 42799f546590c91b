package oaipmh

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// sampleRepository has records with the numbers 0 to n-1, one a second, in pages of some.
type sampleRepository struct {
	n, page int
	sets    []Set
	day     bool
	fault   error // of every method but Identity
	asked   []Query
	after   int // how many records of a page come before err
	err     error
}

func (s *sampleRepository) Identity(context.Context) (*Identity, error) {
	id := &Identity{Name: "Maps", BaseURL: sampleBase, AdminEmails: []string{"a@a.example"}, Earliest: moment, Deleted: DeletedPersistent, Granularity: Second}
	if s.day {
		id.Granularity = Day
	}
	return id, nil
}

func (s *sampleRepository) record(i int) *Record {
	r := sampleRecord()
	r.Identifier, r.Datestamp = fmt.Sprintf("urn:x:%d", i), moment.Add(time.Duration(i)*time.Second)
	return r
}

func (s *sampleRepository) find(identifier string) (int, error) {
	digits, _ := strings.CutPrefix(identifier, "urn:x:")
	if n, err := strconv.Atoi(digits); err == nil && n < s.n {
		return n, s.fault
	}
	return 0, errors.Join(s.fault, &Error{Code: IDDoesNotExist, Text: "no such record"})
}

func (s *sampleRepository) Formats(_ context.Context, identifier string) ([]Format, error) {
	if identifier != "" {
		n, err := s.find(identifier)
		if err != nil || n == 1 {
			return nil, err
		}
	}
	return []Format{{DC, "", DCNamespace}}, s.fault
}

func (s *sampleRepository) Sets(_ context.Context, after string, most int) ([]Set, error) {
	sets := slices.DeleteFunc(slices.Clone(s.sets), func(set Set) bool { return set.Spec <= after })
	return sets[:min(len(sets), most)], s.fault
}

func (s *sampleRepository) Record(_ context.Context, identifier, prefix string) (*Record, error) {
	n, err := s.find(identifier)
	if err == nil && prefix != DC {
		err = &Error{Code: CannotDisseminateFormat, Text: "only oai_dc"}
	}
	return s.record(n), err
}

func (s *sampleRepository) List(_ context.Context, q *Query) (*List, error) {
	s.asked = append(s.asked, *q)
	from := 0
	if q.Position != nil {
		var err error
		if from, err = strconv.Atoi(string(q.Position)); err != nil || from >= s.n {
			return nil, &Error{Code: BadResumptionToken, Text: "no such position"}
		}
	}
	switch {
	case s.fault != nil:
		return nil, s.fault
	case q.Prefix != DC:
		return nil, &Error{Code: CannotDisseminateFormat, Text: "only oai_dc"}
	}
	until := min(from+s.page, s.n)
	return &List{Cursor: int64(from), Size: int64(s.n), Next: func() []byte {
		if until == s.n {
			return nil
		}
		return strconv.AppendInt(nil, int64(until), 10)
	}, Records: func(yield func(*Record, error) bool) {
		for i := from; i < until; i++ {
			if s.err != nil && i == from+s.after {
				yield(nil, s.err)
				return
			}
			if !yield(s.record(i), nil) {
				return
			}
		}
	}}, nil
}

func (s *sampleRepository) handler() *Handler {
	return &Handler{Repository: s, BaseURL: sampleBase, SetsPage: 2, Now: func() time.Time { return moment }}
}

// ask sends a request to a handler and returns the answer.
func ask(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(h http.Handler, query string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/oai", nil)
	r.URL.RawQuery = query
	return ask(h, r)
}

// shown is what a test reads of an answer. The package's own Reader is not used: it may
// have made the same mistake.
type shown struct {
	Date    string `xml:"responseDate"`
	Request struct {
		Attrs []xml.Attr `xml:",any,attr"`
		Base  string     `xml:",chardata"`
	} `xml:"request"`
	Errors []struct {
		Code Code   `xml:"code,attr"`
		Text string `xml:",chardata"`
	} `xml:"error"`
	Records      []string    `xml:"ListRecords>record>header>identifier"`
	Headers      []string    `xml:"ListIdentifiers>header>identifier"`
	Sets         []string    `xml:"ListSets>set>setSpec"`
	Formats      []string    `xml:"ListMetadataFormats>metadataFormat>metadataPrefix"`
	One          string      `xml:"GetRecord>record>header>identifier"`
	Name         string      `xml:"Identify>repositoryName"`
	RecordsToken *tokenShown `xml:"ListRecords>resumptionToken"`
	HeadersToken *tokenShown `xml:"ListIdentifiers>resumptionToken"`
	SetsToken    *tokenShown `xml:"ListSets>resumptionToken"`
}

type tokenShown struct {
	Value  string `xml:",chardata"`
	Cursor string `xml:"cursor,attr"`
	Size   string `xml:"completeListSize,attr"`
}

func show(t *testing.T, w *httptest.ResponseRecorder) *shown {
	t.Helper()
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != typeXML || w.Header().Get("Etag") != "" {
		t.Fatalf("status %d, header %v: %s", w.Code, w.Header(), w.Body)
	}
	s := &shown{}
	if err := xml.Unmarshal(w.Body.Bytes(), s); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return s
}

// Each bad request has its error, says why, and is not repeated where it was no request
// of the protocol.
func TestHandlerErrors(t *testing.T) {
	s := &sampleRepository{n: 3, page: 2}
	h := s.handler()
	long := strings.Repeat("x", maxArguments)
	token := (&continuation{Query: Query{Verb: ListRecords, Prefix: DC, Position: []byte("2")}}).token(sampleBase)
	other := (&continuation{Query: Query{Verb: ListRecords, Prefix: DC, Position: []byte("2")}}).token(sampleBase + "x")
	gone := (&continuation{Query: Query{Verb: ListRecords, Prefix: DC, Position: []byte("9")}}).token(sampleBase)
	docs := map[string][]byte{}
	for i, c := range []struct {
		query string
		codes string
		text  string // in the first error
		attrs string // of request
	}{
		{"", "badVerb", "missing", ""},
		{"verb=", "badVerb", "no verb", ""},
		{"verb=identify", "badVerb", "upper and lower case", ""},
		{"verb=ListThings&metadataPrefix=oai_dc", "badVerb", `"ListThings"`, ""},
		{"verb=Identify&verb=Identify", "badVerb", "more than once", ""},
		{"verb=Identify&identifier=urn:x:1", "badArgument", `"identifier"`, ""},
		{"verb=Identify&%zz", "badArgument", "cannot be read", ""},
		{"verb=Identify;a", "badArgument", "cannot be read", ""},
		{"verb=Identify&Verb=Identify", "badArgument", `"Verb"`, ""},
		{"verb=GetRecord", "badArgument badArgument", "needs the argument identifier", ""},
		{"verb=GetRecord&identifier=urn:x:1", "badArgument", "needs the argument metadataPrefix", ""},
		{"verb=GetRecord&identifier=&metadataPrefix=oai_dc", "badArgument", "identifier is empty", ""},
		{"verb=GetRecord&identifier=urn:x:1&identifier=urn:x:2&metadataPrefix=oai_dc", "badArgument", "identifier is there more than once", ""},
		{"verb=GetRecord&identifier=urn:x:9&metadataPrefix=oai_dc", "idDoesNotExist", "no such record", "verb=GetRecord identifier=urn:x:9 metadataPrefix=oai_dc"},
		{"verb=GetRecord&identifier=a%22+b&metadataPrefix=oai_dc", "idDoesNotExist", "no such record", "verb=GetRecord metadataPrefix=oai_dc"},
		{"verb=GetRecord&identifier=urn:x:1&metadataPrefix=mods", "cannotDisseminateFormat", "oai_dc", "verb=GetRecord identifier=urn:x:1 metadataPrefix=mods"},
		{"verb=GetRecord&identifier=urn:x:1&metadataPrefix=a+b", "badArgument", "metadataPrefix", ""},
		{"verb=ListMetadataFormats&identifier=urn:x:9", "idDoesNotExist", "no such record", "verb=ListMetadataFormats identifier=urn:x:9"},
		{"verb=ListMetadataFormats&identifier=urn:x:1", "noMetadataFormats", "no formats", "verb=ListMetadataFormats identifier=urn:x:1"},
		{"verb=ListSets", "noSetHierarchy", "no sets", "verb=ListSets"},
		{"verb=ListSets&resumptionToken=x", "badResumptionToken", "cannot be used", "verb=ListSets resumptionToken=x"},
		{"verb=ListRecords", "badArgument", "metadataPrefix", ""},
		{"verb=ListRecords&metadataPrefix=mods", "cannotDisseminateFormat", "oai_dc", "verb=ListRecords metadataPrefix=mods"},
		{"verb=ListRecords&metadataPrefix=oai_dc&set=a%3A%3Ab", "badArgument", "setSpec", ""},
		{"verb=ListRecords&metadataPrefix=oai_dc&from=2026", "badArgument", "from", ""},
		{"verb=ListRecords&metadataPrefix=oai_dc&from=2026-02-30", "badArgument", "2026-02-30", ""},
		{"verb=ListRecords&metadataPrefix=oai_dc&until=2026-01-01T00:00:00%2B01:00", "badArgument", "until", ""},
		{"verb=ListRecords&metadataPrefix=oai_dc&until=2026-01-01T00:00:00.5Z", "badArgument", "until", ""},
		{"verb=ListRecords&metadataPrefix=oai_dc&from=2026-01-02&until=2026-01-01", "badArgument", "earlier than from", ""},
		{"verb=ListRecords&metadataPrefix=oai_dc&from=2026-01-01&until=2026-01-02T00:00:00Z", "badArgument", "different granularities", ""},
		{"verb=ListRecords&metadataPrefix=oai_dc&resumptionToken=" + token, "badArgument", "stands alone", ""},
		{"verb=ListRecords&resumptionToken=", "badArgument", "empty", ""},
		{"verb=ListRecords&resumptionToken=x", "badResumptionToken", "cannot be used", "verb=ListRecords resumptionToken=x"},
		{"verb=ListRecords&resumptionToken=" + token[1:], "badResumptionToken", "cannot be used", "verb=ListRecords resumptionToken=" + token[1:]},
		{"verb=ListRecords&resumptionToken=" + other, "badResumptionToken", "not one of this repository", "verb=ListRecords resumptionToken=" + other},
		{"verb=ListRecords&resumptionToken=" + gone, "badResumptionToken", "no such position", "verb=ListRecords resumptionToken=" + gone},
		{"verb=ListIdentifiers&resumptionToken=" + token, "badResumptionToken", "a list of ListRecords", "verb=ListIdentifiers resumptionToken=" + token},
		{"verb=ListIdentifiers&set=" + long[:maxArguments/2] + "+&metadataPrefix=oai_dc", "badArgument", "setSpec", ""},
	} {
		w := get(h, c.query)
		a := show(t, w)
		docs[fmt.Sprint(i)] = w.Body.Bytes()
		var codes, attrs []string
		for _, e := range a.Errors {
			codes = append(codes, string(e.Code))
		}
		for _, attr := range a.Request.Attrs {
			attrs = append(attrs, attr.Name.Local+"="+attr.Value)
		}
		if strings.Join(codes, " ") != c.codes || !strings.Contains(a.Errors[0].Text, c.text) || strings.Join(attrs, " ") != c.attrs || a.Request.Base != sampleBase {
			t.Errorf("%.200s: %v, request %v; want %s with %q, %s", c.query, a.Errors, a.Request, c.codes, c.text, c.attrs)
		}
	}
	s.n = 0
	if a := show(t, get(h, "verb=ListRecords&metadataPrefix=oai_dc")); len(a.Errors) != 1 || a.Errors[0].Code != NoRecordsMatch {
		t.Errorf("an empty list: %v, want noRecordsMatch", a.Errors)
	}
	s.day = true
	if a := show(t, get(h, "verb=ListRecords&metadataPrefix=oai_dc&from=2026-01-01T00:00:00Z")); len(a.Errors) != 1 || a.Errors[0].Code != BadArgument {
		t.Errorf("a second in a repository of days: %v, want badArgument", a.Errors)
	}
	testenv.NewStrictOAISchema(t).CheckAll(t, docs)
}

// All verbs answer, and every answer passes the schema.
func TestHandlerAnswers(t *testing.T) {
	s := &sampleRepository{n: 5, page: 2, sets: []Set{{Spec: "a", Name: "A"}, {Spec: "b"}, {Spec: "c"}, {Spec: "d"}, {Spec: "e"}}}
	h := s.handler()
	docs := map[string][]byte{}
	of := func(query string) *shown {
		w := get(h, query)
		docs[fmt.Sprint(len(docs))] = w.Body.Bytes()
		return show(t, w)
	}
	if a := of("verb=Identify"); a.Name != "Maps" || a.Date != "2026-01-02T03:04:05Z" {
		t.Errorf("%+v", a)
	}
	if a := of("verb=ListMetadataFormats"); !slices.Equal(a.Formats, []string{DC}) {
		t.Errorf("%+v", a)
	}
	if a := of("verb=GetRecord&metadataPrefix=oai_dc&identifier=urn:x:2"); a.One != "urn:x:2" {
		t.Errorf("%+v", a)
	}
	walk := func(verb string, of func(query string) (names []string, t *tokenShown)) {
		names, token := of("verb=" + verb)
		for pages := 1; token != nil && token.Value != ""; pages++ {
			if url.QueryEscape(token.Value) != token.Value || pages > 3 {
				t.Fatalf("page %d: token %q", pages, token.Value)
			}
			var more []string
			more, token = of("verb=" + strings.Split(verb, "&")[0] + "&resumptionToken=" + token.Value)
			names = append(names, more...)
		}
		if len(names) != 5 || token == nil || len(slices.Compact(names)) != 5 {
			t.Errorf("%s: %v, and %v at its end", verb, names, token)
		}
	}
	walk("ListSets", func(q string) ([]string, *tokenShown) { a := of(q); return a.Sets, a.SetsToken })
	walk("ListIdentifiers&metadataPrefix=oai_dc", func(q string) ([]string, *tokenShown) { a := of(q); return a.Headers, a.HeadersToken })
	s.asked = nil
	walk("ListRecords&metadataPrefix=oai_dc&from=2026-01-01&until=2026-01-02&set=maps%3Aold", func(q string) ([]string, *tokenShown) { a := of(q); return a.Records, a.RecordsToken })
	want := Query{Verb: ListRecords, Prefix: DC, Set: "maps:old", From: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 1, 2, 23, 59, 59, 0, time.UTC)}
	for i, position := range []string{"", "2", "4"} {
		got := s.asked[i]
		if string(got.Position) != position {
			t.Errorf("page %d: position %q, want %q", i, got.Position, position)
		}
		if got.Position = nil; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("page %d: asked for %v, want %v", i, got, want)
		}
	}
	if a := of("verb=ListRecords&metadataPrefix=oai_dc"); a.RecordsToken.Size != "5" || a.RecordsToken.Cursor != "0" {
		t.Errorf("token %+v", a.RecordsToken)
	}
	for _, first := range []string{"0001-01-01", "0001-01-01T00:00:00Z"} { // as programs write no date
		if a := of("verb=ListRecords&metadataPrefix=oai_dc&from=" + first); len(a.Records) != 2 || !slices.ContainsFunc(a.Request.Attrs, func(at xml.Attr) bool { return at.Value == first }) {
			t.Errorf("%+v", a)
		}
		if q := s.asked[len(s.asked)-1]; q.From.IsZero() || q.From.Year() != 1 {
			t.Errorf("asked for %v", q)
		}
	}
	s.page = 9
	if a := of("verb=ListRecords&metadataPrefix=oai_dc"); a.RecordsToken != nil {
		t.Errorf("a list in one answer has the token %+v", a.RecordsToken)
	}
	s.sets = s.sets[:2]
	if a := of("verb=ListSets"); a.SetsToken != nil {
		t.Errorf("a list in one answer has the token %+v", a.SetsToken)
	}
	testenv.NewStrictOAISchema(t).CheckAll(t, docs)
}

func TestHandlerMethods(t *testing.T) {
	h := (&sampleRepository{n: 5, page: 2}).handler()
	form := func(kind, query, body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/oai"+query, strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		return r
	}
	for name, c := range map[string]struct {
		r      *http.Request
		status int
		has    string
	}{
		"POST":                   {form(formType, "", "verb=GetRecord&identifier=urn%3Ax%3A1&metadataPrefix=oai_dc"), 200, "<identifier>urn:x:1<"},
		"POST with charset":      {form(formType+"; charset=utf-8", "", "verb=Identify"), 200, "<Identify>"},
		"POST in both":           {form(formType, "?verb=Identify", "verb=Identify"), 200, "badVerb"},
		"POST in two parts":      {form(formType, "?verb=ListRecords", "metadataPrefix=oai_dc"), 200, "<ListRecords>"},
		"POST of something else": {form("text/xml", "", "<a/>"), 415, formType},
		"POST of too much":       {form(formType, "", "verb=Identify&a="+strings.Repeat("a", maxArguments)), 413, "16384"},
		"GET of too much":        {httptest.NewRequest(http.MethodGet, "/oai?verb=Identify&a="+strings.Repeat("a", maxArguments), nil), 414, "16384"},
		"PUT":                    {httptest.NewRequest(http.MethodPut, "/oai?verb=Identify", nil), 405, "GET or POST"},
		"HEAD":                   {httptest.NewRequest(http.MethodHead, "/oai?verb=Identify", nil), 200, "<Identify>"}, // net/http leaves out what is written
	} {
		w := ask(h, c.r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s: %d %s; want %d with %q", name, w.Code, w.Body, c.status, c.has)
		}
		if w.Code == 405 && w.Header().Get("Allow") != "GET, HEAD, POST" {
			t.Errorf("%s: Allow %q", name, w.Header().Get("Allow"))
		}
	}
}

// A failure before the first byte has a status of its own; after it the connection is
// cut, so that nobody takes the part for the whole.
func TestHandlerFailures(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		retry  string
	}{
		"unavailable": {&UnavailableError{1500 * time.Millisecond, "the log is closing"}, 503, "2"},
		"at once":     {&UnavailableError{0, "the log is closing"}, 503, "1"},
		"fault":       {errors.New("secret"), 500, ""},
	} {
		s := &sampleRepository{n: 5, page: 2, fault: c.err}
		for _, query := range []string{"verb=ListRecords&metadataPrefix=oai_dc", "verb=GetRecord&metadataPrefix=oai_dc&identifier=urn:x:1", "verb=ListSets", "verb=ListMetadataFormats"} {
			w := get(s.handler(), query)
			if w.Code != c.status || w.Header().Get("Retry-After") != c.retry || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%s, %s: %d %v %s", name, query, w.Code, w.Header(), w.Body)
			}
		}
	}
	s := &sampleRepository{n: 1000, page: 1000, err: errors.New("the disk is broken")}
	server := httptest.NewServer(s.handler())
	defer server.Close()
	for after, status := range map[int]int{0: 500, 1: 500, 900: 200} {
		s.after = after
		answer, err := server.Client().Get(server.URL + "?verb=ListRecords&metadataPrefix=oai_dc")
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != status || (err != nil) != (status == 200) {
			t.Errorf("after %d records: status %d and %v, want %d", after, answer.StatusCode, err, status)
		}
	}
}

// FuzzHandler: every query has an answer that is well-formed XML, or a plain one.
func FuzzHandler(f *testing.F) {
	s := &sampleRepository{n: 3, page: 2, sets: []Set{{Spec: "a"}}}
	h := s.handler()
	for _, query := range []string{"", "verb=Identify", "verb=ListRecords&metadataPrefix=oai_dc&from=2026-01-01&until=2026-01-01", "verb=ListSets&resumptionToken=AAAA",
		"verb=GetRecord&identifier=%00&metadataPrefix=%FF", "verb=ListIdentifiers&resumptionToken=" + (&continuation{Query: Query{Verb: ListIdentifiers, Prefix: DC, Position: []byte("1")}}).token(sampleBase)} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		w := get(h, query)
		if w.Code == http.StatusOK {
			if err := xml.Unmarshal(w.Body.Bytes(), new(shown)); err != nil {
				t.Errorf("%q: %v: %s", query, err, w.Body)
			}
		} else if w.Code != http.StatusRequestURITooLong {
			t.Errorf("%q: status %d", query, w.Code)
		}
	})
}

// FuzzToken: a token that is read is the one that is written, and no other text is one.
func FuzzToken(f *testing.F) {
	for _, c := range []continuation{{}, {Query{Verb: ListRecords, Prefix: DC, Set: "a:b", From: moment.Truncate(time.Second), Until: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), Position: []byte{0, 1, 255}}, Second}} {
		f.Add(c.token(sampleBase), []byte{})
	}
	f.Add("", []byte{tokenVersion, 1, 0, 6, 'o', 'a', 'i', '_', 'd', 'c', 0, 1, 2, 0, 7})
	f.Fuzz(func(t *testing.T, token string, payload []byte) {
		for _, text := range []string{token, signed(payload)} {
			c, err := parseToken(sampleBase, text)
			if err != nil {
				continue
			}
			again, err := parseToken(sampleBase, c.token(sampleBase))
			if err != nil || fmt.Sprint(*again) != fmt.Sprint(*c) {
				t.Errorf("%q: %v becomes %v, %v", text, c, again, err)
			}
		}
	})
}

// signed makes a token of any bytes.
func signed(payload []byte) string {
	return base64.RawURLEncoding.EncodeToString(append(slices.Clone(payload), sumOfToken(sampleBase, payload)...))
}

func TestTokenIsChecked(t *testing.T) {
	token := (&continuation{Query: Query{Verb: ListRecords, Prefix: DC, Position: []byte("position")}}).token(sampleBase)
	for i := range token {
		for _, c := range "aB0-_" {
			if changed := token[:i] + string(c) + token[i+1:]; changed != token {
				if _, err := parseToken(sampleBase, changed); err == nil {
					t.Errorf("with %c at %d it is taken", c, i)
				}
			}
		}
		if _, err := parseToken(sampleBase, token[:i]); err == nil {
			t.Errorf("the first %d characters are taken", i)
		}
	}
	if bytes.ContainsAny([]byte(token), "+/=&% ") {
		t.Errorf("%q has to be escaped", token)
	}
}
