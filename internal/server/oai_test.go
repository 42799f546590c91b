package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/translate"
)

const mods = "http://www.loc.gov/mods/v3"

// newRepositoryServer serves the repositories of a log's sets.
func newRepositoryServer(t *testing.T, path string, change func(*publish.RepositoryOptions)) *testServer {
	t.Helper()
	made := map[string]*publish.Repository{}
	var h *testServer
	h = newTestServer(t, path, func(o *server.Options) {
		o.PartialHeader = func(_ context.Context, set string) string { return set }
		o.Repository = func(ctx context.Context, set string) (*publish.Repository, error) {
			if _, err := h.log.Set(ctx, set); err != nil {
				return nil, publish.ErrNotFound
			}
			if made[set] == nil {
				o := publish.RepositoryOptions{Log: h.log, BaseURL: h.base, Set: set, Content: stored{h.contents}.Open, AdminEmail: "a@a.example", Page: 7,
					Formats: []publish.RepositoryFormat{{Format: oaipmh.Format{Prefix: "mods", Namespace: mods, Schema: "https://schema.example/mods.xsd"}, Type: "application/mods+xml"}}}
				if change != nil {
					change(&o)
				}
				made[set] = publish.NewRepository(o)
			}
			return made[set], nil
		}
	})
	return h
}

