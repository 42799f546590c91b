package eventlog_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// desk is a log with a SIP Source, one that has only answered, and a target.
type desk struct {
	t                       testing.TB
	l                       *eventlog.Log
	source, answers, target event.SourceID
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	d := &desk{t: t}
	var err error
	if d.l, d.source, err = start(t.TempDir(), event.Mirror); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.l.Close(); err != nil {
			t.Error(err)
		}
	})
	d.answers = d.ensure("sip", "/sip/answers")
	d.target = d.ensure(eventlog.Target, "https://library.example/sip")
	return d
}

func (d *desk) ensure(kind, url string) event.SourceID {
	d.t.Helper()
	id, err := d.l.EnsureSource(context.Background(), "main", kind, url, 1)
	if err != nil {
		d.t.Fatal(err)
	}
	return id
}

// append commits a batch of a Source.
func (d *desk) append(source event.SourceID, x event.SubmissionBatch, items ...event.Item) {
	d.t.Helper()
	if _, err := d.l.Append(context.Background(), &event.Batch{Source: source, Mode: event.ModeSubmission, Items: items, Submissions: &x}); err != nil {
		d.t.Fatal(err)
	}
}

// one commits one step.
func (d *desk) one(s event.SubmissionUpdate, items ...event.Item) {
	d.t.Helper()
	d.append(s.Submission.Source, event.SubmissionBatch{Updates: []event.SubmissionUpdate{s}}, items...)
}

// published is a record that is accepted, as it is logged.
func published(identifier string) event.Item {
	return event.Item{Observation: event.Observation{Record: identifier, Fetched: true, Representations: []event.Representation{
		{Href: "urn:x:" + identifier, Type: "application/xml", Length: 1, Hash: event.HashOf([32]byte{1})}}}}
}

// accepted is a step that accepts a record, whose sender is told.
func (d *desk) accepted(identifier string) event.SubmissionUpdate {
	return event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateAccepted, Assigned: identifier, Recipient: "https://r.example/"}, Item: 1,
		Outgoing: &event.OutgoingNotification{Recipient: "https://r.example/", Disposition: []byte("<d/>")}}
}

// told is a notification of what was accepted.
func told(n int, verdict event.NotificationVerdict, outcome event.State, assigned string) *event.IncomingNotification {
	return &event.IncomingNotification{Digest: [32]byte{byte(n), byte(n >> 8)}, Verdict: verdict, Outcome: outcome, Assigned: assigned}
}

func (d *desk) exec(text string) {
	d.t.Helper()
	if err := d.l.Exec(context.Background(), text); err != nil {
		d.t.Fatalf("%s: %v", text, err)
	}
}

func (d *desk) findings() (out []string) {
	d.t.Helper()
	if err := d.l.Verify(context.Background(), func(f eventlog.Finding) { out = append(out, f.Where+": "+f.What+": "+f.Do) }); err != nil {
		d.t.Fatal(err)
	}
	return out
}

// fill puts something of everything into the log: submission 1 is accepted and its
// sender waits for the news, 2 is the target's and rejected, 3 is provisional.
func (d *desk) fill() {
	d.t.Helper()
	accept := d.accepted("urn:a")
	accept.Incoming = told(1, event.NotificationMatched, event.StateAccepted, "urn:a")
	d.one(accept, published("urn:a"))
	d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.target, State: event.StateRejected, Seq: 1, Record: "urn:a", Reason: "no"}, Rejected: true,
		Incoming: told(2, event.NotificationMatched, event.StateRejected, "")})
	d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateProvisional, Due: 5, Deadline: 5}})
	d.append(d.answers, event.SubmissionBatch{Replies: []event.StoredReply{{Request: [32]byte{7}, Disposition: []byte("<d/>")}}})
}

