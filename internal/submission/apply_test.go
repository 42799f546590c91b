package submission_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// in returns the moment after a duration.
func in(d time.Duration) event.Micros { return event.MicrosOf(now.Add(d)) }

// inputs are the rows of the tables of states.
var inputs = map[string]submission.Input{
	"enqueue":          submission.Enqueue{},
	"forward":          submission.Forward{},
	"review":           submission.Review{},
	"unsendable":       submission.Unsendable{Reason: "no XML"},
	"replace":          submission.Replace{},
	"resend":           submission.Resend{},
	"imported":         submission.Imported{},
	"not tried":        submission.Failure{Class: submission.NotTried},
	"not taken":        submission.Failure{Class: submission.NotTaken},
	"record refused":   submission.Failure{Class: submission.RecordRefused},
	"undecided":        submission.Failure{Class: submission.Undecided},
	"reply lost":       submission.Failure{Class: submission.ReplyLost},
	"provisional":      submission.Disposition{State: submission.StateProvisional, Reply: true},
	"accepted":         submission.Disposition{State: submission.StateAccepted, Assigned: "a"},
	"accepted other":   submission.Disposition{State: submission.StateAccepted, Assigned: "b"},
	"accepted relayed": submission.Disposition{State: submission.StateAccepted, Assigned: "a", Reply: true, Relayed: true},
	"rejected":         submission.Disposition{State: submission.StateRejected},
	"rejected relayed": submission.Disposition{State: submission.StateRejected, Reply: true, Relayed: true},
	"settled accepted": submission.Disposition{State: submission.StateAccepted, Assigned: "a", Settled: true},
	"settled rejected": submission.Disposition{State: submission.StateRejected, Settled: true},
	"settled unsent":   submission.SettleUnsent{},
	"early":            submission.Expire{},
	"overdue":          submission.Expire{},
	"limit wait":       submission.LimitWait{},
}

