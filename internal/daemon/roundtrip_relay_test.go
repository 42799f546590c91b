package daemon_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// relay is a bridge of a row of them, with a configuration file of its own. Its
// address is known before it runs, so that others can be told of it.
type relay struct {
	*harness
	has     recordStates // what its set main should have; see observe
	fetches bool         // main keeps the contents
	prefer  string       // the media type that stands for a record of main; "" none
}

// newRelay reserves the address of a bridge.
func newRelay(t *testing.T) *relay {
	t.Helper()
	o := &harness{t: t}
	o.listen(&http.Transport{DisableKeepAlives: true}) // a bridge waits for connections that are kept when it ends
	return &relay{harness: o, has: recordStates{}}
}

// pool is a set of a relay.
type pool struct {
	name     string // "" is main
	content  string // "" is mirror
	prefer   string
	identity string
	segment  int      // events; 0 is 5
	page     int      // records an answer of the repository; 0 is 100
	sources  []string // kind:URL
}

// run opens the bridge with these sets and publishes.
func (r *relay) run(pools ...pool) {
	r.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "data = \"data\"\nallow_hosts = [\"127.0.0.1\"]\nlisten = %q\nbase_url = %q\n", strings.TrimPrefix(r.base, "http://"), r.base)
	for i := range pools {
		p := &pools[i]
		p.write(&text)
		if p.name == "" || p.name == "main" {
			r.fetches, r.prefer = p.content == "" || p.content == config.Mirror, p.prefer
		}
	}
	file := filepath.Join(r.t.TempDir(), "bridge.toml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		r.t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.config != nil {
		c.Data = r.config.Data // it goes on with what it had
	}
	r.config = c
	r.open()
	r.publish()
}

// again ends the bridge and runs it with other sets.
func (r *relay) again(pools ...pool) {
	r.t.Helper()
	r.halt()
	r.close()
	r.run(pools...)
}

// end closes the bridge before the test ends.
func (r *relay) end() {
	r.halt()
	r.close()
	r.listener.TCPListener.Close()
}

func (p *pool) write(text *strings.Builder) {
	fmt.Fprintf(text, "[[set]]\nname = %q\ncontent = %q\nidentity = %q\nsegment_events = %d\n",
		cmp.Or(p.name, "main"), cmp.Or(p.content, config.Mirror), cmp.Or(p.identity, config.Shared), cmp.Or(p.segment, 5))
	if p.page > 0 {
		fmt.Fprintf(text, "oai_page = %d\n", p.page)
	}
	if p.prefer != "" {
		fmt.Fprintf(text, "prefer = [%q]\n", p.prefer)
	}
	for i, s := range p.sources {
		kind, url, _ := strings.Cut(s, ":")
		fmt.Fprintf(text, "[[set.source]]\nname = \"s%d\"\nkind = %q\nurl = %q\noverlap = \"0s\"\n", i, kind, url)
	}
}

// lists and feed are what others harvest set main by.
func (r *relay) lists() string    { return "resourcesync:" + r.setURL("capabilitylist.xml") }
func (r *relay) archived() string { return "atompmh:" + r.setURL("feed.atom") }
func (r *relay) whole() string    { return "atompmh:" + r.setURL("complete.atom") }

// take harvests a Source. Nothing may be left undone.
func (r *relay) take(t faults, s *daemon.Source, o harvest.Options) harvest.Report {
	t.Helper()
	report, err := r.bridge.Harvest(r.t.Context(), s, o)
	if err != nil {
		t.Fatalf("%s: %v", s.URL, err)
	}
	// In a cycle somebody is asked first, before it has walked its own Sources (D143).
	waits := report.Withheld && len(report.Warnings) == 1 && report.Events() == 0
	if report.Partial() && !waits {
		t.Fatalf("%s: something is left undone: %+v", s.URL, report)
	}
	return report
}

// takeBridge harvests the only Source, which is a bridge: its documents break no
// rule, but for types that its own Source has not stated either.
func (r *relay) takeBridge(t faults, full bool) {
	t.Helper()
	for _, e := range r.take(t, r.source(), harvest.Options{Full: full}).Examples {
		if e.Rule != "pmh-type" {
			t.Errorf("%s is a bridge, and breaks rule %s: %s", r.source().URL, e.Rule, e.First)
		}
	}
}

// served returns the SHA-256 of what a URL answers in the end.
func served(t faults, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer resp.Body.Close()
	h := sha256.New()
	if _, err := io.Copy(h, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return hex.EncodeToString(h.Sum(nil))
}
