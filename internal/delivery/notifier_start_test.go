package delivery

import (
	"context"
	"errors"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// What waits for its next try is tried once when the process starts.
func TestPostStarts(t *testing.T) {
	h := newNotifyHarness(t)
	h.owe("mailto:maps@maps.example", "1", "2")
	h.owe("mailto:maps@down.example", "3")
	down := errors.New("nobody answers")
	p := h.postOf(&life{})
	p.Mail = mailerFunc(func(context.Context, *mail.Mail) error { return down })
	drive(p)
	drive(p)
	for _, n := range h.in(submission.DeliveryWaiting) {
		if n.Due <= event.MicrosOf(h.clock.now()) || n.Tries > 1 {
			t.Fatalf("%+v", n)
		}
	}
	tried := make(chan string)
	p.Mail = mailerFunc(func(_ context.Context, m *mail.Mail) error {
		tried <- m.ID
		if m.ID == "submission-3@maps.bridge" {
			return down
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	times := map[string]int{}
	for range 3 {
		times[<-tried]++
	}
	cancel()
	h.do(<-ended)
	if len(times) != 3 || len(h.in(submission.DeliveryDone)) != 2 {
		t.Errorf("tried %v", times)
	}
}