// What submissions, notices, notifications and answers refer to is there; what is
// not is found, and nothing else.
func TestVerifySubmissions(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(d *desk)
		want   string
	}{
		{"accepted and not published", func(d *desk) { d.one(event.SubmissionUpdate{Submission: d.accepted("urn:b").Submission}) },
			`submission 4: it was accepted as "urn:b", and its set has no event of such a record`},
		{"accepted and published in another set", func(d *desk) {
			if err := d.l.EnsureSet(context.Background(), eventlog.SetConfig{Name: "other", Content: event.Mirror}); err != nil {
				d.t.Fatal(err)
			}
			other, err := d.l.EnsureSource(context.Background(), "other", "sip", "/sip/other", 0)
			if err != nil {
				d.t.Fatal(err)
			}
			d.append(other, event.SubmissionBatch{}, published("urn:b"))
			d.one(event.SubmissionUpdate{Submission: d.accepted("urn:b").Submission})
		}, `submission 4: it was accepted as "urn:b"`},
		{"accepted as nothing", func(d *desk) { d.one(event.SubmissionUpdate{Submission: d.accepted("").Submission}) }, `submission 4: it was accepted as ""`},
		{"accepted and only waiting for its content", func(d *desk) {
			waits := published("urn:b")
			waits.Pending, waits.Fetched = "503", false
			d.one(event.SubmissionUpdate{Submission: d.accepted("urn:b").Submission, Item: 1}, waits)
		}, `submission 4: it was accepted as "urn:b"`},
		{"made of no event", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.target, State: event.StateWaiting, Seq: 99, Record: "urn:a"}})
		}, "submission 4: it was made of event 99, which is missing"},
		{"made of another record's event", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.target, State: event.StateWaiting, Seq: 1, Record: "urn:b"}})
		}, `submission 4: it was made of event 1, which is not one of record "urn:b" in its set`},
		{"owed and not accepted", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.target, State: event.StateProvisional, Seq: 1, Record: "urn:a", ImportPending: true}})
		}, "submission 4: it is to be taken into another set, and is provisional, made of event 1"},
		{"owed and received", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateAccepted, Assigned: "urn:a", ImportPending: true}})
		}, "submission 4: it is to be taken into another set, and is accepted, made of event 0"},
		{"owed in secret", func(d *desk) { d.exec("UPDATE submission SET owed = 1 WHERE id = 2") }, "submission 2: "},
		{"a notice of no submission", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateRejected}, Outgoing: &event.OutgoingNotification{Recipient: "https://r.example/"}})
			d.exec("DELETE FROM submission WHERE id = 4; UPDATE tally SET n = n - 1 WHERE source = 1 AND what = 1 AND state = 6")
		}, "notice 2: it belongs to submission 4, which is missing"},
		{"a notice of what is not decided", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateProvisional}, Outgoing: &event.OutgoingNotification{Recipient: "https://r.example/"}})
		}, "notice 2: it tells what was decided about submission 4, which is provisional"},
		{"a notice to nobody", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateRejected}, Outgoing: &event.OutgoingNotification{}})
		}, "notice 2: it waits, and has no recipient or no time to be delivered at: nobody will be told of submission 4"},
		{"a notice at no time", func(d *desk) {
			d.append(d.source, event.SubmissionBatch{Outgoing: []event.OutgoingNotification{{ID: 1, Submission: 1, State: event.DeliveryWaiting, Recipient: "https://r.example/", Created: d.notice().Created}}})
		}, "notice 1: it waits, and has no recipient or no time"},
		{"a notification of no submission", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateRejected}, Incoming: told(3, event.NotificationMatched, event.StateRejected, "")})
			d.exec("DELETE FROM submission WHERE id = 4; UPDATE tally SET n = n - 1 WHERE source = 1 AND what = 1 AND state = 6")
		}, "notification 3: it belongs to submission 4, which is missing"},
		{"a notification that matched and belongs to none", func(d *desk) {
			d.append(d.source, event.SubmissionBatch{Incoming: []event.IncomingNotification{*told(3, event.NotificationMatched, event.StateAccepted, "urn:a")}})
		}, "notification 3: it is matched, and belongs to submission 0"},
		{"an uncorrelated notification that belongs to one", func(d *desk) {
			n := told(3, event.NotificationUncorrelated, event.StateAccepted, "urn:a")
			n.Submission = 1
			d.append(d.source, event.SubmissionBatch{Incoming: []event.IncomingNotification{*n}})
		}, "notification 3: it is uncorrelated, and belongs to submission 1"},
		{"a notification of another Source's submission", func(d *desk) {
			n := told(3, event.NotificationMatched, event.StateAccepted, "urn:a")
			n.Submission = 1
			d.append(d.target, event.SubmissionBatch{Incoming: []event.IncomingNotification{*n}})
		}, "notification 3: it is of Source 3, and submission 1, to which it belongs, is of Source 1"},
		{"a notification that was not followed", func(d *desk) {
			d.one(event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateProvisional}, Incoming: told(3, event.NotificationMatched, event.StateAccepted, "urn:b")})
		}, `notification 3: it is matched: accepted "urn:b"; submission 4 is provisional ""`},
		{"a contradiction that is none", func(d *desk) {
			n := told(3, event.NotificationConflict, event.StateAccepted, "urn:a")
			n.Submission = 1
			d.append(d.source, event.SubmissionBatch{Incoming: []event.IncomingNotification{*n}})
		}, `notification 3: it is conflict: accepted "urn:a"; submission 1 is accepted "urn:a"`},
		{"answers of no Source", func(d *desk) { d.exec("DELETE FROM source WHERE id = 2") }, "Source 2: an answer is not what was stored, or the Source is missing"},
		{"another answer", func(d *desk) { d.exec("UPDATE answered SET disposition = x'00'") }, "Source 2: an answer is not what was stored"},
		{"a damaged submission", func(d *desk) { d.exec("UPDATE submission SET due = 6 WHERE id = 3") }, "submission 3: "},
		{"a damaged notice", func(d *desk) { d.exec("UPDATE notice SET due = due + 1") }, "notice 1: it is not what was stored"},
		{"a damaged notification", func(d *desk) { d.exec("UPDATE notification SET times = 2 WHERE id = 1") }, "notification 1: it is not what was stored"},
		{"counted wrong", func(d *desk) { d.exec("UPDATE tally SET n = n + 1 WHERE source = 1 AND what = 2") }, "tally of Source 1: "},
		{"not counted", func(d *desk) { d.exec("DELETE FROM tally WHERE source = 1 AND what = 3") }, "tally of Source 1: 1 in state 1 of 3 are not counted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			d.fill()
			if found := d.findings(); len(found) > 0 {
				t.Fatalf("before: %q", found)
			}
			c.damage(d)
			if found := d.findings(); len(found) != 1 || !strings.HasPrefix(found[0], "tables of submissions, "+c.want) || !strings.HasSuffix(found[0], "restore the data folder from a backup") {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// notice returns the one that waits.
func (d *desk) notice() event.OutgoingNotification {
	d.t.Helper()
	found, err := d.l.Outgoing(context.Background(), "main", event.DeliveryWaiting, 0, 1)
	if err != nil || len(found) != 1 {
		d.t.Fatalf("%+v, %v", found, err)
	}
	return found[0]
}

// TestVerifySubmissions_Source: without its Source nothing of a submission is
// sound, and all that is said names the Source.
func TestVerifySubmissions_Source(t *testing.T) {
	d := newDesk(t)
	d.fill()
	d.exec("DELETE FROM source WHERE id = 3")
	found := d.findings()
	for _, want := range []string{"document 1: ", "submission 2: ", "notification 2: "} {
		if !slices.ContainsFunc(found, func(f string) bool {
			return strings.Contains(f, want) && strings.Contains(f, "its Source 3 is missing")
		}) {
			t.Errorf("%s is not among %q", want, found)
		}
	}
	if len(found) != 3 {
		t.Errorf("found %q", found)
	}
}

// Whatever becomes of submissions, in any number and order, verify has nothing to
// say: not of records that were deleted, or are another Source's, since.
func TestVerifySubmissions_AnyHistory(t *testing.T) {
	testenv.Checks(t, 40)
	heavy(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := newDesk(t)
		notifications := 0
		for range rapid.IntRange(1, 5).Draw(rt, "batches") {
			var x event.SubmissionBatch
			var items []event.Item
			for range rapid.SampledFrom([]int{1, 3, 9, 520}).Draw(rt, "submissions") {
				id := fmt.Sprintf("urn:%d", rapid.IntRange(0, 40).Draw(rt, "record"))
				step := d.accepted(id)
				switch rapid.SampledFrom([]string{"accepted", "rejected", "open", "deleted"}).Draw(rt, "kind") {
				case "accepted":
					items = append(items, published(id))
					notifications++
					step.Item = len(items)
					step.Incoming = told(notifications, event.NotificationMatched, event.StateAccepted, id)
				case "rejected":
					step = event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: event.StateRejected}, Rejected: true, Outgoing: step.Outgoing}
				case "open":
					state := rapid.SampledFrom([]event.State{event.StateForwarding, event.StateInDoubt, event.StateProvisional, event.StateUnresolved, event.StateUnsent}).Draw(rt, "state")
					step = event.SubmissionUpdate{Submission: event.Submission{Source: d.source, State: state, Due: 5}}
				case "deleted":
					items = append(items, event.Item{Observation: event.Observation{Record: id, Deleted: true}})
					continue
				}
				x.Updates = append(x.Updates, step)
			}
			d.append(d.source, x, items...)
			d.submit()
		}
		if found := d.findings(); len(found) > 0 {
			rt.Fatalf("%q", found)
		}
	})
}

// submit makes submissions of the target out of all events that it has not seen.
func (d *desk) submit() {
	d.t.Helper()
	newest, err := d.l.Submissions(context.Background(), event.SubmissionQuery{Source: d.target, Newest: true, Limit: 1})
	if err != nil {
		d.t.Fatal(err)
	}
	r := event.Range{Upto: 1 << 60}
	for _, s := range newest {
		r.After = s.Seq
	}
	var x event.SubmissionBatch
	for ev, err := range d.l.Events(context.Background(), "main", r) {
		if err != nil {
			d.t.Fatal(err)
		}
		if ev.Kind != event.Rejected {
			state := event.StateAccepted // and taken by another set, or by none
			if ev.Kind == event.Deleted {
				state = event.StateUnsent
			}
			x.Updates = append(x.Updates, event.SubmissionUpdate{Submission: event.Submission{Source: d.target, State: state, Seq: ev.Seq, Record: ev.Record, Assigned: "elsewhere:" + ev.Record}})
		}
	}
	d.append(d.target, x)
}
