package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// submitting serves the set main with a status of its submissions.
func submitting(t *testing.T, s *status.Set) *testServer {
	return newTestServer(t, "", func(o *server.Options) {
		o.Status = func(context.Context) ([]status.Set, error) {
			s.Name = "main"
			return []status.Set{*s}, nil
		}
	}).set("main", "Main", event.Mirror)
}

func TestPageShowsSubmissions(t *testing.T) {
	since := time.Date(2026, 5, 6, 7, 8, 9, 0, time.FixedZone("", 7200))
	s := status.Set{
		Submissions: []status.Peer{
			{Direction: status.Received, NotificationsSent: map[submission.DeliveryState]int64{submission.DeliveryWaiting: 4}, States: map[submission.State]int64{submission.StateProvisional: 3, submission.StateAccepted: 1234567, submission.StateRejected: 2}},
			{Direction: status.Sent, URL: "https://library.example/ingest", Conflicts: 1,
				NotificationsSent:     map[submission.DeliveryState]int64{submission.DeliveryExpired: 5, submission.DeliveryRefused: 6},
				NotificationsReceived: map[submission.NotificationVerdict]int64{submission.NotificationUncorrelated: 7, submission.NotificationConflict: 8, submission.NotificationMatched: 9000},
				Failing:               &status.Failure{Reason: "connection refused", Since: status.Time{Time: since}, Again: status.Time{Time: since.Add(time.Minute)}}, States: map[submission.State]int64{submission.StateWaiting: 11, submission.StateForwarding: 12, submission.StateInDoubt: 13,
					submission.StateProvisional: 14, submission.StateAccepted: 15, submission.StateRejected: 16, submission.StateUnresolved: 17, submission.StateUnsent: 18}},
		},
		Problems: []status.Problem{
			{Identifier: "urn:example:1", Title: "Map of the campus", State: submission.StateRejected, By: status.DecidedHere, Reason: "no such format", Since: since},
			{Identifier: "urn:example:3", State: submission.StateRejected, By: status.DecidedElsewhere, Reason: "out of range", Since: since},
			{Identifier: "urn:example:4", State: submission.StateRejected, Since: since},
			{URL: "https://library.example/ingest", Identifier: "urn:example:5", State: submission.StateRejected},
			{Identifier: "urn:example:6", State: submission.StateAccepted, By: status.DecidedHere, Conflicts: 1},
			{URL: "https://library.example/ingest", Identifier: "urn:example:2", State: submission.StateAccepted, Conflicts: 2, Since: since},
			{URL: "https://library.example/ingest", State: submission.StateUnsent, Reason: "a deletion: SIP has none"},
		},
	}
	h := submitting(t, &s)
	d := h.page("/sets/main/")
	has(t, d, "submitted to waiting forwarding in doubt provisional accepted rejected unresolved unsent replaced contradicted",
		"this service 0 0 0 3 1,234,567 2 0 0 0", "https://library.example/ingest 11 12 13 14 15 16 17 18 0 1",
		"notifications to submitters 4 waiting, 5 expired, 6 refused", "notifications received 7 uncorrelated, 8 conflict, 9,000 matched",
		"urn:example:1 ( Map of the campus ): rejected since 2026-05-06 05:08:09 UTC , decided here: no such format",
		"urn:example:3 : rejected since 2026-05-06 05:08:09 UTC , reported by an ingest server: out of range",
		"urn:example:4 : rejected since 2026-05-06 05:08:09 UTC , submitted to this service",
		"urn:example:5 : rejected, submitted to https://library.example/ingest",
		"urn:example:6 : accepted, contradicted once, submitted to this service",
		"urn:example:2 : accepted, contradicted 2 times since 2026-05-06 05:08:09 UTC , submitted to https://library.example/ingest",
		"a record without an identifier : unsent, submitted to https://library.example/ingest: a deletion: SIP has none",
		"at their deadline: 17.", "in doubt, which may have arrived or not: 13.", "contradicting answers: 1.",
		"could not be delivered to submitters: 11.", "https://library.example/ingest has failed since 2026-05-06 05:08:09 UTC: connection refused. bridge tries again at 2026-05-06 05:09:09 UTC.", "belong to no submission: 7.", "contradict an earlier one: 8.")
	home := h.page("/")
	has(t, home, "This set needs attention")
	if at := h.base + "/sets/main/#submissions"; !strings.Contains(strings.Join(home.links, " "), at) {
		t.Errorf("the first page leads to %q, not to %s", home.links, at)
	}
}

