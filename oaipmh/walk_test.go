package oaipmh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

func identifyAnswer(base string) string {
	return `<?xml version="1.0" encoding="UTF-8"?>
<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-01-10T00:00:00Z</responseDate><request verb="Identify">` + base + `</request>
<Identify><repositoryName>R</repositoryName><baseURL>` + base + `</baseURL><protocolVersion>2.0</protocolVersion><adminEmail>a@b.c</adminEmail>
<earliestDatestamp>2020-01-01T00:00:00Z</earliestDatestamp><deletedRecord>persistent</deletedRecord><granularity>YYYY-MM-DDThh:mm:ssZ</granularity></Identify></OAI-PMH>`
}

func TestWalkPlain(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		switch {
		case r.FormValue("verb") == "Identify":
			fmt.Fprint(w, identifyAnswer("http://"+r.Host+"/oai"))
		case r.FormValue("from") != "":
			fmt.Fprint(w, `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-01-03T00:00:00Z</responseDate><request/><error code="noRecordsMatch"/></OAI-PMH>`)
		default:
			token := `<resumptionToken>a&amp;b +%</resumptionToken>`
			n := 1
			if r.FormValue("resumptionToken") != "" {
				token, n = "<resumptionToken/>", 2
			}
			fmt.Fprintf(w, `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/" xmlns:dc="urn:dc"><responseDate>2026-01-02T00:00:00Z</responseDate><request/><ListRecords>
<record><header><identifier>oai:x:%d</identifier><datestamp>2025-01-01T01:02:03Z</datestamp><setSpec>a:b</setSpec></header><metadata><dc:a>x</dc:a></metadata></record>%s</ListRecords></OAI-PMH>`, n, token)
		}
	}))
	defer s.Close()
	w := Walk{Client: s.Client(), URL: s.URL + "/oai?verb=Identify", Report: func(p Problem) { t.Log(p) }}
	var got []string
	for range 2 {
		for doc, err := range w.Documents(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			for rec, bad := range doc.Entries() {
				if bad != nil {
					t.Fatal(bad)
				}
				got = append(got, rec.Identifier, string(rec.Metadata))
			}
			if _, ok := doc.State(); !ok {
				t.Fatal("no state")
			}
		}
		w.State = w.Result().State
	}
	if want := `[oai:x:1 <dc:a xmlns:dc="urn:dc">x</dc:a> oai:x:2 <dc:a xmlns:dc="urn:dc">x</dc:a>]`; fmt.Sprint(got) != want {
		t.Error(got)
	}
	if r := w.Result(); !r.Whole || !r.Empty || r.Identity == nil {
		t.Errorf("%+v", r)
	}
	want := []string{"verb=Identify", "verb=ListRecords&metadataPrefix=oai_dc", "verb=ListRecords&resumptionToken=a%26b%20%2B%25",
		"verb=Identify", "verb=ListRecords&metadataPrefix=oai_dc&from=2026-01-09T23:59:59Z"}
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("asked %q", asked)
	}
}

// O1: a token goes alone with the verb, byte for byte; an empty one or none ends the
// list; what is cut is never applied.
func TestO1(t *testing.T) {
	t.Run("token", func(t *testing.T) {
		for _, token := range []string{"a", "a&b=c", "a+b", "a%2Fb", "a b", " a ", "a\u00fc\u2028b", "a;b,c", `"'<>`, "?#/", "verb=Identify", "a%", "=", "a|b\\c^d`{}", strings.Repeat("x", 4000)} {
			var sent []string
			server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
				if got := r.URL.Query(); got.Has("resumptionToken") {
					sent = append(sent, got.Get("resumptionToken"))
					if len(got) != 2 || got.Get("verb") != "ListRecords" {
						t.Errorf("asked %q", r.URL.RawQuery)
					}
					fmt.Fprint(w, list(record(2), ""))
					return
				}
				fmt.Fprint(w, list(record(1), "<resumptionToken>"+escapeText(token)+"</resumptionToken>"))
			})
			w := Walk{Client: server.Client(), URL: server.URL}
			if ids, err := walkAll(&w); err != nil || len(ids) != 2 || fmt.Sprint(sent) != fmt.Sprint([]string{token}) {
				t.Errorf("%q was sent as %q: %v, %v", token, sent, ids, err)
			}
		}
	})
	t.Run("end", func(t *testing.T) {
		for name, token := range map[string]string{
			"none": "", "empty": "<resumptionToken/>", "empty with hints": `<resumptionToken completeListSize="9" cursor="1"></resumptionToken>`,
			"white space": "<resumptionToken>\n  </resumptionToken>", "bad hints": `<resumptionToken completeListSize="-1" cursor="x" expirationDate="soon"/>`,
		} {
			server := serveList(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, list(record(1), token)) })
			w := Walk{Client: server.Client(), URL: server.URL}
			if ids, err := walkAll(&w); err != nil || len(ids) != 1 || !w.Result().Whole {
				t.Errorf("%s: %v, %v", name, ids, err)
			}
		}
	})
	t.Run("pretty printed", func(t *testing.T) {
		server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
			if token := r.FormValue("resumptionToken"); token == "a b" {
				fmt.Fprint(w, list(record(2), ""))
			} else {
				fmt.Fprint(w, list(record(1), "<resumptionToken>\n    a b\n  </resumptionToken>"))
			}
		})
		w := Walk{Client: server.Client(), URL: server.URL}
		if ids, err := walkAll(&w); err != nil || len(ids) != 2 {
			t.Errorf("%v, %v", ids, err)
		}
	})
	t.Run("in the wrong place", func(t *testing.T) {
		const token = "<resumptionToken>a</resumptionToken>"
		for name, first := range map[string]string{
			"behind the list":       answerTo("<ListRecords>" + record(1) + "</ListRecords>" + token),
			"before the list":       answerTo(token + "<ListRecords>" + record(1) + "</ListRecords>"),
			"in no namespace":       list(record(1), strings.Replace(token, ">", " xmlns=''>", 1)),
			"also behind the list":  answerTo("<ListRecords>" + record(1) + token + "</ListRecords><resumptionToken/>"),
			"before the records":    list(token+record(1), ""),
			"beside a foreign one":  list(record(1), strings.Replace(token, ">", " xmlns='urn:x'>", 1)+token),
			"behind a list of none": answerTo("<ListRecords/>" + token),
		} {
			server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
				if r.FormValue("resumptionToken") == "a" {
					fmt.Fprint(w, list(record(2), "<resumptionToken/>"))
				} else {
					fmt.Fprint(w, first)
				}
			})
			reported := false
			w := Walk{Client: server.Client(), URL: server.URL, Report: func(p Problem) { reported = reported || p.Rule == ruleOrder }}
			if ids, err := walkAll(&w); err != nil || !slices.Contains(ids, "oai:x:2") {
				t.Errorf("%s: %v, %v", name, ids, err)
			}
			if reported == (name == "before the records") {
				t.Errorf("%s: reported: %t", name, reported)
			}
		}
	})
	t.Run("cut", func(t *testing.T) {
		whole := list(record(1)+record(2), "")
		var cut int
		server := serveList(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, whole[:cut]) })
		w := Walk{Client: server.Client(), URL: server.URL}
		for cut = 0; cut < len(whole); cut += 1 + cut/50 {
			if ids, err := walkAll(&w); err == nil || len(ids) > 0 || w.Result().Whole {
				t.Fatalf("cut after %d bytes: %v, %v", cut, ids, err)
			}
		}
	})
}

