package testserver_test

import (
	"compress/gzip"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// page is what the tests here read of an answer.
type page struct {
	Errors []struct {
		Code string `xml:"code,attr"`
	} `xml:"error"`
	Headers []header `xml:"ListIdentifiers>header"`
	Records []struct {
		Header   header `xml:"header"`
		Metadata *struct {
			XML string `xml:",innerxml"`
		} `xml:"metadata"`
	} `xml:"ListRecords>record"`
	Token *token   `xml:"ListRecords>resumptionToken"`
	Next  *token   `xml:"ListIdentifiers>resumptionToken"`
	Sets  []string `xml:"ListSets>set>setSpec"`
	More  *token   `xml:"ListSets>resumptionToken"`
}

type header struct {
	Status     string `xml:"status,attr"`
	Identifier string `xml:"identifier"`
	Datestamp  string `xml:"datestamp"`
}

type token struct {
	Value string `xml:",chardata"`
	Size  int    `xml:"completeListSize,attr"`
}

func (p *page) token() string {
	for _, t := range []*token{p.Token, p.Next, p.More} {
		if t != nil {
			return t.Value
		}
	}
	return ""
}

func query(args ...string) string {
	q := url.Values{}
	for i := 0; i < len(args); i += 2 {
		q.Add(args[i], args[i+1])
	}
	return "/oai?" + q.Encode()
}

func read(t *testing.T, r *testserver.Repository, args ...string) *page {
	t.Helper()
	got := ask(r, query(args...))
	var p page
	if err := xml.Unmarshal(got.Body.Bytes(), &p); got.Code != http.StatusOK || err != nil {
		t.Fatalf("%v: %d, %v\n%s", args, got.Code, err, got.Body)
	}
	return &p
}

// walk reads a list to its end, at most 50 pages of it.
func walk(t *testing.T, r *testserver.Repository, verb string, args ...string) (identifiers []string, pages int) {
	t.Helper()
	p := read(t, r, append([]string{"verb", verb, "metadataPrefix", "oai_dc"}, args...)...)
	for pages = 1; ; pages++ {
		for _, h := range p.Headers {
			identifiers = append(identifiers, h.Identifier)
		}
		for _, rec := range p.Records {
			identifiers = append(identifiers, rec.Header.Identifier)
		}
		if p.token() == "" || pages == 50 {
			return identifiers, pages
		}
		p = read(t, r, "verb", verb, "resumptionToken", p.token())
	}
}

// museum has 25 records in pages of 10: one is deleted, five are in a set.
func museum() *testserver.Repository {
	r := testserver.NewRepository()
	r.PageSize = 10
	r.Fill(25)
	r.Formats = append(r.Formats, testserver.ItemFormat{Prefix: "mods", Schema: "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd", Namespace: "http://www.loc.gov/mods/v3"})
	for _, s := range []string{"letters", "letters:1910", "maps"} {
		r.Sets = append(r.Sets, testserver.ItemSet{Spec: s, Name: "The " + s})
	}
	for i, it := range r.Items() {
		if i%5 == 0 {
			it.Sets = []string{"letters:1910", "maps"}
			it.Metadata["mods"] = `<mods xmlns="http://www.loc.gov/mods/v3"><titleInfo><title>Letter</title></titleInfo></mods>`
			it.About = []string{`<provenance xmlns="http://www.openarchives.org/OAI/2.0/provenance"/>`}
		}
		r.Put(it)
	}
	r.Delete("oai:repository.example:7")
	return r
}

// Every answer of an honest repository, errors too, is valid.
func TestRepositoriesPassTheSchema(t *testing.T) {
	schema := testenv.NewOAISchema(t)
	for name, change := range map[string]func(*testserver.Repository){
		"stateful": func(*testserver.Repository) {}, "stateless": func(r *testserver.Repository) { r.Stateless, r.TokenLife = true, time.Hour },
		"days": func(r *testserver.Repository) { r.Days, r.Deleted, r.Gzip = true, "transient", true },
	} {
		t.Run(name, func(t *testing.T) {
			r := museum()
			change(r)
			next := read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc").token()
			for want, args := range map[string][][]string{
				"": {{"verb", "Identify"}, {"verb", "ListSets"}, {"verb", "ListMetadataFormats"}, {"verb", "ListMetadataFormats", "identifier", "oai:repository.example:2"},
					{"verb", "GetRecord", "metadataPrefix", "oai_dc", "identifier", "oai:repository.example:1"}, {"verb", "GetRecord", "metadataPrefix", "mods", "identifier", "oai:repository.example:1"},
					{"verb", "GetRecord", "metadataPrefix", "oai_dc", "identifier", "oai:repository.example:7"},
					{"verb", "ListRecords", "metadataPrefix", "oai_dc"}, {"verb", "ListIdentifiers", "metadataPrefix", "oai_dc", "set", "letters"},
					{"verb", "ListRecords", "resumptionToken", next}, {"verb", "ListRecords", "metadataPrefix", "oai_dc", "from", "2021-03-01", "until", "2021-03-01"}},
				"badVerb": {{}, {"verb", "List"}, {"verb", "Identify", "verb", "Identify"}},
				"badArgument": {{"verb", "Identify", "set", "maps"}, {"verb", "ListRecords"}, {"verb", "ListRecords", "resumptionToken", next, "metadataPrefix", "oai_dc"},
					{"verb", "ListRecords", "metadataPrefix", "oai_dc", "from", "yesterday"}, {"verb", "ListRecords", "metadataPrefix", "oai_dc", "from", "2022-01-01", "until", "2021-01-01"},
					{"verb", "ListRecords", "metadataPrefix", "oai_dc", "from", "2021-01-01", "until", "2022-01-01T00:00:00Z"}, {"verb", "GetRecord", "identifier", "x"}},
				"badResumptionToken":      {{"verb", "ListRecords", "resumptionToken", "unknown"}, {"verb", "ListIdentifiers", "resumptionToken", next}},
				"cannotDisseminateFormat": {{"verb", "ListRecords", "metadataPrefix", "marc"}, {"verb", "GetRecord", "metadataPrefix", "mods", "identifier", "oai:repository.example:2"}},
				"idDoesNotExist":          {{"verb", "GetRecord", "metadataPrefix", "oai_dc", "identifier", "oai:nobody"}, {"verb", "ListMetadataFormats", "identifier", "oai:nobody"}},
				"noRecordsMatch":          {{"verb", "ListRecords", "metadataPrefix", "oai_dc", "from", "2999-01-01"}, {"verb", "ListIdentifiers", "metadataPrefix", "mods", "set", "none"}},
			} {
				for _, a := range args {
					got := ask(r, query(a...))
					if err := schema.Check(got.Body.Bytes()); err != nil {
						t.Errorf("%v: %v\n%s", a, err, got.Body)
					}
					code := ""
					if p := read(t, r, a...); len(p.Errors) > 0 {
						code = p.Errors[0].Code
					}
					if code != want {
						t.Errorf("%v: error %q, want %q", a, code, want)
					}
				}
			}
		})
	}
	bare := testserver.NewRepository()
	for args, want := range map[string]string{"verb=ListSets": "noSetHierarchy", "verb=ListRecords&metadataPrefix=oai_dc": "noRecordsMatch"} {
		got := ask(bare, "/oai?"+args)
		if err := schema.Check(got.Body.Bytes()); err != nil || !strings.Contains(got.Body.String(), `<error code="`+want+`">`) {
			t.Errorf("%s: %v\n%s", args, err, got.Body)
		}
	}
}

// A list has each record once, also while records change and the repository goes from
// page to page; what changes meanwhile comes with the next from.
func TestRepositoriesListEachOnce(t *testing.T) {
	for _, stateless := range []bool{false, true} {
		for _, verb := range []string{"ListRecords", "ListIdentifiers"} {
			r := museum()
			r.Stateless = stateless
			r.OnPage = func(_ string, n int) {
				r.Put(testserver.Item{Identifier: "oai:repository.example:1", Metadata: map[string]string{"oai_dc": testserver.DublinCore("Anew")}, Datestamp: time.Now().Add(time.Duration(n) * time.Second)})
			}
			ids, pages := walk(t, r, verb)
			slices.Sort(ids)
			if n := len(slices.Compact(slices.Clone(ids))); n != 25 || pages != 3 || !stateless && len(ids) != 25 {
				t.Errorf("stateless %v, %s: %d of %d identifiers differ, %d pages", stateless, verb, n, len(ids), pages)
			}
			if ids, _ := walk(t, r, verb, "from", time.Now().UTC().Format(time.DateOnly)); !slices.Contains(ids, "oai:repository.example:1") {
				t.Errorf("from: %q", ids)
			}
		}
	}
	r := museum()
	if ids, _ := walk(t, r, "ListRecords", "set", "letters"); len(ids) != 5 {
		t.Errorf("set: %q", ids)
	}
	if got := read(t, r, "verb", "ListSets"); len(got.Sets) != 3 {
		t.Errorf("sets: %q", got.Sets)
	}
	r.PageSize = 2
	if got := read(t, r, "verb", "ListSets"); len(got.Sets) != 2 || len(read(t, r, "verb", "ListSets", "resumptionToken", got.token()).Sets) != 1 {
		t.Errorf("sets: %q", got.Sets)
	}
	r.Scattered, r.PageSize = true, 10
	if ids, _ := walk(t, r, "ListRecords"); len(ids) != 25 || slices.IsSorted(ids) {
		t.Errorf("scattered: %q", ids)
	}
	r.Restart()
	if got := read(t, r, "verb", "ListRecords", "resumptionToken", "list-1-page-2"); len(got.Errors) != 1 {
		t.Errorf("after a restart: %+v", got)
	}
}

// Each lie shows in what is answered, and honesty takes it back.
func TestRepositoriesLie(t *testing.T) {
	const list = "/oai?verb=ListRecords&metadataPrefix=oai_dc"
	contains := func(texts ...string) func(*testing.T, *testserver.Repository) bool {
		return func(_ *testing.T, r *testserver.Repository) bool {
			for _, path := range []string{list, "/oai?verb=ListIdentifiers&metadataPrefix=oai_dc", "/oai?verb=Identify"} {
				got := ask(r, path)
				if body := fmt.Sprint(got.Code, got.Header(), got.Body); strings.Contains(body, texts[0]) {
					return true
				}
			}
			return false
		}
	}
	lacks := func(text string) func(*testing.T, *testserver.Repository) bool {
		has := contains(text)
		return func(t *testing.T, r *testserver.Repository) bool { return !has(t, r) }
	}
	walked := func(records, pages int) func(*testing.T, *testserver.Repository) bool {
		return func(t *testing.T, r *testserver.Repository) bool {
			ids, n := walk(t, r, "ListRecords")
			return len(ids) == records && n == pages
		}
	}
	refused := func(args ...string) func(*testing.T, *testserver.Repository) bool {
		return func(t *testing.T, r *testserver.Repository) bool {
			p := read(t, r, append([]string{"verb", "ListRecords"}, args...)...)
			return len(p.Errors) == 1 && p.Errors[0].Code == "badArgument"
		}
	}
	matched := func(n int, args ...string) func(*testing.T, *testserver.Repository) bool {
		return func(t *testing.T, r *testserver.Repository) bool {
			return len(read(t, r, append([]string{"verb", "ListRecords", "metadataPrefix", "oai_dc"}, args...)...).Records) == n
		}
	}
	shows := map[testserver.Lie]func(*testing.T, *testserver.Repository) bool{
		testserver.TokenTwice:      walked(500, 50),
		testserver.TokenLoop:       walked(10+24*15+10, 50),
		testserver.EndlessTokens:   walked(495, 50),
		testserver.StalePages:      walked(495, 50),
		testserver.LastPageRepeats: walked(35, 4),
		testserver.EmptyLastPage:   walked(25, 4),
		testserver.DoubledHeaders:  walked(50, 3),
		testserver.NoLastToken: func(t *testing.T, r *testserver.Repository) bool {
			p := read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc")
			p = read(t, r, "verb", "ListRecords", "resumptionToken", p.token())
			return read(t, r, "verb", "ListRecords", "resumptionToken", p.token()).Token == nil
		},
		testserver.TokenAlways: func(t *testing.T, r *testserver.Repository) bool {
			return read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc", "set", "maps").Token != nil
		},
		testserver.TokenOnce: func(t *testing.T, r *testserver.Repository) bool {
			next := read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc").token()
			read(t, r, "verb", "ListRecords", "resumptionToken", next)
			return len(read(t, r, "verb", "ListRecords", "resumptionToken", next).Errors) == 1
		},
		testserver.OffsetTokens: func(t *testing.T, r *testserver.Repository) bool {
			r.Stateless = true
			r.OnPage = func(_ string, n int) {
				if n == 2 {
					r.Delete("oai:repository.example:1")
				}
			}
			ids, _ := walk(t, r, "ListRecords")
			r.Put(r.Items()[0])
			r.OnPage = nil
			return !slices.Contains(ids, "oai:repository.example:12")
		},
		testserver.OddTokens: func(t *testing.T, r *testserver.Repository) bool {
			ids, _ := walk(t, r, "ListRecords")
			return len(ids) == 25 && strings.Contains(read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc").token(), ` a&b=c+d%20"e'  f;`)
		},
		testserver.TokenNotExclusive: refused("resumptionToken", "x"),
		testserver.SizeZero:          contains(`completeListSize="0"`),
		testserver.SizeWrong:         contains(`completeListSize="10"`),
		testserver.EmptyList: func(t *testing.T, r *testserver.Repository) bool {
			return len(read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc", "from", "2999-01-01").Errors) == 0
		},
		testserver.SecondsRefused:      refused("metadataPrefix", "oai_dc", "from", "2021-03-01T00:00:00Z"),
		testserver.LateFromRefused:     refused("metadataPrefix", "oai_dc", "from", "2999-01-01"),
		testserver.FromIgnored:         matched(10, "from", "2999-01-01"),
		testserver.FromExclusive:       matched(4, "from", "2021-03-01T00:00:20Z", "until", "2021-03-02T00:00:00Z"),
		testserver.FractionStamps:      contains(".000Z</datestamp>"),
		testserver.CoarserStamps:       contains("<datestamp>2021-03-01</datestamp>"),
		testserver.OffsetStamps:        contains("T02:00:00+02:00</datestamp>"),
		testserver.NaiveStamps:         contains("T00:00:00</datestamp>"),
		testserver.FutureStamps:        contains("<datestamp>" + time.Now().UTC().AddDate(0, 0, 30).Format(time.DateOnly)),
		testserver.NoStamps:            contains("<datestamp></datestamp>"),
		testserver.SlowClock:           contains("<responseDate>" + time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15")),
		testserver.DayResponse:         contains("<responseDate>" + time.Now().UTC().Format(time.DateOnly) + "<"),
		testserver.EmptyIdentifier:     func(t *testing.T, r *testserver.Repository) bool { return empty(t, r) },
		testserver.HiddenDeletion:      walked(24, 3),
		testserver.DeletedWithMetadata: func(t *testing.T, r *testserver.Repository) bool { return withMetadata(t, r) == 25 },
		testserver.HeaderOnly:          func(t *testing.T, r *testserver.Repository) bool { return withMetadata(t, r) == 0 },
		testserver.HeaderForFormat: func(_ *testing.T, r *testserver.Repository) bool {
			return strings.Contains(ask(r, "/oai?verb=GetRecord&metadataPrefix=mods&identifier=oai:repository.example:2").Body.String(), "</header>")
		},
		testserver.NoElement:           contains("<metadata></metadata>"),
		testserver.TwoElements:         contains("</oai_dc:dc><oai_dc:dc"),
		testserver.OnlyText:            contains("<metadata>see the web page</metadata>"),
		testserver.RootNamespaces:      contains("<oai_dc:dc xsi:"),
		testserver.WrongSchemaLocation: contains("lost.xsd"),
		testserver.ForbiddenCharacter:  contains("\x1f"),
		testserver.ForbiddenReference:  contains("&#x1F;"),
		testserver.Latin1Bytes:         contains("\xe9"),
		testserver.HTMLEntity:          contains("&eacute;"),
		testserver.BareAmpersand:       contains(" & "),
		testserver.OpenTag:             contains("<br>"),
		testserver.UndeclaredPrefix:    contains("<other:note/>"),
		testserver.SpaceAround:         contains("<identifier>\n"),
		testserver.WrongCharset:        contains("ISO-8859-1"),
		testserver.LeadingSpace:        lacks("] <?xml"),
		testserver.TrailingGarbage:     contains("Notice: "),
		testserver.GzipAlways:          contains("Content-Encoding:[gzip]"),
		testserver.HTMLType:            contains("text/html"),
		testserver.Redirected:          contains("/moved/oai"),
		testserver.OtherBaseURL:        contains("elsewhere.example"),
		testserver.NoIdentify:          contains("500 map"),
		testserver.NoListIdentifiers:   contains("badVerb"),
	}
	// What they do shows at another granularity only.
	delete(shows, testserver.FinerStamps)
	for _, lie := range testserver.Lies() {
		show, ok := shows[lie]
		if lie == testserver.FinerStamps {
			r := museum()
			r.Days = true
			if has := contains("T00:00:00Z</datestamp>"); has(t, r) {
				t.Errorf("%s: shows without the lie", lie)
			}
			r.Lie(lie)
			if has := contains("T00:00:00Z</datestamp>"); !has(t, r) {
				t.Errorf("%s: does not show", lie)
			}
			continue
		}
		if !ok {
			t.Errorf("%s: nothing says how it shows", lie)
			continue
		}
		r := museum()
		if lie != testserver.OffsetTokens && show(t, r) {
			t.Errorf("%s: shows without the lie", lie)
		}
		r.Lie(lie)
		if !show(t, r) {
			t.Errorf("%s: does not show", lie)
		}
	}
}

func withMetadata(t *testing.T, r *testserver.Repository) (n int) {
	t.Helper()
	p := read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc")
	for {
		for _, rec := range p.Records {
			if rec.Metadata != nil {
				n++
			}
		}
		if p.token() == "" {
			return n
		}
		p = read(t, r, "verb", "ListRecords", "resumptionToken", p.token())
	}
}

func empty(t *testing.T, r *testserver.Repository) bool {
	t.Helper()
	ids, _ := walk(t, r, "ListRecords")
	return slices.Contains(ids, "")
}

// A failure stands in for the answers that it names, as often as it says.
func TestRepositoriesFail(t *testing.T) {
	r := museum()
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	get := func(args ...string) (status int, body string, err error) {
		resp, err := http.Get(s.URL + query(args...))
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), err
	}
	_, whole, _ := get("verb", "Identify")
	for how, want := range map[testserver.How]struct {
		status int
		text   string
		broken bool
	}{
		testserver.NotFound: {404, "Not Found", false}, testserver.ServerError: {500, "Internal", false}, testserver.HTMLPage: {200, "log in", false},
		testserver.Unavailable: {503, "Unavailable", false}, testserver.TooMany: {429, "Too Many", false}, testserver.CutPage: {200, "<OAI-PMH", false},
		testserver.NoEndTag: {200, "</Identify>", false}, testserver.Broken: {200, "<OAI-PMH", true}, testserver.EmptyBody: {200, "", false},
	} {
		r.Fail(testserver.Failure{Verb: "Identify", Times: 1, How: how})
		if status, _, err := get("verb", "ListSets"); status != 200 || err != nil {
			t.Errorf("%s: another verb: %d, %v", how, status, err)
		}
		status, body, err := get("verb", "Identify")
		if status != want.status || !strings.Contains(body, want.text) || (err != nil) != want.broken || strings.HasSuffix(body, "</OAI-PMH>\n") {
			t.Errorf("%s: %d, %v\n%s", how, status, err, body)
		}
		if _, body, _ := get("verb", "Identify"); len(body) != len(whole) {
			t.Errorf("%s: a second time\n%s", how, body)
		}
	}
	r.Fail(testserver.Failure{Page: 2, How: testserver.TokenRefused})
	for range 2 {
		next := read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc").token()
		if p := read(t, r, "verb", "ListRecords", "resumptionToken", next); len(p.Errors) != 1 || p.Errors[0].Code != "badResumptionToken" {
			t.Errorf("page 2: %+v", p)
		}
	}
	r.Honest()
	if ids, _ := walk(t, r, "ListRecords"); len(ids) != 25 {
		t.Errorf("honest again: %q", ids)
	}
}

// Tokens die, requests are recorded, answers are compressed and rewritten, and POST
// works as GET does.
func TestRepositoriesServe(t *testing.T) {
	r := museum()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r.Now, r.TokenLife, r.Gzip = func() time.Time { return now }, time.Minute, true
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	next := read(t, r, "verb", "ListRecords", "metadataPrefix", "oai_dc").token()
	now = now.Add(2 * time.Minute)
	if p := read(t, r, "verb", "ListRecords", "resumptionToken", next); len(p.Errors) != 1 {
		t.Errorf("a token that expired: %+v", p)
	}
	r.Calls()
	resp, err := http.PostForm(s.URL+"/cgi/oai2", url.Values{"verb": {"Identify"}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(body), "<baseURL>"+s.URL+"/cgi/oai2</baseURL>") {
		t.Errorf("POST: %v\n%s", err, body)
	}
	if calls := r.Calls(); len(calls) != 1 || calls[0].Verb() != "Identify" || calls[0].Method != "POST" || calls[0].Path != "/cgi/oai2" || len(r.Calls()) != 0 {
		t.Errorf("calls: %+v", calls)
	}
	got := ask(r, "/oai?verb=Identify", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(z); err != nil || !strings.Contains(string(body), "</OAI-PMH>") {
		t.Errorf("gzip: %v\n%s", err, body)
	}
	r.Rewrite = func(verb string, page int, _ []byte) []byte { return fmt.Appendf(nil, "%s %d", verb, page) }
	if got := ask(r, "/oai?verb=ListRecords&metadataPrefix=oai_dc").Body.String(); got != "ListRecords 1" {
		t.Errorf("rewritten: %s", got)
	}
	r.Deleted = "no"
	r.Delete("oai:repository.example:2")
	if items := r.Items(); len(items) != 24 {
		t.Errorf("%d items", len(items))
	}
	if got := httptest.NewRecorder(); true {
		r.ServeHTTP(got, httptest.NewRequest(http.MethodPut, "/oai", nil))
		if got.Code != http.StatusMethodNotAllowed {
			t.Errorf("PUT: %d", got.Code)
		}
	}
}

// A chain of records has each of them once, with the size that it says, and is valid.
func TestRecordChainsAreExact(t *testing.T) {
	schema := testenv.NewOAISchema(t)
	c := &testserver.RecordChain{Pages: 3, Records: 40, Size: 1600}
	seen := map[string]bool{}
	for _, verb := range []string{"ListRecords", "ListIdentifiers"} {
		next := query("verb", verb, "metadataPrefix", "oai_dc")
		for range c.Pages {
			got := ask(c, next)
			var p page
			if err := xml.Unmarshal(got.Body.Bytes(), &p); err != nil {
				t.Fatal(err)
			}
			if err := schema.Check(got.Body.Bytes()); err != nil {
				t.Error(err)
			}
			for _, rec := range p.Records {
				seen[rec.Header.Identifier] = true
			}
			for _, h := range p.Headers {
				seen["header of "+h.Identifier] = true
			}
			next = query("verb", verb, "resumptionToken", p.token())
		}
	}
	if len(seen) != 2*c.Total() {
		t.Errorf("%d records and headers", len(seen))
	}
	for args, want := range map[string]string{"verb=Identify": "<granularity>", "verb=GetRecord&identifier=oai:eastmere.example:00000119": "00000119</dc:title>",
		"verb=GetRecord&identifier=oai:eastmere.example:00000120": "idDoesNotExist", "verb=ListRecords&metadataPrefix=oai_dc&from=2026-01-01T00:00:00Z": "noRecordsMatch",
		"verb=ListRecords&resumptionToken=page-3": "badResumptionToken", "verb=ListSets": "badVerb"} {
		got := ask(c, "/oai?"+args)
		if err := schema.Check(got.Body.Bytes()); err != nil || !strings.Contains(got.Body.String(), want) {
			t.Errorf("%s: %v\n%s", args, err, got.Body)
		}
	}
	_, record, _ := strings.Cut(ask(c, "/oai?verb=GetRecord&identifier=oai:eastmere.example:00000007").Body.String(), "<GetRecord>")
	record, _, _ = strings.Cut(record, "</GetRecord>")
	if len(record) != c.Size {
		t.Errorf("a record of %d bytes", len(record))
	}
}
