package console_test

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// Every page that the overview leads to answers, and keeps what all pages promise:
// landmarks, names for what has none, and nothing of a Source's texts but text.
func TestPages(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	s := newSite(t)
	for n := range 3 {
		s.submit(n, evil)
	}
	root, err := url.Parse(s.console + "/")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	seen := map[string]bool{root.String(): true}
	for queue := []*url.URL{root}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		path := strings.TrimPrefix(at.Path, console.Path)
		kinds[shape(path)]++
		a := s.page(path + "?" + at.RawQuery)
		if strings.HasSuffix(path, "/input") {
			if a.Header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(a.Header.Get("Content-Disposition"), "attachment") {
				t.Errorf("%s may be shown by a browser: %v", path, a.Header)
			}
			continue
		}
		checkPage(t, path, a)
		for _, link := range links(a.root) {
			u, err := at.Parse(link)
			if err != nil {
				t.Errorf("%s: the link %q: %v", path, link, err)
				continue
			}
			if u.Fragment = ""; u.Host != root.Host {
				if !strings.HasPrefix(u.String(), s.base+"/sets/") {
					t.Errorf("%s leads to %s", path, u)
				}
				continue
			}
			if !seen[u.String()] {
				seen[u.String()] = true
				queue = append(queue, u)
			}
		}
	}
	for _, kind := range []string{"/", "/sources/N", "/sources/N/held", "/sets", "/sets/S", "/sets/S/events", "/sets/S/records", "/sets/S/records/K",
		"/quarantine", "/quarantine/N", "/quarantine/N/input", "/reviews", "/reviews/N"} {
		if kinds[kind] == 0 {
			t.Errorf("no page led to one like %s; they led to %v", kind, kinds)
		}
	}
}

// shape returns a path with what names one thing among others replaced.
func shape(path string) string {
	parts := strings.Split(path, "/")
	for i := 2; i < len(parts); i++ {
		switch {
		case parts[i-1] == "sets":
			parts[i] = "S"
		case parts[i-1] == "records":
			parts[i] = "K"
		case parts[i] != "" && parts[i][0] >= '0' && parts[i][0] <= '9':
			parts[i] = "N"
		}
	}
	return strings.Join(parts, "/")
}

// links returns where the links and the forms that only ask lead to.
func links(root *html.Node) (all []string) {
	for _, n := range elements(root, "") {
		switch {
		case n.Data == "a" && attr(n, "href") != "":
			all = append(all, attr(n, "href"))
		case n.Data == "form" && attr(n, "method") == "get":
			all = append(all, attr(n, "action"))
		}
	}
	return all
}

// checkPage checks what holds for each page.
func checkPage(t *testing.T, path string, a *answer) {
	t.Helper()
	policy := a.Header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("%s: policy %q", path, policy)
	}
	if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s: header %v", path, a.Header)
	}
	for name, want := range map[string]int{"main": 1, "h1": 1, "nav": 1, "header": 1, "footer": 1, "b.evil": 0, "style": 0, "img": 0, "iframe": 0} {
		if got := len(elements(a.root, name)); got != want {
			t.Errorf("%s has %d elements %s, want %d", path, got, name, want)
		}
	}
	if title := elements(elements(a.root, "head")[0], "title"); len(title) != 1 || !strings.HasSuffix(text(title[0]), "bridge console") {
		t.Errorf("%s: it has no title of ours", path)
	}
	ids, labelled := map[string]bool{}, map[string]bool{}
	for _, n := range elements(a.root, "label") {
		labelled[attr(n, "for")] = true
	}
	for _, n := range elements(a.root, "") {
		if id := attr(n, "id"); id != "" {
			if ids[id] {
				t.Errorf("%s: the id %q twice", path, id)
			}
			ids[id] = true
		}
		for _, at := range n.Attr {
			if at.Key == "style" || strings.HasPrefix(at.Key, "on") || strings.HasPrefix(strings.TrimSpace(strings.ToLower(at.Val)), "javascript:") && at.Key != "value" {
				t.Errorf("%s: <%s %s=%q>", path, n.Data, at.Key, at.Val)
			}
			if at.Key == "class" && strings.Contains(at.Val, "evil") {
				t.Errorf("%s: a title became an element", path)
			}
		}
		switch n.Data {
		case "script":
			if src := attr(n, "src"); !strings.Contains(src, "console.js?v=") || strings.Contains(src, "//") || n.FirstChild != nil {
				t.Errorf("%s: a script %q", path, src)
			}
		case "table":
			if len(elements(n, "caption")) != 1 {
				t.Errorf("%s: a table without a caption", path)
			}
		case "th":
			if attr(n, "scope") == "" {
				t.Errorf("%s: a heading without a scope", path)
			}
		case "input", "select", "textarea":
			if attr(n, "type") != "hidden" && !inLabel(n) && !labelled[attr(n, "id")] && attr(n, "aria-label") == "" {
				t.Errorf("%s: <%s name=%q> without a label", path, n.Data, attr(n, "name"))
			}
		case "section":
			if !ids[attr(n, "aria-labelledby")] && !hasID(n, attr(n, "aria-labelledby")) {
				t.Errorf("%s: a section without a name", path)
			}
		}
	}
	if !ids["main"] || !slices.Contains(links(a.root), "#main") {
		t.Errorf("%s: no link leads to the content", path)
	}
	if strings.ContainsRune(a.body, '\u202e') {
		t.Errorf("%s: a character turns the text around", path)
	}
}