// O2: a list that does not come to an end is an error, and nothing follows from it.
func TestO2(t *testing.T) {
	// page returns what page n has and its token.
	loops := map[string]func(n int) (records, token string){
		"the same token":             func(int) (string, string) { return record(1), "t" },
		"the same page":              func(n int) (string, string) { return record(1), fmt.Sprint(n) },
		"empty pages":                func(n int) (string, string) { return "", fmt.Sprint(n) },
		"pages of bad records":       func(n int) (string, string) { return "<record/>", fmt.Sprint(n) },
		"two pages":                  func(n int) (string, string) { return record(n % 2), fmt.Sprint(n) },
		"two tokens":                 func(n int) (string, string) { return record(n % 2), fmt.Sprint(n % 2) },
		"ten pages":                  func(n int) (string, string) { return record(n % 10), fmt.Sprint(n) },
		"a tail":                     func(n int) (string, string) { return record(max(n, 7)), fmt.Sprint(n) },
		"a tail, then ten":           func(n int) (string, string) { return record(max(n, 100+n%10)), fmt.Sprint(n) },
		"pages that overlap":         func(n int) (string, string) { return record(n%20) + record((n+1)%20), fmt.Sprint(n) },
		"another order of each page": func(n int) (string, string) { return record(n%2) + record((n+1)%2), fmt.Sprint(n) },
	}
	for name, page := range loops {
		t.Run(name, func(t *testing.T) {
			n := 0
			server := serveList(t, func(w http.ResponseWriter, _ *http.Request) {
				records, token := page(n)
				n++
				fmt.Fprint(w, list(records, "<resumptionToken>"+token+"</resumptionToken>"))
			})
			w := Walk{Client: server.Client(), URL: server.URL}
			_, err := walkAll(&w)
			server.Close() // so that nobody changes n
			if !errors.Is(err, ErrLoop) || n > 150 {
				t.Errorf("%v after %d documents", err, n)
			}
			if r := w.Result(); r.Whole || !r.State.Mark().IsZero() {
				t.Errorf("%+v", r)
			}
		})
	}
	t.Run("a document that came before is none", func(t *testing.T) {
		pages := []string{record(1), record(1), "<record/>", "<record/>", record(2)}
		n := 0
		server := serveList(t, func(w http.ResponseWriter, _ *http.Request) {
			token := ""
			if n < len(pages)-1 {
				token = fmt.Sprintf("<resumptionToken>%d</resumptionToken>", n)
			}
			if n == 3 {
				pages[3] = record(3) + "<record/>"
			}
			fmt.Fprint(w, list(pages[n], token))
			n++
		})
		w := Walk{Client: server.Client(), URL: server.URL}
		_, err := walkAll(&w)
		server.Close()
		if err != nil || n != len(pages) {
			t.Errorf("%v after %d documents", err, n)
		}
	})
	t.Run("documents of bad records", func(t *testing.T) {
		server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
			n, _ := strconv.Atoi(r.FormValue("resumptionToken"))
			records, token := strings.Replace(record(n), "oai:x:", "oai:x:\xff", 1), fmt.Sprintf("<resumptionToken>%d</resumptionToken>", n+1)
			if n == 9 {
				records, token = record(n), ""
			}
			fmt.Fprint(w, list(records, token))
		})
		w := Walk{Client: server.Client(), URL: server.URL}
		if ids, err := walkAll(&w); err != nil || len(ids) != 1 || w.Result().Records != 10 {
			t.Errorf("%v, %v, %+v", ids, err, w.Result())
		}
	})
	t.Run("empty documents in the middle", func(t *testing.T) {
		// Some leave out what is not public only when a document is made.
		for _, size := range []string{"", ` completeListSize="2"`, ` completeListSize="1"`} {
			server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
				n, _ := strconv.Atoi(r.FormValue("resumptionToken"))
				records, token := "", fmt.Sprintf("<resumptionToken%s>%d</resumptionToken>", size, n+1)
				switch n {
				case 0:
					records = record(1)
				case 40:
					records, token = record(2), ""
				}
				fmt.Fprint(w, list(records, token))
			})
			w := Walk{Client: server.Client(), URL: server.URL}
			if ids, err := walkAll(&w); err != nil || len(ids) != 2 || !w.Result().Whole || w.Result().Missing != 0 {
				t.Errorf("%s: %v, %v, %+v", size, ids, err, w.Result())
			}
		}
	})
	t.Run("empty documents at the end", func(t *testing.T) {
		for name, tt := range map[string]struct {
			size  int
			token func(n int) string
			whole bool
		}{
			"one token":                       {2, func(int) string { return "1" }, true},
			"further tokens":                  {2, func(n int) string { return fmt.Sprint(n + 1) }, true},
			"fewer records than it should be": {3, func(int) string { return "1" }, false},
		} {
			server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
				n, _ := strconv.Atoi(r.FormValue("resumptionToken"))
				records := ""
				if n == 0 {
					records = record(1) + record(2)
				}
				fmt.Fprint(w, list(records, fmt.Sprintf("<resumptionToken completeListSize='%d'>%s</resumptionToken>", tt.size, tt.token(max(n, 0)))))
			})
			reported := false
			w := Walk{Client: server.Client(), URL: server.URL, Report: func(p Problem) { reported = reported || p.Rule == ruleToken }}
			ids, err := walkAll(&w)
			r := w.Result()
			if (err == nil) != tt.whole || r.Whole != tt.whole || r.State.Mark().IsZero() == tt.whole || reported != tt.whole || len(ids) != 2 {
				t.Errorf("%s: %v, %v, %+v", name, ids, err, r)
			}
			if tt.whole && r.Full { // the number may be wrong
				t.Errorf("%s: absence from it means something", name)
			}
		}
	})
	t.Run("a loop longer than memory", func(t *testing.T) {
		testenv.Heavy(t)
		var l loop
		const period = 6 * remembered / 100
		for n := range 10 * period {
			doc := &Document{Records: 100, after: cursor{Token: fmt.Sprint(n)}}
			for i := range doc.Records {
				if l.add(fmt.Sprintf("oai:x:%d", n%period*100+i)) {
					doc.news++
				}
			}
			if err := l.turned(doc); err != nil {
				if n < period {
					t.Fatalf("%v after %d documents", err, n)
				}
				return
			}
		}
		t.Error("it does not end")
	})
	t.Run("no loop in a long list", func(t *testing.T) {
		testenv.Heavy(t)
		var l loop
		for n := range 3_000_000 {
			doc := &Document{Records: 1, after: cursor{Token: fmt.Sprint(n)}}
			if l.add(fmt.Sprintf("oai:example.org:%d", n)) {
				doc.news++
			}
			if err := l.turned(doc); err != nil {
				t.Fatal(err)
			}
		}
		if len(l.seen) > 2 {
			t.Errorf("it remembers %d filters of 1 MB", len(l.seen))
		}
	})
}

