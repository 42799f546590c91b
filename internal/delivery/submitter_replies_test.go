package delivery

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// callFailures are what a real client says when nobody is there, and when the
// connection was lost before the answer.
func callFailures(t *testing.T) (down, lost error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer server.Close()
	_, lost = (&sip.HTTPClient{URL: server.URL}).GetProperties(context.Background())
	_, down = (&sip.HTTPClient{URL: "http://" + testenv.Nobody(t)}).GetProperties(context.Background())
	if !sip.Temporary(down) || sip.Sent(down) || !sip.Temporary(lost) || !sip.Sent(lost) {
		t.Fatalf("no such failures: %v; %v", down, lost)
	}
	return down, lost
}

// Each answer leads to its state, and a rejection to an event.
func TestSubmitterStates(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			switch *r.Source.Identifier {
			case "urn:rejected":
				return &sip.Disposition{Source: r.Source, Outcome: sip.Rejected, Reason: "no author"}, nil
			case "urn:silent":
				return &sip.Disposition{Source: r.Source, Outcome: sip.Rejected}, nil
			case "urn:provisional":
				return &sip.Disposition{Source: r.Source, Outcome: sip.ProvisionallyAccepted}, nil
			case "urn:faulty":
				return nil, &sip.Fault{Code: sip.Client, Text: "I do not read that"}
			case "urn:large":
				return nil, &sip.StatusError{Status: 413}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:good", ""}, [2]string{"urn:rejected", ""}, [2]string{"urn:silent", ""}, [2]string{"urn:provisional", ""}, [2]string{"urn:faulty", ""}, [2]string{"urn:large", ""})
		began := time.Now()
		h.run(func(o *Submitter) { o.Deadline = 24 * time.Hour })
		h.wantStates("urn:good accepted as library:urn:good", "urn:rejected rejected: no author", "urn:silent rejected", "urn:provisional provisional",
			"urn:faulty unsent: SOAP fault Client: I do not read that", "urn:large unsent: HTTP 413 Request Entity Too Large")
		got := h.rejections()
		slices.Sort(got)
		if want := []string{"urn:rejected/urn:rejected: no author", "urn:silent/urn:silent: "}; !slices.Equal(got, want) {
			t.Errorf("rejected events %q, want %q", got, want)
		}
		p := h.rows()[3]
		if want := event.MicrosOf(began.Add(24 * time.Hour)); p.Deadline < want || p.Due != p.Deadline || p.Deadline > want+1e6 {
			t.Errorf("provisional until %v, due %v, want %v", p.Deadline, p.Due, want)
		}

		time.Sleep(30 * time.Hour)
		synctest.Wait()
		if s := h.rows()[3]; s.State != submission.StateUnresolved || s.Due != 0 || s.Deadline != 0 || s.Reason != "the ingest server has not sent its decision in time" {
			t.Errorf("after the deadline: %+v", s)
		}
		h.do(h.notify(p.Token, &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "library:late"}))
		if s := h.rows()[3]; s.State != submission.StateAccepted || !s.Late || s.Assigned != "library:late" {
			t.Errorf("after a late notification: %+v", s)
		}
		if n := len(h.server.requests()); n != 6 {
			t.Errorf("%d requests, want 6: what has an answer is not sent again", n)
		}
	})
}

// The notification may come before the reply to the request, and says more.
func TestSubmitterNotificationBeforeTheReply(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			notify := func(d *sip.Disposition) {
				if err := h.notify(tokenOf(r), d); err != nil {
					t.Errorf("notify: %v", err)
				}
			}
			accepted := &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "library:" + *r.Source.Identifier}
			switch *r.Source.Identifier {
			case "urn:1-provisional":
				notify(accepted)
				return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
			case "urn:2-repeated":
				notify(accepted)
				return accepted, nil
			case "urn:3-contradicted":
				notify(&sip.Disposition{Outcome: sip.Rejected, Reason: "no"})
				return accepted, nil
			case "urn:4-lost":
				notify(accepted)
				return nil, &sip.StatusError{Status: 502}
			case "urn:5-refused":
				notify(accepted)
				return nil, &sip.Fault{Code: sip.Client}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:1-provisional", ""}, [2]string{"urn:2-repeated", ""}, [2]string{"urn:3-contradicted", ""}, [2]string{"urn:4-lost", ""}, [2]string{"urn:5-refused", ""})
		h.run(nil)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		h.wantStates("urn:1-provisional accepted as library:urn:1-provisional", "urn:2-repeated accepted as library:urn:2-repeated", "urn:3-contradicted rejected: no, 1 conflicts",
			"urn:4-lost accepted as library:urn:4-lost", "urn:5-refused accepted as library:urn:5-refused")
		if got := h.rejections(); len(got) != 1 {
			t.Errorf("rejected events: %q", got)
		}
		if n := len(h.server.requests()); n != 5 {
			t.Errorf("%d requests, want 5", n)
		}
	})
}