// The columns of these tables are the states before, by their first letters; a new
// submission has none. A cell is the state after the input of its row, and what
// follows; "." is that nothing changes. R: an event of kind rejected. P: the record
// is published. N: the submitter is notified. I: the record can be imported. L: the
// disposition was late. C: a conflict is counted.
const (
	received = `
                 | new      | wait     | forw     | doub     | prov     | acce     | reje     | unre     | unse     | repl
enqueue          | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
forward          | forw     | .        | .        | .        | .        | .        | .        | .        | forw     | .
review           | prov     | .        | .        | .        | .        | .        | .        | .        | .        | .
unsendable       | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
replace          | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
resend           | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
imported         | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
not tried        | .        | wait     | unse     | .        | .        | .        | .        | .        | .        | .
not taken        | .        | wait     | unse     | .        | .        | .        | .        | .        | .        | .
record refused   | .        | unse     | unse     | .        | .        | .        | .        | .        | .        | .
undecided        | .        | unre     | doub     | .        | .        | .        | .        | .        | .        | .
reply lost       | .        | wait     | doub     | .        | .        | .        | .        | .        | .        | .
provisional      | .        | .        | prov     | .        | .        | .        | .        | .        | .        | .
accepted         | .        | acce PN  | acce PN  | acce PN  | acce PN  | .        | reje C   | acce PNL | acce PN  | acce PN
accepted other   | .        | acce PN  | acce PN  | acce PN  | acce PN  | acce C   | reje C   | acce PNL | acce PN  | acce PN
accepted relayed | .        | acce P   | acce P   | acce P   | acce P   | .        | reje C   | acce PL  | acce P   | acce P
rejected         | .        | reje RN  | reje RN  | reje RN  | reje RN  | acce C   | .        | reje RNL | reje RN  | reje RN
rejected relayed | .        | reje R   | reje R   | reje R   | reje R   | acce C   | .        | reje RL  | reje R   | reje R
settled accepted | .        | acce PN  | acce PN  | acce PN  | acce PN  | acce     | acce P   | acce PNL | acce PN  | acce PN
settled rejected | .        | reje RN  | reje RN  | reje RN  | reje RN  | reje R   | reje     | reje RNL | reje RN  | reje RN
settled unsent   | .        | unse     | .        | unse     | unse     | .        | .        | unse     | .        | .
early            | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
overdue          | .        | unre     | .        | unre     | unre     | .        | .        | .        | .        | .
limit wait       | .        | wait     | .        | doub     | prov     | .        | .        | .        | .        | .
`
	ofTarget = `
                 | new      | wait     | forw     | doub     | prov     | acce     | reje     | unre     | unse     | repl
enqueue          | wait     | .        | .        | .        | .        | .        | .        | .        | .        | .
forward          | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
review           | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
unsendable       | unse     | unse     | .        | .        | .        | .        | .        | .        | .        | .
replace          | .        | repl     | .        | .        | .        | .        | .        | .        | .        | .
resend           | .        | .        | .        | .        | .        | .        | .        | wait     | wait     | .
imported         | .        | .        | .        | .        | .        | acce     | .        | .        | .        | .
not tried        | .        | wait     | unse     | .        | .        | .        | .        | .        | .        | .
not taken        | .        | wait     | unse     | .        | .        | .        | .        | .        | .        | .
record refused   | .        | unse     | unse     | .        | .        | .        | .        | .        | .        | .
undecided        | .        | unre     | doub     | .        | .        | .        | .        | .        | .        | .
reply lost       | .        | wait     | doub     | .        | .        | .        | .        | .        | .        | .
provisional      | .        | prov     | prov     | prov     | .        | .        | .        | .        | prov     | prov
accepted         | .        | acce I   | acce I   | acce I   | acce I   | .        | reje C   | acce IL  | acce I   | acce I
accepted other   | .        | acce I   | acce I   | acce I   | acce I   | acce IC  | reje C   | acce IL  | acce I   | acce I
accepted relayed | .        | acce I   | acce I   | acce I   | acce I   | .        | reje C   | acce IL  | acce I   | acce I
rejected         | .        | reje R   | reje R   | reje R   | reje R   | acce IC  | .        | reje RL  | reje R   | reje R
rejected relayed | .        | reje R   | reje R   | reje R   | reje R   | acce IC  | .        | reje RL  | reje R   | reje R
settled accepted | .        | acce I   | acce I   | acce I   | acce I   | acce I   | acce I   | acce IL  | acce I   | acce I
settled rejected | .        | reje R   | reje R   | reje R   | reje R   | reje R   | reje     | reje RL  | reje R   | reje R
settled unsent   | .        | unse     | .        | unse     | unse     | .        | .        | unse     | .        | .
early            | .        | .        | .        | .        | .        | .        | .        | .        | .        | .
overdue          | .        | unre     | .        | unre     | unre     | .        | .        | .        | .        | .
limit wait       | .        | wait     | .        | doub     | prov     | .        | .        | .        | .        | .
`
)

func TestStates(t *testing.T) {
	for name, table := range map[string]string{"received": received, "of a target": ofTarget} {
		rows := strings.Split(strings.TrimSpace(table), "\n")[1:]
		if len(rows) != len(inputs) {
			t.Errorf("%s: %d rows for %d inputs", name, len(rows), len(inputs))
		}
		states := append([]submission.State{0}, submission.States()...)
		for _, row := range rows {
			cells := strings.Split(row, "|")
			input := strings.TrimSpace(cells[0])
			if len(cells) != len(states)+1 || inputs[input] == nil {
				t.Fatalf("%s: row %q", name, row)
			}
			for i, state := range states {
				if got, want := after(state, input, table == ofTarget), strings.TrimSpace(cells[i+1]); got != want {
					t.Errorf("%s, %s in state %q: %q, want %q", name, input, short(state), got, want)
				}
			}
		}
	}
}

// after returns the cell of a table.
func after(state submission.State, input string, target bool) string {
	s := submission.Submission{State: state, Deadline: in(time.Hour), Due: in(time.Hour), Recipient: "http://r.example/"}
	if input == "overdue" {
		s.Deadline, s.Due = in(0), in(0)
	}
	if state != 0 {
		s.Tries = 1
	}
	if state == submission.StateAccepted {
		s.Assigned = "a"
	}
	if target {
		s.Seq, s.Recipient, s.ImportPending = 1, "", state == submission.StateAccepted
	}
	got, effects := submission.Apply(s, inputs[input], now)
	if !effects.Changed {
		if got.State != s.State || got.Due != s.Due || effects.Rejected || effects.Publish || effects.Notify {
			return "changed, and does not say so"
		}
		return "."
	}
	cell := short(got.State) + " "
	for _, f := range []struct {
		on   bool
		text string
	}{{effects.Rejected, "R"}, {effects.Publish, "P"}, {effects.Notify, "N"}, {effects.Import, "I"}, {got.Late, "L"}, {got.Conflicts > 0, "C"}} {
		if f.on {
			cell += f.text
		}
	}
	return strings.TrimSpace(cell)
}

