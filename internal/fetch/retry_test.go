package fetch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	date := now.Add(-24 * time.Hour) // the server's clock is a day behind
	at := func(layout string, from time.Time, d time.Duration) string { return from.Add(d).Format(layout) }
	const rfc850 = "Monday, 02-Jan-06 15:04:05 GMT"
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{"0", "", 0},
		{"7", "", 7 * time.Second},
		{" 007 ", "", 7 * time.Second},
		{"1.5", "", 1500 * time.Millisecond},
		{"0.0000000001", "", 1},
		{"9223372036", "", 9223372036 * time.Second},
		{"9223372037", "", maxDuration},
		{strings.Repeat("9", 400), "", maxDuration},
		{"-1", "", 0}, {"+5", "", 0}, {"", "", 0}, {"soon", "", 0}, {"1e3", "", 0}, {"0x10", "", 0}, {"Inf", "", 0}, {".", "", 0}, {"1.2.3", "", 0},
		{"5 seconds", "", 0}, {"5;q=1", "", 0}, {"２", "", 0},
		{at(http.TimeFormat, now, time.Minute), "", time.Minute},
		{at(rfc850, now, time.Minute), "", time.Minute},
		{at(time.ANSIC, now, time.Minute), "", time.Minute},
		{at(time.RFC1123Z, now, time.Minute), "", time.Minute},
		{at(time.RFC3339, now, time.Minute), "", time.Minute},
		{at(http.TimeFormat, now, -time.Minute), "", 0},
		{"Fri, 31 Dec 9999 23:59:59 GMT", "", maxDuration},
		{"Fri, 99 Foo 2026 00:00:00 GMT", "", 0},
		{at(http.TimeFormat, date, time.Minute), at(http.TimeFormat, date, 0), time.Minute},
		{at(rfc850, date, time.Minute), at(http.TimeFormat, date, 0), time.Minute},
		{at(http.TimeFormat, now, time.Minute), "yesterday", time.Minute},
		{"60", at(http.TimeFormat, date, 0), time.Minute},
	} {
		h := http.Header{"Retry-After": {c.value}}
		if c.date != "" {
			h.Set("Date", c.date)
		}
		if got := RetryAfter(h, now); got != c.want {
			t.Errorf("Retry-After %q, Date %q: %s, want %s", c.value, c.date, got, c.want)
		}
	}
	if got := RetryAfter(http.Header{"Retry-After": {"5", "garbage", "9", "-1"}}, now); got != 9*time.Second {
		t.Errorf("several fields: %s, want the longest", got)
	}
	if got := RetryAfter(http.Header{}, now); got != 0 {
		t.Errorf("no field: %s", got)
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"5", "1.5", "-1", "99999999999999999999", "Fri, 02 Jan 2026 03:04:05 GMT", "Friday, 02-Jan-26 03:04:05 GMT", "Fri Jan  2 03:04:05 2026", "2026-01-02T03:04:05Z", ""} {
		f.Add(s, "Fri, 02 Jan 2026 03:04:05 GMT")
		f.Add(s, "")
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value, date string) {
		d := RetryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, now)
		if d < 0 {
			t.Errorf("Retry-After %q, Date %q: %s", value, date, d)
		}
		// Never earlier than asked: whole seconds are taken as they are.
		if n, err := strconv.ParseUint(value, 10, 31); err == nil && d != time.Duration(n)*time.Second {
			t.Errorf("Retry-After %q: %s", value, d)
		}
		if again := RetryAfter(http.Header{"Retry-After": {" " + value + "\t", value}, "Date": {date}}, now); again != d {
			t.Errorf("Retry-After %q: %s, with blanks %s", value, d, again)
		}
	})
}

func TestBackoff(t *testing.T) {
	varies := false
	for range 100 {
		for attempt, want := range []time.Duration{1: time.Second, 2 * time.Second, 4 * time.Second} {
			if attempt == 0 {
				continue
			}
			d := backoff(time.Second, attempt)
			if d < want || d > want+want/4 {
				t.Fatalf("attempt %d: %s", attempt, d)
			}
			varies = varies || d != want
		}
	}
	if !varies {
		t.Error("no jitter")
	}
}