// O3, O5: a list that breaks off is asked for again, the second time in halves, and then
// it is given up, and the mark stays.
func TestO3(t *testing.T) {
	hows := []testserver.How{testserver.TokenRefused, testserver.NotFound, testserver.ServerError, testserver.HTMLPage, testserver.CutPage, testserver.NoEndTag, testserver.EmptyBody}
	for _, how := range hows {
		t.Run("once/"+string(how), func(t *testing.T) {
			h := newHarvester(t, 25)
			h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, Times: 1, How: how})
			r := h.must()
			if got, want := h.asked(), []string{"all", "page 2", "all", "page 2", "page 3"}; !slices.Equal(got, want) {
				t.Errorf("asked %q", got)
			}
			if !r.Split || h.problems[ruleLost] == nil {
				t.Errorf("%+v, %v", r, h.problems)
			}
		})
		t.Run("always/"+string(how), func(t *testing.T) {
			h := newHarvester(t, 25)
			h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, How: how})
			h.must()
			got := h.asked()
			if want := []string{"all", "page 2", "all", "page 2"}; !slices.Equal(got[:4], want) || got[4] == "all" {
				t.Errorf("asked %q", got)
			}
			// Every datestamp is asked for: each part begins where the one before ends.
			if len(got) > 80 {
				t.Errorf("%d requests: %q", len(got), got)
			}
		})
	}
	t.Run("given up", func(t *testing.T) {
		h := newHarvester(t, 25)
		for i := range 15 { // in one second, more than a page
			h.repo.Put(testserver.Item{Identifier: fmt.Sprintf("oai:same:%d", i), Datestamp: time.Date(2021, 3, 1, 0, 0, 5, 0, time.UTC), Metadata: map[string]string{DC: testserver.DublinCore("S")}})
		}
		h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, How: testserver.TokenRefused})
		h.repo.Rewrite = func(_ string, _ int, body []byte) []byte { // a token may be longer than a message
			return bytes.ReplaceAll(body, []byte("</resumptionToken>"), append(bytes.Repeat([]byte("x"), 300), "</resumptionToken>"...))
		}
		r, err := h.run()
		var incomplete *IncompleteError
		if !errors.Is(err, ErrIncomplete) || !errors.As(err, &incomplete) || incomplete.Parts > 2 || !incomplete.From.Equal(incomplete.Until) || incomplete.From.Second() != 5 {
			t.Fatalf("%v", err)
		}
		if r.Whole || !r.State.Mark().IsZero() || !strings.Contains(err.Error(), "badResumptionToken") {
			t.Errorf("%+v, %v", r, err)
		}
		if found := h.problems[ruleLost][0].Found; !strings.Contains(found, "badResumptionToken") {
			t.Error(found)
		}
		if wrong := h.differs(); len(wrong) != 6 { // one page of that second is there
			t.Errorf("%q", wrong)
		}
		// When the tokens live again, nothing is missing.
		h.repo.Honest()
		h.repo.Rewrite = nil
		h.must()
	})
	t.Run("the mark of the walk before", func(t *testing.T) {
		h := newHarvester(t, 5)
		h.must()
		h.now = h.now.Add(time.Hour)
		for i := range 30 {
			h.repo.Put(testserver.Item{Identifier: fmt.Sprintf("oai:new:%d", i), Datestamp: h.now.Add(time.Duration(i-30) * time.Minute), Metadata: map[string]string{DC: testserver.DublinCore("S")}})
		}
		h.repo.Fail(testserver.Failure{Page: 2, Verb: "ListRecords", Times: 3, How: testserver.TokenRefused})
		h.repo.Calls()
		h.must()
		from := "2026-01-01T11:59:59Z.."
		if got := h.asked(); got[0] != from || got[2] != from || !strings.HasPrefix(got[4], from) || got[4] == from {
			t.Errorf("asked %q", got)
		}
	})
	t.Run("resumed with a token that has expired", func(t *testing.T) {
		h := newHarvester(t, 25)
		h.stop = 2
		if r, err := h.run(); err != nil || r.Whole {
			t.Fatal(r, err)
		}
		h.restart()
		h.stop, h.walk.State = 0, h.saved
		h.must()
		if got, want := h.asked(), []string{"page 0", "all", "page 2", "page 3"}; !slices.Equal(got, want) {
			t.Errorf("asked %q", got)
		}
	})
	t.Run("a page that cannot be read", func(t *testing.T) {
		// The first page of each list that has record 13 is broken: all others are had.
		h := newHarvester(t, 25)
		h.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte("Letter 13<"), []byte("Letter 13</record><"))
		}
		_, err := h.run()
		if !errors.Is(err, ErrIncomplete) {
			t.Fatal(err)
		}
		if wrong := h.differs(); fmt.Sprint(wrong) != "[oai:repository.example:13 is missing]" {
			t.Errorf("%q", wrong)
		}
		h.repo.Rewrite = nil
		h.must()
	})
	t.Run("a connection that always breaks", func(t *testing.T) {
		// The first walk cannot know that, the next one finds it where that has ended.
		h := newHarvester(t, 25)
		h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, How: testserver.Broken})
		for range 3 {
			if r, err := h.run(); err == nil && r.Whole {
				break
			}
			h.walk.State = h.saved
		}
		if wrong := h.differs(); wrong != nil {
			t.Error(wrong)
		}
	})
	t.Run("what changes meanwhile", func(t *testing.T) {
		// It has a list of its own. Where that breaks off too, it is for the next walk, and
		// absence means nothing.
		for n, full := range map[int]bool{1: true, 15: false} {
			h := newHarvester(t, 25)
			for i := range n {
				h.repo.Put(testserver.Item{Identifier: fmt.Sprintf("oai:later:%d", i), Datestamp: h.now.Add(time.Hour), Metadata: map[string]string{DC: testserver.DublinCore("S")}})
			}
			h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, How: testserver.TokenRefused})
			r, err := h.run()
			if err != nil || !r.Whole || r.Full != full || len(h.has) != 25+min(n, 10) {
				t.Errorf("%d: %+v, %v, %d records", n, r, err, len(h.has))
			}
			h.repo.Honest()
			h.must()
		}
	})
	t.Run("days", func(t *testing.T) {
		h := newHarvester(t, 0)
		h.repo.Days = true
		for i := range 40 {
			h.repo.Put(testserver.Item{Identifier: fmt.Sprintf("oai:d:%d", i), Datestamp: time.Date(2021, 3, 1+i, 23, 59, 59, 0, time.UTC), Metadata: map[string]string{DC: testserver.DublinCore("S")}})
		}
		h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, How: testserver.TokenRefused})
		h.must()
		for _, q := range h.asked() {
			if strings.Contains(q, "T") {
				t.Errorf("asked %q", q)
			}
		}
	})
	t.Run("not in the middle of a list", func(t *testing.T) {
		for _, how := range []testserver.How{testserver.NotFound, testserver.ServerError, testserver.HTMLPage, testserver.EmptyBody} {
			h := newHarvester(t, 25)
			h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 1, How: how})
			if r, err := h.run(); err == nil || errors.Is(err, ErrIncomplete) || r.Split {
				t.Errorf("%s: %+v, %v", how, r, err)
			}
			if got := h.asked(); len(got) != 1 {
				t.Errorf("%s: asked %q", how, got)
			}
		}
	})
	t.Run("what passes", func(t *testing.T) {
		// Access, load and the network: the walk ends and can go on where it was.
		for _, how := range []testserver.How{testserver.Unavailable, testserver.TooMany, testserver.Broken} {
			h := newHarvester(t, 25)
			h.repo.Fail(testserver.Failure{Verb: "ListRecords", Page: 2, Times: 1, How: how})
			if _, err := h.run(); err == nil || errors.Is(err, ErrIncomplete) {
				t.Fatalf("%s: %v", how, err)
			}
			h.repo.Calls()
			h.walk.State = h.saved
			h.must()
			if got := h.asked(); !slices.Equal(got, []string{"page 2", "page 3"}) {
				t.Errorf("%s: asked %q", how, got)
			}
		}
	})
}