// A repository answers at its URL with what the other answers of the server have: limits,
// headers, compression.
func TestRepository(t *testing.T) {
	h := newRepositoryServer(t, "/bridge", nil).set("main", "Maps", event.Mirror)
	h.alive("main", "urn:x:1", rep{body: `<mods xmlns="` + mods + `"/>`, kind: "application/mods+xml"})
	if err := h.log.MarkSetComplete(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	const list = "/sets/main/oai?verb=ListRecords&metadataPrefix=mods"
	r := h.get(list)
	if r.status != 200 || !strings.Contains(r.body, `<metadata><mods xmlns="`+mods+`"/></metadata>`) || !strings.Contains(r.body, ">"+h.base+"/sets/main/oai</request>") {
		t.Fatalf("%d %s", r.status, r.body)
	}
	for name, want := range map[string]string{"Content-Type": "text/xml; charset=utf-8", "Cache-Control": "no-cache", "Etag": "", "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff", "Content-Encoding": ""} {
		if got := r.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	packed := h.get(list, "Accept-Encoding", "gzip")
	zr, err := gzip.NewReader(strings.NewReader(packed.body))
	if err != nil || packed.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%v, %v", packed.header, err)
	}
	if plain, err := io.ReadAll(zr); err != nil || withoutDate(string(plain)) != withoutDate(r.body) {
		t.Errorf("compressed it is %s, %v", plain, err)
	}
	post := func(body, kind string) (int, string) {
		res, err := h.web.Client().Post(h.base+"/sets/main/oai", kind, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		all, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(all)
	}
	const form = "application/x-www-form-urlencoded"
	if status, body := post("verb=Identify", form); status != 200 || !strings.Contains(body, "<repositoryName>Maps<") {
		t.Errorf("POST: %d %s", status, body)
	}
	if status, _ := post(strings.Repeat("a", 1<<20), form); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long POST: %d", status)
	}
	for _, c := range []struct {
		method, path string
		status       int
		header       []string
	}{
		{"HEAD", list, 200, nil}, {"HEAD", list, 200, []string{"Accept-Encoding", "gzip"}}, {"PUT", list, 405, nil}, {"GET", "/sets/none/oai?verb=Identify", 404, nil}, {"GET", "/sets/main/oai/", 404, nil},
		{"GET", "/sets/main/oai/x", 404, nil}, {"GET", "/sets/%6dain/oai?verb=Identify", 404, nil}, {"PUT", list, 405, []string{"Accept-Encoding", "gzip"}},
		{"GET", "/sets/main/oai?" + strings.Repeat("a", 20<<10), 414, nil},
	} {
		if r := h.ask(c.method, h.base+c.path, c.header...); r.status != c.status || r.status != 200 && r.header.Get("Content-Encoding") != "" {
			t.Errorf("%s %.60s: %d %v, want %d", c.method, c.path, r.status, r.header, c.status)
		}
	}
	for _, encoding := range []string{"identity", "gzip"} {
		ended := h.journal.expect("DEBUG request method=HEAD")
		h.ask("HEAD", h.base+list, "Accept-Encoding", encoding)
		if line := <-ended; !strings.Contains(line, "status=200") {
			t.Errorf("a HEAD in %s is logged, and so counted, as %q", encoding, line)
		}
	}
	if page := h.get("/sets/main/"); !strings.Contains(page.body, `href="oai?verb=Identify"`) {
		t.Errorf("the page does not name the repository: %s", page.body)
	}
}

// A set of a Source may have a very long setSpec. The list of sets can be read to its end, and
// the records of each set, all the same.
func TestRepositoryOfALongSetSpec(t *testing.T) {
	h := newRepositoryServer(t, "", nil).set("main", "Maps", event.Redirect)
	o := event.Observation{Record: "urn:x:1", Title: "A record", Representations: []event.Representation{{Href: "https://origin.example/1", Type: "text/html", Length: event.NoLength}}}
	for i := range 502 { // the last one of a page is the long one
		spec := fmt.Sprintf("s%04d", i)
		if i == 499 {
			spec += strings.Repeat("x", 16<<10)
		}
		o.Categories = append(o.Categories, event.Category{Term: spec, Scheme: translate.SetScheme})
	}
	h.observe("main", o)
	if err := h.log.MarkSetComplete(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	var specs []string
	for path := "/sets/main/oai?verb=ListSets"; path != ""; {
		body := h.get(path).want(t, 200).body
		for _, found := range regexp.MustCompile(`<setSpec>([^<]*)<`).FindAllStringSubmatch(body, -1) {
			specs = append(specs, found[1])
		}
		path = ""
		if next := resumptionToken.FindStringSubmatch(body); next != nil {
			path = "/sets/main/oai?verb=ListSets&resumptionToken=" + url.QueryEscape(next[1])
		}
	}
	if len(specs) != 502 {
		t.Fatalf("%d sets, want 502", len(specs))
	}
	if r := h.get("/sets/main/oai?verb=ListIdentifiers&metadataPrefix=oai_dc&set="+url.QueryEscape(specs[499])).want(t, 200); !strings.Contains(r.body, "<identifier>urn:x:1</identifier>") {
		t.Errorf("the records of the set: %.300s", r.body)
	}
}

// The schema that a Source states for a format may be no URL. Then the format has the next one
// that is known, or none, and the repository names its formats all the same.
func TestRepositoryOfABadSchema(t *testing.T) {
	const one, two = "https://one.example/format", "https://two.example/format"
	h := newRepositoryServer(t, "", func(o *publish.RepositoryOptions) {
		o.Known = func(context.Context) ([]oaipmh.Format, error) {
			return []oaipmh.Format{{Prefix: "one", Namespace: one, Schema: "one.xsd"}, {Prefix: "two", Namespace: two, Schema: "none (see the manual)"},
				{Prefix: "two", Namespace: two, Schema: "https://two.example/two.xsd"}}, nil
		}
	}).set("main", "Maps", event.Mirror)
	o := event.Observation{Record: "urn:x:1", Title: "A record", Fetched: true}
	for _, prefix := range []string{"one", "two"} {
		body := `<a xmlns="https://` + prefix + `.example/format"/>`
		if err := h.contents.Put(t.Context(), content.NewDraft([]byte(body))); err != nil {
			t.Fatal(err)
		}
		o.Representations = append(o.Representations, event.Representation{Href: "https://origin.example/oai?verb=GetRecord&identifier=urn%3Ax%3A1&metadataPrefix=" + prefix,
			Type: "application/xml", Profile: "https://" + prefix + ".example/format", Length: int64(len(body)), Hash: event.HashOf(sha256.Sum256([]byte(body)))})
	}
	h.observe("main", o)
	for _, path := range []string{"/sets/main/oai?verb=ListMetadataFormats", "/sets/main/oai?verb=ListMetadataFormats&identifier=urn:x:1"} {
		r := h.get(path).want(t, 200)
		for _, want := range []string{"<metadataPrefix>one</metadataPrefix><schema></schema>", "<metadataPrefix>two</metadataPrefix><schema>https://two.example/two.xsd</schema>"} {
			if !strings.Contains(r.body, want) {
				t.Errorf("%s: no %s in %s", path, want, r.body)
			}
		}
	}
}

// Every answer of a repository passes the protocol's schema, with the provenance, the
// oai_dc that is made, and identifiers that are not URIs.
func TestRepositoryIsValid(t *testing.T) {
	testenv.Heavy(t)
	h := newRepositoryServer(t, "", nil).set("main", "Maps & <plans>", event.Mirror)
	if err := h.log.MarkSetComplete(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	h.alive("main", "urn:x:1", rep{body: `<mods xmlns="` + mods + `"/>`, kind: "application/mods+xml"})
	h.alive("main", "a record & \"no URI\" <ü>\x00", rep{body: "text", kind: "text/plain; charset=utf-8"})
	h.alive("main", "https://origin.example/ü?a=b&c#d", rep{body: "<a/>", kind: "application/mods+xml"})
	h.alive("main", "urn:x:2", rep{body: "gone", kind: "text/plain"})
	h.dead("main", "urn:x:2")
	for i := range 10 {
		h.observe("main", event.Observation{Record: fmt.Sprint("urn:y:", i), Title: "\x00\uffff <&>\"", Categories: []event.Category{{Term: "maps:old", Label: "Old & maps"}, {Term: "ü"}},
			Details: &event.Details{Language: "not a language", Authors: []event.Person{{Name: "A <b>"}}, Rights: event.Text{Value: "©", Language: "fr"}}, Fetched: true,
			Representations: []event.Representation{{Href: "https://origin.example/1", Type: "no type", Length: event.NoLength, Hash: event.HashOf([32]byte{}), Hreflang: "?"}}})
	}
	answers := map[string][]byte{}
	ask := func(name, query string) string {
		r := h.get("/sets/main/oai?" + query)
		if r.status != 200 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
		answers[name] = []byte(r.body)
		return r.body
	}
	for _, query := range []string{"verb=Identify", "verb=ListSets", "verb=ListMetadataFormats", "verb=ListMetadataFormats&identifier=urn:x:1", "verb=ListIdentifiers&metadataPrefix=mods", "verb=ListRecords&metadataPrefix=mods",
		"verb=GetRecord&metadataPrefix=oai_dc&identifier=urn:x:2", "verb=GetRecord&metadataPrefix=mods&identifier=urn:x:1", "verb=ListMetadataFormats&identifier=urn:x:2", "verb=ListRecords&metadataPrefix=oai_dc&from=2030-01-01"} {
		ask(strings.Map(func(c rune) rune {
			if c == '&' || c == ':' || c == '=' {
				return '-'
			}
			return c
		}, query), query)
	}
	pages := 0
	for query := "verb=ListRecords&metadataPrefix=oai_dc"; query != ""; pages++ {
		body := ask(fmt.Sprint("page-", pages), query)
		_, token, _ := strings.Cut(body, "<resumptionToken")
		_, token, _ = strings.Cut(token, ">")
		if token, _, _ = strings.Cut(token, "<"); token == "" {
			break
		}
		query = "verb=ListRecords&resumptionToken=" + token
	}
	if pages != 1 || !strings.Contains(string(answers["page-0"]), ":main/a%20record") {
		t.Errorf("%d further pages, %s", pages, answers["page-0"])
	}
	testenv.NewOAISchema(t).CheckAll(t, answers)
	delete(answers, "verb-ListRecords-metadataPrefix-mods")
	delete(answers, "verb-GetRecord-metadataPrefix-mods-identifier-urn-x-1")
	testenv.NewStrictOAISchema(t).CheckAll(t, answers)
}

func withoutDate(answer string) string {
	before, rest, _ := strings.Cut(answer, "<responseDate>")
	_, after, _ := strings.Cut(rest, "</responseDate>")
	return before + after
}

// While a set is not whole, a whole list is not to be had, and other bridges are told what
// it waits for. Everything else is answered.
func TestRepositoryOfPartialSet(t *testing.T) {
	h := newRepositoryServer(t, "", func(o *publish.RepositoryOptions) { o.Log = partialLog{o.Log} }).set("main", "Maps", event.Redirect)
	h.observe("main", event.Observation{Record: "urn:x:1", Title: "one", Representations: []event.Representation{{Href: "https://origin.example/1", Type: "text/html", Length: event.NoLength}}})
	for query, status := range map[string]int{
		"verb=ListRecords&metadataPrefix=oai_dc": 503, "verb=ListIdentifiers&metadataPrefix=oai_dc&until=2030-01-01": 503, "verb=ListRecords&metadataPrefix=oai_dc&from=2020-01-01": 200,
		"verb=Identify": 200, "verb=GetRecord&metadataPrefix=oai_dc&identifier=urn:x:1": 200,
	} {
		for _, method := range []string{"GET", "HEAD"} {
			r := h.ask(method, h.base+"/sets/main/oai?"+query, "Accept-Encoding", "gzip")
			waits := r.header.Get("Retry-After") + r.header.Get("Bridge-Partial")
			if r.status != status || status == 503 && waits != "30main" || status == 200 && waits != "" {
				t.Errorf("%s %s: %d %v", method, query, r.status, r.header)
			}
		}
	}
}

type partialLog struct{ publish.RepositoryLog }

func (l partialLog) Set(ctx context.Context, name string) (event.Set, error) {
	set, err := l.RepositoryLog.Set(ctx, name)
	set.Partial = true
	return set, err
}

// A request to a repository has a body only if it is a POST.
func TestRepositoryTakesNoBody(t *testing.T) {
	h := newRepositoryServer(t, "", nil).set("main", "Maps", event.Mirror)
	const verb = "verb=ListMetadataFormats"
	for request, status := range map[string]int{
		"POST /sets/main/oai HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n": 200, "GET /sets/main/oai?" + verb + " HTTP/1.1\r\n": 413, "PUT /sets/main/oai HTTP/1.1\r\n": 413,
	} {
		r, _ := h.raw(request + "Host: localhost\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(verb)) + "\r\n\r\n" + verb)
		r.want(t, status)
	}
}

// A content that is damaged cuts the answer: nobody takes the part for the whole.
func TestRepositoryIsCutShort(t *testing.T) {
	h := newRepositoryServer(t, "", nil).set("main", "Maps", event.Mirror)
	h.alive("main", "urn:x:1", rep{body: `<mods xmlns="` + mods + `">` + strings.Repeat("x", 100_000) + "</mods>", kind: "application/mods+xml"})
	h.unstored("main", "urn:x:2", rep{body: `<mods xmlns="` + mods + `">lost</mods>`, kind: "application/mods+xml"})
	if err := h.log.MarkSetComplete(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	for _, coding := range []string{"identity", "gzip"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.base+"/sets/main/oai?verb=ListRecords&metadataPrefix=mods", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", coding)
		res, err := h.web.Client().Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the answer came to an end", coding)
		}
	}
	if r := h.get("/sets/main/oai?verb=GetRecord&metadataPrefix=mods&identifier=urn:x:2"); r.status != 500 || !strings.Contains(fmt.Sprint(h.journal.at(slog.LevelError)), "cannot be served") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// harvested is what oai_harvester.pl prints.
type harvested struct {
	Date     string            `json:"date"`
	Identity map[string]string `json:"identity"`
	Formats  []string          `json:"formats"`
	Sets     []string          `json:"sets"`
	Headers  []harvestedRecord `json:"headers"`
	Records  []harvestedRecord `json:"records"`
}

type harvestedRecord struct {
	Identifier string   `json:"identifier"`
	Datestamp  string   `json:"datestamp"`
	Deleted    int      `json:"deleted"`
	Sets       []string `json:"sets"`
	Metadata   string   `json:"metadata"`
}

// Debian's libhttp-oai-perl harvests a repository whole and then from the responseDate of
// its last list on, in rounds of change: identifiers, datestamps, sets, deletions and the
// bytes of the records are those of the log.
func TestHTTPOAIHarvests(t *testing.T) {
	perl := testenv.Need(t, "perl", "perl")
	if exec.Command(perl, "-MHTTP::OAI", "-e", "1").Run() != nil {
		testenv.Missing(t, "the Perl module HTTP::OAI", "libhttp-oai-perl")
	}
	h := newRepositoryServer(t, "", nil).set("main", "Maps & plans", event.Mirror)
	if err := h.log.MarkSetComplete(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	harvest := func(from string) *harvested {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), perl, filepath.Join(testenv.Root(t), "testdata", "oai_harvester.pl"), h.base+"/sets/main/oai", "mods", from)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		all := &harvested{}
		if err == nil {
			err = json.Unmarshal(out, all)
		}
		if err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		return all
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	want := map[string]harvestedRecord{}
	mirror := map[string]harvestedRecord{}
	from, deletions := "", 0
	for round := range testenv.Rounds(t, 3, 60) {
		h.ahead.Add(int64(rnd.IntN(3)) * int64(time.Second) * 3 / 4)
		for n := range rnd.IntN(30) + 2 {
			id := fmt.Sprintf("urn:x:é%d", rnd.IntN(40))
			if had, ok := want[id]; ok && had.Deleted == 0 && rnd.IntN(4) == 0 {
				h.dead("main", id)
				deletions++
				want[id] = harvestedRecord{Identifier: id, Deleted: 1, Sets: had.Sets}
				continue
			}
			// In canonical form, so that the library writes the same bytes. It loses xmlns="".
			doc := fmt.Sprintf(`<mods xmlns="%s" version="3.8"><note type="x">%d-%d &lt;&amp; ü 🗺</note></mods>`, mods, round, n)
			if n%3 == 0 {
				doc = fmt.Sprintf(`<m:mods xmlns:m="%s"><note>no namespace %d-%d</note></m:mods>`, mods, round, n)
			}
			h.alive("main", id, rep{body: "<?xml version=\"1.0\"?>\n" + doc, kind: "application/mods+xml"})
			want[id] = harvestedRecord{Identifier: id, Metadata: doc, Sets: []string{}}
		}
		got := harvest(from)
		for _, rec := range got.Records {
			mirror[rec.Identifier] = rec
		}
		from = got.Date
		if headers := len(got.Headers); headers != len(got.Records) || headers == 0 || from == "" {
			t.Errorf("round %d: %d headers, %d records, responseDate %q", round, headers, len(got.Records), from)
		}
		if len(mirror) != len(want) {
			t.Errorf("round %d: %d records, want %d", round, len(mirror), len(want))
		}
		for id, rec := range want {
			e, err := h.log.Record(t.Context(), "main", event.Key(id))
			if err != nil {
				t.Fatal(err)
			}
			rec.Datestamp = e.Observed.Time().Format("2006-01-02T15:04:05Z")
			if got := mirror[id]; got.Metadata != rec.Metadata || got.Datestamp != rec.Datestamp || got.Deleted != rec.Deleted || !slices.Equal(got.Sets, rec.Sets) {
				t.Errorf("round %d:\n%+v, want\n%+v", round, got, rec)
			}
		}
		if !slices.Equal(got.Formats, []string{"oai_dc " + oaipmh.DCNamespace, "mods " + mods}) || got.Identity["repositoryName"] != "Maps & plans" || got.Identity["deletedRecord"] != "persistent" {
			t.Errorf("round %d: %v, %v", round, got.Formats, got.Identity)
		}
	}
	if deletions == 0 {
		t.Error("nothing was deleted: the rounds have shown too little")
	}
}

// A node that does not write the log knows nothing of the transactions under way. What one of
// them commits has no datestamp before the responseDate of an earlier answer, Identify's too:
// harvesters ask from there.
func TestResponseDateBesideTheWriter(t *testing.T) {
	var beside *eventlog.Log
	h := newRepositoryServer(t, "", func(o *publish.RepositoryOptions) { o.Log = beside })
	h.ahead.Store(-int64(time.Hour)) // so long ago did the transaction begin
	h.set("main", "Maps", event.Mirror)
	h.alive("main", "urn:x:1", rep{kind: "text/plain", body: "1"})
	beside, err := eventlog.Open(t.Context(), h.folder, eventlog.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	begun, commit, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- h.log.Do(context.Background(), func(ctx context.Context, tx *eventlog.Tx) error {
			_, err := tx.Append(ctx, &event.Batch{Source: h.sources["main"], Mode: event.ModeSubmission, Documents: []event.Document{{URL: "https://origin.example/"}},
				Items: []*event.Item{{Observation: event.Observation{Record: "urn:x:2", Title: "2", Fetched: true, Order: event.StampFromNanos(1_800_000_000_000_000_000)}}}})
			close(begun)
			<-commit
			return err
		})
	}()
	<-begun
	answers := map[string]string{}
	for _, query := range []string{"verb=Identify", "verb=ListMetadataFormats", "verb=GetRecord&metadataPrefix=oai_dc&identifier=no"} {
		answers[query] = h.get("/sets/main/oai?"+query).want(t, 200).body
	}
	close(commit)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	set, err := h.log.Set(t.Context(), "main")
	if err != nil || set.Last != 2 {
		t.Fatal(set.Last, err)
	}
	for query, answer := range answers {
		_, date, _ := strings.Cut(answer, "<responseDate>")
		at, err := time.Parse(time.RFC3339, date[:20])
		if err != nil || at.After(set.LastObserved.Time()) {
			t.Errorf("%s: the responseDate is %v, and an event that is committed later has %v, %v", query, at, set.LastObserved.Time(), err)
		}
	}
}