// An update is a submission of its own, also while the one before awaits its
// ultimate disposition.
func TestSubmitterUpdateOfAProvisionalRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(int, *sip.Request, func() *sip.Disposition) (*sip.Disposition, error) {
			return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
		}
		h.keep([2]string{"urn:a", "one"})
		h.run(nil)
		h.keep([2]string{"urn:a", "two"})
		synctest.Wait()
		h.wantStates("urn:a provisional", "urn:a provisional")
		rows := h.rows()
		for i, assigned := range []string{1: "library:a", 0: "library:a"} {
			h.do(h.notify(rows[i].Token, &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: assigned}))
		}
		h.wantStates("urn:a accepted as library:a", "urn:a accepted as library:a")
		h.server.wantRequests(t, "urn:a one", "urn:a two")
	})
}

// What fails is sent again, ever later, and counts as unresolved when no answer
// comes; an answer that comes after that still counts.
func TestSubmitterNoAnswer(t *testing.T) {
	_, lost := callFailures(t)
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			keep() // it arrives, and nobody hears of it
			return nil, lost
		}
		h.keep([2]string{"urn:a", ""})
		began := time.Now()
		h.run(func(o *Submitter) { o.Deadline = 10 * time.Hour })
		if s := h.rows()[0]; s.State != submission.StateWaiting || s.Tries != 1 || s.Due.Time().Sub(began).Round(time.Second) != time.Minute ||
			s.Deadline.Time().Sub(began).Round(time.Second) != 10*time.Hour || !strings.Contains(s.Reason, "EOF") {
			t.Errorf("after the first try: %+v", s)
		}
		time.Sleep(20 * time.Hour)
		synctest.Wait()
		s := h.rows()[0]
		if s.State != submission.StateUnresolved || s.Due != 0 || !strings.Contains(s.Reason, "EOF") {
			t.Errorf("after the deadline: %+v", s)
		}
		var waits []time.Duration
		for i, at := range h.server.at[1:] {
			waits = append(waits, at.Sub(h.server.at[i]).Round(time.Minute))
		}
		want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60, 60, 60}
		for i := range want {
			want[i] *= time.Minute
		}
		if len(waits) < 9 || !slices.Equal(waits, want[:len(waits)]) {
			t.Errorf("waits %v", waits)
		}
		h.do(h.notify(s.Token, &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "library:a"}))
		if s := h.rows()[0]; s.State != submission.StateAccepted || !s.Late {
			t.Errorf("after a late answer: %+v", s)
		}
	})
}

// A request that got no answer is sent again before its deadline, also while very many
// records wait that were never sent.
func TestSubmitterRepeatsBesideABacklog(t *testing.T) {
	testenv.Heavy(t)
	_, lost := callFailures(t)
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(n int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			time.Sleep(10 * time.Second)
			if d := keep(); n > 1 {
				return d, nil
			}
			return nil, lost
		}
		said := make([]event.Observation, 2*pageItems)
		h.do(keep(t.Context(), h.contents, []byte(book(""))))
		for i := range said {
			said[i] = found(fmt.Sprintf("urn:%06d", i), "text/xml", book(""))
		}
		h.harvest(said...)
		h.run(func(o *Submitter) { o.Workers, o.Deadline = 1, 2*time.Hour })
		time.Sleep(4 * time.Hour)
		synctest.Wait()
		rows := h.rows()
		if s := rows[0]; s.State != submission.StateAccepted || s.Tries != 2 || len(rows) != len(said) {
			t.Errorf("of %d records, the one whose answer was lost: %v after %d tries", len(rows), s.State, s.Tries)
		}
		if n := len(h.server.got); n != len(said)+1 {
			t.Errorf("%d requests for %d records", n, len(said))
		}
	})
}

// A server that is down for two weeks gets few requests, and everything
// afterwards; nothing is given up.
func TestSubmitterServerDown(t *testing.T) {
	testenv.Heavy(t)
	down, _ := callFailures(t)
	inBubble(t, func(t *testing.T, h *harness) {
		up := false
		h.server.broken = func() error {
			if !up {
				return down
			}
			return nil
		}
		h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if !up {
				return nil, down
			}
			return keep(), nil
		}
		var records [][2]string
		for i := range 60 {
			records = append(records, [2]string{fmt.Sprintf("urn:%04d", i), "x"})
		}
		h.keep(records...)
		h.run(nil)
		time.Sleep(14 * 24 * time.Hour)
		synctest.Wait()
		if n := len(h.server.requests()); n != 0 || h.server.asked > 14*24+10 || h.server.asked < 14*24-10 {
			t.Errorf("while it was down the server got %d requests, and %d for its properties", n, h.server.asked)
		}
		h.server.mu.Lock()
		up = true
		h.server.mu.Unlock()
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		for _, s := range h.rows() {
			if s.State != submission.StateAccepted || s.Tries != 1 {
				t.Fatalf("%s: %v after %d tries (%s)", s.Record, s.State, s.Tries, s.Reason)
			}
		}
		if n := len(h.server.requests()); n != 60 {
			t.Errorf("%d requests, want 60", n)
		}
	})
}