// O4: noRecordsMatch is success; other errors carry the text of the server and what was
// asked.
func TestO4(t *testing.T) {
	h := newHarvester(t, 0)
	if r := h.must(); !r.Empty || r.State.Mark().IsZero() || r.Size != 0 {
		t.Errorf("%+v", r)
	}
	for code, want := range map[Code]string{
		BadVerb: "badVerb: not here", BadArgument: "metadataPrefix=oai_dc: the repository answers badArgument: not here",
		CannotDisseminateFormat: "cannotDisseminateFormat", NoSetHierarchy: "noSetHierarchy", "madeUp": "madeUp: not here",
	} {
		for _, status := range []int{200, 400, 404, 422, 500} {
			server := serveList(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				fmt.Fprint(w, refusal(code, "not here"))
			})
			w := Walk{Client: server.Client(), URL: server.URL}
			_, err := walkAll(&w)
			var e *Error
			if !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), want) || !strings.Contains(e.URL, "verb=ListRecords") {
				t.Errorf("%d: %v", status, err)
			}
		}
	}
	t.Run("with a status, written in another way", func(t *testing.T) {
		server := serveList(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, refusal("NoRecordsMatch", ""))
		})
		w := Walk{Client: server.Client(), URL: server.URL}
		if ids, err := walkAll(&w); err != nil || len(ids) != 0 || !w.Result().Empty {
			t.Errorf("%v, %+v", err, w.Result())
		}
	})
	t.Run("behind the last page", func(t *testing.T) {
		// Of a list that does not say how many records it has.
		for pages, want := range map[int]string{1: "1, the list could not be read to its end", 2: "2, <nil>", 3: "3, <nil>"} {
			server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
				n, _ := strconv.Atoi(r.FormValue("resumptionToken"))
				if n == pages {
					fmt.Fprint(w, refusal(NoRecordsMatch, ""))
					return
				}
				fmt.Fprint(w, list(record(n), fmt.Sprintf("<resumptionToken>%d</resumptionToken>", n+1)))
			})
			w := Walk{Client: server.Client(), URL: server.URL}
			ids, err := walkAll(&w)
			slices.Sort(ids)
			if got := fmt.Sprintf("%d, %v", len(slices.Compact(ids)), err); !strings.HasPrefix(got, want) || w.Result().Whole != (err == nil) {
				t.Errorf("%d pages: %s, %+v", pages, got, w.Result())
			}
		}
	})
	t.Run("beside another error", func(t *testing.T) {
		for _, other := range []Code{BadArgument, CannotDisseminateFormat, "madeUp"} {
			seconds := 0
			server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
				switch from := r.FormValue("from"); {
				case from == "" || other == BadArgument && len(from) > len(time.DateOnly):
					seconds += len(from)
					fmt.Fprint(w, answerTo(`<error code="`+string(other)+`">not here</error><error code="noRecordsMatch"/>`))
				default:
					fmt.Fprint(w, list(record(1), ""))
				}
			})
			w := Walk{Client: server.Client(), URL: server.URL}
			if ids, err := walkAll(&w); err == nil || !strings.Contains(err.Error(), string(other)+": not here") || w.Result().Whole {
				t.Errorf("%s: %v, %v, %+v", other, ids, err, w.Result())
			}
			if other == BadArgument { // it takes days alone
				w.From = time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
				if ids, err := walkAll(&w); err != nil || len(ids) != 1 || seconds == 0 {
					t.Errorf("in days: %v, %v", ids, err)
				}
			}
		}
	})
	t.Run("beside a token", func(t *testing.T) {
		for _, page := range []int{0, 1, 2} {
			server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
				n, _ := strconv.Atoi(r.FormValue("resumptionToken"))
				token := fmt.Sprintf("<resumptionToken>%d</resumptionToken>", n+1)
				switch n {
				case page:
					fmt.Fprint(w, answerTo("<ListRecords>"+token+`</ListRecords><error code="noRecordsMatch"/>`))
				case 3:
					fmt.Fprint(w, list(record(n), ""))
				default:
					fmt.Fprint(w, list(record(n), token))
				}
			})
			w := Walk{Client: server.Client(), URL: server.URL}
			if ids, err := walkAll(&w); err != nil || len(ids) != 3 || !w.Result().Whole || w.Result().Empty {
				t.Errorf("on page %d: %v, %v, %+v", page, ids, err, w.Result())
			}
		}
	})
	t.Run("in no namespace", func(t *testing.T) {
		server := serveList(t, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, answerTo(`<error xmlns="" code="noRecordsMatch"/>`))
		})
		w := Walk{Client: server.Client(), URL: server.URL}
		if ids, err := walkAll(&w); err != nil || len(ids) > 0 || !w.Result().Empty {
			t.Errorf("%v, %v, %+v", ids, err, w.Result())
		}
	})
	t.Run("several", func(t *testing.T) {
		server := serveList(t, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, answerTo(`<error code="badArgument">one</error><error code="badArgument">two</error>`))
		})
		w := Walk{Client: server.Client(), URL: server.URL}
		if _, err := walkAll(&w); err == nil || !strings.Contains(err.Error(), "one") || !strings.Contains(err.Error(), "two") {
			t.Error(err)
		}
	})
}

