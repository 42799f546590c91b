package validate

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/oaipmh"
)

// oaiRepository has 25 records in pages of ten, two sets and a deletion.
func oaiRepository() *testserver.Repository {
	r := testserver.NewRepository()
	r.PageSize = 10
	r.Sets = []testserver.ItemSet{{Spec: "letters", Name: "Letters"}, {Spec: "maps", Name: "Maps"}}
	r.Fill(25)
	r.Delete("oai:repository.example:7")
	return r
}

// lying has what is found in a repository with one lie; those that are not here are none
// that shows in one look.
func lying() map[testserver.Lie]string {
	return map[testserver.Lie]string{
		testserver.TokenTwice: "oai-token", testserver.TokenLoop: "oai-token oai-twice", testserver.EndlessTokens: "oai-error-codes",
		testserver.StalePages: "oai-token oai-twice", testserver.LastPageRepeats: "oai-size oai-twice", testserver.EmptyLastPage: "oai-empty",
		testserver.NoLastToken: "oai-last-token", testserver.TokenOnce: "oai-token-lost", testserver.TokenNotExclusive: "oai-error-codes oai-token-lost",
		testserver.SizeZero: "oai-token", testserver.SizeWrong: "oai-size", testserver.DoubledHeaders: "oai-size oai-twice", testserver.EmptyList: "oai-empty",
		testserver.SecondsRefused: "oai-granularity", testserver.FromIgnored: "oai-range", testserver.FromExclusive: "oai-range",
		testserver.FractionStamps: "oai-datestamp", testserver.CoarserStamps: "oai-granularity", testserver.OffsetStamps: "oai-datestamp",
		testserver.NaiveStamps: "oai-datestamp", testserver.FutureStamps: "oai-future oai-range", testserver.NoStamps: "oai-datestamp",
		testserver.SlowClock: "oai-future", testserver.DayResponse: "oai-future oai-response-date",
		testserver.EmptyIdentifier: "oai-identifier", testserver.HiddenDeletion: "oai-error-codes oai-same-lists oai-size", testserver.DeletedWithMetadata: "oai-deleted",
		testserver.HeaderOnly: "oai-header", testserver.NoElement: "oai-metadata", testserver.TwoElements: "oai-metadata", testserver.OnlyText: "oai-metadata",
		testserver.WrongSchemaLocation: "oai-schema-location", testserver.ForbiddenCharacter: "oai-characters", testserver.ForbiddenReference: "oai-characters",
		testserver.Latin1Bytes: "oai-charset", testserver.HTMLEntity: "oai-characters", testserver.BareAmpersand: "oai-characters",
		testserver.OpenTag: "oai-document", testserver.UndeclaredPrefix: "oai-document", testserver.SpaceAround: "oai-identifier",
		testserver.WrongCharset: "oai-charset", testserver.LeadingSpace: "oai-characters", testserver.TrailingGarbage: "oai-trailing",
		testserver.HTMLType: "oai-media-type", testserver.Redirected: "oai-base-url oai-redirect", testserver.OtherBaseURL: "oai-base-url",
		testserver.NoListIdentifiers: "oai-error-codes",
	}
}

// found returns the rules of findings.
func found(findings []Finding) string {
	rules := map[string]bool{}
	for _, f := range findings {
		if f.Severity != Unread {
			rules[f.Rule] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(rules)), " ")
}

// What a repository does wrong is found by its rule and by no other, whatever the lie.
func TestRepositoryLies(t *testing.T) {
	want := lying()
	for _, lie := range append([]testserver.Lie{"honest"}, testserver.Lies()...) {
		if lie == testserver.NoIdentify {
			continue // nothing can be checked, and it is asked for a while
		}
		t.Run(string(lie), func(t *testing.T) {
			t.Parallel()
			r := oaiRepository()
			r.Lie(lie)
			server := httptest.NewServer(r)
			defer server.Close()
			findings, sum := check(t, Options{Follow: true, MaxDocuments: 60}, server.URL+"/oai?verb=Identify")
			if got := found(findings); got != want[lie] {
				t.Errorf("found %q, want %q: %v", got, want[lie], findings)
			}
			if unread := lie == testserver.EndlessTokens; sum.Unread > 0 != unread {
				t.Errorf("%+v: %v", sum, findings)
			}
		})
	}
}

