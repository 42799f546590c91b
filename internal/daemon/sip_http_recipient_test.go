package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// library publishes the records that it has accepted.
type library struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	holds   map[string]string // by assigned identifier
	leads   string            // where every request is redirected; "" nowhere
	asked   []string          // paths as they were written
	changed chan struct{}     // closed and replaced by every request
	held    chan struct{}     // keeps answers back until it is closed; nil does not
}

func newLibrary(t *testing.T) *library {
	l := &library{t: t, holds: map[string]string{}, changed: make(chan struct{})}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.asked = append(l.asked, r.URL.EscapedPath())
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
		if l.held != nil {
			<-l.held
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.leads != "" {
			http.Redirect(w, r, l.leads, http.StatusFound)
			return
		}
		record, ok := l.holds[strings.TrimPrefix(r.URL.Path, "/records/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/xml")
		io.WriteString(w, record)
	}))
	t.Cleanup(l.Close)
	return l
}

// records is the key of a SIP Source that leads here; the host has a name, so that
// its address is trusted by no other.
func (l *library) records() string {
	return fmt.Sprintf("record_url = %q", strings.Replace(l.URL, "127.0.0.1", "localhost", 1)+"/records/{assigned-identifier}")
}

func (l *library) put(identifier, record string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds[identifier] = record
}

func (l *library) redirect(to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leads = to
}

func (l *library) paths() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.asked...)
}

// wasAskedFor reports whether a URL is that of a record, as it was asked for.
func (l *library) wasAskedFor(identifier, href string) bool {
	path, here := strings.CutPrefix(href, strings.Replace(l.URL, "127.0.0.1", "localhost", 1))
	own, err := url.PathUnescape(path)
	return here && err == nil && own == "/records/"+identifier && slices.Contains(l.paths(), path)
}

// wasAsked waits until a path was asked for.
func (l *library) wasAsked(path string) {
	l.t.Helper()
	for limit := time.After(patience); ; {
		l.mu.Lock()
		changed, asked := l.changed, strings.Join(l.asked, "\n")
		l.mu.Unlock()
		if strings.Contains("\n"+asked+"\n", "\n"+path+"\n") {
			return
		}
		select {
		case <-changed:
		case <-limit:
			l.t.Fatalf("%s was not asked for, but %q", path, asked)
		}
	}
}

// settle asks for everything that is pending, now.
func (h *sipBridge) settle() {
	h.t.Helper()
	var err error
	for range 100 { // serve asks too, and who comes second begins anew
		if _, err = h.bridge.Harvest(h.t.Context(), h.source(), harvest.Options{AllPending: true}); err == nil {
			return
		}
	}
	h.t.Fatal(err)
}

// pending is how many observations of the first Source wait for their content.
func (h *sipBridge) pending() int64 {
	h.t.Helper()
	status, err := h.bridge.Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return int64(status.Sets[0].Sources[0].Pending)
}

// TestSIPRecipient_Accepted: the record of an accepted disposition is fetched from
// the library and published.
func TestSIPRecipient_Accepted(t *testing.T) {
	l := newLibrary(t)
	h := newSIPBridge(t, sipSet("main", l.records()))
	for i, id := range []string{"1", "lib/2", "a b?c#d%e", "urn:isbn:0-486-27557-4", "\u00e9\u20ac", "x&y"} {
		record := fmt.Sprintf("<r>%d</r>", i)
		l.put(id, record)
		h.notify("/sip/main", sourceOf(fmt.Sprint("own ", i))+acceptedAs(strings.ReplaceAll(id, "&", "&amp;")))
		h.await(i + 1)
		changes := h.changes()
		e := changes[len(changes)-1]
		if e.Meta.Change != "created" || e.Meta.Type != "application/xml" || string(h.get(e.Loc).body) != record {
			t.Errorf("%q: %+v, %s", id, e, h.get(e.Loc).body)
		}
		if via := linked(e.Links, "via"); len(via) != 1 || !l.wasAskedFor(id, via[0].Href) {
			t.Errorf("%q: via %+v, asked for %s", id, via, l.paths())
		}
		// The same once more adds nothing.
		h.notify("/sip/main", sourceOf(fmt.Sprint("own ", i))+acceptedAs(strings.ReplaceAll(id, "&", "&amp;")))
	}
	for _, path := range l.paths() {
		if !strings.HasPrefix(path, "/records/") || strings.Count(path, "/") != 2 {
			t.Errorf("asked for %s", path)
		}
	}
	events := h.logged(allAfter(0))
	if len(events) != 6 || events[1].Record != "lib/2" || events[1].Origin.SourceIdentifier != "own 1" || events[1].Origin.Protocol != "sip" {
		t.Errorf("events %+v", events)
	}
	if got := len(h.resources()); got != 6 {
		t.Errorf("the Resource List has %d records", got)
	}
	// The library may accept a new version under the same identifier.
	l.put("1", "<r>new</r>")
	h.notify("/sip/main", sourceOf("another")+acceptedAs("1"))
	h.await(7)
	if changes := h.changes(); changes[6].Meta.Change != "updated" || string(h.get(changes[6].Loc).body) != "<r>new</r>" {
		t.Errorf("the new version: %+v", changes[6])
	}
	if n := len(h.notifications("main")); n != 7 {
		t.Errorf("%d notifications, want 7", n)
	}
	h.verified()
}