func inLabel(n *html.Node) bool {
	for p := n.Parent; p != nil; p = p.Parent {
		if p.Data == "label" {
			return true
		}
	}
	return false
}

func hasID(n *html.Node, id string) bool {
	return slices.ContainsFunc(elements(n, ""), func(e *html.Node) bool { return attr(e, "id") == id })
}

// The overview begins with what needs a person, and its table can be sorted and
// filtered without a script.
func TestOverview(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.submit(1, "one")
	all := elements(s.page("/").root, "table")
	needs := text(all[0])
	for _, want := range []string{"failing failing / archive", "status 404", "held instruments", "11 deletions are held back", "quarantine hostile", "1 bad input", "review deposits", "1 submission waits"} {
		if !strings.Contains(needs, want) {
			t.Errorf("what needs a person lacks %q: %s", want, needs)
		}
	}
	rows := func(query string) (states []string) {
		tables := elements(s.page("/"+query).root, "table")
		for _, row := range elements(elements(tables[1], "tbody")[0], "tr") {
			states = append(states, text(elements(row, "td")[0])+" "+text(elements(row, "td")[2]))
		}
		return states
	}
	if got := rows(""); len(got) != 7 || got[0] != "failing failing" {
		t.Errorf("rows %q: seven Sources, the failing one first", got)
	}
	if got := rows("?sort=set"); got[0] != "ok catalogue" || got[len(got)-1] != "attention instruments" {
		t.Errorf("by set: %q", got)
	}
	if got := rows("?sort=set&order=desc"); got[0] != "attention instruments" {
		t.Errorf("by set, descending: %q", got)
	}
	if got := rows("?state=failing"); len(got) != 1 {
		t.Errorf("failing: %q", got)
	}
	if got := rows("?set=catalogue"); len(got) != 2 {
		t.Errorf("of one set: %q", got)
	}
	if got := rows("?q=ARCHIVE"); len(got) != 1 {
		t.Errorf("with a text: %q", got)
	}
	if none := text(s.page("/?q=nothing-is-so").root); !strings.Contains(none, "No Source is so.") {
		t.Errorf("without any: %s", none)
	}
}

// Where there is a console, the public pages show what consumers need, and no more.
func TestPublicPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"/", "/sets/failing/", "/sets/instruments/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := s.do(req)
		if a.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, a.Status)
		}
		for _, word := range []string{"status 404", "Held", "feed.atom: ", "bridge source"} {
			if strings.Contains(text(a.root), word) {
				t.Errorf("%s says %q to everybody: %s", path, word, text(a.root))
			}
		}
	}
	if all := links(s.page("/sets/failing").root); !slices.Contains(all, s.base+"/sets/failing/") {
		t.Errorf("no link leads from the console to the public page: %q", all)
	}
}

// A record is found by its identifier, its URL and a part of its title; its page says
// where it comes from, and all that happened to it.
func TestRecords(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var last *event.Event
	if _, err := s.bridge.Log.Back(t.Context(), "catalogue", 0, func(e *event.Event) bool {
		if len(e.Representations) > 0 && last == nil {
			own := *e
			own.Representations = slices.Clone(e.Representations)
			last = &own
		}
		return last == nil
	}); err != nil || last == nil {
		t.Fatal(last, err)
	}
	key := event.Key(last.Record)
	for _, q := range []string{last.Record, s.base + "/sets/catalogue/records/" + key, strings.ToUpper(last.Title[:8])} {
		a := s.page("/sets/catalogue/records?q=" + url.QueryEscape(q))
		if !slices.Contains(links(a.root), "records/"+key) {
			t.Errorf("%q does not find %s: %s", q, key, text(a.root))
		}
	}
	if a := s.page("/sets/catalogue/records?q=no+such+thing"); !strings.Contains(text(a.root), "Nothing found: all changes were looked at.") {
		t.Errorf("a search without a result: %s", text(a.root))
	}
	page := text(s.page("/sets/catalogue/records/" + key).root)
	for _, want := range []string{last.Title, last.Record, "live", s.base + "/sets/catalogue/records/" + key, "preferred", "has it", "created", "<"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of %s lacks %q: %s", last.Record, want, page)
		}
	}
	if got := s.get("/sets/catalogue/records/" + event.Key("urn:nobody")).StatusCode; got != http.StatusNotFound {
		t.Errorf("a record that is not there: %d", got)
	}
	evilPage := s.page("/sets/hostile/records/" + event.Key(evilLink))
	if page := text(evilPage.root); !strings.Contains(page, evilLink) || !strings.Contains(page, strings.Join(strings.Fields(evil), " ")) {
		t.Errorf("the page of a hostile record does not show its texts: %s", page)
	}
}

