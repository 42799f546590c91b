package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// attack is an attack by a hostile peer on a running bridge.
type attack struct {
	defects string
	name    string
	// document is the hostile document: it is the only one of a Source, or a SIP client
	// posts it, times at once.
	document func() []byte
	gzip     bool // it is sent compressed
	times    int  // 0 means that it is of a Source
	// source is the Source, "" for none, and serve its handler if it serves more than a
	// document.
	source      string
	serve       func(w http.ResponseWriter, r *http.Request)
	descriptors int                                          // limit of open files for the victim, 0 means that of this process
	prepare     func(ctx context.Context, v *attacked) error // done before, and not measured
	strike      strike                                       // set if document is not
}

// strike attacks. It returns the number of bytes sent, after decoding, and a note about the
// result.
type strike = func(ctx context.Context, v *attacked) (received int64, note string, err error)

const (
	atomSource = config.AtomPMH
	listSource = config.ResourceSync
)

// attacks are those with which defects were found.
func attacks() []attack {
	prefixes := func() []byte { return sipRequest(testenv.ManyPrefixes(200, 2<<20)) }
	const (
		oneBase     = "3 MiB of SIP request, a long xml:base inherited 200 times"
		references  = "512 KiB of SIP request, 8,000 references to a long xml:base"
		sipPrefixes = "2 MiB of SIP request, 200 elements of 250 declarations each"
	)
	return []attack{
		{defects: "D60", name: oneBase, document: nestedBases, times: 1},
		{defects: "D60", name: oneBase, document: nestedBases, times: 10},
		{defects: "D60", name: references, document: manyBases, times: 1},
		{defects: "D60", name: references, document: manyBases, times: 10},
		{defects: "D60", name: "sitemap of 1,650 relative references to a long xml:base", source: listSource, gzip: true, document: sitemapWithBase},
		{defects: "D61", name: sipPrefixes, document: prefixes, times: 1},
		{defects: "D61", name: sipPrefixes, document: prefixes, times: 10},
		{defects: "D61", name: "2 MiB of Atom feed, 250 elements of 250 declarations each", source: atomSource,
			document: func() []byte { return feedOf(xmlnsAtom, testenv.ManyPrefixes(250, 2<<20)) }},
		{defects: "D102", name: "entry of 8,000 equal alternates", source: atomSource, document: equalAlternates},
		{defects: "D103", name: "4,000 bad entries under 256 KB of declarations", source: atomSource,
			document: func() []byte { return feedOf(longDeclarations(), badEntries(4000)) }},
		{defects: "D103", name: "8 MiB of empty entries", source: atomSource,
			document: func() []byte { return feedOf(xmlnsAtom, strings.Repeat("<entry/>", 1<<20)) }},
		{defects: "D103", name: "300,000 bad entries, each of another record", source: atomSource, gzip: true,
			document: func() []byte { return feedOf(xmlnsAtom, badEntries(300_000)) }},
		{defects: "D64", name: "64 MiB of Resource List, 1.3 million entries", source: listSource, gzip: true, document: func() []byte { return longList(64 << 20) }},
		{defects: "D64", name: "64 MiB of Atom feed, 450,000 entries", source: atomSource, gzip: true, document: func() []byte { return longFeed(64 << 20) }},
		{defects: "D65", name: "Range with 6,000 pieces of a record of 700 KB, 20 times", source: atomSource, serve: bigRecord, strike: manyRanges},
		{defects: "D66", name: "8,000 idle connections", strike: idleConnections(8000)},
		{defects: "D66", name: "250 slow POSTs of 3 of 4 MB", strike: slowPosts(250, 3<<20, 4<<20-1)},
		{defects: "D35", name: "2 addresses with 200 unfinished requests of 4 MB each", strike: slowPosts(400, 4<<20-4096, 4<<20-1)},
		{defects: "D66", name: "600 idle connections, 512 descriptors", descriptors: 512, strike: idleConnections(600)},
		{defects: "D67", name: "40 entries with titles of 1 MB; recent.atom and the page 20 times each", source: atomSource, serve: longTitles, strike: readPages},
		{defects: "D68", name: "/ 300 times, after 1,800 rejections", prepare: rejections(1800), strike: readPage(300)},
		{defects: "D69", name: "1,000 notifications of 15 KB with unknown tokens", strike: unknownTokens(1000, 15<<10)},
		{defects: "D72", name: "64 silent mail connections, then a mail", strike: silentMail(64)},
	}
}