// O6: completeListSize and cursor are hints; order means nothing; the mark is never taken
// from datestamps.
func TestO6(t *testing.T) {
	for _, size := range []string{"0", "1", "999999", "", "many"} {
		h := newHarvester(t, 25)
		h.repo.Scattered = true
		h.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte(`completeListSize="25" cursor="`), []byte(`completeListSize="`+size+`" cursor="7`))
		}
		r := h.must()
		if !r.State.Mark().Equal(h.now) {
			t.Errorf("%q: mark %s", size, r.State.Mark())
		}
	}
	t.Run("size", func(t *testing.T) {
		h := newHarvester(t, 25)
		if r := h.must(); r.Size != 25 || r.Records != 25 || r.Documents != 3 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("mark", func(t *testing.T) {
		// The mark is the first list's answer, and never later than our clock.
		for ahead, want := range map[time.Duration]time.Duration{0: 0, -time.Hour: -time.Hour, time.Hour: 0, 1000 * time.Hour: 0} {
			h := newHarvester(t, 25)
			begun := h.now
			h.repo.Now = func() time.Time { return h.now.Add(ahead) }
			h.repo.OnPage = func(verb string, page int) {
				if verb == "ListRecords" {
					h.now = h.now.Add(time.Minute)
				}
			}
			if r := h.must(); r.State.Mark().Sub(begun).Round(2*time.Minute) != want.Round(2*time.Minute) {
				t.Errorf("%s ahead: mark %s after %s", ahead, r.State.Mark(), begun)
			}
		}
	})
	t.Run("overlap", func(t *testing.T) {
		h := newHarvester(t, 3)
		h.walk.Overlap = time.Hour
		h.must()
		h.asked()
		h.must()
		if got := h.asked(); fmt.Sprint(got) != "[2026-01-01T10:59:59Z..]" {
			t.Errorf("asked %q", got)
		}
	})
}

// O7: odd datestamps are taken, and reported once.
func TestO7(t *testing.T) {
	moment := time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)
	midnight := time.Date(2021, 3, 4, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]struct {
		at   time.Time
		day  bool
		rule string
	}{
		"2021-03-04T05:06:07Z": {moment, false, ""}, "2021-03-04": {midnight, true, ""},
		"2021-03-04T05:06:07.5Z": {moment.Add(time.Second / 2), false, ruleDatestamp}, "2021-03-04T07:06:07+02:00": {moment, false, ruleDatestamp},
		"2021-03-04T07:06:07+0200": {moment, false, ruleDatestamp}, "2021-03-04T05:06:07": {moment, false, ruleDatestamp}, "2021-03-04 05:06:07": {moment, false, ruleDatestamp},
		"2021-03-04 05:06:07 Z": {moment, false, ruleDatestamp}, "2021-03-04t05:06:07z": {moment, false, ruleDatestamp}, "20210304T050607Z": {moment, false, ruleDatestamp},
		"2021-03-04T07:06:07+02": {moment, false, ruleDatestamp}, "2021-03-04 05:06:07 UTC": {moment, false, ruleDatestamp}, "2021-03-04T05:06:07GMT": {moment, false, ruleDatestamp},
		"2021-03-03T23:59:60Z": {midnight, false, ruleDatestamp}, "2021-03-04T01:59:60+02:00": {midnight, false, ruleDatestamp}, "2021-03-03T23:59:61Z": {time.Time{}, false, ruleDatestamp},
		"2021-03-04Z": {midnight, true, ruleDatestamp}, "20210304": {midnight, true, ruleDatestamp}, "2021-03": {midnight.AddDate(0, 0, -3), true, ruleDatestamp},
		"2021-02-30": {time.Time{}, false, ruleDatestamp}, "yesterday": {time.Time{}, false, ruleDatestamp}, "": {time.Time{}, false, ruleDatestamp},
		"2021-03-04T24:00:00Z": {time.Time{}, false, ruleDatestamp}, "-001-01-01": {time.Time{}, false, ruleDatestamp}, "0000-01-01": {time.Time{}, false, ""},
	} {
		rec, problems := readOne(t, `<record><header><identifier>oai:x:1</identifier><datestamp>`+text+`</datestamp></header><metadata><a/></metadata></record>`)
		if want.at.IsZero() && text == "0000-01-01" {
			continue
		}
		if rec == nil || !rec.Datestamp.Equal(want.at) || rec.Day != want.day || problems != want.rule {
			t.Errorf("%q is taken as %v, reported %q", text, rec, problems)
		}
	}
	for _, tt := range []struct {
		rule  string
		days  bool
		stamp time.Time
		lie   testserver.Lie
	}{
		{ruleGranularity, true, time.Time{}, testserver.FinerStamps}, {ruleGranularity, false, time.Time{}, testserver.CoarserStamps},
		{ruleFuture, false, time.Time{}, testserver.FutureStamps}, {ruleEarliest, false, time.Date(2019, 1, 1, 0, 0, 0, 0, time.UTC), ""},
		{ruleRange, false, time.Time{}, testserver.FromIgnored}, {ruleDatestamp, false, time.Time{}, testserver.OffsetStamps},
	} {
		h := newHarvester(t, 25)
		h.repo.Days = tt.days
		h.repo.Put(testserver.Item{Identifier: "oai:x:1", Datestamp: tt.stamp, Metadata: map[string]string{DC: testserver.DublinCore("S")}})
		if tt.lie != "" {
			h.repo.Lie(tt.lie)
		}
		if tt.rule == ruleRange {
			h.walk.From = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
		}
		if h.must(); len(h.problems[tt.rule]) != 1 {
			t.Errorf("%s, %s: reported %v", tt.rule, tt.lie, h.problems)
		}
	}
}