// What has come to an end, or is on its way, needs nobody.
func TestPageAsksForALook(t *testing.T) {
	of := func(p status.Peer) status.Set {
		p.Direction = status.Received
		return status.Set{Submissions: []status.Peer{p}}
	}
	peer := func(s submission.State) status.Set {
		return of(status.Peer{States: map[submission.State]int64{s: 1}})
	}
	notice := func(s submission.DeliveryState) status.Set {
		return of(status.Peer{NotificationsSent: map[submission.DeliveryState]int64{s: 1}})
	}
	notification := func(v submission.NotificationVerdict) status.Set {
		return of(status.Peer{NotificationsReceived: map[submission.NotificationVerdict]int64{v: 1}})
	}
	var s status.Set
	h := submitting(t, &s)
	for name, c := range map[string]struct {
		status status.Set
		look   bool
	}{
		"nothing":      {status.Set{}, false},
		"waiting":      {peer(submission.StateWaiting), false},
		"forwarding":   {peer(submission.StateForwarding), false},
		"provisional":  {peer(submission.StateProvisional), false},
		"accepted":     {peer(submission.StateAccepted), false},
		"rejected":     {peer(submission.StateRejected), false},
		"unsent":       {peer(submission.StateUnsent), false},
		"unresolved":   {peer(submission.StateUnresolved), true},
		"in doubt":     {peer(submission.StateInDoubt), true},
		"contradicted": {of(status.Peer{Conflicts: 1}), true},
		"to deliver":   {notice(submission.DeliveryWaiting), false},
		"delivered":    {notice(submission.DeliveryDone), false},
		"refused":      {notice(submission.DeliveryRefused), true},
		"expired":      {notice(submission.DeliveryExpired), true},
		"matched":      {notification(submission.NotificationMatched), false},
		"record":       {notification(submission.NotificationRecord), false},
		"reported":     {notification(submission.NotificationRejected), false},
		"uncorrelated": {notification(submission.NotificationUncorrelated), true},
		"conflict":     {notification(submission.NotificationConflict), true},
	} {
		s = c.status
		d := h.page("/sets/main/")
		if look := strings.Contains(h.page("/").text, "needs attention"); look != c.look {
			t.Errorf("%s: the first page asks for a look: %t", name, look)
		}
		if shown := strings.Contains(d.text, "Submissions"); shown != (name != "nothing") {
			t.Errorf("%s: the set's page shows submissions: %t", name, shown)
		}
	}
}

func TestSubmissionsOfOthersAreHarmless(t *testing.T) {
	const evil = `</bdi></table><script>alert(1)</script>"'><img src=x onerror=alert(1)>`
	long := strings.Repeat("\u00fcber ", 1000)
	s := status.Set{
		Submissions: []status.Peer{{Direction: status.Sent, URL: "javascript:alert(1)"}, {Direction: status.Sent, URL: "https://user:secret@library.example/sip/main/secret?key=secret",
			Failing: &status.Failure{Reason: evil + " GET https://u:secret@b.example/sip/a/secret", Since: status.Time{Time: time.Date(2026, 5, 6, 7, 8, 9, 0, time.FixedZone("", 7200))}}}},
		Problems: []status.Problem{
			{URL: evil, Identifier: evil, Title: evil, State: submission.StateRejected, Reason: evil},
			{Identifier: "https://user:secret@x.example/1?secret", Title: "see http://a.example/sip/main/secret", State: submission.StateRejected, Reason: long},
			{Identifier: long, Title: long, State: submission.StateUnresolved, Reason: "POST https://u:secret@b.example/bridge/SIP/campus/secret: status 503; " +
				"no such box: box+secret@mail.example, smtp://h.example/box+secret@mail.example, smtp:secret@m.example, mailto:secret@m.example"},
			{Identifier: "urn:example:\xff\x00\u202e1\n2", State: submission.StateUnsent, Reason: "file:///home/secret/x.xml"},
		},
	}
	h := submitting(t, &s)
	d := h.page("/sets/main/") // finds no script, no img, no handler
	has(t, d, evil, "https://library.example/sip/main/***?***", "https://x.example/1?***", "see http://a.example/sip/main/***",
		"POST https://b.example/bridge/SIP/campus/***: status 503; no such box: ...@mail.example, smtp://h.example/...@mail.example, ...@m.example, ...@m.example",
		"file:.../x.xml", "1 2 : unsent", "https://library.example/sip/main/***?*** has failed since 2026-05-06 05:08:09 UTC: "+evil+" GET https://b.example/sip/a/***. bridge tries again within an hour.")
	if strings.Contains(d.text, "secret") || strings.Contains(strings.Join(d.links, " "), "secret") {
		t.Errorf("the page tells a secret: %s %v", d.text, d.links)
	}
	if n := strings.Count(d.text, "\u00fcber"); n > 150 || n < 100 {
		t.Errorf("long texts are shown with %d words", n)
	}
	if d.elements["bdi"] != 1+3+3+3+2 {
		t.Errorf("%d texts of others stand apart", d.elements["bdi"])
	}
	for _, l := range d.links {
		if !strings.HasPrefix(l, "http") {
			t.Errorf("a link to %s", l)
		}
	}
}

func TestPageShowsTheNewestProblems(t *testing.T) {
	var s status.Set
	for i := range 50 {
		s.Problems = append(s.Problems, status.Problem{Identifier: fmt.Sprintf("urn:example:%02d", i), State: submission.StateRejected})
	}
	d := submitting(t, &s).page("/sets/main/")
	has(t, d, "urn:example:00", "urn:example:19")
	if n := strings.Count(d.text, "urn:example:"); n != 20 {
		t.Errorf("%d problems are shown", n)
	}
}

// A SIP Source sends, so nothing is said of harvests.
func TestPageShowsSIPSource(t *testing.T) {
	h := submitting(t, &status.Set{Sources: []status.Source{{Kind: "sip", URL: "/sip/main", Pending: 3}}})
	d := h.page("/sets/main/")
	has(t, d, "/sip/main", "kind sip", "pending 3")
	if strings.Contains(d.text, "harvested up to") || strings.Contains(d.text, "next harvest") {
		t.Errorf("the page tells of a harvest: %s", d.text)
	}
	has(t, h.page("/"), "from /sip/main, by submission")
}
