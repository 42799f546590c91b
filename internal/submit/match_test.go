package submit

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// A notification without a token is matched when it can belong to one submission
// only, in whatever order that and the others came.
func TestOnlyOneCanBeMeant(t *testing.T) {
	const token, bare, review, ended = "token", "bare", "review", "ended"
	for _, c := range []struct {
		rows         []string
		open, closed int // which is matched, by whom everybody may call and by others; -1 is none
	}{
		{[]string{bare}, 0, 0},
		{[]string{token}, -1, 0},
		{[]string{token, bare, bare}, -1, -1},
		{[]string{bare, bare, token}, -1, -1},
		{[]string{token, token, bare}, 2, -1},
		{[]string{bare, token, token}, 0, -1},
		{[]string{review, review, review, bare}, 3, 3},
		{[]string{review, token, review}, -1, 1},
		{[]string{review, review}, -1, -1},
		{[]string{ended, ended, bare}, 2, 2},
	} {
		for access, want := range map[string]int{AccessNone: c.open, AccessAddresses: c.closed} {
			t.Run(strings.Join(c.rows, " ")+" with access "+access, func(t *testing.T) {
				h := newDesk(t, Gateway, func(h *deskHouse, d *Desk) {
					if access != AccessNone {
						closed(h, d)
					}
				})
				var ids []int64
				for i, kind := range c.rows {
					ids = append(ids, h.received("1", event.StateProvisional, func(s *event.Submission) {
						s.Token += fmt.Sprint("-", i)
						switch kind {
						case bare:
							tokenless(s)
						case review:
							reviewed(s)
						case ended:
							s.State, s.Reason = event.StateRejected, "before"
						}
					}).ID)
				}
				h.notify("", accepted(mapOf("1"), "urn:lib:1"))
				for i, id := range ids {
					if matched := h.submission(id).State == event.StateAccepted; matched != (i == want) {
						t.Errorf("row %d: matched %v", i, matched)
					}
				}
				h.verified()
			})
		}
	}
}

// A notification is one event, also when it is found out later to which submission
// it belongs; that gets its disposition all the same.
func TestRejectionThatIsMatchedLater(t *testing.T) {
	for _, of := range []string{"a gateway", "a target"} {
		t.Run(of, func(t *testing.T) {
			h := newDesk(t, Gateway, func(_ *deskHouse, d *Desk) { d.Targets = true })
			var source event.SourceID
			var seq event.Seq
			if of == "a target" {
				source, seq = h.target(), 1
			}
			add := func(record string) *event.Submission {
				return h.received("1", event.StateProvisional, func(s *event.Submission) {
					tokenless(s)
					s.Source, s.Seq, s.Record, s.Recipient = source, seq, record, ""
					if source == 0 {
						s.Source = h.desk.Source
					}
				})
			}
			one, other := add("urn:1"), add("urn:2")
			h.notify("", rejected(mapOf("1"), "no"))
			h.wantEvents("rejected 1: no")
			one.State, one.Reason = event.StateUnsent, "given up"
			_, err := h.log.Append(t.Context(), &event.Batch{Source: one.Source, Mode: event.ModeSubmission, Exchange: &event.Exchange{Steps: []event.Step{{Submission: *one}}}})
			h.do(err)
			for range 2 {
				h.notify("", rejected(mapOf("1"), "no"))
			}
			if got := h.submission(other.ID); got.State != event.StateRejected || got.Reason != "no" {
				t.Errorf("it is %+v", got)
			}
			h.wantEvents("rejected 1: no")
			// The same again, when it could be about several, is no other event either.
			add("urn:3")
			add("urn:4")
			h.notify("", rejected(mapOf("1"), "no"))
			h.wantEvents("rejected 1: no")
			if source == 0 { // the records of a target have no events here
				h.verified()
			}
		})
	}
}

// Of a submission that was matched at once, a repeat of the notification that could
// be about several logs nothing, whichever Source the submission is of.
func TestRejectionThatIsUnmatchedLater(t *testing.T) {
	h := newDesk(t, Gateway, func(_ *deskHouse, d *Desk) { d.Targets = true })
	target := h.target()
	add := func() {
		h.received("1", event.StateProvisional, func(s *event.Submission) { tokenless(s); s.Source, s.Seq, s.Recipient = target, 1, "" })
	}
	add()
	h.notify("", rejected(mapOf("1"), "no"))
	h.wantEvents("rejected 1: no")
	add()
	add()
	h.notify("", rejected(mapOf("1"), "no"))
	h.wantEvents("rejected 1: no")
}