// O12: redirects of the base URL are followed; another repository is held.
func TestO12(t *testing.T) {
	t.Run("to another host", func(t *testing.T) {
		h := newHarvester(t, 25)
		base := strings.Replace(h.walk.URL, "127.0.0.1", "localhost", 1)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, base+"?"+r.URL.RawQuery, http.StatusFound)
		}))
		defer front.Close()
		h.walk.URL = front.URL + "/old"
		h.stop = 1
		if _, err := h.run(); err != nil {
			t.Fatal(err)
		}
		h.stop, h.walk.State = 0, h.saved
		h.must()
		if len(h.problems[ruleRedirect]) != 1 {
			t.Errorf("%v", h.problems)
		}
	})
	t.Run("to what is no web address", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}))
		defer server.Close()
		w := Walk{Client: server.Client(), URL: server.URL}
		if _, err := walkAll(&w); !errors.Is(err, ErrRefused) {
			t.Error(err)
		}
	})
	t.Run("baseURL", func(t *testing.T) {
		for from, to := range map[string]struct {
			base string
			ok   bool
		}{
			"http://a.example/oai": {"https://A.example:443/oai/", true}, "http://a.example/oai?x=1": {"http://a.example/oai?x=2", false},
			"https://a.example/oai": {"https://b.example/oai", false}, "https://a.example/": {"https://a.example/oai", false},
		} {
			base := from
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.FormValue("verb") == "Identify" {
					fmt.Fprint(w, identifyAnswer(base))
					return
				}
				fmt.Fprint(w, list(record(1), ""))
			}))
			w := Walk{Client: server.Client(), URL: server.URL}
			if _, err := walkAll(&w); err != nil {
				t.Fatal(err)
			}
			before := w.Result().State
			w.State, base = before, to.base
			_, err := walkAll(&w)
			if errors.Is(err, ErrRepository) == to.ok || (err == nil) != to.ok {
				t.Errorf("from %s to %s: %v", from, to.base, err)
			}
			if r := w.Result(); !to.ok && (r.Identity == nil || r.Identity.BaseURL != to.base || r.State.BaseURL() != from) {
				t.Errorf("%+v", r)
			}
			server.Close()
		}
	})
	t.Run("earliestDatestamp falls", func(t *testing.T) {
		h := newHarvester(t, 5)
		h.must()
		h.repo.Earliest = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
		h.repo.Put(testserver.Item{Identifier: "oai:x:old", Datestamp: time.Date(1999, 2, 1, 0, 0, 0, 0, time.UTC), Metadata: map[string]string{DC: testserver.DublinCore("S")}})
		h.repo.Fail(testserver.Failure{Verb: "ListRecords", How: testserver.Unavailable, Times: 1})
		if _, err := h.run(); err == nil {
			t.Fatal("the list could be read")
		}
		if r := h.must(); !r.Full || h.problems[ruleEarliest] == nil || h.has["oai:x:old"] == nil {
			t.Errorf("%+v, %v", r, h.problems)
		}
	})
	t.Run("nothing was read", func(t *testing.T) {
		h := newHarvester(t, 5)
		h.repo.Fail(testserver.Failure{Verb: "ListRecords", How: testserver.Unavailable, Times: 1})
		if r, err := h.run(); err == nil || !r.State.IsZero() {
			t.Errorf("%v, %+v", err, r.State)
		}
	})
}

// O13: one request at a time.
func TestO13(t *testing.T) {
	h := newHarvester(t, 95)
	inside := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case inside <- struct{}{}:
		default:
			t.Error("two requests at a time")
		}
		h.repo.ServeHTTP(w, r)
		<-inside
	}))
	defer server.Close()
	h.repo.Gzip = true
	h.walk.URL = server.URL
	h.must()
	if c := h.repo.Calls(); len(c) != 11 || c[0].Header.Get("Accept-Encoding") != "gzip" {
		t.Errorf("%d requests, %v", len(c), c[0].Header)
	}
}

