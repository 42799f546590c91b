package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

func gz(b []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	w.Write(b)
	w.Close()
	return buf.Bytes()
}

// noise is text that compresses a little.
func noise(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(r.IntN(26))
	}
	return b
}

func TestGzip(t *testing.T) {
	doc := noise(200_000)
	var accept string
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		accept = r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", r.URL.Query().Get("encoding"))
		w.Write(gz(doc))
	})
	c := newGuard(t, Options{Reach: Reach{Origin: s.URL}}).Client("")
	for _, encoding := range []string{"gzip", "x-gzip", "GZIP"} {
		resp, err := c.Get(s.URL + "?encoding=" + encoding)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !bytes.Equal(b, doc) || accept != "gzip" {
			t.Errorf("%s: %d bytes, %v; Accept-Encoding %q", encoding, len(b), err, accept)
		}
		if resp.ContentLength != -1 || !resp.Uncompressed || resp.Header.Get("Content-Encoding")+resp.Header.Get("Content-Length") != "" {
			t.Errorf("%s: the header still tells of gzip: %v", encoding, resp.Header)
		}
	}

	// Who asks for an encoding of its own gets the bytes as they are.
	for k, v := range map[string]string{"Accept-Encoding": "identity", "Range": "bytes=0-"} {
		req, _ := http.NewRequest("GET", s.URL+"?encoding=gzip", nil)
		req.Header.Set(k, v)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !bytes.Equal(b, gz(doc)) || resp.Header.Get("Content-Encoding") != "gzip" || accept == "gzip" {
			t.Errorf("%s: %s: %d bytes, Accept-Encoding %q", k, v, len(b), accept)
		}
	}
}

// What some servers write for a body without a coding is none.
func TestEncodingsThatAreNone(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", r.URL.Query().Get("encoding"))
		io.WriteString(w, "plain")
	})
	c := newGuard(t, Options{Reach: Reach{Origin: s.URL}}).Client("")
	for _, encoding := range []string{"", "identity", "none", "UTF-8"} {
		if status, body, err := get(c, s.URL+"?encoding="+encoding); err != nil || status != 200 || body != "plain" {
			t.Errorf("%q: status %d, body %q, %v", encoding, status, body, err)
		}
	}
}

func TestEncodingsThatCannotBeUndone(t *testing.T) {
	for encoding, body := range map[string]string{
		"br": "x", "gzip, gzip": string(gz(gz([]byte("x")))), "deflate": "x",
		"gzip": "this is no gzip at all", "x-gzip": string(gz([]byte("x"))) + "and much more", "GZIP": string(gz([]byte("x"))[:15]) + "damaged!",
	} {
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", encoding)
			if r.URL.Path == "/404" {
				w.WriteHeader(404)
			}
			io.WriteString(w, body)
		})
		c := newGuard(t, Options{Reach: Reach{Origin: s.URL}}).Client("")
		_, _, err := get(c, s.URL)
		if !errors.Is(err, errEncoding) || Transient(err) || !strings.Contains(err.Error(), s.URL) {
			t.Errorf("%s: %v, want errEncoding", encoding, err)
		}
		resp, err := c.Get(s.URL + "/404")
		if err != nil || resp.StatusCode != 404 {
			t.Fatalf("%s: the status is lost: %v", encoding, err)
		}
		resp.Body.Close()
	}
}

func TestRatio(t *testing.T) {
	testenv.Heavy(t)
	bombs := map[string][]byte{
		"bomb":          gz(make([]byte, 16<<20)),
		"many members":  bytes.Repeat(gz(make([]byte, 1<<20)), 16),
		"tail":          append(gz(noise(10_000)), gz(make([]byte, 16<<20))...),
		"short spaces":  gz(bytes.Repeat([]byte(" "), ratioFloor)),
		"honest":        gz(noise(4 << 20)),
		"honest, dense": gz(bytes.Join(slices.Collect(slices.Chunk(noise(200_000), 100)), make([]byte, 2000))),
	}
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(bombs[r.URL.Query().Get("b")])
	})
	c := newGuard(t, Options{Reach: Reach{Origin: s.URL}}).Client("")
	for name := range bombs {
		u := s.URL + "/?b=" + strings.ReplaceAll(name, " ", "+")
		resp, err := c.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		switch name {
		case "bomb", "many members", "tail":
			if !errors.Is(err, errRatio) || Transient(err) || n > 4<<20 || !strings.Contains(err.Error(), u) {
				t.Errorf("%s: %d bytes, %v, want errRatio", name, n, err)
			}
			if _, again := resp.Body.Read(make([]byte, 1)); again == nil || again == io.EOF {
				t.Errorf("%s: reading on gives %v", name, again)
			}
		default:
			if err != nil {
				t.Errorf("%s: %v after %d bytes", name, err, n)
			}
		}
	}
	lax := newGuard(t, Options{Reach: Reach{Origin: s.URL}, Ratio: 2000}).Client("")
	if _, body, err := get(lax, s.URL+"/?b=bomb"); err != nil || len(body) != 16<<20 {
		t.Errorf("with a ratio of 2000: %d bytes, %v", len(body), err)
	}
}

