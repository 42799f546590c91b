package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// mapOf is the source element of map n.
func mapOf(n string) *sip.Source {
	return &sip.Source{Submitter: &sip.Submitter{Name: "Maps", EmailAddress: "maps@maps.example"}, Identifier: &n}
}

func accepted(source *sip.Source, id string) *sip.Disposition {
	return &sip.Disposition{Source: source, Outcome: sip.Accepted, AssignedIdentifier: id}
}

func rejected(source *sip.Source, reason string) *sip.Disposition {
	return &sip.Disposition{Source: source, Outcome: sip.Rejected, Reason: reason}
}

// received is a submission that a gateway has sent on, of a record that is in the
// content store.
func (h *harness) received(n string, state submission.State, change func(*submission.Submission)) *submission.Submission {
	h.t.Helper()
	r := request(n, n)
	s, err := h.server.newSubmission(context.Background(), r, requestDigest(r))
	h.do(err)
	s.State, s.Tries, s.Token, s.Recipient = state, 1, "token-"+n, "http://maps.example/sip"
	if change != nil {
		change(s)
	}
	return h.add(*s)
}

// Who has the token of a submission cannot fill the log: of the notifications that change nothing
// any more a hundred different ones are kept. One that is known, and the first ultimate one, are
// taken all the same.
func TestNotificationsOfASubmissionAreBounded(t *testing.T) {
	const most = 100
	for _, state := range []submission.State{submission.StateProvisional, submission.StateAccepted, submission.StateRejected} {
		h := newHarness(t, Gateway, closed)
		sub := h.received("1", state, nil)
		h.notify(sub.Token, rejected(mapOf("1"), "no 0")) // it ends, repeats or contradicts
		refused := 0
		for i := range 3 * most {
			err := h.server.Notify(t.Context(), sip.Caller{Token: sub.Token}, rejected(mapOf("1"), fmt.Sprintf("no %d", i)))
			var fault *sip.Fault
			if err != nil && (!errors.As(err, &fault) || fault.Code != sip.Client || i < most) {
				t.Fatalf("%s, notification %d: %v", state, i, err)
			}
			if err != nil {
				refused++
			}
		}
		if kept := len(h.notifications()); kept != most || refused != 2*most {
			t.Errorf("%s: %d are kept, %d refused", state, kept, refused)
		}
		h.notify(sub.Token, rejected(mapOf("1"), "no 7"))
		other := h.received("2", submission.StateProvisional, nil)
		h.notify(other.Token, accepted(mapOf("2"), "urn:lib:2"))
	}
}

func TestNotificationEndsASubmission(t *testing.T) {
	for _, state := range []submission.State{submission.StateForwarding, submission.StateInDoubt, submission.StateProvisional, submission.StateUnresolved} {
		for _, disp := range []*sip.Disposition{accepted(mapOf("1"), "urn:lib:1"), rejected(mapOf("1"), "out of range")} {
			t.Run(fmt.Sprintf("%s to %s", state, disp.Outcome), func(t *testing.T) {
				var posted atomic.Int32
				h := newHarness(t, Gateway, func(h *harness, d *Server) { closed(h, d); d.Notified = func() { posted.Add(1) } })
				h.received("2", submission.StateProvisional, nil) // somebody else's
				sub := h.received("1", state, func(s *submission.Submission) { s.Due, s.Deadline = 1<<60, 1<<60 })
				token := sub.Token
				h.notify(token, disp)
				got := h.submission(sub.ID)
				if got.State != submission.StateAfter(disp) || got.Assigned != disp.AssignedIdentifier || got.Reason != disp.Reason || got.Due != 0 || got.Deadline != 0 || got.Late != (state == submission.StateUnresolved) || got.Conflicts != 0 {
					t.Errorf("the submission is %+v", got)
				}
				want := "created urn:lib:1"
				if disp.Outcome == sip.Rejected {
					want = "rejected 1: out of range"
				}
				h.wantEvents(want)
				notices := h.notices()
				if len(notices) != 1 || notices[0].Submission != sub.ID || notices[0].Recipient != "http://maps.example/sip" || posted.Load() != 1 {
					t.Fatalf("notices %+v, %d times told", notices, posted.Load())
				}
				if want := submission.Document(disp); string(notices[0].Disposition) != string(want) {
					t.Errorf("the notice is %s\nwant %s", notices[0].Disposition, want)
				}
				if local, domain, ok := strings.Cut(notices[0].Message, "@"); !ok || !strings.HasSuffix(local, fmt.Sprint(sub.ID)) || strings.ContainsAny(domain, ":<> ") {
					t.Errorf("Message-ID %q", notices[0].Message)
				}
				if got := h.notifications(); !slices.Equal(got, []string{"matched 1"}) {
					t.Errorf("notifications %q", got)
				}
				// The same later adds nothing.
				before := h.submission(sub.ID)
				h.notify(token, disp)
				h.wantEvents(want)
				if after := h.submission(sub.ID); !reflect.DeepEqual(before, after) {
					t.Errorf("the repeat made %+v of %+v", after, before)
				}
				if got := h.notifications(); !slices.Equal(got, []string{"matched 2"}) || len(h.notices()) != 1 {
					t.Errorf("after the repeat: %q, %d notices", got, len(h.notices()))
				}
				h.verified()
			})
		}
	}
}

