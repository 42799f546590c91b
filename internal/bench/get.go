package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
)

const connections = 32

// The closed documents that are requested: a usual one, and a small one, for which the cost
// of a request matters more than the loopback.
const (
	usualList = "/sets/main/changelist/1.xml"
	smallList = "/sets/small/changelist/1.xml"
)

// serveBridge is bridge serve without Sources.
func serveBridge(ctx context.Context, j job, ready func(result)) (result, error) {
	h, err := openServing(ctx, j.Folder)
	if err != nil {
		return result{}, err
	}
	return result{}, errors.Join(serveDaemon(ctx, ready, h.Publish), h.Close())
}

// serveDaemon runs a bridge on loopback until the parent ends its input.
func serveDaemon(ctx context.Context, ready func(result), serve func(context.Context, net.Listener) error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, l) }()
	ready(result{URL: "http://" + l.Addr().String()})
	stop()
	return <-ended
}

// serveMemory is the rival: net/http alone, with the same responses in memory, bodies and
// headers.
func serveMemory(ctx context.Context, j job, ready func(result)) (result, error) {
	type key struct{ path, encoding string }
	type document struct {
		header http.Header
		body   []byte
	}
	docs := map[key]document{}
	for _, path := range []string{usualList, smallList} {
		for _, encoding := range []string{"", "gzip"} {
			header, body, err := read(ctx, j.URL+path, encoding)
			if err != nil {
				return result{}, err
			}
			docs[key{path, encoding}] = document{header, body}
		}
	}
	return result{}, serveUntil(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		doc := docs[key{r.URL.Path, r.Header.Get("Accept-Encoding")}]
		maps.Copy(w.Header(), doc.header)
		_, _ = w.Write(doc.body)
	}), ready)
}

// read returns the response to a request with an encoding, which may be "".
func read(ctx context.Context, url, encoding string) (http.Header, []byte, error) {
	header := http.Header{}
	if encoding != "" {
		header.Set("Accept-Encoding", encoding)
	}
	a, err := send(ctx, &http.Client{Transport: &http.Transport{DisableCompression: true}}, http.MethodGet, url, header, nil)
	if err != nil {
		return nil, nil, err
	}
	if a.code != http.StatusOK || a.header.Get("Content-Encoding") != encoding {
		return nil, nil, fmt.Errorf("%s: %s, Content-Encoding %q", url, a.status, a.header.Get("Content-Encoding"))
	}
	a.header.Del("Date") // the rival sets its own
	return a.header, a.body, nil
}

// gets measures requests for closed documents over keep-alive connections, alternating with
// the rival.
func (b *bench) gets(folder string) error {
	for set, events := range map[string]int{"main": 10_000, "small": 20} {
		if _, err := b.do(job{Name: "build", Folder: folder, Content: config.Mirror, Set: set, Number: events, Segment: events}); err != nil {
			return err
		}
	}
	ours, at, err := b.serve(job{Name: "serve", Folder: folder})
	if err != nil {
		return err
	}
	rival, other, err := b.serve(job{Name: "memory", URL: at.URL})
	if err != nil {
		return err
	}
	var rows []row
	for _, path := range []string{usualList, smallList} {
		for _, encoding := range []string{"gzip", ""} {
			r, err := b.compare(path, encoding, at.URL, other.URL)
			if err != nil {
				return err
			}
			rows = append(rows, r)
		}
	}
	end, err := ours.end()
	if _, e := rival.end(); err == nil {
		err = e
	}
	for _, r := range rows {
		r.peak = end.Peak
		r.print()
	}
	return err
}

// compare measures ours and the rival alternately, and takes the best of each.
func (b *bench) compare(path, encoding, ours, rival string) (row, error) {
	var best [2]float64
	var size int64
	for range b.runs {
		for i, server := range []string{ours, rival} {
			n, each, err := loadTest(b.ctx, server+path, encoding, time.Duration(b.scaled(2000))*time.Millisecond)
			if err != nil {
				return row{}, err
			}
			if i == 1 && each != size {
				return row{}, fmt.Errorf("%s: the rival serves %d bytes, not %d", path, each, size)
			}
			best[i], size = max(best[i], n), each
		}
	}
	name := map[string]string{"": "identity", "gzip": "gzip"}[encoding]
	ratio := best[0] / best[1]
	return row{name: fmt.Sprintf("GET of a closed document, %s, %s bytes, %d connections", name, thousands(size), connections),
		ours: perSecond(best[0], "requests"), rival: "net/http from memory: " + perSecond(best[1], "requests"), ratio: ratio,
		bars: []bar{atLeast("ratio 0.9", ratio, 0.9)}}, nil
}

// loadTest requests one URL on many connections for some time. It returns requests a second
// and the length of one response.
func loadTest(ctx context.Context, address, encoding string, wait time.Duration) (perSecond float64, size int64, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return 0, 0, err
	}
	request := "GET " + u.Path + " HTTP/1.1\r\nHost: " + u.Host + "\r\n"
	if encoding != "" {
		request += "Accept-Encoding: " + encoding + "\r\n"
	}
	request += "\r\n"
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var answers, length atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, connections)
	start := time.Now()
	for i := range errs {
		group.Go(func() { errs[i] = ask(ctx, u.Host, request, encoding, &answers, &length) })
	}
	group.Wait()
	return rate(answers.Load(), time.Since(start)), length.Load(), errors.Join(errs...)
}

// ask sends one request after the other on one connection. It checks responses with as
// little of net/http as possible, so that it costs less than a server.
func ask(ctx context.Context, host, request, encoding string, answers, length *atomic.Int64) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 64<<10)
	for ctx.Err() == nil {
		if _, err := io.WriteString(conn, request); err != nil {
			return err
		}
		n, err := answer(in, encoding)
		if err != nil {
			return err
		}
		answers.Add(1)
		length.Store(n)
	}
	return nil
}

// answer reads one response and returns the length of its body.
func answer(in *bufio.Reader, encoding string) (int64, error) {
	h, err := readHead(in)
	switch {
	case err != nil:
		return 0, err
	case h.status != "HTTP/1.1 200 OK":
		return 0, fmt.Errorf("a server answered %q", h.status)
	case h.length < 0 || h.encoding != encoding:
		return 0, fmt.Errorf("an answer of %d bytes with Content-Encoding %q", h.length, h.encoding)
	}
	return io.CopyN(io.Discard, in, h.length)
}

// head is the needed part of the header of a response.
type head struct {
	status, encoding string
	length           int64 // of the body, -1 when it is not stated
}

// readHead reads the header of a response, with as little of net/http as possible.
func readHead(in *bufio.Reader) (h head, err error) {
	h.length = -1
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		text := strings.TrimRight(string(line), "\r\n")
		name, value, _ := strings.Cut(text, ": ")
		switch {
		case h.status == "":
			h.status = text
		case text == "":
			return h, nil
		case strings.EqualFold(name, "Content-Length"):
			if h.length, err = strconv.ParseInt(value, 10, 64); err != nil {
				return h, err
			}
		case strings.EqualFold(name, "Content-Encoding"):
			h.encoding = value
		}
	}
}