// asks is a server that notes when it is asked, and answers what it is told.
type asks struct {
	start time.Time
	mu    sync.Mutex
	at    []time.Duration
	do    func(n int, w http.ResponseWriter)
}

func (a *asks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.at = append(a.at, time.Since(a.start))
	n := len(a.at)
	a.mu.Unlock()
	a.do(n, w)
}

// within reports whether the server was asked at about these times: never earlier,
// and at most a quarter of the last wait later.
func (a *asks) within(t *testing.T, want ...time.Duration) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	ok := len(a.at) == len(want)
	for i := 0; ok && i < len(want); i++ {
		ok = a.at[i] >= want[i] && a.at[i] <= want[i]+want[i]/4
	}
	if !ok {
		t.Errorf("asked at %v, want %v", a.at, want)
	}
}

// inBubble runs f with a client of a guard that reaches only the server.
func inBubble(t *testing.T, o Options, do func(n int, w http.ResponseWriter), f func(c *http.Client, a *asks)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &asks{start: time.Now(), do: do}
		g, stop := bubble(o, a.ServeHTTP)
		defer stop()
		f(g.Client(""), a)
	})
}

// TestRetries: a GET or HEAD whose answer is transient is sent up to four times, with
// longer and longer waits. The last answer is the caller's, body and all.
func TestRetries(t *testing.T) {
	const broken = 0 // the connection is closed without an answer
	request := func(method, body string) *http.Request {
		r, err := http.NewRequest(method, "http://h.example/x", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body == "" {
			r.Body = nil
		}
		return r
	}
	all := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}
	type row struct {
		request  *http.Request
		statuses []int // of the answers, the last again and again
		want     int   // status
		at       []time.Duration
	}
	rows := []row{
		{request("GET", ""), []int{503}, 503, all},
		{request("GET", ""), []int{broken, broken, 200}, 200, all[:3]},
		{request("HEAD", ""), []int{502, 200}, 200, all[:2]},
		{request("POST", "x"), []int{503}, 503, all[:1]},
		{request("GET", "x"), []int{503}, 503, all[:1]},
	}
	for _, status := range []int{429, 500, 502, 503, 504} {
		rows = append(rows, row{request("GET", ""), []int{status, status, status, 200}, 200, all})
	}
	for _, status := range []int{200, 204, 304, 400, 401, 403, 404, 408, 410, 501, 505} {
		rows = append(rows, row{request("GET", ""), []int{status}, status, all[:1]})
	}
	for _, c := range rows {
		do := func(n int, w http.ResponseWriter) {
			status := c.statuses[min(n, len(c.statuses))-1]
			if status == broken {
				panic(http.ErrAbortHandler)
			}
			if status < 500 { // a wait that nobody has to observe
				w.Header().Set("Retry-After", "1")
			}
			w.WriteHeader(status)
			io.WriteString(w, strconv.Itoa(n))
		}
		inBubble(t, Options{}, do, func(client *http.Client, a *asks) {
			resp, err := client.Do(c.request)
			if err != nil || resp.StatusCode != c.want {
				t.Fatalf("%s %v: %v, %v", c.request.Method, c.statuses, resp, err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			want := strconv.Itoa(len(c.at))
			if c.want == 204 || c.want == 304 || c.request.Method == "HEAD" {
				want = ""
			}
			if err != nil || string(body) != want {
				t.Errorf("%s %v: body %q, %v, want %q", c.request.Method, c.statuses, body, err, want)
			}
			a.within(t, c.at...)
		})
	}
}

// An error says how often the request was sent.
func TestRetriesFail(t *testing.T) {
	dead := func(n int, w http.ResponseWriter) { panic(http.ErrAbortHandler) }
	inBubble(t, Options{Attempts: 2}, dead, func(c *http.Client, a *asks) {
		_, _, err := get(c, "http://h.example/x")
		var e *Error
		if !errors.As(err, &e) || e.Attempts != 2 || e.URL != "http://h.example/x" || !Transient(err) || !strings.Contains(err.Error(), "tried 2 times") {
			t.Errorf("error %v", err)
		}
	})
}

// A server that takes the request and says nothing is not asked again: four
// attempts of a minute each kept a harvest for four minutes (D52).
func TestHeaderTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		g, stop := bubble(Options{HeaderTimeout: 30 * time.Second}, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		defer stop()
		_, _, err := get(g.Client(""), "http://h.example/")
		if d := time.Since(start); err == nil || !Transient(err) || d != 30*time.Second {
			t.Errorf("after %s: %v", d, err)
		}
		synctest.Wait()
	})
}