// arm makes the handler or the strike for the document of an attack.
func (a *attack) arm() {
	if a.document == nil {
		return
	}
	body := a.document()
	size := int64(len(body))
	if a.times > 0 {
		a.strike = posted("/sip/library", body, a.times)
		if a.times > 1 {
			a.name += fmt.Sprintf(", %d at once", a.times)
		}
		return
	}
	header := http.Header{"Content-Type": {"application/xml"}}
	if a.source == atomSource {
		header.Set("Content-Type", "application/atom+xml")
	}
	if a.gzip {
		body = packed(body)
		header.Set("Content-Encoding", "gzip")
		a.name += fmt.Sprintf(" (%s KB on the wire)", thousands(float64(len(body))/1e3))
	}
	a.serve = func(w http.ResponseWriter, _ *http.Request) {
		maps.Copy(w.Header(), header)
		_, _ = w.Write(body)
	}
	a.strike = harvested(size)
}

// errHarmed means that other clients are no longer served properly.
var errHarmed = errors.New("others are no longer served")

// patience is how long an attack may keep the victim busy before the victim is stopped.
const patience = 90 * time.Second

// hostile measures the cost of attacks: processor time for each MiB received (at least one
// is counted), peak memory, and the slowest response of /healthz.
func (b *bench) hostile(folder string) error {
	binary := b.binary
	if binary == "" {
		binary = filepath.Join(folder, "bridge")
		if out, err := exec.CommandContext(b.ctx, "go", "build", "-o", binary, "./cmd/bridge").CombinedOutput(); err != nil {
			return fmt.Errorf("building bridge: %w: %s", err, out)
		}
	}
	for _, a := range attacks() {
		if b.attack != "" && !strings.Contains(a.defects, b.attack) {
			continue
		}
		a.arm()
		if err := b.suffer(binary, a); err != nil {
			return fmt.Errorf("%s, %s: %w", a.defects, a.name, err)
		}
	}
	return nil
}

// suffer runs one attack against a new victim.
func (b *bench) suffer(binary string, a attack) (err error) {
	url := ""
	if a.serve != nil {
		p := httptest.NewServer(http.HandlerFunc(a.serve))
		defer p.Close()
		url = p.URL + "/document"
	}
	v, err := b.startAttacked(binary, &a, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.end()) }()
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	if a.serve == nil {
		v.quiet(ctx) // the cost of starting is not measured
	}
	if a.prepare != nil {
		if err := a.prepare(ctx, v); err != nil {
			return err
		}
		v.quiet(ctx)
	}
	before := v.processorTime()
	received, note, err := a.strike(ctx, v)
	harmed := errors.Is(err, errHarmed)
	if err != nil && !harmed && !v.overgrew.Load() {
		return err
	}
	ended := v.quiet(ctx)
	peak, took := v.memory("VmHWM"), v.processorTime()-before
	switch {
	case v.overgrew.Load():
		note, peak, took = strings.TrimPrefix(note+"; ended: it took more than 3 GiB of memory", "; "), tooMuch, 0
	case !ended:
		note = strings.TrimPrefix(note+fmt.Sprintf("; still busy after %.0f s", patience.Seconds()), "; ")
	}
	mib := max(1, float64(received)/(1<<20))
	slowest := time.Duration(v.slowest.Load())
	row{name: a.defects + ": " + a.name,
		ours:  fmt.Sprintf("%.2f s a MiB of %.1f MiB; /healthz %s at most, %d failed", took.Seconds()/mib, float64(received)/(1<<20), short(slowest), v.failed.Load()),
		rival: note, peak: peak, cpu: took,
		bars: []bar{below("2 s a MiB", took.Seconds()/mib, 2), under(300, peak), below("/healthz in 1 s", slowest.Seconds(), 1),
			below("none failed", float64(v.failed.Load()), 1), {"others are served", !harmed}}}.print()
	return nil
}