// TestSIPRecipient_Pending: what the library does not have yet is asked for again,
// also after a restart, and published when it is there.
func TestSIPRecipient_Pending(t *testing.T) {
	l := newLibrary(t)
	h := newSIPBridge(t, sipSet("main", l.records()))
	h.notify("/sip/main", acceptedAs("1"))
	h.notify("/sip/main", acceptedAs("2"))
	l.wasAsked("/records/1")
	l.wasAsked("/records/2")
	h.settle()
	if n := h.pending(); n != 2 || len(h.told("main")) != 0 || len(h.changes()) != 0 {
		t.Errorf("%d pending, events %q", n, h.told("main"))
	}
	if page := h.get("/sets/main/"); !strings.Contains(string(page.body), "<dt>pending</dt><dd>2</dd>") {
		t.Errorf("the page says %s", page.body)
	}
	l.put("2", "<r>2</r>")
	h.settle()
	h.want("one is there", h.told("main"), "created 2")
	h.halt()
	h.close()
	h.run()
	l.put("1", "<r>1</r>")
	h.settle()
	h.want("the other is there", h.told("main"), "created 2", "created 1")
	if changes := h.changes(); len(changes) != 2 || string(h.get(changes[1].Loc).body) != "<r>1</r>" || h.pending() != 0 {
		t.Errorf("Change List %+v, %d pending", changes, h.pending())
	}
	h.verified()
}

// allDocuments asks for every published document of set main, feeds included, by
// its URL.
func (h *sipBridge) allDocuments() map[string]webReply {
	h.t.Helper()
	all := map[string]webReply{}
	for _, d := range h.documents() {
		all[d.url] = d
	}
	for n := range h.changeLists() {
		if r := h.ask(http.MethodGet, h.setURL(fmt.Sprintf("feed/%d.atom", n+1))); r.status == http.StatusOK {
			all[r.url] = r
		}
	}
	for _, name := range []string{"feed.atom", "complete.atom", "recent.rss", "recent.atom", "recent.json"} {
		all[h.setURL(name)] = h.get(h.setURL(name))
	}
	return all
}

// TestSIPRecipient_Rejected: rejections are events, and in no document. They
// belong to no segment: a set with many of them has the documents that it would
// have without.
func TestSIPRecipient_Rejected(t *testing.T) {
	l := newLibrary(t)
	h := newSIPBridge(t, sipSet("main", l.records()))
	var want []string
	steps := "rararraraarrar" // each third a closes a segment
	for i, step := range steps {
		id := fmt.Sprintf("identifier-%d", i)
		if step == 'r' {
			h.notify("/sip/main", sourceOf("nope-"+id)+rejectedFor("no room for "+id))
			want = append(want, "rejected nope-"+id+": no room for "+id)
		} else {
			l.put(id, "<r>"+id+"</r>")
			h.notify("/sip/main", sourceOf("own-"+id)+acceptedAs(id))
			want = append(want, "created "+id)
		}
		h.await(i + 1)
	}
	h.want("logged", h.told("main"), want...)
	var shape []string
	for _, d := range h.changeLists() {
		shape = append(shape, fmt.Sprintf("%d until=%t", len(d.URLs), d.Meta.Until != ""))
	}
	h.want("Change Lists", shape, "3 until=true", "3 until=true", "0 until=false")
	if n := len(h.resources()); n != 6 {
		t.Errorf("the Resource List has %d records", n)
	}
	docs := h.allDocuments()
	for url, d := range docs {
		if i := strings.Index(string(d.body), "nope-"); i >= 0 || strings.Contains(string(d.body), "no room") {
			t.Errorf("%s tells of what was rejected: %.300s", url, d.body[max(i, 0):])
		}
	}
	if first := string(docs[h.setURL("feed/1.atom")].body); strings.Count(first, "<entry") != 3 {
		t.Errorf("archive 1: %s", first)
	}
	if page := string(h.get("/sets/main/").body); !strings.Contains(page, "8 rejected") {
		t.Errorf("the page does not say that 8 were rejected: %s", page)
	}
	h.verified()

	h.halt()
	h.close()
	for _, folder := range []string{"cache", "snapshots"} {
		if err := os.RemoveAll(filepath.Join(h.config.Data, folder)); err != nil {
			t.Fatal(err)
		}
	}
	h.run()
	again := h.allDocuments()
	if len(docs) < 12 || len(again) != len(docs) {
		t.Errorf("%d documents, then %d", len(docs), len(again))
	}
	for url, d := range docs {
		if string(again[url].body) != string(d.body) {
			t.Errorf("%s made anew is\n%s\nand was\n%s", url, again[url].body, d.body)
		}
	}
	h.verified()
}

// A notification of a record is counted as one, and as no submission that was received, also
// where its record is published at once.
func TestNotificationIsNoSubmission(t *testing.T) {
	for _, content := range []string{"reference", "redirect"} {
		h := newSIPBridge(t, strings.Replace(sipSet("main", `record_url = "http://127.0.0.1:1/{assigned-identifier}.xml"`), "[[set.source]]", "content = \""+content+"\"\n[[set.source]]", 1))
		h.notify("/sip/main", sourceOf("1")+acceptedAs("L1"))
		h.want("the set has", h.told("main"), "created L1")
		status, err := h.bridge.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := status.Sets[0].Submissions[0]
		if len(p.States.Words()) != 0 || p.NotificationsReceived[submission.NotificationRecord] != 1 {
			t.Errorf("%s: %v submissions, %v notifications", content, p.States.Words(), p.NotificationsReceived.Words())
		}
		h.verified()
	}
}