// The source in a notice is the request's, whatever the ingest server repeats.
func TestNoticeEchoesTheRequest(t *testing.T) {
	h := newHarness(t, Gateway, nil)
	sub := h.received("1", submission.StateProvisional, nil)
	h.notify(sub.Token, accepted(mapOf("not what was sent"), "urn:lib:1"))
	want := submission.Document(accepted(mapOf("1"), "urn:lib:1"))
	if notices := h.notices(); len(notices) != 1 || string(notices[0].Disposition) != string(want) {
		t.Errorf("notices %+v, want %s", notices, want)
	}
	nobody := h.received("2", submission.StateProvisional, func(s *submission.Submission) { s.Recipient = "" })
	h.notify(nobody.Token, rejected(nil, ""))
	if len(h.notices()) != 1 {
		t.Error("somebody is owed a notice who named no recipient")
	}
	bare := h.received("3", submission.StateProvisional, func(s *submission.Submission) { s.SourceXML = nil })
	h.notify(bare.Token, rejected(mapOf("3"), "no"))
	notices := h.notices()
	if want := submission.Document(rejected(nil, "no")); string(notices[len(notices)-1].Disposition) != string(want) {
		t.Errorf("of a request without a source: %s, want %s", notices[len(notices)-1].Disposition, want)
	}
}

// What was submitted is published as it was, from the content store.
func TestAcceptedRecordIsPublished(t *testing.T) {
	for template, href := range map[string]string{"": "urn:lib:1", "https://library.example/{assigned-identifier}": "https://library.example/urn%3Alib%3A1"} {
		h := newHarness(t, Gateway, func(_ *harness, d *Server) { d.RecordURL = template })
		sub := h.received("1", submission.StateProvisional, nil)
		h.notify(sub.Token, accepted(mapOf("1"), "urn:lib:1"))
		e, err := h.log.Record(t.Context(), "maps", event.Key("urn:lib:1"))
		h.do(err)
		want := event.Representation{Href: href, Type: "application/xml", Length: sub.Length, Hash: event.HashOf(sub.Content), Name: "xml"}
		if len(e.Representations) != 1 || e.Representations[0] != want || e.Origin.SourceIdentifier != "1" {
			t.Errorf("with record_url %q: %+v, want %+v", template, e, want)
		}
		pending, err := h.log.Pending(t.Context(), h.server.Source, 1<<60, 0, 10)
		if err != nil || len(pending) != 0 {
			t.Errorf("with record_url %q: %d pending, %v", template, len(pending), err)
		}
	}
}

func TestContradictionChangesNothing(t *testing.T) {
	h := newHarness(t, Gateway, nil)
	sub := h.received("1", submission.StateProvisional, nil)
	h.notify(sub.Token, accepted(mapOf("1"), "urn:lib:1"))
	for i, disp := range []*sip.Disposition{rejected(mapOf("1"), "after all"), accepted(mapOf("1"), "urn:lib:2")} {
		h.notify(sub.Token, disp)
		got := h.submission(sub.ID)
		if got.State != submission.StateAccepted || got.Assigned != "urn:lib:1" || got.Conflicts != i+1 {
			t.Errorf("after contradiction %d: %+v", i+1, got)
		}
	}
	h.wantEvents("created urn:lib:1")
	if got := h.notifications(); !slices.Equal(got, []string{"conflict 1", "conflict 1", "matched 1"}) || len(h.notices()) != 1 {
		t.Errorf("notifications %q, %d notices", got, len(h.notices()))
	}
}