// O14: a window keeps each list short.
func TestO14(t *testing.T) {
	h := newHarvester(t, 0)
	for i := range 100 {
		h.repo.Put(testserver.Item{Identifier: fmt.Sprintf("oai:d:%d", i), Datestamp: time.Date(2020, 1, 1+7*i, 0, 0, 0, 0, time.UTC), Metadata: map[string]string{DC: testserver.DublinCore("S")}})
	}
	h.repo.Lie(testserver.EmptyList) // there is nothing in many of them
	h.walk.Window = 30 * 24 * time.Hour
	r := h.must()
	asked := h.asked()
	if len(asked) < 70 || r.Split {
		t.Errorf("%d requests: %q", len(asked), asked)
	}
	for i, q := range asked {
		from, until, _ := strings.Cut(q, "..")
		if i == 0 && from != "" || i > 0 && !strings.HasSuffix(asked[i-1], ".."+from) || i == len(asked)-1 && until != "" {
			t.Errorf("asked %q after %q", q, asked[max(i-1, 0)])
		}
	}
	// It can be broken off anywhere.
	again := newHarvester(t, 0)
	again.repo, again.walk, again.now = h.repo, h.walk, h.now
	again.walk.State, again.stop = State{}, 1
	for range 200 {
		r, err := again.run()
		if err != nil {
			t.Fatal(err)
		}
		if r.Whole {
			break
		}
		again.walk.State = again.saved
	}
	if wrong := again.differs(); wrong != nil {
		t.Error(wrong)
	}
}

// A State that is kept as it is, and not as its text, stays what it was while the walk goes
// on: a walk that goes on from it leaves out nothing.
func TestStateStays(t *testing.T) {
	h := newHarvester(t, 0)
	if s := h.stored(State{}); !s.IsZero() || s.Unfinished() {
		t.Errorf("the zero State is %+v", s)
	}
	for i := range 40 {
		h.repo.Put(testserver.Item{Identifier: fmt.Sprintf("oai:d:%d", i), Datestamp: time.Date(2025, 1, 1+7*i, 0, 0, 0, 0, time.UTC), Metadata: map[string]string{DC: testserver.DublinCore("S")}})
	}
	h.walk.Window = 30 * 24 * time.Hour
	var asText, asItIs []State
	for doc, err := range h.walk.Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range doc.Entries() {
			if bad != nil {
				t.Fatal(bad)
			}
		}
		state, _ := doc.State()
		asText, asItIs = append(asText, h.stored(state)), append(asItIs, state)
	}
	if len(asItIs) < 5 {
		t.Fatalf("%d documents", len(asItIs))
	}
	rest := func(s State) []string {
		again := h.walk
		again.State = s
		ids, err := walkAll(&again)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	for i := range asItIs {
		if got, want := rest(asItIs[i]), rest(asText[i]); !slices.Equal(got, want) {
			t.Errorf("after document %d the State leads to %d records, and its text to %d", i, len(got), len(want))
		}
	}
}

// A clock that is far behind does not make windows without number: the first one has all
// that is earlier than the repository says that anything is.
func TestWindowsOfWrongClock(t *testing.T) {
	h := newHarvester(t, 10)
	h.repo.Earliest = h.now.Add(-100 * 24 * time.Hour)
	h.walk.Window = 30 * 24 * time.Hour
	h.repo.Rewrite = func(_ string, _ int, body []byte) []byte {
		return regexp.MustCompile(`<responseDate>\d{4}`).ReplaceAll(body, []byte("<responseDate>0002"))
	}
	for range 2 {
		if r := h.must(); r.Records != 10 {
			t.Errorf("%+v", r)
		}
		if asked := h.asked(); len(asked) != 4 {
			t.Errorf("%d requests: %.500q", len(asked), asked)
		}
	}
}

// The clock of a repository may go back, and from may not be later than its answers.
func TestClockGoesBack(t *testing.T) {
	h := newHarvester(t, 5)
	h.must()
	h.now = h.now.Add(-6 * time.Hour)
	h.repo.Lie(testserver.LateFromRefused)
	h.repo.Put(testserver.Item{Identifier: "oai:x:1", Metadata: map[string]string{DC: testserver.DublinCore("S")}})
	h.must()
	if h.problems[ruleFrom] == nil {
		t.Errorf("%v", h.problems)
	}
}

// A repository that says seconds and takes days only.
func TestSecondsRefused(t *testing.T) {
	h := newHarvester(t, 25)
	h.repo.Lie(testserver.SecondsRefused)
	h.must()
	h.now = h.now.Add(time.Hour)
	h.repo.Put(testserver.Item{Identifier: "oai:x:1", Metadata: map[string]string{DC: testserver.DublinCore("S")}})
	h.repo.Calls()
	h.must()
	if got := h.asked(); fmt.Sprint(got) != "[2026-01-01T11:59:59Z.. 2026-01-01..]" || len(h.problems[ruleGranularity]) != 1 {
		t.Errorf("asked %q, %v", got, h.problems)
	}
}

// A repository that says seconds and stamps with days, or with midnights: what changes later on the
// day of the last walk has a datestamp of before that walk.
func TestSecondsSaidOfDays(t *testing.T) {
	for _, c := range []struct{ first, second, later, want string }{
		{"2025-12-30", "2025-12-31T00:00:01Z", "2026-01-09", "[oai:x:0 oai:x:1] [oai:x:2] [oai:x:2 oai:x:3]"},
		{"2025-12-30T00:00:00Z", "2025-12-31T00:00:00Z", "2026-01-09T00:00:00Z", "[oai:x:0 oai:x:1] [oai:x:2] [oai:x:2 oai:x:3]"},
		{"2025-12-30T00:00:00Z", "2025-12-31T00:00:01Z", "2026-01-09T00:00:00Z", "[oai:x:0 oai:x:1] [] []"}, // nothing shows it
	} {
		if got := harvestDays(t, c.first, c.second, c.later); got != c.want {
			t.Errorf("%s, %s: got %s, want %s", c.first, c.second, got, c.want)
		}
	}
}

