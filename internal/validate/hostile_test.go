package validate

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// read checks a document as all that it could be.
func read(doc []byte) {
	for _, as := range []Protocol{"", AtomPMH, ResourceSync, OAIPMH, SIP} {
		_, _ = Run(context.Background(), Options{As: as, Base: "http://h.example/document", Stdin: bytes.NewReader(doc), Report: func(Finding) {}}, []string{"-"})
	}
}

// hostile are documents of about n bytes that break a rule as often as they can.
func hostile(n int) map[string][]byte {
	fill := func(each string) string { return strings.Repeat(each, max(1, n/len(each))) }
	feed := func(content string) []byte {
		return []byte(`<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:x</id><title>t</title><updated>2020-01-01T00:00:00Z</updated>` + content + "</feed>")
	}
	list := func(md, content string) []byte {
		return []byte(`<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md ` + md + `/>` + content + "</urlset>")
	}
	answer := func(verb, content string) []byte {
		return []byte(`<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2020-01-01T00:00:00Z</responseDate><request verb="` + verb + `">http://h.example/</request><` + verb + ">" +
			content + "</" + verb + "></OAI-PMH>")
	}
	var capabilities strings.Builder
	for i := range max(1, n/80) {
		fmt.Fprintf(&capabilities, `<url><loc>http://h.example/</loc><rs:md capability="c%d"/></url>`, i)
	}
	docs := map[string][]byte{
		"entries with one stamp":   feed(fill("<entry><id>urn:x:1</id><title>t</title><updated>2020-01-01T00:00:00Z</updated><content/></entry>")),
		"persons without a name":   feed(fill("<author><uri>:</uri></author>")),
		"bad languages":            feed(fill(`<title xml:lang="a b"/>`)),
		"second elements":          feed(fill("<icon/>")),
		"categories":               feed("<entry>" + fill(`<category scheme="a b" term="t"/>`) + "</entry>"),
		"many capabilities":        list(`capability="capabilitylist"`, capabilities.String()),
		"relations":                list(`capability="resourcelist"`, "<url><loc>http://h.example/</loc>"+fill(`<rs:ln rel="no" href="http://h.example/" type="x"/>`)+"</url>"),
		"a list of relations":      list(`capability="resourcelist"`, `<rs:ln href="http://h.example/" rel="`+fill("no ")+`"/>`),
		"entries that break rules": list(`capability="changedump"`, fill(`<url><loc>http://h.example/</loc><rs:md change="x" path="y" at="z" type="t"/></url>`)),
		"a long attribute":         list(`capability="`+fill("x")+`"`, ""),
		"formats":                  []byte(`<ingest-properties xmlns="http://www.alexandria.ucsb.edu"><notification-style>synchronous</notification-style><formats>` + fill("<format>x</format>") + "</formats></ingest-properties>"),
	}
	for name, content := range map[string]string{
		"records with nothing":   fill("<record/>"),
		"records of one name":    fill("<record><header><identifier>x</identifier><datestamp>y</datestamp><setSpec> </setSpec></header><metadata/><about/></record>"),
		"headers in wrong order": fill("<header><setSpec>a b</setSpec><datestamp/><identifier/></header>"),
		"resumption tokens":      fill("<resumptionToken/>"),
	} {
		docs["in OAI-PMH: "+name] = answer("ListRecords", content)
	}
	docs["errors"] = []byte(`<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/">` + fill(`<error code="x"/>`) + "</OAI-PMH>")
	docs["sets"] = answer("ListSets", fill("<set><setSpec>a b</setSpec></set>"))
	docs["formats of OAI-PMH"] = answer("ListMetadataFormats", fill("<metadataFormat><metadataPrefix>a b</metadataPrefix></metadataFormat>"))
	docs["Identify"] = answer("Identify", fill("<adminEmail/><description/><x/>"))
	for name, element := range testenv.Hostile(n) {
		docs["in OAI-PMH: "+name] = answer("ListRecords", "<record><header><identifier>urn:x</identifier></header><metadata>"+element+"</metadata></record>")
		docs["in a feed: "+name] = feed(element)
		docs["in a list: "+name] = list(`capability="resourcelist"`, "<url>"+element+"</url>")
		docs["in a record: "+name] = []byte(`<ingest-request xmlns="http://www.alexandria.ucsb.edu"><record>` + element + "</record></ingest-request>")
	}
	return docs
}

