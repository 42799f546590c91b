package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// attack is what a hostile peer does to a running bridge. It returns how many
// bytes it has sent, after decoding, and what else is worth saying.
type attack struct {
	defects     string
	name        string
	kind        string                                       // of the Source, "" for none
	serve       func(w http.ResponseWriter, r *http.Request) // what the Source answers
	content     string                                       // mode of the Source's set, "" is mirror
	descriptors int                                          // open files that the victim may have, 0: as many as this process
	prepare     func(ctx context.Context, v *attacked) error // what comes before, and is not measured
	strike      func(ctx context.Context, v *attacked) (received int64, note string, err error)
}

// errHarmed: others are no longer served as they should be.
var errHarmed = errors.New("others are no longer served")

// patience is how long an attack may keep the victim busy before it is ended.
const patience = 90 * time.Second

// hostile measures what hostile peers cost: processor time for each MiB received
// (at least one is counted), peak memory, and the slowest answer of /healthz.
func (b *bench) hostile() error {
	binary := b.binary
	if binary == "" {
		binary = filepath.Join(b.folder, "bridge")
		if out, err := exec.CommandContext(b.ctx, "go", "build", "-o", binary, "./cmd/bridge").CombinedOutput(); err != nil {
			return fmt.Errorf("building bridge: %w: %s", err, out)
		}
	}
	for _, a := range b.attacks() {
		if b.attack != "" && !strings.Contains(a.defects, b.attack) {
			continue
		}
		if err := b.suffer(binary, a); err != nil {
			return fmt.Errorf("%s, %s: %w", a.defects, a.name, err)
		}
	}
	return nil
}

// suffer runs one attack against a victim of its own.
func (b *bench) suffer(binary string, a attack) (err error) {
	source, asked := "", &atomic.Int64{}
	if a.serve != nil {
		p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			a.serve(w, r)
		}))
		defer p.Close()
		source = p.URL + "/document"
	}
	v, err := b.startAttacked(binary, a, source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.end()) }()
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	if a.serve == nil {
		v.quiet(ctx) // what starting costs does not count
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

// harvested is the strike of a Source whose document is hostile by itself: it
// waits until a harvest has ended, and says how many records came of it.
func harvested(size int64) func(context.Context, *attacked) (int64, string, error) {
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

// harvest returns what bridge status shows of the set main, and whether a harvest of it
// has ended.
func (v *attacked) harvest(ctx context.Context) (note string, ended bool) {
	out, err := exec.CommandContext(ctx, v.binary, "status", "--json", "--data", filepath.Join(v.folder, "data")).Output()
	var status struct {
		Sets []struct {
			Name    string
			Records int
			Sources []struct{ Last *struct{ Error string } }
		}
	}
	if err != nil || json.Unmarshal(out, &status) != nil {
		return "status failed", false
	}
	for _, set := range status.Sets {
		if set.Name == "main" && len(set.Sources) == 1 && set.Sources[0].Last != nil {
			return fmt.Sprintf("%s records; %s", thousands(float64(set.Records)), cmp.Or(set.Sources[0].Last.Error, "no error")), true
		}
	}
	return "", false
}

// posted is the strike of a peer that posts one body so many times at once.
func posted(path, contentType string, body []byte, times int) func(context.Context, *attacked) (int64, string, error) {
	return func(ctx context.Context, v *attacked) (int64, string, error) {
		var group sync.WaitGroup
		var mu sync.Mutex
		answers := map[string]int{}
		for range times {
			group.Go(func() {
				answer := "no answer"
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.url+path, bytes.NewReader(body))
				if err == nil {
					req.Header.Set("Content-Type", contentType)
					var resp *http.Response
					if resp, err = http.DefaultClient.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
						answer = resp.Status
					}
				}
				mu.Lock()
				answers[answer]++
				mu.Unlock()
			})
		}
		group.Wait()
		return int64(len(body) * times), counted(answers), nil
	}
}

// counted writes what was answered how often.
func counted(answers map[string]int) string {
	var parts []string
	for answer, n := range answers {
		parts = append(parts, fmt.Sprintf("%d × %s", n, answer))
	}
	return strings.Join(parts, ", ")
}

