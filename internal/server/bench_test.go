package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/server"
)

// BenchmarkClosedDocument asks for a closed document over 32 connections, in
// turns of the server and of net/http serving the same bytes from memory. The
// bar is a ratio of 0.8.
func BenchmarkClosedDocument(b *testing.B) {
	h := newTestServer(b, "", func(o *server.Options) { o.Logger = nil }).set("main", "Main", event.Mirror)
	h.fill("main")
	h.long("long", 1000)
	h.long("longer", 10_000)
	for _, c := range []struct{ name, path, coding string }{
		{"5-events", "/sets/main/changelist/1.xml", ""},
		{"1000-events", "/sets/long/changelist/1.xml", ""},
		{"1000-events-gzip", "/sets/long/changelist/1.xml", "gzip"},
		{"10000-events", "/sets/longer/changelist/1.xml", ""},
		{"10000-events-gzip", "/sets/longer/changelist/1.xml", "gzip"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var header []string
			if c.coding != "" {
				header = []string{"Accept-Encoding", c.coding}
			}
			doc := h.get(c.path, header...).want(b, 200)
			rival := startRival(b, doc)
			ours := h.web.Listener.Addr().String()
			request := "GET " + c.path + " HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: " + c.coding + "\r\n\r\n"
			us, them := newLoad(b, ours, request), newLoad(b, rival, request)
			var usTime, themTime time.Duration
			b.SetBytes(int64(len(doc.body)))
			for n := b.N; n > 0; {
				turn := min(n, max(64, 2<<20/len(doc.body)))
				n -= turn
				usTime += us.run(turn)
				themTime += them.run(turn)
			}
			b.ReportMetric(float64(b.N)/usTime.Seconds(), "GET/s")
			b.ReportMetric(float64(b.N)/themTime.Seconds(), "net/http-GET/s")
			b.ReportMetric(themTime.Seconds()/usTime.Seconds(), "ratio")
			b.ReportMetric(0, "ns/op") // the time of both
		})
	}
}

// startRival serves one answer from memory.
func startRival(b *testing.B, doc reply) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	body := []byte(doc.body)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for name, values := range doc.header {
			if name != "Date" {
				h[name] = values
			}
		}
		h.Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})}
	go srv.Serve(l)
	b.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

// load is 32 connections that ask for the same thing, with a client that costs
// as little as can be: it shares the processors with the server.
type load struct {
	b       *testing.B
	request string
	conns   []net.Conn
	readers []*bufio.Reader
}

func newLoad(b *testing.B, addr, request string) *load {
	l := &load{b: b, request: request}
	for range 32 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		l.conns = append(l.conns, c)
		l.readers = append(l.readers, bufio.NewReaderSize(c, 64<<10))
	}
	return l
}

func (l *load) run(n int) time.Duration {
	began := time.Now()
	var wg sync.WaitGroup
	for i := range l.conns {
		share := n / len(l.conns)
		if i < n%len(l.conns) {
			share++
		}
		wg.Go(func() {
			for range share {
				if err := l.one(i); err != nil {
					l.b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

func (l *load) one(i int) error {
	if _, err := io.WriteString(l.conns[i], l.request); err != nil {
		return err
	}
	length := -1
	for {
		line, err := l.readers[i].ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			break
		}
		if name, value, ok := strings.Cut(string(line), ":"); ok && strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	if length <= 0 {
		return fmt.Errorf("an answer of %d bytes", length)
	}
	_, err := l.readers[i].Discard(length)
	return err
}
