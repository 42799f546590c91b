package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// inlineFeed serves a feed whose entries have their content with them.
type inlineFeed struct {
	mu      sync.Mutex
	entries string
	body    string // in place of an Atom feed
	asked   []string
}

// ServeHTTP is http.Handler.
func (s *inlineFeed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.URL.Path)
	switch {
	case r.URL.Path == "/src":
		w.Header().Set("Content-Type", "text/csv")
		io.WriteString(w, "a,b")
	case r.URL.Path != "/feed.atom":
		http.NotFound(w, r)
	case s.body != "":
		io.WriteString(w, s.body)
	default:
		fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:m="urn:m"><id>urn:x:feed</id><title>F</title><updated>2026-02-01T00:00:00Z</updated><author><name>A</name></author>%s</feed>`, s.entries)
	}
}

func (s *inlineFeed) set(entries ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.asked = strings.Join(entries, ""), nil
}

func inlineEntry(id, day, rest string) string {
	return fmt.Sprintf(`<entry><id>%s</id><title>T</title><updated>2026-01-%sT00:00:00Z</updated>%s</entry>`, id, day, rest)
}

func takeInline(c *config.Config) { c.Sets[0].Inline = config.Take }

// inlineOf returns each live record: its identifier, type, address of the original, and
// content.
func (b *harness) inlineOf() []string {
	return b.eachLive(func(ev *event.Event) string {
		var all []string
		for i := range ev.Representations {
			all = append(all, ev.Representations[i].Type+" "+string(b.bytes(&ev.Representations[i])))
		}
		via := ev.Via.Href
		if event.IsInline(via) {
			via = "-"
		}
		return ev.Record + " " + strings.ReplaceAll(via, b.server.URL, "") + " " + strings.Join(all, "|")
	})
}

// Content that stands in an Atom-PMH feed, or at content src, is the record.
func TestInlineContent(t *testing.T) {
	const alt = `<link href="/page" type="text/html"/>`
	s := &inlineFeed{}
	b := newHarness(t, s, takeInline)
	b.quick()
	s.set(inlineEntry("urn:x:1", "02", `<content>plain</content>`),
		inlineEntry("https://o.example/2", "03", `<content type="html">&lt;script&gt;alert(1)&lt;/script&gt;</content>`),
		inlineEntry("urn:x:3", "04", alt+`<content type="application/xml"><m:r/></content>`),
		inlineEntry("urn:x:4", "05", `<link rel="via" href="https://v.example/"/><content type="image/png">aGVsbG8=</content>`),
		inlineEntry("urn:x:5", "06", `<content src="/src" type="text/csv"/>`),
		inlineEntry("urn:x:6", "07", `<content type="image/png">*</content>`))
	r := b.harvest()
	if r.Quarantined != 1 || r.Pending != 0 || r.Created != 5 {
		t.Errorf("report %+v", r)
	}
	b.want("after the first harvest", b.inlineOf(), "https://o.example/2 https://o.example/2 text/html; charset=utf-8 <script>alert(1)</script>",
		"urn:x:1 - text/plain; charset=utf-8 plain", `urn:x:3 /page application/xml <m:r xmlns:m="urn:m"/>`, "urn:x:4 https://v.example/ image/png hello", "urn:x:5 /src text/csv a,b")
	if asked := strings.Join(s.asked, " "); asked != "/feed.atom /src" {
		t.Errorf("asked for %s", asked)
	}
	// Served as what it is, where it can run nothing.
	p := newPublisher(b)
	html := ""
	for _, e := range p.resources() {
		resp := p.get(e.Loc)
		if strings.HasPrefix(resp.header.Get("Content-Type"), "text/html") {
			html = string(resp.body)
		}
		if csp := resp.header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "sandbox; default-src 'none'") || resp.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s is served with the policy %q", e.Loc, csp)
		}
		if strings.Contains(fmt.Sprint(e), "urn:x-bridge:content") {
			t.Errorf("an address that leads nowhere is published: %+v", e)
		}
	}
	if html != "<script>alert(1)</script>" {
		t.Errorf("the page is served as %q", html)
	}
	b.halt()

	before := b.last()
	b.full()
	b.want("nothing new", b.events(before))
	// Other content, an earlier stamp, and content that is no longer there.
	s.set(inlineEntry("urn:x:1", "08", `<content>newer</content>`), inlineEntry("https://o.example/2", "03", `<content type="html">same stamp</content>`),
		inlineEntry("urn:x:4", "01", `<link rel="via" href="https://v.example/"/><content type="image/png">b2xkZXI=</content>`), inlineEntry("urn:x:3", "09", `<content/>`), inlineEntry("urn:x:5", "06", `<content src="/src" type="text/csv"/>`))
	if r := b.full(); r.Pending != 0 || r.Updated != 3 || r.Deleted != 1 {
		t.Errorf("report %+v", r)
	}
	b.want("after the changes", b.inlineOf(), "https://o.example/2 https://o.example/2 text/html; charset=utf-8 same stamp", "urn:x:1 - text/plain; charset=utf-8 newer",
		"urn:x:4 https://v.example/ image/png older", "urn:x:5 /src text/csv a,b")
}

// Without the key such entries are as the draft has them, and content that is too long is
// reported and waits.
func TestInlineContentIsAChoice(t *testing.T) {
	s := &inlineFeed{}
	s.set(inlineEntry("urn:x:1", "02", `<content>plain</content>`))
	b := newHarness(t, s)
	b.quick()
	if r := b.harvest(); r.Quarantined != 1 || r.Events() != 0 {
		t.Errorf("report %+v", r)
	}
	long := newHarness(t, s, takeInline, func(c *config.Config) { c.Limits.Record = 4 })
	long.quick()
	if r := long.harvest(); r.Pending != 1 || r.Events() != 0 {
		t.Errorf("report %+v", r)
	}
	s.set(inlineEntry("urn:x:1", "03", `<content>ok</content>`))
	long.want("when it is short enough", func() []string { long.harvest(); return long.inlineOf() }(), "urn:x:1 - text/plain; charset=utf-8 ok")
	if n := long.stored().Pending; n != 0 {
		t.Errorf("%d still pending", n)
	}
}

// What was quarantined for its content is taken once it can be.
func TestInlineContentIsReplayed(t *testing.T) {
	s := &inlineFeed{}
	s.set(inlineEntry("urn:x:1", "02", `<content>plain</content>`))
	b := newHarness(t, s)
	b.quick()
	b.harvest()
	b.close()
	b.config.Sets[0].Inline = config.Take
	b.open()
	b.quick()
	for _, q := range b.quarantined() {
		if _, err := b.replay(q); err != nil {
			t.Error(err)
		}
	}
	b.want("after the replay", b.inlineOf(), "urn:x:1 - text/plain; charset=utf-8 plain")
}

// The content of legacy feeds.
func TestInlineContentOfFeeds(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"Atom": {`<feed xmlns="http://www.w3.org/2005/Atom"><title>F</title><entry><id>urn:x:1</id><link href="/page"/><content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">a</div></content></entry></feed>`,
			`urn:x:1 /page application/xhtml+xml <div xmlns="http://www.w3.org/1999/xhtml">a</div>`},
		"Atom at src": {`<feed xmlns="http://www.w3.org/2005/Atom"><title>F</title><entry><id>urn:x:1</id><link href="/page"/><content src="/src"/></entry></feed>`, `urn:x:1 /page text/csv a,b`},
		"Atom with an entity that XML does not have": {`<feed xmlns="http://www.w3.org/2005/Atom"><title>F</title><entry><id>urn:x:1</id><link href="/src"/><content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">&nbsp;</div></content></entry></feed>`,
			`urn:x:1 /src text/csv a,b`},
		"RSS": {`<rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/"><channel><title>F</title><item><guid isPermaLink="false">urn:x:1</guid><link>/page</link><description>short</description><content:encoded><![CDATA[<p>long</p>]]></content:encoded></item></channel></rss>`,
			`urn:x:1 /page text/html; charset=utf-8 <p>long</p>`},
		"RSS with a description": {`<rss version="2.0"><channel><title>F</title><item><guid isPermaLink="false">urn:x:1</guid><description>&lt;b>short&lt;/b></description></item></channel></rss>`,
			`urn:x:1 - text/html; charset=utf-8 <b>short</b>`},
		"JSON Feed": {`{"version":"https://jsonfeed.org/version/1.1","title":"F","items":[{"id":"urn:x:1","content_html":5,"content_text":"a"}]}`, `urn:x:1 - text/plain; charset=utf-8 a`},
	} {
		t.Run(name, func(t *testing.T) {
			s := &inlineFeed{body: c.body}
			b := newHarness(t, s, takeInline, func(c *config.Config) { c.Sets[0].Sources[0].Kind = config.Feed })
			b.quick()
			for range 2 {
				r, err := b.try(harvest.Options{Full: true})
				if err != nil || r.Pending+r.Quarantined != 0 {
					t.Fatalf("%v %+v", err, r)
				}
			}
			b.want("the record", b.inlineOf(), c.want)
			if n := b.last(); n != 1 {
				t.Errorf("%d events, want 1", n)
			}
		})
	}
}