// repositoryRules are ways to break the rules that several answers show, besides lies.
func repositoryRules() map[string]func(*testserver.Repository) http.Handler {
	return map[string]func(*testserver.Repository) http.Handler{
		"oai-earliest": func(r *testserver.Repository) http.Handler {
			r.Earliest = time.Date(2021, 3, 1, 0, 0, 5, 0, time.UTC)
			return r
		},
		"oai-dc oai-error-codes": func(r *testserver.Repository) http.Handler {
			r.Formats = []testserver.ItemFormat{{Prefix: "mods", Schema: "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd", Namespace: "http://www.loc.gov/mods/v3"}}
			return r
		},
		"oai-post": func(r *testserver.Repository) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.Method == http.MethodPost {
					http.Error(w, "GET only", http.StatusMethodNotAllowed)
					return
				}
				r.ServeHTTP(w, q)
			})
		},
		"oai-status": func(r *testserver.Repository) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				answer := httptest.NewRecorder()
				r.ServeHTTP(answer, q)
				w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
				if strings.Contains(answer.Body.String(), "<error ") {
					w.WriteHeader(http.StatusBadRequest)
				}
				_, _ = w.Write(answer.Body.Bytes()) // who asked may have gone
			})
		},
	}
}

// Each rule that a single answer does not show is broken by a repository and kept by an
// honest one.
func TestRepositoryRules(t *testing.T) {
	broken := map[string]bool{}
	for rules, serve := range repositoryRules() {
		t.Run(rules, func(t *testing.T) {
			server := httptest.NewServer(serve(oaiRepository()))
			defer server.Close()
			findings, _ := check(t, Options{Follow: true}, server.URL+"/oai")
			if got := found(findings); got != rules {
				t.Errorf("found %q: %v", got, findings)
			}
		})
		for id := range strings.FieldsSeq(rules) {
			broken[id] = true
		}
	}
	for _, rules := range lying() {
		for id := range strings.FieldsSeq(rules) {
			broken[id] = true
		}
	}
	for _, r := range oaipmh.Rules() {
		if r.Several && !broken[r.ID] && elsewhere()[r.ID] == "" {
			t.Errorf("rule %s is broken by no repository", r.ID)
		}
	}
}

// Each of the two lists is compared with the other one; that lists are too long for it is said.
func TestRepositoryLists(t *testing.T) {
	all := oaiRepository()
	few := testserver.NewRepository()
	few.PageSize, few.Sets = all.PageSize, all.Sets
	few.Fill(24)
	few.Delete("oai:repository.example:7")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if err := q.ParseForm(); err == nil && q.Form.Get("verb") == string(oaipmh.ListIdentifiers) {
			few.ServeHTTP(w, q)
			return
		}
		all.ServeHTTP(w, q)
	}))
	defer server.Close()
	findings, _ := check(t, Options{Follow: true}, server.URL+"/oai")
	if !slices.ContainsFunc(findings, func(f Finding) bool {
		return f.Rule == oaiSame && f.Record == "oai:repository.example:25" && strings.HasPrefix(f.Found, "no headers of 1 record")
	}) {
		t.Errorf("%v", findings)
	}
	defer func(was int) { maxCompared = was }(maxCompared)
	maxCompared = 25
	honest := httptest.NewServer(oaiRepository())
	defer honest.Close()
	findings, sum := check(t, Options{Follow: true}, honest.URL+"/oai")
	if sum.Unread != 1 || len(findings) != 1 || !strings.Contains(findings[0].Found, "was not checked: there are 25 records or more") {
		t.Errorf("%+v, %v", sum, findings)
	}
}

// A selection of the URL is kept; --as saves a repository whose base URL answers with a
// page; and one answer is checked alone.
func TestRepositoryTargets(t *testing.T) {
	r := oaiRepository()
	for _, it := range r.Items() {
		it.Sets = []string{"maps"}
		if it.Identifier != "oai:repository.example:3" {
			it.Sets = []string{"letters"}
		}
		r.Put(it)
	}
	page := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodGet && q.URL.RawQuery == "" {
			_, _ = w.Write([]byte("<!DOCTYPE html><title>Repository</title>"))
			return
		}
		r.ServeHTTP(w, q)
	})
	server := httptest.NewServer(page)
	defer server.Close()
	for _, c := range []struct {
		options   Options
		target    string
		documents int
		entries   int
		rules     string
	}{
		{Options{}, "/oai?verb=ListRecords&metadataPrefix=oai_dc", 1, 10, ""},
		{Options{}, "/oai?verb=ListRecords&metadataPrefix=marc", 1, 0, ""},
		{Options{}, "/oai?verb=ListSets", 1, 2, ""},
		{Options{As: OAIPMH}, "/oai", 1, 0, "oai-document"},
		// What the base URL answers without a verb is a page.
		{Options{Follow: true}, "/oai?verb=ListRecords&metadataPrefix=oai_dc&set=maps", 15, 6, "oai-document"},
		{Options{Follow: true}, "/oai", 20, 84, "oai-document"},
		{Options{Follow: true, As: OAIPMH}, "/oai?set=maps", 15, 6, "oai-document"},
	} {
		findings, sum := check(t, c.options, server.URL+c.target)
		if got := found(findings); sum.Documents != c.documents || sum.Entries != c.entries || got != c.rules {
			t.Errorf("%+v %s: %+v, %v", c.options, c.target, sum, findings)
		}
	}
	museum := httptest.NewServer(fixtures.Museum(nil))
	defer museum.Close()
	findings, sum := check(t, Options{Follow: true}, museum.URL+fixtures.MuseumOAI)
	if got := found(findings); got != "" || sum.Documents < 20 {
		t.Errorf("the museum: %+v, %v", sum, findings)
	}
}