// What was sent on gets its disposition, whatever the service has become since; who
// has no token of ours is told what is offered.
func TestTokenIsTakenInEveryMode(t *testing.T) {
	for _, mode := range []Mode{Recipient, Library, Review, Gateway} {
		t.Run(string(mode), func(t *testing.T) {
			h := newDesk(t, mode, func(_ *deskHouse, d *Desk) {
				d.Access = Access{Kind: AccessBasic, User: "maps", Password: "secret"}
			})
			sub := h.received("1", event.StateProvisional, nil)
			handler := &sip.Handler{Backend: h.desk, Offers: h.desk.Offers()}
			tell := func(token string) error {
				at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Serve(w, r, token) }))
				return plainClient(at).Notify(t.Context(), accepted(mapOf("1"), "urn:lib:1"))
			}
			if err := tell("nobody's"); err == nil {
				t.Error("a token that is nobody's was taken")
			}
			h.wantEvents()
			for range 2 {
				h.do(tell(sub.Token))
			}
			if got := h.submission(sub.ID); got.State != event.StateAccepted || got.Assigned != "urn:lib:1" {
				t.Errorf("it is %+v", got)
			}
			h.wantEvents("created urn:lib:1")
			if _, err := h.desk.Ingest(t.Context(), sip.Caller{Token: sub.Token}, request("2", "")); err == nil {
				t.Error("the token lets submit")
			}
			if !h.desk.Offers().Notify {
				isFault(t, h.desk.Notify(t.Context(), sip.Caller{}, accepted(mapOf("1"), "urn:lib:1")), sip.Client, "ingest-disposition")
			}
		})
	}
}

// What was under review stays so when the mode changes: nobody decides it by a
// notification, and whoever reviews still does. What a gateway has sent on is not
// decided by whoever reviews.
func TestReviewOutlivesTheMode(t *testing.T) {
	for _, mode := range []Mode{Recipient, Library, Review, Gateway} {
		for _, accept := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, accept %v", mode, accept), func(t *testing.T) {
				h := newDesk(t, mode, func(_ *deskHouse, d *Desk) { d.Targets = true })
				under := h.received("1", event.StateProvisional, reviewed)
				sent := h.received("2", event.StateProvisional, tokenless)
				h.notify("", accepted(mapOf("1"), "urn:stranger"))
				if got := h.submission(under.ID); got.State != event.StateProvisional {
					t.Fatalf("a stranger has decided: %+v", got)
				}
				ctx := context.Background()
				if err := h.desk.Decide(ctx, sent.ID, accept, "", ""); err == nil || !strings.Contains(err.Error(), "not under review") {
					t.Errorf("what was sent on: %v", err)
				}
				h.do(h.desk.Decide(ctx, under.ID, accept, "", "no"))
				want := "rejected 1: no"
				if accept {
					want = "created " + h.submission(under.ID).Assigned
				}
				h.wantEvents(want)
				if told := h.notices(); len(told) != 1 || told[0].Submission != under.ID {
					t.Errorf("notices %+v", told)
				}
				h.notify("", accepted(mapOf("2"), "urn:lib:2"))
				if got := h.submission(sent.ID); got.State != event.StateAccepted {
					t.Errorf("the library's decision: %+v", got)
				}
				h.verified()
			})
		}
	}
}

// BenchmarkNotify takes in notifications without a token whose source element many
// submissions have: each is looked for, and none found.
func BenchmarkNotify(b *testing.B) {
	for _, c := range []struct {
		name  string
		n     int
		state event.State
		as    func(*event.Submission)
	}{
		{"100000 open", 100_000, event.StateProvisional, tokenless},
		{"100000 open with tokens", 100_000, event.StateProvisional, func(*event.Submission) {}},
		{"100000 under review", 100_000, event.StateProvisional, reviewed},
		{"200000 rejected", 200_000, event.StateRejected, tokenless},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := newDesk(b, Gateway, nil)
			block := sip.AppendSource(nil, mapOf("1"))
			for piece := range slices.Chunk(make([]event.Step, c.n), 10_000) {
				for i := range piece {
					s := &piece[i].Submission
					*s = event.Submission{Source: h.desk.Source, State: c.state, Block: block, SourceIdentifier: "1", Tries: 1, Token: newToken()}
					c.as(s)
				}
				_, err := h.log.Append(b.Context(), &event.Batch{Source: h.desk.Source, Mode: event.ModeSubmission, Exchange: &event.Exchange{Steps: piece}})
				h.do(err)
			}
			source := mapOf("1")
			note := notification("maps", "", rejected(source, "no"))
			for b.Loop() {
				if s, err := h.desk.match(b.Context(), "", source, note); err != errUnmatched {
					b.Fatalf("matched %+v, %v", s, err)
				}
			}
		})
	}
}