// harvested is the strike for a Source whose document is hostile by itself: it waits until
// a harvest has ended, and notes how many records it has found.
func harvested(size int64) strike {
	return func(ctx context.Context, v *attacked) (int64, string, error) {
		for {
			v.quiet(ctx)
			note, ended := v.harvest(ctx)
			if ended || ctx.Err() != nil || v.overgrew.Load() {
				return size, note, nil
			}
		}
	}
}

// harvest returns the state of the set main in bridge status, and whether a harvest of it
// has ended.
func (v *attacked) harvest(ctx context.Context) (note string, ended bool) {
	// Its exit status says that a Source fails, which is what some attacks lead to.
	out, _ := exec.CommandContext(ctx, v.binary, "status", "--json", "--data", filepath.Join(v.folder, "data")).Output()
	var status struct {
		Sets []struct {
			Name    string
			Records int
			Sources []struct{ Last *struct{ Error string } }
		}
	}
	if json.Unmarshal(out, &status) != nil {
		return "status failed", false
	}
	for _, set := range status.Sets {
		if set.Name == "main" && len(set.Sources) == 1 && set.Sources[0].Last != nil {
			return fmt.Sprintf("%s records; %s", thousands(set.Records), cmp.Or(set.Sources[0].Last.Error, "no error")), true
		}
	}
	return "", false
}

// soapHeader returns the header of every posted message.
func soapHeader() http.Header { return http.Header{"Content-Type": {"text/xml; charset=utf-8"}} }

// posted is the strike of a peer that posts one body, times at once.
func posted(path string, body []byte, times int) strike {
	return func(ctx context.Context, v *attacked) (int64, string, error) {
		var mu sync.Mutex
		answers := map[string]int{}
		_, err := parallel(ctx, times, times, func(ctx context.Context, _ func() (int, bool)) error {
			status := "no answer"
			if a, err := send(ctx, http.DefaultClient, http.MethodPost, v.url+path, soapHeader(), body); err == nil {
				status = a.status
			}
			mu.Lock()
			defer mu.Unlock()
			answers[status]++
			return nil
		})
		return int64(len(body) * times), counted(answers), err
	}
}

// counted writes how often each response came.
func counted(answers map[string]int) string {
	var parts []string
	for answer, n := range answers {
		parts = append(parts, fmt.Sprintf("%d × %s", n, answer))
	}
	return strings.Join(parts, ", ")
}

