package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// D65: of several ranges none is read; the whole goes out once.
func TestOneRangeOrTheWhole(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	body := strings.Repeat("0123456789", 1000)
	h.alive("main", "urn:example:long", rep{"text/plain", body})
	for _, path := range []string{recordPath("main", "urn:example:long", ""), "/sets/main/changelist/1.xml"} {
		whole := h.get(path).want(t, 200)
		if part := h.get(path, "Range", "bytes=2-4").want(t, 206); part.body != whole.body[2:5] {
			t.Errorf("%s: bytes 2-4 are %q", path, part.body)
		}
		many := h.get(path, "Range", "bytes=0-0"+strings.Repeat(",-1,0-0", 1000)).want(t, 200)
		if many.body != whole.body || many.header.Get("Content-Type") != whole.header.Get("Content-Type") {
			t.Errorf("%s: %d bytes of type %s", path, len(many.body), many.header.Get("Content-Type"))
		}
		// HEAD has no ranges (RFC 9110 14.2).
		for _, ranges := range []string{"bytes=2-4", "bytes=99999999-"} {
			h.ask(http.MethodHead, h.base+path, "Range", ranges).want(t, 200).field(t, "Content-Length", strconv.Itoa(len(whole.body))).
				field(t, "Content-Range", "").field(t, "Content-Type", whole.header.Get("Content-Type"))
		}
	}
}

