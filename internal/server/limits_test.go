package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
)

// runLimited runs a server with one service on pipes, with these options changed.
func runLimited(d server.SIPService, change func(*server.Options)) *running {
	o := server.Options{Documents: oneRecord{}, Log: oneRecord{}, Contents: oneRecord{}, SIPService: func(string) server.SIPService { return d }}
	change(&o)
	return runOptions(o)
}

// A check that does not end is answered all the same, and not begun again.
func TestReadyCheckHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks, free := 0, make(chan struct{})
		r := runLimited(nil, func(o *server.Options) {
			o.Ready = func(context.Context) error {
				checks++
				<-free
				return nil
			}
		})
		ask := func(want int, after time.Duration) {
			t.Helper()
			c, began := r.dial(), time.Now()
			defer c.Close()
			go io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); res.StatusCode != want || took != after {
				t.Errorf("answered %d after %v; want %d after %v", res.StatusCode, took, want, after)
			}
		}
		ask(503, 5*time.Second)
		ask(503, 5*time.Second)
		close(free)
		synctest.Wait()
		if ask(200, 0); checks != 2 {
			t.Errorf("%d checks", checks)
		}
		r.end(t)
	})
}

// D66: with all connections busy, and with all requests of the address under way,
// health is answered at once, and everybody else is told to come again.
func TestHealthIsAnsweredWhenAllIsBusy(t *testing.T) {
	for name, change := range map[string]func(*server.Options){
		"connections": func(o *server.Options) { o.Limits.Connections = 2 },
		"one client":  func(o *server.Options) { o.Limits.ConnectionsPerAddress = 2 },
		"requests":    func(o *server.Options) { o.Limits.PerAddress = 2 },
	} {
		synctest.Test(t, func(t *testing.T) {
			d := server.SIPService(func(w http.ResponseWriter, r *http.Request, _ string) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusAccepted)
			})
			r := runLimited(d, change)
			var busy []io.Closer
			for range 2 {
				c, _ := r.post(t, "Content-Length: 5\r\n")
				busy = append(busy, c)
			}
			synctest.Wait() // their bodies are being waited for
			began := time.Now()
			for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/": 503} {
				if path == "/" && name == "requests" {
					want = 429
				}
				c := r.dial()
				go fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(name, path, err)
				}
				if res.StatusCode != want || want != 200 && res.Header.Get("Retry-After") == "" {
					t.Errorf("%s: %s is answered %d, %v", name, path, res.StatusCode, res.Header)
				}
				c.Close()
			}
			if time.Since(began) != 0 {
				t.Errorf("%s: answered after %v", name, time.Since(began))
			}
			for _, c := range busy {
				c.Close()
			}
			r.end(t)
		})
	}
}

// D66: connections that wait for nothing are closed for those that ask.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runLimited(nil, func(o *server.Options) { o.Limits.Connections = 10 })
		var idle []net.Conn
		for range 100 {
			idle = append(idle, r.dial())
		}
		synctest.Wait()
		c, began := r.dial(), time.Now()
		br := bufio.NewReader(c)
		for range 3 {
			go io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if res := answered(t, br, http.StatusOK); res.Close {
				t.Error("a request on a connection that made its way is the last one")
			}
			for range 9 {
				idle = append(idle, r.dial())
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("answered after %v", time.Since(began))
		}
		for _, c := range append(idle, c) {
			c.Close()
		}
		r.end(t)
	})
}

// D66, D35: bodies have a budget. What it has no room for is answered 503 before
// the service is heard, and the slowest of all is cut off for others.
func TestBodiesHaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kib = 1 << 10
		bodies := limit.NewBytes(100*kib, 100*kib)
		said := make(chan error, 3)
		d := server.SIPService(func(w http.ResponseWriter, r *http.Request, _ string) {
			_, err := io.Copy(io.Discard, r.Body)
			said <- err
			w.Header().Set("X-Service", "spoke")
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, "taken")
		})
		r := runLimited(d, func(o *server.Options) { o.Bodies = bodies })
		slow, slowReader := r.post(t, fmt.Sprintf("Content-Length: %d\r\n", 200*kib))
		io.WriteString(slow, strings.Repeat("x", 60*kib))
		synctest.Wait()
		quick, quickReader := r.post(t, fmt.Sprintf("Content-Length: %d\r\n", 50*kib))
		go io.WriteString(quick, strings.Repeat("x", 50*kib))
		for name, br := range map[string]*bufio.Reader{"the newcomer": quickReader, "the slow one": slowReader} {
			res := answered(t, br, http.StatusServiceUnavailable)
			if <-said == nil || !res.Close || res.Header.Get("Retry-After") == "" || res.Header.Get("X-Service") != "" {
				t.Errorf("%s: %v, close %t", name, res.Header, res.Close)
			}
		}
		quick.Close()
		slow.Close()
		synctest.Wait()
		again, againReader := r.post(t, fmt.Sprintf("Content-Length: %d\r\n", 100*kib))
		go io.WriteString(again, strings.Repeat("x", 100*kib))
		if answered(t, againReader, http.StatusAccepted); <-said != nil {
			t.Error("a body that there is room for was refused")
		}
		again.Close()
		r.end(t)
	})
}

// TestSlowStatus: a status that takes long to read, as of thousands of sets, is not read all the
// time because somebody reads pages.
func TestSlowStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, most := range map[time.Duration]int{0: 21, 2 * time.Second: 4} {
			reads := 0
			s := server.New(server.Options{Documents: oneRecord{}, Log: oneRecord{}, Contents: oneRecord{}, BaseURL: "http://localhost", Status: func(context.Context) ([]status.Set, error) {
				reads++
				time.Sleep(took)
				return nil, nil
			}})
			for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Second) {
				w := httptest.NewRecorder()
				if s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil)); w.Code != http.StatusOK {
					t.Fatal(w.Code, w.Body)
				}
			}
			if reads > most || reads < most/2 {
				t.Errorf("one that takes %v was read %d times in a minute", took, reads)
			}
		}
	})
}