// A repository that stamps with midnights, and that an earlier version has read or that formerly
// stamped with seconds, is recognized by the next list that has any record.
func TestMidnightsLater(t *testing.T) {
	var asked []string
	stamps := "2026-01-07T05:06:07Z"
	server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.FormValue("from"))
		fmt.Fprint(w, list(strings.Replace(record(1), "2025-01-01T00:00:00Z", stamps, 1), ""))
	})
	now := time.Date(2026, 1, 8, 15, 0, 0, 0, time.UTC)
	w := Walk{Client: server.Client(), URL: server.URL, Now: func() time.Time { return now }}
	for range 3 {
		if _, err := walkAll(&w); err != nil {
			t.Fatal(err)
		}
		w.State, stamps = w.Result().State, "2026-01-09T00:00:00Z"
		now = now.Add(12 * time.Hour)
	}
	if got := strings.Join(asked, " "); got != " 2026-01-08T14:59:59Z 2026-01-08T03:00:00Z" {
		t.Errorf("asked from %q", got)
	}
}

// harvestDays walks three times on one day, on which a record comes after each walk.
func harvestDays(t *testing.T, first, second, later string) string {
	now := time.Date(2026, 1, 9, 15, 0, 0, 0, time.UTC)
	days := []string{first, second}
	server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
		var records strings.Builder
		for i, day := range days {
			if day[:len("2006-01-02")]+"T00:00:00Z" >= r.FormValue("from") {
				records.WriteString(strings.Replace(record(i), "2025-01-01T00:00:00Z", day, 1))
			}
		}
		if records.Len() == 0 {
			fmt.Fprint(w, refusal(NoRecordsMatch, ""))
			return
		}
		fmt.Fprint(w, list(records.String(), ""))
	})
	w := Walk{Client: server.Client(), URL: server.URL, Now: func() time.Time { return now }}
	var got []string
	for range 3 {
		ids, err := walkAll(&w)
		text, failed := w.Result().State.MarshalText()
		if err := errors.Join(err, failed, w.State.UnmarshalText(text)); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(ids))
		now, days = now.Add(2*time.Hour), append(days, later)
	}
	return strings.Join(got, " ")
}

// What is selected by URL, fields and both.
func TestSelection(t *testing.T) {
	day := time.Date(2021, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		query string
		walk  Walk
		want  string
		full  bool
	}{
		{"", Walk{}, "verb=ListRecords&metadataPrefix=oai_dc", true},
		{"?verb=GetRecord&identifier=oai:x:1&metadataPrefix=mods", Walk{}, "verb=ListRecords&metadataPrefix=mods", true},
		{"?x=1&verb=ListRecords&resumptionToken=abc&y=%26", Walk{}, "x=1&y=%26&verb=ListRecords&metadataPrefix=oai_dc", true},
		{"?from=2021-03-01T10:00:00Z&until=2021-03-01", Walk{}, "verb=ListRecords&metadataPrefix=oai_dc&from=2021-03-01T10:00:00Z&until=2021-03-01T23:59:59Z", false},
		{"?set=a:b&from=2021-03-01&until=2021-03-02#top", Walk{}, "verb=ListRecords&metadataPrefix=oai_dc&set=a:b&from=2021-03-01T00:00:00Z&until=2021-03-02T23:59:59Z", false},
		{"?metadataPrefix=mods&set=a", Walk{Prefix: "marc", Set: "b"}, "verb=ListRecords&metadataPrefix=marc&set=b", true},
		{"", Walk{From: day, Until: day.Add(time.Hour), Verb: ListIdentifiers}, "verb=ListIdentifiers&metadataPrefix=oai_dc&from=2021-03-01T00:00:00Z&until=2021-03-01T01:00:00Z", false},
	} {
		var asked string
		server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
			asked = r.URL.RawQuery
			fmt.Fprint(w, refusal(NoRecordsMatch, ""))
		})
		w := tt.walk
		w.Client, w.URL = server.Client(), server.URL+"/"+tt.query
		if _, err := walkAll(&w); err != nil || asked != tt.want || w.Result().Full != tt.full {
			t.Errorf("%q: asked %q, %+v, %v", tt.query, asked, w.Result(), err)
		}
	}
	for _, bad := range []string{"", "ftp://a.example/", "http://", "file:///etc/passwd", "http://a.example/?from=soon", "http://a.example/?set=%zz", "://", "http://a.example/?from=2021-03-02&until=2021-03-01"} {
		w := Walk{URL: bad}
		_, _, err := ParseURL(bad)
		if _, failed := walkAll(&w); err == nil || failed == nil {
			t.Errorf("%q is a base URL: %v, %v", bad, err, failed)
		}
	}
	if _, err := walkAll(&Walk{URL: "http://a.example/", Verb: Identify}); err == nil {
		t.Error("Identify is a list")
	}
}

// ListIdentifiers is walked too.
func TestWalkIdentifiers(t *testing.T) {
	h := newHarvester(t, 25)
	h.repo.Delete("oai:repository.example:3")
	h.walk.Verb = ListIdentifiers
	if r, err := h.run(); err != nil || !r.Whole || !r.Full || len(h.has) != 25 || !h.has["oai:repository.example:3"].Deleted || h.has["oai:repository.example:4"].Metadata != nil {
		t.Errorf("%+v, %v, %d", r, err, len(h.has))
	}
}

// An interval that has passed is not asked for again.
func TestUntil(t *testing.T) {
	h := newHarvester(t, 25)
	h.walk.Until = time.Date(2021, 3, 1, 0, 0, 9, 0, time.UTC)
	if r, err := h.run(); err != nil || !r.Whole || len(h.has) != 10 {
		t.Fatalf("%+v, %v", r, err)
	}
	h.repo.Calls()
	if r, err := h.run(); err != nil || !r.Whole || !r.Empty || r.State.Mark().IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	if asked := h.asked(); len(asked) != 0 {
		t.Errorf("asked %q", asked)
	}
}

// A loop that leaves a document unread is told so.
func TestUnread(t *testing.T) {
	h := newHarvester(t, 25)
	for _, err := range h.walk.Documents(context.Background()) {
		if err != nil && !errors.Is(err, errUnread) {
			t.Error(err)
		}
	}
	if r := h.walk.Result(); r.Whole || r.Records != 0 {
		t.Errorf("%+v", r)
	}
}