// The submissions of another set are not looked at.
func TestSubmissionsOfAnotherSet(t *testing.T) {
	h := newHarness(t, Gateway, nil)
	sub := h.received("1", submission.StateProvisional, nil)
	other := &Server{Set: "books", Mode: Recipient, Store: h.log, Source: h.server.Source, URL: "/sip/books"}
	h.do(other.Notify(t.Context(), sip.Caller{Token: sub.Token}, accepted(mapOf("1"), "urn:lib:1")))
	if got := h.submission(sub.ID); got.State != submission.StateProvisional {
		t.Errorf("a notification of another set changed it to %s", got.State)
	}
}

// reviewed makes a submission one that was never sent on.
func reviewed(s *submission.Submission) { s.Token, s.Tries = "", 0 }

// What is under review only whoever reviews it decides; a target's submission with
// the same source element is found beside it.
func TestReviewIsNotDecidedByNotification(t *testing.T) {
	h := newHarness(t, Review, func(_ *harness, d *Server) { d.Targets = true })
	target := h.target()
	under := h.received("1", submission.StateProvisional, reviewed)
	done := h.received("2", submission.StateAccepted, func(s *submission.Submission) { reviewed(s); s.Assigned = "urn:lib:2" })
	sent := h.add(submission.Submission{Source: target, State: submission.StateProvisional, Seq: 1, Record: "urn:maps:1", SourceXML: under.SourceXML, Token: "sent"})
	h.notify("sent", accepted(mapOf("1"), "urn:lib:1"))
	h.notify("", accepted(mapOf("1"), "urn:lib:9"))
	h.notify("", accepted(mapOf("2"), "urn:lib:2"))
	for _, s := range []*submission.Submission{under, done} {
		if got := h.submission(s.ID); !reflect.DeepEqual(got, s) {
			t.Errorf("a notification made %+v of %+v", got, s)
		}
	}
	if got := h.submission(sent.ID); got.State != submission.StateAccepted || got.Assigned != "urn:lib:1" {
		t.Errorf("the target's is %+v", got)
	}
	h.wantEvents()
	if got := h.notifications(); !slices.Equal(got, []string{"matched 1", "uncorrelated 1", "uncorrelated 1"}) {
		t.Errorf("notifications %q", got)
	}
}

// Rejections that belong to nobody are events, in no segment; accepted ones that
// cannot be fetched are shown only. Those of anonymous callers are no events (D40).
func TestRecipientWithoutSubmissions(t *testing.T) {
	open := newHarness(t, Recipient, nil)
	open.notify("", rejected(mapOf("1"), "out of range"))
	open.wantEvents()
	if got := open.notifications(); !slices.Equal(got, []string{"rejected 1"}) {
		t.Errorf("of an anonymous caller: %q", got)
	}
	open.verified()
	h := newHarness(t, Recipient, func(_ *harness, d *Server) { d.Access = Access{Kind: AccessBasic, User: "u", Password: "p"} })
	for range 3 {
		h.notify("", rejected(mapOf("1"), "out of range"))
		h.notify("", rejected(nil, ""))
		h.notify("", accepted(mapOf("2"), "urn:lib:2"))
	}
	h.wantEvents("rejected 1: out of range", "rejected : ")
	if got := h.notifications(); !slices.Equal(got, []string{"rejected 3", "rejected 3", "uncorrelated 3"}) {
		t.Errorf("notifications %q", got)
	}
	set, err := h.log.Set(t.Context(), "maps")
	h.do(err)
	if set.Last != 0 || set.Events != 2 {
		t.Errorf("the set is %+v", set)
	}
	isFault(t, h.server.Notify(t.Context(), sip.Caller{}, &sip.Disposition{Outcome: sip.ProvisionallyAccepted}), sip.Client, "ingest-disposition/provisionally-accepted")
	h.verified()
}

const libraryRecords = "https://library.example/records/{assigned-identifier}"