// A server that goes down in the middle of a drain costs few records a try.
func TestSubmitterServerGoesDown(t *testing.T) {
	_, lost := callFailures(t)
	inBubble(t, func(t *testing.T, h *harness) {
		failed := 0
		h.server.answer = func(n int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if time.Since(h.server.at[0]) < 5*time.Hour && n > 300 {
				failed++
				return nil, lost
			}
			return keep(), nil
		}
		var records [][2]string
		for i := range 900 {
			records = append(records, [2]string{fmt.Sprintf("urn:%04d", i), "x"})
		}
		h.keep(records...)
		h.run(func(o *Submitter) { o.Workers = 1 })
		time.Sleep(8 * time.Hour)
		synctest.Wait()
		for _, s := range h.rows() {
			if s.State != submission.StateAccepted {
				t.Fatalf("%s: %v (%s)", s.Record, s.State, s.Reason)
			}
		}
		// The third failure opens the breaker: for 1, 2, 4 ... 60 minutes.
		if failed < 8 || failed > 16 {
			t.Errorf("%d requests failed in five hours", failed)
		}
	})
}

// What the server asks for with Retry-After is granted, to the whole outbox.
func TestSubmitterRetryAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		var asked []time.Duration
		began := time.Now()
		h.server.answer = func(n int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			asked = append(asked, time.Since(began).Round(time.Minute))
			if n < 3 {
				return nil, &sip.StatusError{Status: 429, RetryAfter: map[int]time.Duration{1: 20 * time.Minute, 2: 5 * time.Hour}[n]}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:a", ""}, [2]string{"urn:b", ""}, [2]string{"urn:c", ""})
		h.run(func(o *Submitter) { o.Workers = 1 })
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		want := []time.Duration{0, 20 * time.Minute, 80 * time.Minute, 80 * time.Minute, 80 * time.Minute} // an hour at most
		if !slices.Equal(asked, want) {
			t.Errorf("asked at %v, want %v", asked, want)
		}
	})
}

// A fault of the server is no verdict on the record, and one that concerns some
// records does not keep the others waiting for long.
func TestSubmitterFaultServer(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if id := *r.Source.Identifier; strings.HasPrefix(id, "urn:bad") && time.Since(h.server.at[0]) < 3*time.Hour {
				return nil, &sip.Fault{Code: sip.Server, Text: "out of order"}
			}
			return keep(), nil
		}
		h.keep([2]string{"urn:bad1", ""}, [2]string{"urn:bad2", ""}, [2]string{"urn:bad3", ""}, [2]string{"urn:bad4", ""}, [2]string{"urn:good", ""})
		h.run(func(o *Submitter) { o.Workers = 1 })
		time.Sleep(150 * time.Second)
		synctest.Wait()
		rows := h.rows()
		if rows[4].State != submission.StateAccepted || rows[0].State != submission.StateWaiting || rows[0].Reason != "SOAP fault Server: out of order" {
			t.Errorf("after a pause: %q", h.states())
		}
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		for _, s := range h.rows() {
			if s.State != submission.StateAccepted || s.Reason != "" {
				t.Errorf("%s: %v %s", s.Record, s.State, s.Reason)
			}
		}
	})
}

// However many records a server fails for, again and again, a new one is sent soon: they
// are neither sent before it, nor do they take the room that events need to be read. A
// person can give one of them up.
func TestSubmitterFailsForVeryMany(t *testing.T) {
	testenv.Heavy(t)
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if strings.HasPrefix(*r.Source.Identifier, "urn:bad") {
				return nil, &sip.Fault{Code: sip.Server, Text: "NullPointerException"}
			}
			return keep(), nil
		}
		const fresh, bad = 2 * chunkLimit, 2*chunkLimit - chunkLimit/2
		said := make([]event.Observation, bad)
		h.do(keep(t.Context(), h.contents, []byte(book(""))))
		for i := range said {
			said[i] = found(fmt.Sprintf("urn:bad%06d", i), "text/xml", book(""))
		}
		h.harvest(said...)
		h.run(func(o *Submitter) { o.Workers, o.maxFresh = 64, fresh })
		time.Sleep(2 * time.Hour) // until each was tried
		synctest.Wait()
		h.keep([2]string{"urn:good", ""})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		rows := h.rows()
		if len(rows) != bad+1 || rows[bad].State != submission.StateAccepted {
			t.Fatalf("%d rows of %d, %d requests, the last row: %s %v", len(rows), bad+1, len(h.server.got), rows[len(rows)-1].Record, rows[len(rows)-1].State)
		}
		if s := rows[0]; s.State != submission.StateWaiting || s.Tries == 0 {
			t.Errorf("one that the server fails for: %v after %d tries", s.State, s.Tries)
		}
	})
}

