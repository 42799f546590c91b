package server_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/server"
)

func TestRecord(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	const id, page, record = "urn:example:One", "<p>One</p>", "<record/>"
	h.alive("main", id, rep{"text/html; charset=utf-8", page}, rep{"text/xml", record}, rep{"application/xml", record + "\n"}, rep{"", "?"})
	e, err := h.log.Record(context.Background(), "main", event.Key(id))
	if err != nil {
		t.Fatal(err)
	}
	link := "<" + h.base + `/sets/main/capabilitylist.xml>; rel="resourcesync"`
	stamp := e.Observed.Time().Format(http.TimeFormat)
	for i, c := range []struct{ name, kind, body string }{
		{"", "text/html; charset=utf-8", page},
		{e.Representations[0].Name, "text/html; charset=utf-8", page},
		{e.Representations[1].Name, "text/xml", record},
		{e.Representations[2].Name, "application/xml", record + "\n"},
		{e.Representations[3].Name, "application/octet-stream", "?"},
	} {
		path := recordPath("main", id, c.name)
		got := h.get(path, "Accept-Encoding", "gzip").want(t, 200)
		if got.body != c.body {
			t.Errorf("%s answers %q, want %q", path, got.body, c.body)
		}
		via := fmt.Sprintf(`<https://origin.example/data/%s/%d>; rel="via"`, id, max(0, i-1))
		if links := strings.Join(got.header.Values("Link"), "\n"); links != link+"\n"+via {
			t.Errorf("%s: Link %s", path, links)
		}
		tag := `"` + hexSum(c.body) + `"`
		got.field(t, "Content-Type", c.kind).field(t, "ETag", tag).field(t, "Last-Modified", stamp).field(t, "Content-Encoding", "").
			field(t, "Content-Length", strconv.Itoa(len(c.body))).field(t, "Accept-Ranges", "bytes").
			field(t, "Content-Security-Policy", "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'").field(t, "X-Content-Type-Options", "nosniff").field(t, "Cache-Control", "no-cache")
		head := h.ask(http.MethodHead, h.base+path).want(t, 200)
		for name := range got.header {
			if name != "Date" {
				head.field(t, name, got.header.Get(name))
			}
		}
		h.get(path, "If-None-Match", "W/"+tag).want(t, 304).field(t, "ETag", tag)
		h.get(path, "If-None-Match", `"x"`, "If-Modified-Since", stamp).want(t, 200)
		h.get(path, "If-Modified-Since", stamp).want(t, 304)
		h.get(path, "If-Modified-Since", e.Observed.Time().Add(time.Hour).Format(http.TimeFormat)).want(t, 304)
		h.get(path, "If-Modified-Since", e.Observed.Time().Add(-time.Second).Format(http.TimeFormat)).want(t, 200)
		if part := h.get(path, "Range", "bytes=0-0").want(t, 206); part.body != c.body[:1] {
			t.Errorf("%s: first byte %q", path, part.body)
		}
	}
	if e.Representations[2].Name == e.Representations[1].Name || !strings.HasSuffix(e.Representations[2].Name, ".xml") {
		t.Errorf("names %q and %q", e.Representations[1].Name, e.Representations[2].Name)
	}
}

func TestRecordThatIsNot(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror).set("other", "Other", event.Mirror)
	h.alive("main", "urn:example:1", rep{"text/xml", "<a/>"})
	key := event.Key("urn:example:1")
	for _, path := range []string{
		"/sets/main/records/", "/sets/main/records/x", recordPath("main", "urn:example:2", ""), recordPath("other", "urn:example:1", ""),
		"/sets/none/records/" + key, "/sets/main/records/a/" + key, "/sets/main/records/" + strings.ToUpper(key),
		"/sets/main/records/" + key + "/", "/sets/main/records/" + key + ".", "/sets/main/records/" + key + ".html",
		"/sets/main/records/" + key + ".xml.xml", "/sets/main/records/." + key, "/sets//records/" + key,
	} {
		r := h.get(path).want(t, 404).field(t, "Content-Type", "text/plain; charset=utf-8").field(t, "ETag", "")
		if r.body == "" {
			t.Errorf("%s: 404 without a word", path)
		}
	}
	h.get(recordPath("main", "urn:example:1", "xml")).want(t, 200)
	if lines := h.journal.at(slog.LevelError); len(lines) > 0 {
		t.Error(lines)
	}
}