// What the log reads backwards is what it reads forwards, from whatever place and in
// whatever pages; and the pages of events are that, too.
func TestPaging(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var all []event.Seq
	of := map[string][]event.Seq{}
	for e, err := range s.bridge.Log.Events(t.Context(), "catalogue", event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Seq)
		of[e.Record] = append(of[e.Record], e.Seq)
	}
	slices.Reverse(all)
	for i := -1; i < len(all); i++ {
		before := event.Seq(0)
		if i >= 0 {
			before = all[i]
		}
		for _, most := range []int{1, 7, len(all) + 1} {
			var got []event.Seq
			last, err := s.bridge.Log.Back(t.Context(), "catalogue", before, func(e *event.Event) bool {
				got = append(got, e.Seq)
				return len(got) < most
			})
			want := all[i+1:][:min(most, len(all)-i-1)]
			if err != nil || !slices.Equal(got, want) || len(want) < most && last != 0 || len(want) == most && last != want[most-1] {
				t.Errorf("%d before %d: %d, %d, %v, want %d", most, before, got, last, err, want)
			}
		}
	}
	several := 0
	for record, seqs := range of {
		slices.Reverse(seqs)
		several = max(several, len(seqs))
		for i := -1; i < len(seqs); i++ {
			before := event.Seq(0)
			if i >= 0 {
				before = seqs[i]
			}
			var got []event.Seq
			if err := s.bridge.Log.EventsOf(t.Context(), "catalogue", event.Key(record), before, func(e *event.Event) bool {
				got = append(got, e.Seq)
				return e.Record == record
			}); err != nil || !slices.Equal(got, seqs[i+1:]) {
				t.Errorf("%s before %d: %d, %v, want %d", record, before, got, err, seqs[i+1:])
			}
		}
	}
	if len(all) < 30 || several < 2 {
		t.Fatalf("%d events, at most %d of one record: too few to tell", len(all), several)
	}
	for _, list := range []string{"events", "records"} {
		a := s.page("/sets/catalogue/" + list + fmt.Sprintf("?before=%d", all[4]))
		found := 0
		for _, link := range links(a.root) {
			if strings.HasPrefix(link, "records/") {
				found++
			}
		}
		if newest := slices.Contains(links(a.root), list); found == 0 || found > len(all)-5 || !newest {
			t.Errorf("%s: %d rows behind the fifth of %d, and a link to the newest: %t", list, found, len(all), newest)
		}
	}
}

// Addresses that are none have pages that say so.
func TestNotFound(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"/nothing", "/sources/0", "/sources/x", "/sources/99999", "/sets/nobody", "/sets/nobody/events", "/quarantine/99", "/quarantine/x", "/reviews/7", "//sets", "/sets/", "/../console/"} {
		a := s.get(path)
		if a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, a.Status)
			continue
		}
		checkPage(t, path, a)
	}
	if a := s.get(""); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "console/" {
		t.Errorf("without a slash: %s %s", a.Status, a.Header.Get("Location"))
	}
}