// bigRecord is a Source with one record of 700 KB.
func bigRecord(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/document" {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(bytes.Repeat([]byte("0123456789abcde\n"), 700<<10/16))
		return
	}
	w.Header().Set("Content-Type", "application/atom+xml")
	fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:example:f</id><title>f</title><updated>2026-01-01T00:00:00Z</updated><fh:complete/>`+
		`<entry><id>urn:example:big</id><title>big</title><updated>2026-01-01T00:00:00Z</updated><link href="http://%s/big.txt" type="text/plain"/></entry></feed>`, r.Host)
}

// manyRanges requests thousands of ranges of the one record.
func manyRanges(ctx context.Context, v *attacked) (received int64, note string, err error) {
	v.quiet(ctx)
	list, err := v.get(ctx, "/sets/main/resourcelist.xml", nil)
	if err != nil {
		return 0, "", err
	}
	_, rest, _ := strings.Cut(list, "<loc>")
	loc, _, ok := strings.Cut(rest, "</loc>")
	if !ok {
		return 0, "", errors.New("the Resource List has no record")
	}
	pieces := "bytes=" + strings.TrimSuffix(strings.Repeat("0-0,-1,", 3000), ",")
	path := loc[strings.Index(loc, "/sets/"):]
	for range 20 {
		body, err := v.get(ctx, path, http.Header{"Range": {pieces}})
		if err != nil {
			return received, "", err
		}
		received += int64(len(pieces))
		note = fmt.Sprintf("each answer has %d bytes", len(body))
	}
	return received, note, nil
}

// get returns the body of the victim's response, whatever the status.
func (v *attacked) get(ctx context.Context, path string, header http.Header) (string, error) {
	a, err := send(ctx, http.DefaultClient, http.MethodGet, v.url+path, header, nil)
	return string(a.body), err
}

// post posts a SOAP message and returns the status.
func (v *attacked) post(ctx context.Context, path, body string) (string, error) {
	a, err := send(ctx, http.DefaultClient, http.MethodPost, v.url+path, soapHeader(), []byte(body))
	if err != nil {
		return "", err
	}
	return strconv.Itoa(a.code), nil
}

// idleConnections opens n connections that send nothing, and requests a page 200 times
// beside them.
func idleConnections(n int) strike {
	return func(ctx context.Context, v *attacked) (int64, string, error) {
		var open []net.Conn
		defer func() {
			for _, c := range open {
				_ = c.Close()
			}
		}()
		d := net.Dialer{Timeout: 2 * time.Second}
		refused := 0
		for range n {
			c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(v.url, "http://"))
			if err != nil {
				refused++
				if refused > 20 {
					break
				}
				continue
			}
			open = append(open, c)
		}
		start, failed := time.Now(), 0
		for range 200 {
			if _, err := v.get(ctx, "/sets/library/", nil); err != nil {
				failed++
			}
		}
		note := fmt.Sprintf("%d opened; 200 pages in %s, %d failed", len(open), short(time.Since(start)), failed)
		if failed > 0 {
			return 0, note, errHarmed
		}
		return 0, note, nil
	}
}

// slowPosts sends the beginning of n requests, then nothing for ten seconds. Half of them
// come from another address.
func slowPosts(n, sent, announced int) strike {
	return func(ctx context.Context, v *attacked) (int64, string, error) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		var total, refused atomic.Int64
		var group sync.WaitGroup
		body := bytes.Repeat([]byte(" "), 64<<10)
		for i := range n {
			group.Go(func() {
				d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%2))}}
				c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(v.url, "http://"))
				if err != nil {
					refused.Add(1)
					return
				}
				defer c.Close()
				end := time.Now().Add(15 * time.Second)
				_ = c.SetDeadline(end)
				fmt.Fprintf(c, "POST /sip/library HTTP/1.1\r\nHost: %s\r\nContent-Type: text/xml\r\nContent-Length: %d\r\n\r\n", strings.TrimPrefix(v.url, "http://"), announced)
				for left := sent; left > 0; {
					k, err := c.Write(body[:min(left, len(body))])
					total.Add(int64(k))
					if left -= k; err != nil {
						refused.Add(1)
						return
					}
				}
				one := make([]byte, 1)
				if _, err := c.Read(one); err == nil {
					refused.Add(1)
				}
			})
		}
		group.Wait()
		return total.Load(), fmt.Sprintf("%d of %d refused or answered", refused.Load(), n), nil
	}
}

// longTitles is a Source whose titles are a megabyte each.
func longTitles(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/document" {
		_, _ = io.WriteString(w, "a record")
		return
	}
	w.Header().Set("Content-Type", "application/atom+xml")
	fmt.Fprint(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:example:f</id><title>f</title><updated>2026-01-01T00:00:00Z</updated>`)
	title := strings.Repeat("title ", 1<<20/6)
	for i := range 40 {
		fmt.Fprintf(w, `<entry><id>urn:example:%d</id><title>%s</title><updated>2026-01-01T00:00:00Z</updated><link href="http://%s/r/%d" type="text/plain"/></entry>`, i, title, r.Host, i)
	}
	fmt.Fprint(w, `</feed>`)
}