func TestRecordThatWasDeleted(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror).set("away", "Away", event.Redirect)
	for _, set := range []string{"main", "away"} {
		h.alive(set, "urn:example:1", rep{"text/xml", "<a/>"})
		h.dead(set, "urn:example:1")
		for _, name := range []string{"", "xml"} {
			r := h.get(recordPath(set, "urn:example:1", name)).want(t, 410)
			if links := strings.Join(r.header.Values("Link"), "\n"); links != "<"+h.base+"/sets/"+set+`/capabilitylist.xml>; rel="resourcesync"`+"\n"+`<https://origin.example/data/urn:example:1/0>; rel="via"` {
				t.Errorf("Link %s", links)
			}
		}
		h.alive(set, "urn:example:1", rep{"text/xml", "<b/>"})
		if r := h.get(recordPath(set, "urn:example:1", "")); r.status == 410 {
			t.Error("a record that came back is still gone")
		}
	}
}

func TestOtherModes(t *testing.T) {
	h := newTestServer(t, "", nil).set("away", "Away", event.Redirect).set("names", "Names", event.Reference)
	h.alive("away", "urn:example:1", rep{"text/xml", "<a/>"}, rep{"text/html", "<p>"})
	h.alive("names", "urn:example:1", rep{"text/xml", "<a/>"})
	link := "<" + h.base + `/sets/away/capabilitylist.xml>; rel="resourcesync"`
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		h.ask(method, h.base+recordPath("away", "urn:example:1", "")).want(t, 307).field(t, "Location", "https://origin.example/data/urn:example:1/0").field(t, "Link", link)
		h.ask(method, h.base+recordPath("away", "urn:example:1", "html")).want(t, 307).field(t, "Location", "https://origin.example/data/urn:example:1/1")
	}
	if r := h.get(recordPath("names", "urn:example:1", "")).want(t, 404); !strings.Contains(r.body, "serves no records") {
		t.Errorf("body %q", r.body)
	}
	h.observe("away", event.Observation{Record: "urn:example:2", Representations: []event.Representation{{Href: "javascript:alert(1)", Type: "text/html", Length: event.NoLength}}})
	r := h.get(recordPath("away", "urn:example:2", "")).want(t, 404).field(t, "Location", "")
	if strings.Contains(strings.Join(r.header.Values("Link"), ""), "javascript") {
		t.Error("a script is linked")
	}
}

// What an address may not have as it stands, as Sources write it, is escaped for clients that
// follow it; Java's refuse all else.
func TestRedirectToAnIRI(t *testing.T) {
	h := newTestServer(t, "", nil).set("away", "Away", event.Redirect)
	h.observe("away", event.Observation{Record: "urn:example:1", Representations: []event.Representation{
		{Href: `https://origin.example/a b|"ü"/100%25%?x=[1]&y={2}#<3>#4`, Type: "text/html", Length: event.NoLength}}})
	const want = "https://origin.example/a%20b%7C%22%C3%BC%22/100%25%25?x=%5B1%5D&y=%7B2%7D#%3C3%3E%234"
	r := h.get(recordPath("away", "urn:example:1", "")).want(t, 307).field(t, "Location", want)
	if links := r.header.Values("Link"); !slices.Contains(links, "<"+want+`>; rel="via"`) {
		t.Errorf("the links are %q", links)
	}
	via := `rel="via" href="` + strings.NewReplacer("&", "&amp;").Replace(want) + `"`
	for _, name := range []string{"changelist.xml", "resourcelist.xml", "feed.atom"} {
		if body := h.get("/sets/away/"+name).want(t, 200).body; !strings.Contains(body, via) {
			t.Errorf("%s lacks %s:\n%s", name, via, body)
		}
	}
}

// The loc of a record in mode reference is a URI, whatever its Source writes (ResourceSync 7, RFC
// 3986), and so is its link in the feed.
func TestReferenceToAnIRI(t *testing.T) {
	h := newTestServer(t, "", nil).set("names", "Names", event.Reference)
	at := func(href string) event.Observation {
		return event.Observation{Record: "urn:example:1", Representations: []event.Representation{{Href: href, Type: "text/html", Length: event.NoLength}}}
	}
	h.observe("names", at(`https://origin.example/a b|"ü"/100%25?x=1&y={2}`))
	h.observe("names", at(`https://origin.example/c d`))
	h.observe("names", at(`https://[::1]/c[1]?e[]=f#g#h`))
	for path, want := range map[string][]string{
		"changelist.xml": {"<loc>https://origin.example/a%20b%7C%22%C3%BC%22/100%25?x=1&amp;y=%7B2%7D</loc>", "<loc>https://origin.example/c%20d</loc>",
			"<loc>https://[::1]/c%5B1%5D?e%5B%5D=f#g%23h</loc>"},
		"feed.atom": {`<link rel="alternate" href="https://origin.example/c%20d"`, `<link rel="alternate" href="https://[::1]/c%5B1%5D?e%5B%5D=f#g%23h"`},
	} {
		body := h.get("/sets/names/"+path).want(t, 200).body
		for _, part := range want {
			if !strings.Contains(body, part) {
				t.Errorf("%s lacks %s:\n%s", path, part, body)
			}
		}
	}
}