func short(s submission.State) string {
	word := strings.TrimPrefix(s.String(), "in ")
	return word[:min(4, len(word))]
}

// TestFields has what TestStates does not show: times, tries and texts.
func TestFields(t *testing.T) {
	const recipient = "http://r.example/"
	week := 7 * 24 * time.Hour
	waiting := submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(0)}
	forwarding := submission.Submission{State: submission.StateForwarding, Tries: 1, Recipient: recipient}
	for _, c := range []struct {
		name         string
		before, want submission.Submission
		input        submission.Input
	}{
		{"a new one is due at once", submission.Submission{Seq: 1}, submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(0)}, submission.Enqueue{}},
		{"a review has no deadline", submission.Submission{}, submission.Submission{State: submission.StateProvisional}, submission.Review{}},
		{"forwarding is a try", submission.Submission{State: submission.StateUnsent, Reason: "down", Tries: 1}, submission.Submission{State: submission.StateForwarding, Tries: 2}, submission.Forward{}},
		{"what cannot be sent is never due", waiting, submission.Submission{Seq: 1, State: submission.StateUnsent, Reason: "no XML"}, submission.Unsendable{Reason: "no XML"}},
		{"sent again as if new", submission.Submission{Seq: 1, State: submission.StateUnresolved, Reason: "late", Tries: 9}, waiting, submission.Resend{}},

		{"our own failure is no try", waiting, submission.Submission{Seq: 1, State: submission.StateWaiting, Reason: "disk", Due: in(time.Minute)},
			submission.Failure{Class: submission.NotTried, Reason: "disk", Retry: time.Minute}},
		{"what was not taken is not awaited", waiting, submission.Submission{Seq: 1, State: submission.StateWaiting, Reason: "busy", Tries: 1, Due: in(time.Minute)},
			submission.Failure{Class: submission.NotTaken, Reason: "busy", Retry: time.Minute, Deadline: week}},
		{"the server says when", waiting, submission.Submission{Seq: 1, State: submission.StateWaiting, Reason: "busy", Tries: 1, Due: in(time.Hour)},
			submission.Failure{Class: submission.NotTaken, Reason: "busy", Retry: time.Minute, RetryAfter: time.Hour, Deadline: week}},
		{"what may have been taken is awaited", waiting, submission.Submission{Seq: 1, State: submission.StateWaiting, Reason: "lost", Tries: 1, Due: in(time.Minute), Deadline: in(week)},
			submission.Failure{Class: submission.ReplyLost, Reason: "lost", Retry: time.Minute, Deadline: week}},
		{"from the first time on", submission.Submission{Seq: 1, State: submission.StateWaiting, Tries: 3, Due: in(0), Deadline: in(5 * time.Minute)},
			submission.Submission{Seq: 1, State: submission.StateWaiting, Reason: "lost", Tries: 4, Due: in(5 * time.Minute), Deadline: in(5 * time.Minute)},
			submission.Failure{Class: submission.ReplyLost, Reason: "lost", Retry: time.Minute, Deadline: week}},
		{"an answer that decides nothing ends it", submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(0), Deadline: in(week)}, submission.Submission{Seq: 1, State: submission.StateUnresolved, Reason: "HTTP 202", Tries: 1},
			submission.Failure{Class: submission.Undecided, Reason: "HTTP 202", Retry: time.Minute, Deadline: week}},
		{"a gateway waits for a lost reply", forwarding, submission.Submission{State: submission.StateInDoubt, Reason: "lost", Tries: 1, Recipient: recipient, Due: in(week), Deadline: in(week)},
			submission.Failure{Class: submission.ReplyLost, Reason: "lost", Deadline: week}},
		{"a gateway has not sent it", forwarding, submission.Submission{State: submission.StateUnsent, Reason: "down", Tries: 1, Recipient: recipient},
			submission.Failure{Class: submission.NotTaken, Reason: "down", Deadline: week}},

		{"provisional of a target", waiting, submission.Submission{Seq: 1, State: submission.StateProvisional, Tries: 1, Due: in(week), Deadline: in(week)},
			submission.Disposition{State: submission.StateProvisional, Reply: true, Deadline: week}},
		{"provisional of a gateway", forwarding, submission.Submission{State: submission.StateProvisional, Tries: 1, Recipient: recipient, Due: in(week), Deadline: in(week)},
			submission.Disposition{State: submission.StateProvisional, Reply: true, Deadline: week}},
		{"nobody to notify", submission.Submission{State: submission.StateForwarding},
			submission.Submission{State: submission.StateProvisional, Due: in(week), Deadline: in(week),
				Reason: "accepted provisionally, although no notification-recipient was named: its decision can only be learned from the ingest server itself"},
			submission.Disposition{State: submission.StateProvisional, Reply: true, Deadline: week}},
		{"accepted in a reply", waiting, submission.Submission{Seq: 1, State: submission.StateAccepted, Assigned: "a", Tries: 1, ImportPending: true}, submission.Disposition{State: submission.StateAccepted, Assigned: "a", Reply: true}},
		{"accepted in a notification", submission.Submission{Seq: 1, State: submission.StateProvisional, Tries: 1, Due: in(week), Deadline: in(week)},
			submission.Submission{Seq: 1, State: submission.StateAccepted, Assigned: "a", Tries: 1, ImportPending: true}, submission.Disposition{State: submission.StateAccepted, Assigned: "a"}},
		{"rejected for a reason", forwarding, submission.Submission{State: submission.StateRejected, Reason: "no", Tries: 1, Recipient: recipient}, submission.Disposition{State: submission.StateRejected, Reason: "no", Reply: true}},
		{"settled: imported no more", submission.Submission{Seq: 1, State: submission.StateAccepted, Assigned: "a", ImportPending: true}, submission.Submission{Seq: 1, State: submission.StateRejected, Reason: "no"},
			submission.Disposition{State: submission.StateRejected, Reason: "no", Settled: true}},

		{"lost for good", submission.Submission{State: submission.StateInDoubt, Reason: "lost", Due: in(0), Deadline: in(0)},
			submission.Submission{State: submission.StateUnresolved, Reason: "the ingest server has not sent its decision in time: lost", Deadline: in(0)}, submission.Expire{}},
		{"provisional for good", submission.Submission{Seq: 1, State: submission.StateProvisional, Reason: "nobody", Due: in(0), Deadline: in(0)},
			submission.Submission{Seq: 1, State: submission.StateUnresolved, Reason: "the ingest server has not sent its decision in time"}, submission.Expire{}},
		{"due too early", submission.Submission{State: submission.StateInDoubt, Due: in(0), Deadline: in(week)}, submission.Submission{State: submission.StateInDoubt, Due: in(week), Deadline: in(week)}, submission.Expire{}},
		{"due before its deadline", submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(0), Deadline: in(week)}, submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(0), Deadline: in(week)}, submission.Expire{}},

		{"a try too far away", submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(2 * time.Hour), Deadline: in(2 * week)}, submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(0), Deadline: in(week)},
			submission.LimitWait{Retry: time.Minute, Deadline: week}},
		{"a try that may be so far away", submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(2 * time.Hour)}, submission.Submission{Seq: 1, State: submission.StateWaiting, Due: in(2 * time.Hour)},
			submission.LimitWait{Retry: 3 * time.Hour, Deadline: week}},
		{"a deadline too far away", submission.Submission{State: submission.StateProvisional, Due: in(2 * week), Deadline: in(2 * week)}, submission.Submission{State: submission.StateProvisional, Due: in(week), Deadline: in(week)},
			submission.LimitWait{Deadline: week}},
	} {
		got, _ := submission.Apply(c.before, c.input, now)
		if got.State != c.want.State || got.Reason != c.want.Reason || got.Assigned != c.want.Assigned || got.Due != c.want.Due || got.Deadline != c.want.Deadline || got.Tries != c.want.Tries || got.ImportPending != c.want.ImportPending {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestBackOff(t *testing.T) {
	for tries, want := range map[int]time.Duration{0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 6: 32 * time.Minute, 7: time.Hour, 1 << 40: time.Hour} {
		if got := submission.BackOff(time.Minute, time.Hour, tries); got != want {
			t.Errorf("after %d tries %v, want %v", tries, got, want)
		}
	}
}