// A console without a token is for this machine; one with a token for whoever has it.
func TestAccess(t *testing.T) {
	t.Parallel()
	t.Run("without a token", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		for _, c := range []struct {
			name, host, header, value string
			want                      int
		}{
			{"as it is", "", "", "", http.StatusOK},
			{"by name", "localhost:1", "", "", http.StatusOK},
			{"as another host, as a foreign page would have it", "evil.example", "", "", http.StatusForbidden},
			{"through a proxy", "", "X-Forwarded-For", "192.0.2.1", http.StatusForbidden},
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.console+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.host != "" {
				req.Host = c.host
			}
			if c.header != "" {
				req.Header.Set(c.header, c.value)
			}
			a := s.do(req)
			if a.StatusCode != c.want {
				t.Errorf("%s: %d, want %d", c.name, a.StatusCode, c.want)
			}
			if shows := strings.Contains(a.body, "Quarantine"); shows != (c.want == http.StatusOK) {
				t.Errorf("%s: what waits is shown: %t\n%s", c.name, shows, a.body)
			}
		}
	})
	t.Run("with a token", func(t *testing.T) {
		t.Parallel()
		const token = "0123456789abcdef-secret"
		s := newSite(t, func(o *console.Options) { o.Token = token })
		for _, path := range []string{"/", "/sets", "/sources/1", "/nothing", "/quarantine/1/input", "/metrics"} {
			a := s.get(path)
			if a.StatusCode != http.StatusUnauthorized || strings.Contains(a.body, "catalogue") || len(elements(a.root, "form")) != 1 {
				t.Errorf("%s without a token: %s\n%s", path, a.Status, a.body)
			}
		}
		for bearer, want := range map[string]int{token: http.StatusOK, token + "x": http.StatusUnauthorized, "": http.StatusUnauthorized} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.console+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+bearer)
			if got := s.do(req).StatusCode; got != want {
				t.Errorf("bearer %q: %d, want %d", bearer, got, want)
			}
		}
		for _, a := range []*answer{s.get("//x"), s.get("/.x"), s.post("/reviews", "do", "accept")} {
			if a.StatusCode < 400 || strings.Contains(a.body, "Quarantine") || strings.Contains(a.body, "bridge test") {
				t.Errorf("%s without a token: %s\n%s", a.Request.URL, a.Status, a.body)
			}
		}
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		s.client.Jar = jar
		if a := s.post("/sign-in", "token", "wrong-wrong-wrong-wrong", "to", "sets"); a.StatusCode != http.StatusUnauthorized || !strings.Contains(a.body, "This is not the token.") {
			t.Errorf("a wrong token: %s %s", a.Status, a.body)
		}
		a := s.post("/sign-in", "token", token, "to", "sets")
		cookie := a.Header.Get("Set-Cookie")
		if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "./sets" || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") ||
			strings.Contains(cookie, token) || strings.Contains(cookie, "Path=") {
			t.Errorf("the right token: %s %v", a.Status, a.Header)
		}
		if strings.Contains(cookie, "Secure") {
			t.Errorf("a browser that came over http does not send it back: %s", cookie)
		}
		s.page("/sets")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.console+"/sign-in", strings.NewReader("token="+token))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {"https://" + req.Host}}
		if a := s.do(req); !strings.Contains(a.Header.Get("Set-Cookie"), "; Secure") {
			t.Errorf("behind a web server that speaks https: %s %v", a.Status, a.Header)
		}
		s.client.Jar, _ = cookiejar.New(nil) // the one of https is not replaced by one of http
		s.post("/sign-in", "token", token)
		for _, to := range []string{"https://evil.example/", "//evil.example", "/sets", "../../", `\\evil.example`, "javascript:alert(1)"} {
			if at := s.post("/sign-in", "token", token, "to", to).Header.Get("Location"); at != "./" {
				t.Errorf("signed in, and sent from %q to %q", to, at)
			}
		}
		if a := s.post("/sign-out"); a.StatusCode != http.StatusSeeOther {
			t.Errorf("signing out: %s", a.Status)
		}
		if a := s.get("/sets"); a.StatusCode != http.StatusUnauthorized {
			t.Errorf("after signing out: %s", a.Status)
		}
		for range 12 {
			s.post("/sign-in", "token", "guess", "to", "")
		}
		if a := s.post("/sign-in", "token", token, "to", ""); a.StatusCode != http.StatusUnauthorized || a.Header.Get("Retry-After") == "" {
			t.Errorf("after many wrong tokens: %s %v", a.Status, a.Header)
		}
	})
}

// TestStrangersBody: who is not signed in cannot have more of a body read than a form has,
// whatever the method and the form.
func TestStrangersBody(t *testing.T) {
	t.Parallel()
	c := console.New(console.Options{Token: "0123456789abcdef-secret"})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		head := "--b\r\nContent-Disposition: form-data; name=\"to\"; filename=\"f\"\r\n\r\n"
		left := &io.LimitedReader{R: zeros{}, N: 8 << 20}
		req := httptest.NewRequestWithContext(t.Context(), method, "/console/sign-in", io.MultiReader(strings.NewReader(head), left))
		req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		got := httptest.NewRecorder()
		c.ServeHTTP(got, req)
		if read := 8<<20 - left.N; got.Code != http.StatusUnauthorized || read > 1<<20 {
			t.Errorf("%s: %d, and %d bytes of the body were read", method, got.Code, read)
		}
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// post sends a form, as the console's own pages do.
func (s *site) post(path string, pairs ...string) *answer {
	s.t.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.console+path, strings.NewReader(form.Encode()))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", strings.TrimSuffix(s.console, console.Path))
	return s.do(req)
}

// TestMetrics: the console answers Prometheus.
func TestMetrics(t *testing.T) {
	t.Parallel()
	a := newSite(t).get("/metrics")
	if !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain") || !strings.Contains(a.body, "\nbridge_source_info{") || !strings.Contains(a.body, "\nbridge_state_readable 1\n") {
		t.Errorf("%s\n%s", a.Status, a.body)
	}
}