// list is as much of a list as its promises need.
type list struct {
	URLs []struct {
		Loc string  `xml:"loc"`
		MD  promise `xml:"http://www.openarchives.org/rs/terms/ md"`
		LN  []struct {
			Rel  string `xml:"rel,attr"`
			Href string `xml:"href,attr"`
			promise
		} `xml:"http://www.openarchives.org/rs/terms/ ln"`
		Lastmod string `xml:"lastmod"`
	} `xml:"url"`
}

type promise struct {
	Hash   string `xml:"hash,attr"`
	Length string `xml:"length,attr"`
	Type   string `xml:"type,attr"`
}

func TestLocsAnswerWhatTheListsState(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	h.alive("main", "urn:example:main:3", rep{"text/xml", "<changed/>"}, rep{"text/html", "<p>changed"})
	h.dead("main", "urn:example:main:4")
	var l list
	if err := xml.Unmarshal([]byte(h.get("/sets/main/resourcelist.xml").want(t, 200).body), &l); err != nil {
		t.Fatal(err)
	}
	if len(l.URLs) != 10 {
		t.Fatalf("%d records, want 10", len(l.URLs))
	}
	check := func(url string, p promise) reply {
		r := h.ask(http.MethodGet, url).want(t, 200)
		if got := "sha-256:" + hexSum(r.body); p.Hash != got || p.Length != strconv.Itoa(len(r.body)) || p.Type != r.header.Get("Content-Type") {
			t.Errorf("%s answers %s, %d bytes, %s; the list says %+v", url, got, len(r.body), r.header.Get("Content-Type"), p)
		}
		return r
	}
	alternates := 0
	for _, u := range l.URLs {
		r := check(u.Loc, u.MD)
		if at, err := time.Parse(time.RFC3339, u.Lastmod); err != nil || r.header.Get("Last-Modified") != at.UTC().Format(http.TimeFormat) {
			t.Errorf("%s: lastmod %s, Last-Modified %s", u.Loc, u.Lastmod, r.header.Get("Last-Modified"))
		}
		for _, ln := range u.LN {
			if ln.Rel == "alternate" {
				alternates++
				check(ln.Href, ln.promise)
			}
		}
	}
	if alternates != 10 {
		t.Errorf("%d alternates, want 10", alternates)
	}
}

// failing gives a content up after some bytes, as a damaged disk does.
type failing struct {
	server.Contents
	after int64
}

func (f failing) Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	body, size, err := f.Contents.Open(ctx, sum)
	return &failingBody{body, f.after}, size, err
}

type failingBody struct {
	io.ReadSeekCloser
	left int64
}

func (b *failingBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("sector 7 is unreadable")
	}
	n, err := b.ReadSeekCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func TestContentThatIsMissing(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.unstored("main", "urn:example:1", rep{"text/xml", "<lost/>"})
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		h.ask(method, h.base+recordPath("main", "urn:example:1", "")).want(t, 500).field(t, "ETag", "").field(t, "Content-Type", "text/plain; charset=utf-8")
	}
	lines := h.journal.at(slog.LevelError)
	if len(lines) != 2 || !strings.Contains(lines[0], "urn:example:1") || !strings.Contains(lines[0], hexSum("<lost/>")) || !strings.Contains(lines[0], "bridge verify") {
		t.Errorf("log: %q", lines)
	}
}

func TestContentOfAnotherLength(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.alive("main", "urn:example:1", rep{"text/xml", "<a/>"})
	h.observe("main", event.Observation{Record: "urn:example:2", Fetched: true, Representations: []event.Representation{
		{Href: "https://origin.example/2", Type: "text/xml", Length: 5, Hash: "sha-256:" + hexSum("<a/>")}}})
	h.observe("main", event.Observation{Record: "urn:example:3", Fetched: true, Representations: []event.Representation{
		{Href: "https://origin.example/3", Type: "text/xml", Length: 5}}})
	h.get(recordPath("main", "urn:example:1", "")).want(t, 200)
	h.get(recordPath("main", "urn:example:2", "")).want(t, 500)
	h.get(recordPath("main", "urn:example:3", "")).want(t, 500)
	lines := h.journal.at(slog.LevelError)
	if len(lines) != 2 || !strings.Contains(lines[0], "has 4 bytes, but the log says 5") || !strings.Contains(lines[1], "no SHA-256") {
		t.Errorf("log: %q", lines)
	}
}