// raw answers with these very bytes and closes the connection.
func raw(w http.ResponseWriter, answer []byte) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	conn.Write(answer)
	conn.Close()
}

func chunked(b []byte) []byte {
	var out []byte
	for len(b) > 0 {
		n := min(len(b), 1000)
		out = fmt.Appendf(out, "%x\r\n%s\r\n", n, b[:n])
		b = b[n:]
	}
	return append(out, "0\r\n\r\n"...)
}

// A body of 64 KiB that is cut anywhere is an error, and never a whole document.
func TestCutBodies(t *testing.T) {
	testenv.Heavy(t)
	doc := noise(64 << 10)
	const head = "HTTP/1.1 200 OK\r\n"
	forms := map[string]struct {
		head string
		body []byte
	}{
		"length":           {head + "Content-Length: " + strconv.Itoa(len(doc)) + "\r\n\r\n", doc},
		"chunked":          {head + "Transfer-Encoding: chunked\r\n\r\n", chunked(doc)},
		"gzip, length":     {head + "Content-Encoding: gzip\r\nContent-Length: " + strconv.Itoa(len(gz(doc))) + "\r\n\r\n", gz(doc)},
		"gzip, chunked":    {head + "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", chunked(gz(doc))},
		"gzip, unfinished": {head + "Content-Encoding: gzip\r\n\r\n", gz(doc)},
	}
	var cut []byte
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { raw(w, cut) })
	c := newGuard(t, Options{Reach: Reach{Origin: s.URL}}).Client("")
	for name, form := range forms {
		step := 331
		for n := 0; n < len(form.body); {
			cut = append([]byte(form.head), form.body[:n]...)
			_, body, err := get(c, s.URL)
			if !errors.Is(err, errBroken) || !errors.Is(err, io.ErrUnexpectedEOF) || !Transient(err) {
				t.Fatalf("%s cut at %d of %d: %d bytes, %v, want errBroken", name, n, len(form.body), len(body), err)
			}
			if !strings.HasPrefix(string(doc), body) {
				t.Fatalf("%s cut at %d: other bytes", name, n)
			}
			if n < 40 || n > len(form.body)-40 {
				n++
			} else {
				n = min(n+step, max(n+1, len(form.body)-40))
			}
		}
		cut = append([]byte(form.head), form.body...)
		if _, body, err := get(c, s.URL); err != nil || body != string(doc) {
			t.Errorf("%s, whole: %v", name, err)
		}
	}
}

// Over HTTP/2 all of it holds as well.
func TestHTTP2(t *testing.T) {
	doc := noise(100_000)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/busy":
			w.WriteHeader(503)
		case "/empty":
			w.WriteHeader(204)
		case "/cut":
			w.Write(doc)
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(gz(make([]byte, 8<<20)))
		default:
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(gz(doc))
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}})
	g.base.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	resp, err := g.Client("").Get(s.URL)
	if err != nil || resp.ProtoMajor != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Equal(b, doc) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	for path, want := range map[string]error{"/cut": errBroken, "/bomb": errRatio, "/busy": nil, "/empty": nil} {
		if _, _, err := get(g.Client(""), s.URL+path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	for name, h := range g.hosts {
		if len(h.slots) != 0 || len(h.held) != 0 {
			t.Errorf("%s: %d slots are left", name, len(h.slots))
		}
	}
}

// drip sends the body piece by piece, with a pause before each.
func drip(pause time.Duration, pieces int, piece string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		for range pieces {
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
			io.WriteString(w, piece)
			http.NewResponseController(w).Flush()
		}
	}
}

func TestSlowBodies(t *testing.T) {
	for _, c := range []struct {
		what    string
		h       http.HandlerFunc
		want    error
		atLeast time.Duration
		atMost  time.Duration
	}{
		{"nothing comes", drip(time.Hour, 1, "x"), errIdle, time.Minute, time.Minute},
		{"a byte a second", drip(time.Second, 10_000, "x"), errIdle, time.Minute, time.Minute},
		{"a byte just in time", drip(59*time.Second, 10_000, "x"), errIdle, time.Minute, time.Minute},
		{"a KiB, then nothing", drip(50*time.Second, 1, strings.Repeat("x", 5000)+"\n"), nil, 50 * time.Second, 50 * time.Second},
		{"a KiB a second", drip(50*time.Second, 50, strings.Repeat("x", 60<<10)), nil, 2500 * time.Second, 2500 * time.Second},
		{"25 bytes a second (D148)", drip(time.Second, 1_000_000, strings.Repeat("x", 25)), errIdle, time.Minute, time.Minute},
		{"fast enough, without an end (D148)", drip(time.Second, 1_000_000, strings.Repeat("x", 1100)), errLong, time.Hour, time.Hour},
		{"short and slow", drip(5*time.Second, 10, "x"), nil, 50 * time.Second, 50 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, stop := bubble(Options{}, c.h)
			defer stop()
			start := time.Now()
			_, _, err := get(g.Client(""), "http://h.example/x")
			if d := time.Since(start); !errors.Is(err, c.want) || d < c.atLeast || d > c.atMost {
				t.Errorf("%s: %v after %s, want %v", c.what, err, d, c.want)
			}
			if c.want != nil && (!Transient(err) || !strings.Contains(err.Error(), "http://h.example/x")) {
				t.Errorf("%s: %v", c.what, err)
			}
			synctest.Wait()
		})
	}
}