// In a mirror a record that a notification tells of waits until it can be
// fetched; elsewhere it is an event at once.
func TestRecordURL(t *testing.T) {
	for _, kind := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		t.Run(kind.String(), func(t *testing.T) {
			var told atomic.Int32
			h := newHarness(t, Recipient, func(_ *harness, d *Server) {
				d.Content, d.RecordURL, d.Pending = kind, libraryRecords, func() { told.Add(1) }
			})
			for range 2 {
				h.notify("", accepted(mapOf("1"), "map/1"))
			}
			pending, err := h.log.Pending(t.Context(), h.server.Source, 1<<60, 0, 10)
			h.do(err)
			const href = "https://library.example/records/map%2F1"
			if kind == event.Mirror {
				if len(pending) != 1 || pending[0].Representations[0].Href != href || pending[0].SourceIdentifier != "1" || told.Load() != 2 {
					t.Errorf("pending %+v, told %d times", pending, told.Load())
				}
				h.wantEvents()
			} else {
				h.wantEvents("created map/1")
				e, err := h.log.Record(t.Context(), "maps", event.Key("map/1"))
				h.do(err)
				if len(pending) != 0 || told.Load() != 0 || e.Representations[0].Href != href || kind == event.Reference && e.Loc != href {
					t.Errorf("%d pending, told %d times, event %+v", len(pending), told.Load(), e)
				}
			}
			if got := h.notifications(); !slices.Equal(got, []string{"record 2"}) {
				t.Errorf("notifications %q", got)
			}
			h.notify("", accepted(mapOf("2"), ".."))
			if got := h.notifications(); !slices.Equal(got, []string{"record 2", "uncorrelated 1"}) {
				t.Errorf("an identifier that leads out: %q", got)
			}
			h.notify("", accepted(mapOf("2"), strings.Repeat("ü", submission.MaxText/2)))
			if got := h.notifications(); !slices.Equal(got, []string{"record 2", "uncorrelated 1", "uncorrelated 1"}) {
				t.Errorf("an identifier that makes a URL of 24 KiB: %q", got)
			}
			h.verified()
		})
	}
}

// A target's record is published already: its disposition is no event of it, but
// is owed to the other set, and a rejection is told.
func TestNotificationOfATarget(t *testing.T) {
	var owing []event.SourceID
	h := newHarness(t, Library, func(h *harness, d *Server) {
		d.Targets, d.ImportPending = true, func(target event.SourceID) { owing = append(owing, target) }
	})
	target := h.target()
	add := func(token string, state submission.State) *submission.Submission {
		return h.add(submission.Submission{Source: target, State: state, Token: token, Seq: 1, Record: "urn:maps:" + token, SourceIdentifier: "urn:maps:" + token})
	}
	// The final disposition may be faster than the reply to the request.
	waiting, provisional := add("1", submission.StateWaiting), add("2", submission.StateProvisional)
	h.notify("1", accepted(nil, "urn:lib:1"))
	h.notify("2", rejected(nil, "no"))
	got := h.submission(waiting.ID)
	if got.State != submission.StateAccepted || got.Assigned != "urn:lib:1" || !got.ImportPending {
		t.Errorf("accepted: %+v", got)
	}
	if got := h.submission(provisional.ID); got.State != submission.StateRejected || got.Reason != "no" || got.ImportPending {
		t.Errorf("rejected: %+v", got)
	}
	if !slices.Equal(owing, []event.SourceID{target}) || len(h.notices()) != 0 {
		t.Errorf("owed by %d, %d notices", owing, len(h.notices()))
	}
	found, err := h.log.Event(t.Context(), 1)
	h.do(err)
	if found.Kind != event.Rejected || found.Record != "urn:maps:2" || found.Origin.SourceIdentifier != "urn:maps:2" || found.Origin.Reason != "no" {
		t.Errorf("the event is %+v", found)
	}
}

// closed makes a service that not everybody may call.
func closed(_ *harness, d *Server) {
	d.Access = Access{Kind: AccessAddresses, Addresses: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
}

// Where everybody may call, whoever knows the source element of a submission
// cannot end it: it has a token.
func TestForgedNotification(t *testing.T) {
	h := newHarness(t, Gateway, nil)
	sub := h.received("1", submission.StateProvisional, nil)
	h.notify("", accepted(mapOf("1"), "urn:evil"))
	if got := h.submission(sub.ID); got.State != submission.StateProvisional {
		t.Errorf("it was ended: %+v", got)
	}
	h.notify(sub.Token, accepted(mapOf("1"), "urn:lib:1"))
	h.wantEvents("created urn:lib:1")
	if got := h.notifications(); !slices.Equal(got, []string{"matched 1", "uncorrelated 1"}) {
		t.Errorf("notifications %q", got)
	}
}