// Whatever is in a document, checking it costs time and memory in proportion to its
// length.
func TestCost(t *testing.T) { testenv.AffordableAll(t, hostile(256<<10), 4, read) }

// FuzzCost: the same of any document.
func FuzzCost(f *testing.F) { testenv.FuzzAffordable(f, hostile(8<<10), 4, read) }

// FuzzDocument: no document makes it panic, and each finding has what it needs.
func FuzzDocument(f *testing.F) {
	files, err := filepath.Glob("testdata/corpus/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatal("no corpus", err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, doc := range archive.Files {
			f.Add(doc.Data, "")
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte, as string) {
		o := Options{As: Protocol(as), Base: "http://h.example/document", Stdin: bytes.NewReader(doc)}
		if !slices.Contains([]Protocol{"", AtomPMH, ResourceSync, OAIPMH, SIP}, o.As) {
			o.As = ""
		}
		count := map[string]int{}
		o.Report = func(f Finding) {
			count[f.Rule]++
			if f.URL == "" || f.Found == "" || f.Severity == "" || f.Severity != Unread && (f.Rule == "" || f.Clause == "") {
				t.Errorf("%+v", f)
			}
		}
		sum, err := Run(context.Background(), o, []string{"-"})
		if err != nil || sum.Documents+sum.Unread == 0 {
			t.Errorf("%+v %v", sum, err)
		}
		for rule, n := range count {
			if n > 21 && rule != "" {
				t.Errorf("%d findings of %s", n, rule)
			}
		}
	})
}

// A Source that leads ever further is read to the limit, and one that hangs until the
// context ends.
func TestEndlessSource(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		const open = `<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/>`
		_, _ = io.WriteString(w, open) // who asked may have gone
		for i := range 10 {
			_, _ = fmt.Fprintf(w, "<sitemap><loc>http://%s%s/%d</loc></sitemap>", r.Host, r.URL.Path, i)
		}
		_, _ = io.WriteString(w, "</sitemapindex>")
	}))
	defer server.Close()
	findings, sum := check(t, Options{Follow: true, MaxDocuments: 50}, server.URL+"/list.xml")
	if sum.Documents != 50 || requests > 500 || !slices.ContainsFunc(findings, func(f Finding) bool { return strings.Contains(f.Found, "--max-documents") }) {
		t.Errorf("%+v after %d requests: %v", sum, requests, findings)
	}

	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hangs.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Follow: true}, []string{hangs.URL}); err == nil {
		t.Error("the end of the context is no error")
	}
}

// A gzip file that is a bomb, and one that is cut off, break a must.
func TestGzip(t *testing.T) {
	pack := func(doc string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := io.WriteString(z, doc); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	const open, end = `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">`, "</urlset>"
	whole := pack(open + end)
	for name, c := range map[string]struct {
		doc   []byte
		rules int
	}{"whole": {whole, 0}, "bomb": {pack(open + strings.Repeat(" ", 8<<20) + end), 1}, "cut": {whole[:len(whole)-12], 1}} {
		file := filepath.Join(t.TempDir(), name+".xml.gz")
		if err := os.WriteFile(file, c.doc, 0o600); err != nil {
			t.Fatal(err)
		}
		findings, _ := check(t, Options{As: ResourceSync}, file)
		if len(findings) != c.rules || c.rules > 0 && findings[0].Rule != "rs-document" {
			t.Errorf("%s: %v", name, findings)
		}
	}
}

// A document whose beginning cannot be read is not called an empty one.
func TestUnreadableBeginning(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", strings.TrimPrefix(r.URL.Path, "/"))
		_, _ = io.WriteString(w, `<feed xmlns="http://www.w3.org/2005/Atom"/>`)
	}))
	t.Cleanup(server.Close)
	for coding, want := range map[string]string{"gzip": "gzip: invalid header", "br": `Content-Encoding "br", asked for gzip`} {
		findings, sum := check(t, Options{}, server.URL+"/"+coding)
		if len(findings) != 1 || sum.Unread != 1 || !strings.Contains(findings[0].Found, want) {
			t.Errorf("%s: %+v %v, want %s", coding, sum, findings, want)
		}
	}
}