// Only waiting for the server counts: a reader may take its time.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, stop := bubble(Options{}, func(w http.ResponseWriter, r *http.Request) { w.Write(noise(100_000)) })
		defer stop()
		resp, err := g.Client("").Get("http://h.example/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for n := 0; n < 100_000; {
			time.Sleep(10 * time.Minute) // synctest's, which takes no time
			m, err := resp.Body.Read(make([]byte, 10_000))
			if n += m; err != nil && err != io.EOF {
				t.Fatalf("after %d bytes: %v", n, err)
			}
		}
	})
}

func TestCallerStopsABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, stop := bubble(Options{}, drip(time.Second, 100, strings.Repeat("x", 2000)))
		defer stop()
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(10*time.Second, func() { cancel(stopped) })
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://h.example/", nil)
		resp, err := g.Client("").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != stopped || Transient(err) {
			t.Errorf("error %v, want the cause of the cancellation", err)
		}
		synctest.Wait()
	})
}

// Connections are used again, whether bodies are read or just closed, unless
// reading on would cost more than a new one.
func TestConnectionsAreReused(t *testing.T) {
	for _, c := range []struct {
		what  string
		path  string
		size  int
		read  int64
		conns int
	}{
		{"read to the end", "/", 200_000, 200_000, 1},
		{"read to the end, chunked", "/chunked", 200_000, 200_000, 1},
		{"not read", "/", 50_000, 0, 1},
		{"not read, chunked", "/chunked", 50_000, 0, 1},
		{"read in part", "/", 200_000, 150_000, 1},
		{"no body", "/", 0, 0, 1},
		{"too much is left", "/", 200_000, 10, 20},
		{"too much is left, chunked", "/chunked", 200_000, 10, 20},
	} {
		synctest.Test(t, func(t *testing.T) { // what is left is read for a moment only
			g, stop := bubble(Options{}, func(w http.ResponseWriter, r *http.Request) {
				if c.path == "/chunked" {
					http.NewResponseController(w).Flush()
				}
				w.Write(make([]byte, c.size))
			})
			defer stop()
			var conns atomic.Int32
			dial := g.base.DialContext
			g.base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				conns.Add(1)
				return dial(ctx, network, address)
			}
			client := g.Client("")
			for range 20 {
				resp, err := client.Get("http://h.example" + c.path)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.CopyN(io.Discard, resp.Body, c.read); err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
					t.Errorf("%s: a closed body can be read", c.what)
				}
				resp.Body.Close()
			}
			if n := int(conns.Load()); n != c.conns {
				t.Errorf("%s: %d connections, want %d", c.what, n, c.conns)
			}
		})
	}
}

// Closing a body that drips does not wait for it.
func TestCloseDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, stop := bubble(Options{}, drip(20*time.Millisecond, 10_000, "x"))
		defer stop()
		resp, err := g.Client("").Get("http://h.example/")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		resp.Body.Close()
		if d := time.Since(start); d > drainTime {
			t.Errorf("closing took %s", d)
		}
		synctest.Wait()
	})
}

func TestLimit(t *testing.T) {
	const doc = "0123456789"
	for n := range int64(13) {
		for _, size := range []int{1, 3, 10, 11, 100} {
			var got []byte
			r := Limit(strings.NewReader(doc), n, "feed document http://h.example/")
			var err error
			for err == nil {
				var m int
				buf := make([]byte, size)
				m, err = r.Read(buf)
				got = append(got, buf[:m]...)
			}
			if n < int64(len(doc)) {
				if !errors.Is(err, ErrTooLarge) || string(got) != doc[:n] || !strings.Contains(err.Error(), "http://h.example/") || !strings.Contains(err.Error(), strconv.FormatInt(n, 10)) {
					t.Errorf("limit %d: %q, %v", n, got, err)
				}
				if m, again := r.Read(make([]byte, 5)); m != 0 || again == nil || again == io.EOF {
					t.Errorf("limit %d: reading on gives %d, %v", n, m, again)
				}
			} else if err != io.EOF || string(got) != doc {
				t.Errorf("limit %d: %q, %v", n, got, err)
			}
		}
	}
}

func TestStatuses(t *testing.T) {
	for status, want := range map[int][2]bool{
		200: {false, false}, 304: {false, false}, 400: {false, false}, 401: {false, false}, 403: {true, false}, 404: {true, false}, 410: {true, false},
		429: {false, true}, 500: {false, true}, 501: {false, false}, 502: {false, true}, 503: {false, true}, 504: {false, true},
	} {
		if Gone(status) != want[0] || TransientStatus(status) != want[1] {
			t.Errorf("%d: gone %t, transient %t", status, Gone(status), TransientStatus(status))
		}
	}
	if Transient(nil) || Transient(io.ErrUnexpectedEOF) {
		t.Error("an error that is not ours counts as transient")
	}
}