// attackWith makes an attack of a hostile document: times as often at once, where
// it is posted.
func attackWith(d hostileDocument, times int) attack {
	body := d.body()
	a := attack{defects: d.defect, name: d.name}
	if d.kind == "sip" {
		a.strike = posted("/sip/library", d.contentType, body, times)
		if times > 1 {
			a.name += fmt.Sprintf(", %d at once", times)
		}
		return a
	}
	a.kind = "resourcesync"
	if d.kind == "atom" {
		a.kind = "atompmh"
	}
	size := int64(len(body))
	if d.contentEncoding == "gzip" {
		a.name += fmt.Sprintf(" (%s KB on the wire)", thousands(float64(size)/1e3))
		size = unpackedSize(body)
	}
	a.content = "reference" // its contents are nowhere
	a.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", d.contentType)
		if d.contentEncoding != "" {
			w.Header().Set("Content-Encoding", d.contentEncoding)
		}
		_, _ = w.Write(body)
	}
	a.strike = harvested(size)
	return a
}

// unpackedSize is the length of what gzip has packed; 0 when it is damaged.
func unpackedSize(packed []byte) int64 {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return 0
	}
	n, err := io.Copy(io.Discard, r)
	if err != nil {
		return 0
	}
	return n
}

func (b *bench) attacks() []attack {
	var all []attack
	for _, d := range hostileDocuments() {
		all = append(all, attackWith(d, 1))
		if d.kind == "sip" {
			all = append(all, attackWith(d, 10))
		}
	}
	return append(all, []attack{
		{defects: "D65", name: "Range with 6,000 pieces of a record of 700 KB, 20 times", kind: "atompmh", serve: bigRecord, strike: manyRanges},
		{defects: "D66", name: "8,000 idle connections", strike: idleConnections(8000)},
		{defects: "D66", name: "250 slow POSTs of 3 of 4 MB", strike: slowPosts(250, 3<<20, 4<<20-1)},
		{defects: "D35", name: "2 addresses with 200 unfinished requests of 4 MB each", strike: slowPosts(400, 4<<20-4096, 4<<20-1)},
		{defects: "D66", name: "600 idle connections, 512 descriptors", descriptors: 512, strike: idleConnections(600)},
		{defects: "D67", name: "40 entries with titles of 1 MB; recent.atom and the page 20 times each", kind: "atompmh", serve: longTitles, strike: readPages},
		{defects: "D68", name: "/ 300 times, after 1,800 rejections", prepare: rejections(1800), strike: readPage(300)},
		{defects: "D69", name: "1,000 notifications of 15 KB with unknown tokens", strike: unknownTokens(1000, 15<<10)},
		{defects: "D72", name: "64 silent mail connections, then a mail", strike: silentMail(64)},
	}...)
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

// manyRanges asks for thousands of pieces of the one record.
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

// get returns the body that the victim answers with, whatever the status.
func (v *attacked) get(ctx context.Context, path string, header http.Header) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url+path, nil)
	if err != nil {
		return "", err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// idleConnections opens so many connections that say nothing, and asks for a
// page 200 times beside them.
func idleConnections(n int) func(context.Context, *attacked) (int64, string, error) {
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

// slowPosts sends the beginning of so many requests, then nothing more for ten
// seconds. Half of them come from another address.
func slowPosts(n, sent, announced int) func(context.Context, *attacked) (int64, string, error) {
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

// readPages reads what shows titles.
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

// rejections has so many records refused.
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

// readPage reads the page of everything so many times.
func readPage(times int) func(context.Context, *attacked) (int64, string, error) {
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

// post posts a SOAP message and returns the status.
func (v *attacked) post(ctx context.Context, path, body string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.url+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "text/xml; charset=utf-8")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Body.Close()
}

// unknownTokens sends notifications that belong to nothing, each another one.
func unknownTokens(n, size int) func(context.Context, *attacked) (int64, string, error) {
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
			answers[fmt.Sprint(status)]++
			received += int64(len(body))
		}
		return received, fmt.Sprintf("the data folder grew by %.1f MB; %s", float64(v.disk()-before)/1e6, counted(answers)), nil
	}
}

// disk is how many bytes the data folder holds.
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

// silentMail holds so many connections of mail that say nothing, half of them from
// another address, and looks how long a third one's greeting takes.
func silentMail(n int) func(context.Context, *attacked) (int64, string, error) {
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