// The wait for a turn is none for an answer: what fails after it is asked again.
func TestRetriesAfterWaitingForATurn(t *testing.T) {
	do := func(n int, w http.ResponseWriter) {
		if n == 2 {
			panic(http.ErrAbortHandler)
		}
	}
	inBubble(t, Options{Rate: 0.01}, do, func(c *http.Client, a *asks) {
		for range 2 {
			if status, _, err := get(c, "http://h.example/"); err != nil || status != 200 {
				t.Errorf("status %d, %v", status, err)
			}
		}
		a.within(t, 0, 100*time.Second, 200*time.Second)
	})
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	for _, c := range []struct {
		value string
		wait  time.Duration
	}{
		{"10", 10 * time.Second}, {"60", time.Minute}, {"0", time.Second}, {"-5", time.Second}, {"soon", time.Second},
		{"date", 30 * time.Second}, {"past", time.Second},
	} {
		do := func(n int, w http.ResponseWriter) {
			if n > 1 {
				return
			}
			value := c.value
			now := time.Now().Add(-72 * time.Hour)
			switch value {
			case "date":
				value = now.Add(30 * time.Second).UTC().Format(http.TimeFormat)
			case "past":
				value = now.Add(-30 * time.Second).UTC().Format(http.TimeFormat)
			}
			w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
			w.Header().Set("Retry-After", value)
			w.WriteHeader(503)
		}
		inBubble(t, Options{}, do, func(c2 *http.Client, a *asks) {
			if status, _, err := get(c2, "http://h.example/"); err != nil || status != 200 {
				t.Errorf("Retry-After %s: status %d, %v", c.value, status, err)
			}
			a.within(t, 0, c.wait)
		})
	}
}