// D71: a page of another site, whose name leads here, reads nothing and posts
// nothing.
func TestHostOnLoopback(t *testing.T) {
	h := newTestServer(t, "", func(o *server.Options) {
		o.BaseURL = "https://data.example.org/bridge"
		withSIP(tells)(o)
	}).set("main", "Main", event.Mirror)
	ask := func(method, path, host string) int {
		r, _ := h.raw(method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		return r.status
	}
	for host, want := range map[string]int{
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "xlocalhost": 421,
		"data.example.org": 200, "DATA.example.org:443": 200, "data.example.org.": 200, "localhost": 200, "localhost:8080": 200, "app.localhost": 200,
		"127.0.0.1:8080": 200, "[::1]:8080": 200, "[::1]": 200, "192.0.2.7": 200,
	} {
		for _, path := range []string{"/", "/sets/main/capabilitylist.xml"} {
			if got := ask("GET", path, host); got != want {
				t.Errorf("GET %s at %s: %d, want %d", path, host, got, want)
			}
		}
		if got := ask("POST", "/sip/main", host); got != want {
			t.Errorf("POST at %s: %d, want %d", host, got, want)
		}
		if got := ask("GET", "/healthz", host); got != 200 {
			t.Errorf("/healthz at %s: %d", host, got)
		}
	}
}

// D74: what is wrong, and where our own network's servers are, is for operators.
func TestPagesTellVisitorsLittle(t *testing.T) {
	status := func(context.Context) ([]status.Set, error) {
		return []status.Set{{Name: "main",
			Sources: []status.Source{
				{Kind: "atompmh", URL: "https://origin.example/hidden/feed.atom", Held: 7777, Quarantined: 8888, Gap: "https://origin.example/hidden/3",
					LastSuccess: status.Time{Time: time.Unix(1_699_990_000, 0)},
					Last:        report(harvest.Report{Ended: time.Unix(1_700_000_000, 0), Documents: 9999, Error: "dial tcp 10.1.2.3:443: refused", Warnings: []string{"hidden"}})},
				{Kind: "resourcesync", URL: "https://sitemap.example/sitemap.xml", LastSuccess: status.Time{Time: time.Unix(1_699_990_000, 0)}},
				{URL: "https://gone.example/", Last: report(harvest.Report{Ended: time.Unix(1_700_000_000, 0), Error: "hidden"})},
				{Kind: "resourcesync", URL: "http://10.1.2.3/list.xml"},
				{Kind: "resourcesync", URL: "http://dspace.internal:8080/list.xml"},
				{Kind: "resourcesync", URL: "http://dspace/list.xml"},
				{Kind: "feed", URL: "file:///hidden/x.rss"},
			},
			Submissions: []status.Peer{{Direction: status.Sent, URL: "http://ingest.internal/sip", Failing: &status.Failure{Reason: "hidden"}}},
			Problems:    []status.Problem{{Identifier: "hidden", State: submission.StateRejected, Reason: "hidden"}},
		}}, nil
	}
	ready := func(context.Context) error { return errors.New("hidden: open /srv/hidden/log.db: no such file") }
	change := func(o *server.Options) { o.Status, o.Ready = status, ready }
	visitor := newTestServer(t, "", func(o *server.Options) { o.BaseURL = "https://data.example.org"; change(o) }).set("main", "Main", event.Mirror)
	own := newTestServer(t, "", change).set("main", "Main", event.Mirror)
	console := newTestServer(t, "", func(o *server.Options) { o.HasConsole = true; change(o) }).set("main", "Main", event.Mirror)
	for _, path := range []string{"/", "/sets/main/", "/readyz"} {
		for who, body := range map[string]string{"a visitor": visitor.get(path).body, "a proxy's caller": own.get(path, "X-Forwarded-For", "192.0.2.1").body, "who has a console": console.get(path).body} {
			for _, secret := range []string{"hidden", "10.1.2.3", "internal", "dspace", "file:", "7,777", "8,888", "9,999", "needs attention"} {
				if strings.Contains(body, secret) {
					t.Errorf("%s is told %q at %s:\n%s", who, secret, path, body)
				}
			}
		}
	}
	has(t, visitor.page("/sets/main/"), "origin.example", "kind atompmh", "last harvest 2023-11-14 19:26:40 UTC",
		"harvested up to the end; the Source states no times last harvest 2023-11-14 19:26:40 UTC", "harvested up to nothing yet last harvest none yet")
	has(t, visitor.page("/"), "from origin.example, last harvest 2023-11-14 19:26:40 UTC", "from gone.example, not harvested yet")
	has(t, own.page("/sets/main/"), "https://origin.example/hidden/feed.atom", "held 7,777", "http://10.1.2.3/list.xml", "http://ingest.internal/sip")
	if r := own.get("/readyz").want(t, 503); !strings.Contains(r.body, "no such file") {
		t.Errorf("the operator is told %q", r.body)
	}
}

// D76: what others wrote can do nothing but be read, and is not shown as ours.
func TestRecordsAreKeptApart(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	for i, kind := range []string{"text/html", "Text/HTML; charset=utf-8", "application/xhtml+xml", "image/svg+xml", "text/plain", "application/pdf", "text/xml"} {
		id := fmt.Sprint("urn:example:", i)
		h.alive("main", id, rep{kind, "<x/>"})
		saved := ""
		if i < 4 {
			saved = "attachment"
		}
		h.get(recordPath("main", id, "")).want(t, 200).field(t, "Content-Type", kind).field(t, "Content-Disposition", saved).
			field(t, "Content-Security-Policy", "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'").
			field(t, "X-Content-Type-Options", "nosniff").field(t, "Referrer-Policy", "no-referrer").
			field(t, "Cross-Origin-Resource-Policy", "same-origin").field(t, "Cross-Origin-Opener-Policy", "same-origin")
	}
}

// D20: within the second in which a record changes, and one more, nobody is told
// the second: who has the first of two changes asks by it later.
func TestYoungRecordsHaveNoLastModified(t *testing.T) {
	var now atomic.Int64
	h := newTestServer(t, "", func(o *server.Options) {
		o.Now = func() time.Time { return time.Unix(0, now.Load()) }
	}).set("main", "Main", event.Mirror)
	h.alive("main", "urn:example:1", rep{"text/xml", "<a/>"})
	e, err := h.log.Record(t.Context(), "main", event.Key("urn:example:1"))
	if err != nil {
		t.Fatal(err)
	}
	observed := e.Observed.Time()
	path, stamp := recordPath("main", "urn:example:1", ""), observed.Format(http.TimeFormat)
	for _, at := range []time.Time{observed, observed.Truncate(time.Second).Add(2*time.Second - 1)} {
		now.Store(at.UnixNano())
		young := h.get(path, "If-Modified-Since", stamp).want(t, 200).field(t, "Last-Modified", "")
		h.get(path, "If-None-Match", young.header.Get("ETag")).want(t, 304).field(t, "Last-Modified", "")
	}
	now.Add(1)
	h.get(path, "If-Modified-Since", stamp).want(t, 304).field(t, "Last-Modified", stamp)
}

// D90: a set's address without its slash leads to the page, and HEAD says how long
// a document is.
func TestSlashAndLength(t *testing.T) {
	for _, mount := range []string{"", "/bridge/here"} {
		h := newTestServer(t, mount, nil).set("main", "Main", event.Mirror)
		h.fill("main")
		h.get("/sets/main").want(t, 301).field(t, "Location", mount+"/sets/main/")
		h.get("/sets/none").want(t, 404)
		for _, it := range h.paths("main") {
			for _, coding := range []string{"gzip", "identity"} {
				whole := h.get(it.Path, "Accept-Encoding", coding).want(t, 200)
				r, err := http.NewRequest(http.MethodHead, h.base+it.Path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Accept-Encoding", coding)
				res, err := h.web.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if res.ContentLength != int64(len(whole.body)) {
					t.Errorf("%s, %s: HEAD says %d bytes, GET gives %d", it.Path, coding, res.ContentLength, len(whole.body))
				}
			}
		}
	}
}

// D68: however many pages are asked for, the status is found out every few seconds
// only.
func TestStatusIsKeptForAWhile(t *testing.T) {
	var asked, ahead atomic.Int64
	h := newTestServer(t, "", func(o *server.Options) {
		began := time.Now()
		o.Now = func() time.Time { return began.Add(time.Duration(ahead.Load())) }
		o.Status = func(context.Context) ([]status.Set, error) { asked.Add(1); return nil, nil }
	}).set("main", "Main", event.Mirror)
	for range 20 {
		h.get("/").want(t, 200)
		h.get("/sets/main/").want(t, 200)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times at one moment", n)
	}
	ahead.Store(int64(time.Minute))
	h.get("/").want(t, 200)
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times, the last page is a minute later", n)
	}
}

// D22: one item a record, the last thing that happened to it.
func TestRecentNamesARecordOnce(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	for i := range 5 {
		h.alive("main", "urn:example:often", rep{"text/xml", fmt.Sprintf("<a>%d</a>", i)})
	}
	h.alive("main", "urn:example:once", rep{"text/xml", "<a/>"})
	for name := range recentNames {
		f := h.recent("main", name)
		if len(f.Items) != 2 || f.Items[0].Title != "Record urn:example:once" || f.Items[1].Title != "Record urn:example:often" {
			t.Errorf("%s: %d items: %+v", name, len(f.Items), f.Items)
		}
		if self := `"` + h.base + "/sets/main/" + name + `"`; !strings.Contains(h.get("/sets/main/"+name).body, self) {
			t.Errorf("%s does not say where it is", name)
		}
		for _, item := range f.Items {
			if len(item.Categories) != 1 || item.Link == "" {
				t.Errorf("%s: %+v", name, item)
			}
		}
	}
}

// D69: nothing is taken from anonymous callers where the disk is nearly full; what there is
// goes on being served.
func TestNothingIsTakenOnAFullDisk(t *testing.T) {
	var full atomic.Bool
	h := newTestServer(t, "", func(o *server.Options) {
		withSIP(tells)(o)
		o.Full = func() error {
			if full.Load() {
				return errors.New("full")
			}
			return nil
		}
	}).set("main", "Main", event.Mirror)
	for _, low := range []bool{true, false} {
		full.Store(low)
		want := map[bool]int{true: 503, false: 200}[low]
		if r := h.ask(http.MethodPost, h.base+"/sip/main").want(t, want); low && r.header.Get("Retry-After") == "" {
			t.Error("without Retry-After")
		}
		h.get("/sip/main?wsdl").want(t, 200)
		h.get("/sets/main/changelist.xml").want(t, 200)
	}
}

// D75: passwords are not guessed at the speed of the network, and whoever has the
// right one from elsewhere is let in meanwhile.
func TestLoginsAreSlowedDown(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	h := newTestServer(t, "", func(o *server.Options) {
		o.Now = func() time.Time { return now }
		o.Proxies = prefixes("127.0.0.1/32")
		withSIP(func(w http.ResponseWriter, r *http.Request, _ string) {
			if _, password, _ := r.BasicAuth(); password != "right" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.WriteHeader(http.StatusOK)
		})(o)
	})
	login := func(from, password string) int {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, h.base+"/sip/main", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", from)
		if password != "" {
			r.SetBasicAuth("ann", password)
		}
		res, err := h.web.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	for i := range 10 {
		if got := login("192.0.2.1", fmt.Sprint("wrong", i)); got != 401 {
			t.Errorf("guess %d is answered %d", i+1, got)
		}
	}
	for password, want := range map[string]int{"wrong": 429, "right": 429, "": 401} {
		if got := login("192.0.2.1", password); got != want {
			t.Errorf("then %q is answered %d, want %d", password, got, want)
		}
	}
	if got := login("192.0.2.2", "right"); got != 200 {
		t.Errorf("elsewhere: %d", got)
	}
	now = now.Add(6 * time.Second)
	if got := login("192.0.2.1", "right"); got != 200 {
		t.Errorf("a little later: %d", got)
	}
}