// Packages are fetched only with Contents.
func TestPackagesStay(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/corpus/rs-contents.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for i := range archive.Files {
		f := &archive.Files[i]
		f.Data = bytes.ReplaceAll(f.Data, []byte(`<rs:ln rel="contents" href="{host}/1.xml"/>`), nil)
		if strings.HasSuffix(f.Name, ".zip") {
			f.Name += ".moved" // whoever asks for it finds nothing
		}
	}
	site := serveCorpus(t, archive)
	findings, sum := check(t, Options{Follow: true}, site["pass"]+"/dump.xml")
	if sum.Documents != 3 || sum.Musts+sum.Unread != 0 {
		t.Errorf("%+v %v", sum, findings)
	}
	if _, sum := check(t, Options{Follow: true, Contents: true}, site["pass"]+"/dump.xml"); sum.Musts != 1 {
		t.Errorf("the package is missing: %+v", sum)
	}
}

// A host that does not answer any more is not waited for once for each of its contents.
func TestSilentHost(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := asked.Add(1); n > 10 || n == 5 {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	guard := fetch.New(fetch.Options{HeaderTimeout: 20 * time.Millisecond, Reach: fetch.Reach{Origin: server.URL}})
	t.Cleanup(guard.Close)
	var last Finding
	r := &run{o: Options{Contents: true, Report: func(f Finding) { last = f }}, client: guard.Client(""), docs: map[string]*document{}}
	var err error
	if r.get, err = follow.New(follow.Options{HTTP: r.client, Start: server.URL}); err != nil {
		t.Fatal(err)
	}
	for n := range 2000 {
		r.note(content{url: fmt.Sprint(server.URL, "/", n)})
	}
	if err := r.fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n != 10+silentAfter || r.sum.Unread != 1+1990 || !strings.HasSuffix(last.URL, "/18") || !strings.HasSuffix(last.Found, ": 1982") {
		t.Errorf("asked %d times, %d unread, at last %v", n, r.sum.Unread, last)
	}
}

// Of the entries of a record the newest one counts, wherever it stands in its document: the
// representations of historical entries need not be there any more, those of active ones must.
func TestAlternatesOfNewest(t *testing.T) {
	const active, deletion = `<entry><id>urn:example:1</id><title>T</title><updated>2026-01-0%dT00:00:00Z</updated><link type="text/plain" href="{host}/%s.txt"/></entry>`,
		`<entry><id>urn:example:1</id><title>T</title><updated>2026-01-0%dT00:00:00Z</updated><content/></entry>`
	there, gone := func(day int) string { return fmt.Sprintf(active, day, "there") }, func(day int) string { return fmt.Sprintf(active, day, "gone") }
	deleted := func(day int) string { return fmt.Sprintf(deletion, day) }
	for name, c := range map[string]struct {
		entries string
		musts   int
	}{
		"active":                       {there(1), 0},
		"gone":                         {gone(1), 1},
		"gone, then deleted":           {gone(1) + deleted(2), 0},
		"deleted, before that gone":    {deleted(2) + gone(1), 0},
		"gone, then there":             {gone(1) + there(2), 0},
		"deleted, then gone":           {deleted(1) + gone(2), 1},
		"gone and deleted at one time": {gone(1) + deleted(1), 0},
	} {
		feed := `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:example:feed</id><title>F</title><updated>2026-01-02T00:00:00Z</updated><author><name>A</name></author><link rel="self" href="{self}"/>` + c.entries + `</feed>`
		site := serveCorpus(t, &txtar.Archive{Files: []txtar.File{{Name: "pass/feed.atom", Data: []byte(feed)}, {Name: "pass/there.txt", Data: []byte("tides")}}})
		for _, follow := range []bool{true, false} {
			findings, sum := check(t, Options{Follow: follow, Contents: true}, site["pass"]+"/feed.atom")
			if sum.Musts != c.musts || sum.Unread > 0 {
				t.Errorf("%s, follow %v: %v", name, follow, findings)
			}
		}
	}
}

// A document that exceeds a limit of ours is not checked, and breaks no rule by that.
func TestLimits(t *testing.T) {
	deep := strings.Repeat("<a>", 300) + strings.Repeat("</a>", 300)
	for as, doc := range map[Protocol]string{
		AtomPMH:      `<feed xmlns="http://www.w3.org/2005/Atom">` + deep + "</feed>",
		ResourceSync: `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">` + deep + "</urlset>",
		SIP:          `<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Header>` + deep + "</e:Header></e:Envelope>",
	} {
		findings, sum := check(t, Options{As: as, Stdin: strings.NewReader(doc)}, "-")
		if sum.Unread != 1 || sum.Musts != 0 {
			t.Errorf("%s: %+v %v", as, sum, findings)
		}
	}
}
