package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// later lets the log's clock go on.
func (h *testServer) later(d time.Duration) { h.ahead.Add(int64(d)) }

// five makes a set with a history, and a record with five versions, an hour apart: the
// fourth is a deletion. It returns the times of the versions.
func (h *testServer) five(id string) (versions []event.Version) {
	h.t.Helper()
	h.history = true
	h.set("main", "Main", event.Mirror)
	for i, body := range []string{"one", "two", "three", "", "five"} {
		if i == 3 {
			h.dead("main", id)
		} else {
			h.alive("main", id, rep{"text/plain", body}, rep{"text/html", "<p>" + body})
		}
		e, err := h.log.Record(context.Background(), "main", event.Key(id))
		if err != nil {
			h.t.Fatal(err)
		}
		versions = append(versions, event.Version{Number: i + 1, Seq: e.Seq, Observed: e.Observed, Kind: e.Kind})
		h.later(time.Hour)
	}
	return versions
}

// A record with five versions, one of them a deletion, behaves as RFC 7089 says: from the
// record to TimeGate and TimeMap, from these to each version and from one to the next.
func TestFiveVersions(t *testing.T) {
	h := newTestServer(t, "", nil)
	const id = "urn:example:five"
	versions := h.five(id)
	path := recordPath("main", id, "")
	u := h.base + path
	date := func(i int) string { return versions[i].Observed.Time().Format(http.TimeFormat) }
	at := func(i int) string { return fmt.Sprintf("%s/at/%d", u, versions[i].Seq) }
	memento := func(i int, rel string) string {
		return fmt.Sprintf(`<%s>; rel="%s"; datetime="%s"`, at(i), rel, date(i))
	}
	original, gate, list := `<`+u+`>; rel="original"`, `<`+u+`/timegate>; rel="timegate"`, `<`+u+`/timemap>; rel="timemap"; type="application/link-format"`
	links := func(r reply, want ...string) {
		t.Helper()
		var got []string
		for _, l := range r.header.Values("Link") {
			if !strings.Contains(l, `rel="via"`) && !strings.Contains(l, `rel="resourcesync"`) {
				got = append(got, l)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("Link:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}

	links(h.get(path).want(t, 200).field(t, "Memento-Datetime", ""), original, gate, list)

	// Datetime negotiation.
	for _, c := range []struct {
		name string
		when time.Time
		want int
		rels []string
	}{
		{"before the first", versions[0].Observed.Time().Add(-48 * time.Hour), 0, []string{memento(0, "first memento"), memento(1, "next memento"), memento(4, "last memento")}},
		{"in the second of the first", versions[0].Observed.Time().Truncate(time.Second), 0, []string{memento(0, "first memento"), memento(1, "next memento"), memento(4, "last memento")}},
		{"a second before the second", versions[1].Observed.Time().Add(-time.Second), 0, []string{memento(0, "first memento"), memento(1, "next memento"), memento(4, "last memento")}},
		{"after the second", versions[1].Observed.Time().Add(time.Minute), 1, []string{memento(0, "first prev memento"), memento(1, "memento"), memento(2, "next memento"), memento(4, "last memento")}},
		{"while it was deleted", versions[3].Observed.Time().Add(time.Minute), 3, []string{memento(0, "first memento"), memento(2, "prev memento"), memento(3, "memento"), memento(4, "next last memento")}},
		{"in the future", versions[4].Observed.Time().Add(1000 * time.Hour), 4, []string{memento(0, "first memento"), memento(3, "prev memento"), memento(4, "last memento")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := h.get(path+"/timegate", "Accept-Datetime", c.when.UTC().Format(http.TimeFormat)).want(t, 302).
				field(t, "Location", at(c.want)).field(t, "Vary", "accept-datetime").field(t, "Memento-Datetime", "")
			links(got, append([]string{original, list}, c.rels...)...)
		})
	}
	h.get(path+"/timegate").want(t, 302).field(t, "Location", at(4)).field(t, "Vary", "accept-datetime")
	for _, bad := range [][]string{{"yesterday"}, {"2026-01-02T03:04:05Z"}, {""}, {"Friday, 02-Jan-26 03:04:05 GMT"}, {date(0), date(1)}} {
		var header []string
		for _, value := range bad {
			header = append(header, "Accept-Datetime", value)
		}
		links(h.get(path+"/timegate", header...).want(t, 400).field(t, "Vary", "accept-datetime"), original, list, memento(0, "first memento"), memento(4, "last memento"))
	}

	// The versions.
	for i, body := range []string{"one", "two", "three", "", "five"} {
		p := strings.TrimPrefix(at(i), h.base)
		status := map[bool]int{true: 200, false: 410}[body != ""]
		got := h.get(p).want(t, status).field(t, "Memento-Datetime", date(i)).field(t, "Vary", "")
		if status == 200 {
			caching := "public, max-age=86400"
			if i == 4 {
				caching = "no-cache"
			}
			got.field(t, "Content-Type", "text/plain").field(t, "ETag", `"`+hexSum(body)+`"`).field(t, "Last-Modified", date(i)).field(t, "Cache-Control", caching)
			if got.body != body {
				t.Errorf("version %d is %q", i+1, got.body)
			}
			h.get(p, "If-None-Match", `"`+hexSum(body)+`"`).want(t, 304).field(t, "Memento-Datetime", date(i))
			if part := h.get(p, "Range", "bytes=1-").want(t, 206); part.body != body[1:] {
				t.Errorf("the end of version %d is %q", i+1, part.body)
			}
		}
		if head := h.ask(http.MethodHead, h.base+p).want(t, status).field(t, "Memento-Datetime", date(i)); head.body != "" {
			t.Errorf("HEAD has %q", head.body)
		}
	}
	links(h.get(strings.TrimPrefix(at(0), h.base)), original, gate, list, memento(0, "first memento"), memento(1, "next memento"), memento(4, "last memento"))
	links(h.get(strings.TrimPrefix(at(2), h.base)), original, gate, list, memento(0, "first memento"), memento(1, "prev memento"), memento(2, "memento"), memento(3, "next memento"), memento(4, "last memento"))

	// The list of them.
	m := h.get(path+"/timemap").want(t, 200).field(t, "Content-Type", "application/link-format")
	want := strings.Join([]string{original, `<` + u + `/timemap>; rel="self"; type="application/link-format"; from="` + date(0) + `"; until="` + date(4) + `"`, gate,
		memento(0, "first memento"), memento(1, "memento"), memento(2, "memento"), memento(3, "memento"), memento(4, "last memento")}, ",\n") + "\n"
	if m.body != want {
		t.Errorf("TimeMap:\n%s\nwant:\n%s", m.body, want)
	}
	h.get(path+"/timemap", "If-None-Match", m.header.Get("ETag")).want(t, 304)
	h.get(path+"/timemap", "If-None-Match", `"another", `+m.header.Get("ETag")).want(t, 304)
	h.get(path+"/timemap", "If-None-Match", `"another"`, "If-None-Match", m.header.Get("ETag")).want(t, 304)
	if once := h.get(path+"/timemap/1").want(t, 200); strings.Replace(once.body, "/timemap/1>", "/timemap>", 1) != m.body {
		t.Errorf("the only page is\n%s", once.body)
	}

	// The other representation has a history of its own.
	html := recordPath("main", id, "html")
	h.get(html+"/timegate", "Accept-Datetime", date(1)).want(t, 302).field(t, "Location", fmt.Sprintf("%s%s/at/%d", h.base, html, versions[1].Seq))
	if got := h.get(fmt.Sprintf("%s/at/%d", html, versions[1].Seq)).want(t, 200).field(t, "Memento-Datetime", date(1)); got.body != "<p>two" {
		t.Errorf("version 2 in HTML is %q", got.body)
	}
	h.get(fmt.Sprintf("%s/at/%d", recordPath("main", id, "rdf"), versions[1].Seq)).want(t, 404)

	// What is not there.
	h.alive("main", "urn:other", rep{"text/plain", "x"})
	for _, p := range []string{path + "/at/0", path + "/at/01", path + "/at/+1", path + "/at/x", path + "/at/6", path + "/at/99999999999999999999", path + "/at/", path + "/at",
		path + "/timemap/0", path + "/timemap/2", path + "/timemap/x", path + "/timegate/1", recordPath("main", "urn:none", "") + "/timemap", recordPath("none", id, "") + "/timemap", "/sets/main/records/x/timegate"} {
		h.get(p).want(t, 404)
	}
	h.ask(http.MethodPost, u+"/timegate").want(t, 405)
}

// What somebody has withdrawn is not to be had in any version; a set without a history
// says nothing of one.
func TestNoVersions(t *testing.T) {
	h := newTestServer(t, "", nil)
	const id = "urn:example:five"
	versions := h.five(id)
	out, err := h.log.Append(context.Background(), &event.Batch{Source: h.sources["main"], Cursor: h.cursors["main"], Mode: event.ModeSubmission,
		Items: []*event.Item{{Observation: event.Observation{Record: id, Deleted: true, Order: event.StampFromNanos(1_800_000_000_000_000_000)}, Reason: "asked for by its author"}}})
	if err != nil || out.Deleted != 1 {
		t.Fatal(out, err)
	}
	path := recordPath("main", id, "")
	for _, p := range []string{path + "/timegate", path + "/timemap", fmt.Sprintf("%s/at/%d", path, versions[0].Seq)} {
		if got := h.get(p).want(t, 410); len(got.header.Values("Link")) != 0 || got.header.Get("Memento-Datetime") != "" {
			t.Errorf("%s: %v", p, got.header)
		}
	}
	if got := fmt.Sprint(h.get(path).want(t, 410).header.Values("Link")); strings.Contains(got, "timegate") {
		t.Errorf("a withdrawn record has links %s", got)
	}
	h.history = false
	h.set("plain", "Plain", event.Mirror).alive("plain", id, rep{"text/plain", "x"})
	path = recordPath("plain", id, "")
	if got := fmt.Sprint(h.get(path).want(t, 200).header.Values("Link")); strings.Contains(got, "timegate") || strings.Contains(got, "original") {
		t.Errorf("without a history a record has links %s", got)
	}
	for _, p := range []string{"/timegate", "/timemap", "/at/1"} {
		h.get(path+p).want(t, 404)
	}
}

// Lists name the version, the TimeGate and the TimeMap (ResourceSync 14.6); deletions
// have no version that could be had. The bytes at the version are those of its entry.
func TestListsNameVersions(t *testing.T) {
	h := newTestServer(t, "", nil)
	versions := h.five("urn:example:five")
	u := h.base + recordPath("main", "urn:example:five", "")
	list := h.get("/sets/main/changelist/1.xml").want(t, 200).body
	for i, v := range versions {
		_, entry, _ := strings.Cut(list, `datetime="`+v.Observed.String())
		entry, _, _ = strings.Cut(entry, "</url>")
		memento := fmt.Sprintf(`<rs:ln rel="memento" href="%s/at/%d"`, u, v.Seq)
		if strings.Contains(entry, memento) == (i == 3) {
			t.Errorf("entry %d: %s", i+1, entry)
		}
		for _, want := range []string{`<rs:ln rel="timegate" href="` + u + `/timegate"/>`, `<rs:ln rel="timemap" href="` + u + `/timemap" type="application/link-format"/>`} {
			if !strings.Contains(entry, want) {
				t.Errorf("entry %d has no %s", i+1, want)
			}
		}
		if body := []string{"one", "two", "three", "", "five"}[i]; body != "" && strings.Count(entry, hexSum(body)) < 2 {
			t.Errorf("entry %d names %s but once: %s", i+1, hexSum(body), entry)
		}
	}
	if list := h.get("/sets/main/resourcelist.xml").want(t, 200).body; !strings.Contains(list, fmt.Sprintf(`<rs:ln rel="memento" href="%s/at/%d"`, u, versions[4].Seq)) {
		t.Errorf("the Resource List: %s", list)
	}
	if page := h.get("/sets/main/").want(t, 200).body; !strings.Contains(page, "/timemap") {
		t.Error("the page of the set does not mention earlier versions")
	}
}

// Versions of one second have the same datetime, stand in their order, and the last of
// them is what was there at the end of that second.
func TestVersionsOfOneSecond(t *testing.T) {
	h := newTestServer(t, "", nil)
	h.history = true
	h.set("main", "Main", event.Mirror)
	testenv.Checks(t, 10)
	record := 0
	rapid.Check(t, func(rt *rapid.T) {
		record++
		id := fmt.Sprint("urn:example:", record)
		for i := range rapid.IntRange(1, 8).Draw(rt, "versions") {
			if i > 0 && rapid.IntRange(1, 3).Draw(rt, "deletion") == 1 {
				if e, err := h.log.Record(context.Background(), "main", event.Key(id)); err != nil || e.Live() {
					h.dead("main", id)
					continue
				}
			}
			h.alive("main", id, rep{"text/plain", fmt.Sprint(id, " version ", i)})
			h.later(time.Duration(rapid.SampledFrom([]int{0, 0, 400, 1000, 3000}).Draw(rt, "pause")) * time.Millisecond)
		}
		// The naive way: every version, and a walk from the oldest to the newest.
		list, _, _, err := h.log.VersionPage(context.Background(), "main", event.Key(id), 0, 100)
		if err != nil {
			rt.Fatal(err)
		}
		path := recordPath("main", id, "")
		for range 5 {
			ask := list[rapid.IntRange(0, len(list)-1).Draw(rt, "near")].Observed.Time().Add(time.Duration(rapid.IntRange(-2, 2).Draw(rt, "off")) * time.Second).Truncate(time.Second)
			want := list[0].Seq
			for _, v := range list {
				if !v.Observed.Time().Truncate(time.Second).After(ask) {
					want = v.Seq
				}
			}
			if got := h.get(path+"/timegate", "Accept-Datetime", ask.Format(http.TimeFormat)).header.Get("Location"); got != fmt.Sprintf("%s%s/at/%d", h.base, path, want) {
				rt.Fatalf("at %v: %s, want version %d of %v", ask, got, want, list)
			}
		}
		body := h.get(path + "/timemap").body
		for _, v := range list {
			mark := fmt.Sprintf("/at/%d>", v.Seq)
			_, rest, ok := strings.Cut(body, mark)
			if !ok {
				rt.Fatalf("version %d is missing, or out of order, in %s", v.Seq, body)
			}
			body = rest
			h.get(fmt.Sprintf("%s/at/%d", path, v.Seq)).want(t, map[bool]int{true: 410, false: 200}[v.Kind == event.Deleted])
		}
	})
}

// A record with thousands of versions has TimeMaps of at most a thousand each, that link
// to each other (the newest one has a URL of its own, too); a reader that knows nothing of bridge finds all versions in order.
func TestManyVersions(t *testing.T) {
	testenv.Heavy(t)
	h := newTestServer(t, "", nil)
	h.history = true
	h.set("main", "Main", event.Mirror)
	const id, n = "urn:example:many", 2345
	if err := h.log.EnsureSet(context.Background(), eventlog.SetConfig{Name: "main", Content: event.Mirror, History: true}); err != nil {
		t.Fatal(err)
	}
	var items []*event.Item
	for i := range n {
		stamp := event.StampFromNanos(int64(i + 1))
		items = append(items, &event.Item{Observation: event.Observation{Record: id, Title: fmt.Sprint("Version ", i+1), Order: stamp, Modified: stamp, Fetched: true,
			Representations: []event.Representation{{Href: "https://origin.example/1", Type: "text/plain", Length: 1, Hash: "sha-256:" + hexSum("x")}}}})
	}
	if _, err := h.log.Append(context.Background(), &event.Batch{Source: h.sources["main"], Mode: event.ModeSubmission, Items: items}); err != nil {
		t.Fatal(err)
	}
	path := recordPath("main", id, "")
	h.get(path+"/timemap/1").want(t, 200).field(t, "Cache-Control", "public, max-age=86400")
	h.get(path+"/timemap/3").want(t, 200).field(t, "Cache-Control", "no-cache")
	h.get(path+"/timemap/4").want(t, 404)

	out, err := exec.Command(testenv.Need(t, "python3", "python3"), filepath.Join(testenv.Root(t), "testdata", "timemap_reader.py"), h.base+path).Output()
	if err != nil {
		t.Fatalf("the independent reader: %v", err)
	}
	var read struct {
		TimeMaps int
		Mementos []string
		First    string
		Last     string
		Gate     string
	}
	if err := json.Unmarshal(out, &read); err != nil {
		t.Fatalf("%v in %.300s", err, out)
	}
	if read.TimeMaps != 4 || len(read.Mementos) != n || read.First != read.Mementos[0] || read.Last != read.Mementos[n-1] || read.Gate != read.Last {
		t.Errorf("read %d TimeMaps with %d versions, first %s, last %s; the TimeGate leads to %s", read.TimeMaps, len(read.Mementos), read.First, read.Last, read.Gate)
	}
	for i, m := range read.Mementos {
		if want := fmt.Sprintf("%s%s/at/%d", h.base, path, i+1); m != want {
			t.Fatalf("version %d is %s, want %s", i+1, m, want)
		}
	}
}

// Only names of the form that the bridge gives have a history: others would stand in
// links and redirects as they came.
func TestHistoryOfOddNames(t *testing.T) {
	h := newTestServer(t, "", nil)
	const id = "urn:example:odd"
	versions := h.five(id)
	path := recordPath("main", id, "")
	for _, name := range []string{".%3E%3B%20rel%3Dtimegate", ".x%0D%0AA%3A%20b", ".%22", ".xml%3Fa", ".XML", ".", ".a.b.c", ".a..b", ".%C3%BC"} {
		for _, rest := range []string{"", "/timegate", "/timemap", "/timemap/1", fmt.Sprintf("/at/%d", versions[0].Seq)} {
			r := h.get(path+name+rest).want(t, 404).field(t, "Location", "")
			for _, link := range r.header.Values("Link") {
				if !strings.Contains(link, `rel="resourcesync"`) {
					t.Errorf("%s%s: Link: %s", name, rest, link)
				}
			}
		}
	}
	for _, name := range []string{".html", ".0a1b2c3d.xml", ".0a1b2c3d-2.xml"} {
		h.get(path+name+"/timegate").want(t, 302)
		h.get(path+name+"/timemap").want(t, 200)
	}
}