// What is asked of one request holds for all requests to the host, of all
// clients, and for no other host.
func TestRetryAfterHoldsForTheHost(t *testing.T) {
	do := func(n int, w http.ResponseWriter) {
		if n == 1 {
			w.Header().Set("Retry-After", "40")
			w.WriteHeader(429)
		}
	}
	inBubble(t, Options{Attempts: 1}, do, func(c *http.Client, a *asks) {
		g := c.Transport.(*transport).guard
		if status, _, err := get(c, "http://h.example/a"); err != nil || status != 429 {
			t.Fatalf("status %d, %v", status, err)
		}
		done := make(chan error)
		for range 3 {
			go func() { _, _, err := get(g.Client(""), "http://H.example:80/b"); done <- err }()
		}
		if _, _, err := get(c, "http://other.example/"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := get(c, "http://h.example:8080/"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		a.within(t, 0, 0, 0, 40*time.Second, 40*time.Second, 40*time.Second)
	})
}

// harvest: what is asked for beyond MaxWait is not waited for.
func TestRetryAfterBeyondTheCap(t *testing.T) {
	for _, value := range []string{"61", "86400", strings.Repeat("9", 30), "Fri, 31 Dec 9999 23:59:59 GMT"} {
		do := func(n int, w http.ResponseWriter) { w.Header().Set("Retry-After", value); w.WriteHeader(503) }
		inBubble(t, Options{}, do, func(c *http.Client, a *asks) {
			if status, _, err := get(c, "http://h.example/"); err != nil || status != 503 {
				t.Errorf("status %d, %v", status, err)
			}
			_, _, err := get(c, "http://h.example/")
			if !errors.Is(err, ErrWait) || !Transient(err) {
				t.Errorf("second request: %v, want ErrWait, transient", err)
			}
			if d := time.Since(a.start); d != 0 {
				t.Errorf("waited %s", d)
			}
			a.within(t, 0)
		})
	}
}

// What is asked for beyond the time that a request has is not waited for either.
func TestRetryAfterBeyondTheRequest(t *testing.T) {
	do := func(n int, w http.ResponseWriter) { w.Header().Set("Retry-After", "30"); w.WriteHeader(503) }
	inBubble(t, Options{Attempts: 1}, do, func(c *http.Client, a *asks) {
		if status, _, err := get(c, "http://h.example/"); err != nil || status != 503 {
			t.Errorf("status %d, %v", status, err)
		}
		short := *c
		short.Timeout = 29 * time.Second
		if _, _, err := get(&short, "http://h.example/"); !errors.Is(err, ErrWait) || !Transient(err) {
			t.Errorf("with less time than that: %v, want ErrWait, transient", err)
		}
		if d := time.Since(a.start); d != 0 {
			t.Errorf("waited %s", d)
		}
		short.Timeout = 31 * time.Second
		if status, _, err := get(&short, "http://h.example/"); err != nil || status != 503 {
			t.Errorf("with more time than that: status %d, %v", status, err)
		}
		a.within(t, 0, 30*time.Second)
	})
}

// A wait that is too long is one document's own (D116), and is remembered for an
// hour at most.
func TestRetryAfterOfOneDocument(t *testing.T) {
	do := func(n int, w http.ResponseWriter) {
		if n == 1 {
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(503)
		}
	}
	inBubble(t, Options{}, do, func(c *http.Client, a *asks) {
		if status, _, err := get(c, "http://h.example/record"); err != nil || status != 503 {
			t.Errorf("status %d, %v", status, err)
		}
		if status, _, err := get(c, "http://h.example/feed"); err != nil || status != 200 {
			t.Errorf("another document of the host: status %d, %v", status, err)
		}
		_, _, err := get(c, "http://h.example/record")
		var wait *WaitError
		if !errors.As(err, &wait) || !wait.Until.Equal(a.start.Add(time.Hour)) {
			t.Errorf("the same document: %v, want a wait of an hour", err)
		}
		time.Sleep(time.Hour + time.Second) // synctest's, which takes no time
		if status, _, err := get(c, "http://h.example/record"); err != nil || status != 200 {
			t.Errorf("after an hour: status %d, %v", status, err)
		}
	})
}

// Whoever waits stops waiting when it is told to.
func TestWaitsEndWithTheContext(t *testing.T) {
	do := func(n int, w http.ResponseWriter) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(503)
	}
	inBubble(t, Options{MaxWait: time.Hour, PerHost: 1}, do, func(c *http.Client, a *asks) {
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(5*time.Second, func() { cancel(stopped) })
		done := make(chan error)
		for range 3 { // one backs off or waits for the host, the others for its slot
			go func() {
				req, _ := http.NewRequestWithContext(ctx, "GET", "http://h.example/", nil)
				_, err := c.Do(req)
				done <- err
			}()
		}
		for range 3 {
			if err := <-done; !errors.Is(err, stopped) {
				t.Errorf("error %v", err)
			}
		}
		if d := time.Since(a.start); d != 5*time.Second {
			t.Errorf("waited %s", d)
		}
		if h := c.Transport.(*transport).guard.hosts["h.example:80"]; h.users != 0 || len(h.slots) != 0 || len(h.held) != 0 {
			t.Errorf("%d users, %d slots are left", h.users, len(h.slots))
		}
	})
}
