package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// When the server ends while the ingest server takes its time, everybody is told
// that the request is in doubt, and so it is in the log.
func TestGatewayServerEnds(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	const n = 4
	arrived, release := make(chan struct{}, n), make(chan struct{})
	slow := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer close(release)
	server := h.process.Load().Server
	server.Upstream = plainClient(slow)
	ctx, end := context.WithCancelCause(t.Context())
	hungUp, hangUp := context.WithCancel(ctx)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			_, err := server.Ingest(ctx, sip.Caller{}, h.request(fmt.Sprint(i)))
			var fault *sip.Fault
			if !errors.As(err, &fault) || fault.Code != sip.Server || !strings.HasPrefix(fault.Text, "in doubt: the request may have reached") {
				t.Errorf("answered %v", err)
			}
		})
	}
	for range n {
		<-arrived
	}
	// Who hangs up ends nothing.
	waited := make(chan error)
	go func() {
		_, err := server.Ingest(hungUp, sip.Caller{}, h.request("0"))
		waited <- err
	}()
	hangUp()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("who has hung up got %v", err)
	}
	h.state(h.request("0"), submission.StateForwarding)
	end(http.ErrServerClosed)
	calls.Wait()
	for i := range n {
		s := h.state(h.request(fmt.Sprint(i)), submission.StateInDoubt)
		if s.Reason != errLeft.Error() || s.Tries != 1 || s.Due != s.Deadline {
			t.Errorf("%+v", s)
		}
	}
	h.verified()
}

// An answer that arrives in time is the answer.
func TestGatewayAnswersBeforeItEnds(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	ctx, end := context.WithCancelCause(t.Context())
	disp, err := h.process.Load().Ingest(ctx, sip.Caller{}, h.request("1"))
	end(http.ErrServerClosed)
	if err != nil || disp.AssignedIdentifier != "urn:lib:1" {
		t.Errorf("%+v, %v", disp, err)
	}
	// What was not begun is not sent.
	_, err = h.process.Load().Ingest(ctx, sip.Caller{}, h.request("2"))
	if err == nil || len(h.library.of("2")) != 0 {
		t.Errorf("%v; the library has %d", err, len(h.library.of("2")))
	}
	found, err := h.log.Submissions(t.Context(), submission.Query{Source: h.source, States: []submission.State{submission.StateForwarding, submission.StateInDoubt}})
	if h.do(err); len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

// Nor does whoever asks for properties wait for what does not come.
func TestGatewayPropertiesServerEnds(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	arrived, release := make(chan struct{}), make(chan struct{})
	slow := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-release
	}))
	defer close(release)
	server := h.process.Load().Server
	server.Upstream = plainClient(slow)
	ctx, end := context.WithCancelCause(t.Context())
	go func() {
		<-arrived
		end(http.ErrServerClosed)
	}()
	_, err := server.GetProperties(ctx, sip.Caller{})
	isFault(t, err, sip.Server, "")
}

// A recipient is no longer than anything else that stays in the log.
func TestLongRecipient(t *testing.T) {
	for _, mode := range []Mode{Review, Gateway} {
		h := newGatewayHarness(t, mode, nil)
		for _, form := range []string{"http://box.example/%s", "https://%s.example/", "smtp://box.example/%s@box.example", "mailto:%s@box.example", "%s"} {
			r := request("1", "a")
			r.Recipient = fmt.Sprintf(form, strings.Repeat("x", submission.MaxText))
			_, err := h.process.Load().Ingest(t.Context(), sip.Caller{}, r)
			isFault(t, err, sip.Client, "ingest-request/notification-recipient")
			if n := len(err.Error()); n > 500 {
				t.Errorf("mode %s: the answer has %d bytes", mode, n)
			}
		}
		r := request("1", "a")
		r.Recipient = "http://box.example/"
		r.Recipient += strings.Repeat("x", submission.MaxText-len(r.Recipient))
		_, err := h.process.Load().Ingest(t.Context(), sip.Caller{}, r)
		h.do(err)
		found, err := h.log.Submissions(t.Context(), submission.Query{Source: h.source})
		h.do(err)
		if want := map[Mode]int{Review: 1, Gateway: 1}[mode]; len(found) != want {
			t.Errorf("mode %s: %d submissions are in the log", mode, len(found))
		}
	}
}

// What a record is called may be told in every document, so it is not as long as
// a caller likes.
func TestLongTitle(t *testing.T) {
	h := newGatewayHarness(t, Library, nil)
	_, err := h.process.Load().Ingest(t.Context(), sip.Caller{}, request("1", `<title xmlns="http://purl.org/dc/elements/1.1/">`+strings.Repeat("t", 3<<20)+`</title>`))
	h.do(err)
	n := 0
	for e, err := range h.log.Events(t.Context(), "maps", event.Range{Upto: 1 << 40}) {
		h.do(err)
		if n++; e.Title != strings.Repeat("t", 1000) {
			t.Errorf("the title has %d bytes", len(e.Title))
		}
	}
	if n != 1 {
		t.Errorf("%d events", n)
	}
}