// readPages requests the pages that show titles.
func readPages(ctx context.Context, v *attacked) (int64, string, error) {
	v.quiet(ctx)
	var group sync.WaitGroup
	var most atomic.Int64
	for range 20 {
		for _, path := range []string{"/sets/main/recent.atom", "/"} {
			group.Go(func() {
				if body, err := v.get(ctx, path, nil); err == nil && int64(len(body)) > most.Load() {
					most.Store(int64(len(body)))
				}
			})
		}
	}
	group.Wait()
	return 40 << 20, fmt.Sprintf("the longest answer has %d KB", most.Load()>>10), nil
}

// rejections submits n records that are rejected.
func rejections(n int) func(context.Context, *attacked) error {
	return func(ctx context.Context, v *attacked) error {
		for i := range n {
			body := fmt.Sprintf(`<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body><ingest-request xmlns="http://www.alexandria.ucsb.edu">`+
				`<source><source-identifier>%d</source-identifier></source><record><other xmlns="urn:example:other"/></record></ingest-request></soap:Body></soap:Envelope>`, i)
			if _, err := v.post(ctx, "/sip/library", body); err != nil {
				return err
			}
		}
		return nil
	}
}

// readPage requests the page that lists everything, times times.
func readPage(times int) strike {
	return func(ctx context.Context, v *attacked) (int64, string, error) {
		start := time.Now()
		for range times {
			if _, err := v.get(ctx, "/", nil); err != nil {
				return 0, "", err
			}
		}
		return 0, "in " + short(time.Since(start)), nil
	}
}

// unknownTokens sends n notifications that belong to no submission, each a different one.
func unknownTokens(n, size int) strike {
	return func(ctx context.Context, v *attacked) (received int64, note string, err error) {
		before := v.disk()
		answers := map[string]int{}
		for i := range n {
			body := fmt.Sprintf(`<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body><ingest-disposition xmlns="http://www.alexandria.ucsb.edu">`+
				`<source><source-identifier>%d</source-identifier></source><rejected><reason>%s</reason></rejected></ingest-disposition></soap:Body></soap:Envelope>`, i, strings.Repeat("x", size))
			status, err := v.post(ctx, fmt.Sprintf("/sip/notified/TOKEN%021d", i), body)
			if err != nil {
				return received, "", err
			}
			answers[status]++
			received += int64(len(body))
		}
		return received, fmt.Sprintf("the data folder grew by %.1f MB; %s", float64(v.disk()-before)/1e6, counted(answers)), nil
	}
}

// disk returns the bytes of the data folder.
func (v *attacked) disk() (n int64) {
	_ = filepath.WalkDir(filepath.Join(v.folder, "data"), func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// silentMail opens n mail connections that send nothing, half of them from another address,
// and measures how long the greeting of a third one takes.
func silentMail(n int) strike {
	return func(ctx context.Context, v *attacked) (received int64, note string, err error) {
		var open []net.Conn
		defer func() {
			for _, c := range open {
				_ = c.Close()
			}
		}()
		for i := range n {
			d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%2))}}
			if c, err := d.DialContext(ctx, "tcp", v.mail); err == nil {
				open = append(open, c)
			}
		}
		start := time.Now()
		d := net.Dialer{Timeout: 2 * time.Second}
		c, err := d.DialContext(ctx, "tcp", v.mail)
		if err != nil {
			return 0, "the next connection was refused", errHarmed
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		line, err := textproto.NewConn(c).ReadLine()
		if err != nil {
			return 0, "no greeting within 30 s", errHarmed
		}
		if note = fmt.Sprintf("the next one was greeted with %q after %s", strings.Fields(line)[0], short(time.Since(start))); strings.HasPrefix(line, "220") {
			return 0, note, nil
		}
		return 0, note, errHarmed
	}
}