// A wrong password, or a wrong address, is put right by a person; no record is
// given up for it.
func TestSubmitterRefused(t *testing.T) {
	for _, status := range []int{401, 403, 404, 405} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				refused := true
				h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
					if refused {
						return nil, &sip.StatusError{Status: status}
					}
					return keep(), nil
				}
				var records [][2]string
				for i := range 50 {
					records = append(records, [2]string{fmt.Sprintf("urn:%02d", i), ""})
				}
				h.keep(records...)
				h.run(nil)
				time.Sleep(10 * time.Hour)
				synctest.Wait()
				if n := len(h.server.requests()); n > 80 {
					t.Errorf("%d requests", n)
				}
				h.server.mu.Lock()
				refused = false
				h.server.mu.Unlock()
				time.Sleep(2*time.Hour + time.Minute)
				synctest.Wait()
				for _, s := range h.rows() {
					if s.State != submission.StateAccepted {
						t.Fatalf("%s: %v %s", s.Record, s.State, s.Reason)
					}
				}
			})
		})
	}
}

// So many requests are under way at a time as it has workers.
func TestSubmitterWorkers(t *testing.T) {
	for workers, want := range map[int]int{0: 4, 1: 1, 7: 7} {
		inBubble(t, func(t *testing.T, h *harness) {
			hold := make(chan struct{})
			h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
				<-hold
				return keep(), nil
			}
			for i := range 20 {
				h.keep([2]string{fmt.Sprintf("urn:%02d", i), ""})
			}
			h.run(func(o *Submitter) { o.Workers = workers })
			close(hold)
			synctest.Wait()
			if h.server.together != want || len(h.server.requests()) != 20 {
				t.Errorf("%d workers: %d requests at a time, want %d", workers, h.server.together, want)
			}
		})
	}
}

// The formats are asked for again every hour.
func TestSubmitterAsksForPropertiesAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.keep([2]string{"urn:a", ""})
		h.run(nil)
		h.server.mu.Lock()
		h.server.formats = []string{"https://schemas.example/other.xsd"}
		h.server.mu.Unlock()
		time.Sleep(30 * time.Minute)
		h.keep([2]string{"urn:b", ""})
		synctest.Wait()
		time.Sleep(31 * time.Minute)
		h.keep([2]string{"urn:c", ""})
		synctest.Wait()
		rows := h.rows()
		if h.server.asked != 2 || rows[1].State != submission.StateAccepted || rows[2].State != submission.StateUnsent {
			t.Errorf("asked %d times: %q", h.server.asked, h.states())
		}
	})
}

// More than the outbox holds waits in the event log; it is taken in as what is
// there goes out.
func TestSubmitterHoldsNoMoreThanItMay(t *testing.T) {
	testenv.Heavy(t)
	inBubble(t, func(t *testing.T, h *harness) {
		var mu sync.Mutex
		up := false
		h.server.broken = func() error {
			mu.Lock()
			defer mu.Unlock()
			if up {
				return nil
			}
			return &sip.StatusError{Status: 503}
		}
		const fresh, records = 2 * chunkLimit, 5*chunkLimit + chunkLimit/2
		said := make([]event.Observation, records)
		h.do(keep(t.Context(), h.contents, []byte(book(""))))
		for i := range said {
			said[i] = found(fmt.Sprintf("urn:%06d", i), "text/xml", book(""))
		}
		h.harvest(said...)
		h.run(func(o *Submitter) { o.maxFresh = fresh })
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(h.rows()); n != fresh {
			t.Errorf("%d rows wait, want %d", n, fresh)
		}
		mu.Lock()
		up = true
		mu.Unlock()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		sent := map[string]int{}
		for _, r := range h.server.got {
			sent[*r.Source.Identifier]++
		}
		for i := range said {
			if sent[said[i].Record] != 1 {
				t.Fatalf("%s was sent %d times", said[i].Record, sent[said[i].Record])
			}
		}
		for _, s := range h.rows() {
			if s.State != submission.StateAccepted {
				t.Fatalf("%s is %v", s.Record, s.State)
			}
		}
		if h.server.sameTwice {
			t.Error("two requests of one record were under way at a time")
		}
	})
}