// A repository that answers Identify or ListSets with an error does not conform, though the
// answer itself does: what was not checked is not passed over.
func TestRepositoryRefuses(t *testing.T) {
	for _, verb := range []string{"Identify", "ListSets"} {
		r := oaiRepository()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Query().Get("verb") == verb {
				q.URL.RawQuery = "verb=Identified"
			}
			r.ServeHTTP(w, q)
		}))
		findings, sum := check(t, Options{Follow: true}, server.URL+"/oai?verb=ListRecords&metadataPrefix=oai_dc")
		server.Close()
		if !slices.ContainsFunc(findings, func(f Finding) bool {
			return f.Rule == oaiErrors && strings.HasSuffix(f.URL, "?verb="+verb) && f.Found == "[badVerb]"
		}) {
			t.Errorf("%s: %+v, %v", verb, sum, findings)
		}
	}
}

// A list of sets that never ends is read to the limit, and nothing more is asked for once
// the context has ended.
func TestEndlessRepository(t *testing.T) {
	r, pages := oaiRepository(), 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.FormValue("verb") != "ListSets" {
			r.ServeHTTP(w, q)
			return
		}
		pages++
		w.Header().Set("Content-Type", "text/xml")
		_, _ = fmt.Fprintf(w, `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-01-01T00:00:00Z</responseDate><request verb="ListSets">http://%s/oai</request>`+
			`<ListSets><set><setSpec>s%d</setSpec><setName>S</setName></set><resumptionToken>%d</resumptionToken></ListSets></OAI-PMH>`, q.Host, pages, pages) // who asked may have gone
	}))
	defer server.Close()
	findings, sum := check(t, Options{Follow: true, MaxDocuments: 30}, server.URL+"/oai")
	if pages != 30 || sum.Unread != 1 || !slices.ContainsFunc(findings, func(f Finding) bool { return strings.Contains(f.Found, "--max-documents") }) {
		t.Errorf("%d pages, %+v", pages, sum)
	}

	ctx, cancel := context.WithCancel(t.Context())
	r.OnPage = func(verb string, page int) {
		if verb == "ListRecords" && page == 2 {
			cancel()
		}
	}
	r.Calls()
	if _, err := Run(ctx, Options{Follow: true, MaxDocuments: 30, Report: func(Finding) {}}, []string{server.URL + "/oai"}); err == nil {
		t.Error("the end of the context is no error")
	}
	if calls := r.Calls(); len(calls) > 8 {
		t.Errorf("%d requests, though the context has ended", len(calls))
	}
}

// A file has no media type of its own.
func TestAnswerInFile(t *testing.T) {
	findings, sum := check(t, Options{}, "../../oaipmh/testdata/golden/records.xml")
	if sum.Documents != 1 || len(findings) > 0 {
		t.Errorf("%+v, %v", sum, findings)
	}
}

// TestHostsInEachForm: an internationalized name and its form in ASCII are one host, for what may
// be asked and for the base URL that a repository states.
func TestHostsInEachForm(t *testing.T) {
	for _, allowed := range []string{"b\u00fccher.example", "xn--bcher-kva.example:8080"} {
		r := run{o: Options{AllowHosts: []string{allowed}}}
		for host, want := range map[string]bool{"b\u00fccher.example": true, "XN--BCHER-KVA.example.": true, "bucher.example": false} {
			if r.allowHost(host) != want {
				t.Errorf("with %s %s is allowed: %v", allowed, host, !want)
			}
		}
	}
	if !sameAddress("http://B\u00fccher.example/oai/", "https://xn--bcher-kva.example:443/oai") || sameAddress("http://b\u00fccher.example/oai", "http://bucher.example/oai") {
		t.Error("base URLs are compared by another form of their hosts")
	}
}