// What breaks on the way must not look whole, not even when nothing came.
func TestContentThatBreaks(t *testing.T) {
	for _, after := range []int64{0, 1, 100_000} {
		h := newTestServer(t, "", func(o *server.Options) { o.Contents = failing{o.Contents, after} }).set("main", "Main", event.Mirror)
		h.alive("main", "urn:example:1", rep{"text/plain", strings.Repeat("0123456789", 20_000)})
		told := h.journal.expect("ERROR an answer was cut short")
		res, err := h.web.Client().Get(h.base + recordPath("main", "urn:example:1", ""))
		if err == nil {
			var n int64
			n, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if n > after {
				t.Errorf("%d bytes came, of %d that could be read", n, after)
			}
		}
		if err == nil {
			t.Errorf("broken after %d bytes: the answer looks whole", after)
		}
		if line := <-told; !strings.Contains(line, "sector 7 is unreadable") {
			t.Errorf("log: %s", line)
		}
	}
}

// Whatever happens to a record, an answer is of one state: the bytes are those
// of its ETag, type and length.
func TestRecordWhileItChanges(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	body := func(i int) rep {
		return rep{fmt.Sprintf("text/x%d", i), string(bytes.Repeat([]byte{byte('a' + i%26)}, 10+1000*i))}
	}
	h.alive("main", "urn:example:1", body(0))
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := h.web.Client().Get(h.base + recordPath("main", "urn:example:1", ""))
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				n := (len(b) - 10) / 1000
				if err != nil || res.StatusCode != 200 || res.Header.Get("ETag") != `"`+hexSum(string(b))+`"` || res.Header.Get("Content-Type") != body(n).kind {
					t.Errorf("status %d, %d bytes, %v, %v", res.StatusCode, len(b), res.Header, err)
				}
			}
		})
	}
	for i := 1; i < 40; i++ {
		h.alive("main", "urn:example:1", body(i))
	}
	close(stop)
	readers.Wait()
}

// A package is a file that can be fetched in pieces: its ETag is strong and stays, and
// nobody compresses it again.
func TestDumpIsResumed(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror).fill("main")
	ctx := context.Background()
	if err := h.log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Mirror, SegmentEvents: 5, Dumps: true}); err != nil {
		t.Fatal(err)
	}
	if err := h.pub.Dump(ctx, "main"); err != nil {
		t.Fatal(err)
	}
	set, err := h.log.Set(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/sets/main/resourcedump/%d/1.zip", set.Last)
	whole := h.get(path, "Accept-Encoding", "gzip").want(t, 200)
	etag := whole.header.Get("ETag")
	whole.field(t, "Content-Type", "application/zip").field(t, "Content-Encoding", "").field(t, "Accept-Ranges", "bytes").
		field(t, "Content-Length", strconv.Itoa(len(whole.body))).field(t, "Cache-Control", "public, max-age=86400")
	z, err := zip.NewReader(strings.NewReader(whole.body), int64(len(whole.body)))
	if err != nil || len(z.File) != 23 {
		t.Fatalf("%d files: %v", len(z.File), err)
	}
	if strings.HasPrefix(etag, "W/") || !strings.Contains(h.get("/sets/main/resourcedump.xml").want(t, 200).body, strings.Trim(etag, `"`)) {
		t.Errorf("the ETag %s is not that of the document", etag)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, h.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := h.web.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.ContentLength != int64(len(whole.body)) || resp.Header.Get("ETag") != etag {
		t.Errorf("HEAD: %s %v", resp.Status, resp.Header)
	}
	var got bytes.Buffer
	for got.Len() < len(whole.body) {
		end := min(got.Len()+1000, len(whole.body)) - 1
		piece := h.get(path, "Range", fmt.Sprintf("bytes=%d-%d", got.Len(), end), "If-Range", etag).want(t, 206)
		piece.field(t, "Content-Range", fmt.Sprintf("bytes %d-%d/%d", got.Len(), end, len(whole.body))).field(t, "ETag", etag)
		got.WriteString(piece.body)
	}
	if got.String() != whole.body {
		t.Error("the pieces together are not the package")
	}
	h.get(path, "Range", "bytes=5-", "If-Range", `"other"`).want(t, 200)
	h.get(path, "If-None-Match", etag).want(t, 304)
}
