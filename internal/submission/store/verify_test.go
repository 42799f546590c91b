package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	. "github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// exec changes rows behind the store's back.
func (b *bench) exec(texts ...string) {
	b.t.Helper()
	b.must(b.Do(context.Background(), func(ctx context.Context, tx *store.Tx) error {
		for _, text := range texts {
			if err := tx.Exec(ctx, text); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return nil
	}))
}

// row returns the columns of row 1 of a table.
func (b *bench) row(table string) map[string]any {
	b.t.Helper()
	row := map[string]any{}
	b.must(b.Each(b.t.Context(), "SELECT * FROM "+table+" WHERE id = 1", nil, func(rows *sql.Rows) error {
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		err = rows.Scan(values...)
		for i, column := range columns {
			row[column] = *values[i].(*any)
		}
		return err
	}))
	return row
}

// set changes a column of row 1 of a table behind the store's back.
func (b *bench) set(table, column string, value any) {
	b.t.Helper()
	b.must(b.Do(b.t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.Exec(ctx, "UPDATE "+table+" SET "+column+" = ? WHERE id = 1", value)
	}))
}

func (b *bench) findings() (out []string) {
	b.t.Helper()
	b.must(b.Verify(context.Background(), func(f eventlog.Finding) { out = append(out, f.Where+": "+f.What+": "+f.Do) }))
	return out
}

// update commits an update of whichever Source its submission is of.
func (b *bench) one(u Update) { b.write(&Batch{Source: u.Submission.Source, Updates: []Update{u}}) }

// accept is an update that accepts a record, whose submitter is notified.
func (b *bench) accept(identifier string) Update {
	s := b.in(StateAccepted)
	s.Assigned, s.Recipient = identifier, "https://r.example/"
	it := accepted(identifier)
	return Update{Submission: s, Item: it, Outgoing: &OutgoingNotification{Recipient: s.Recipient, Disposition: []byte("<d/>")}}
}

// received is a notification of what was decided.
func received(n int, verdict NotificationVerdict, outcome State, assigned string) *IncomingNotification {
	return &IncomingNotification{Digest: [32]byte{byte(n), byte(n >> 8)}, Verdict: verdict, Outcome: outcome, Assigned: assigned}
}

// fill writes a row of each kind: submission 1 is accepted and its submitter waits for
// the notification, 2 is the target's and rejected, 3 is provisional.
func (b *bench) fill() {
	b.t.Helper()
	accept := b.accept("urn:a")
	accept.Submission.Request, accept.Submission.Content, accept.Submission.SourceXML = [32]byte{1}, [32]byte{2}, []byte("<source/>")
	accept.Incoming = received(1, NotificationMatched, StateAccepted, "urn:a")
	accept.Incoming.SourceXML = []byte("<source/>")
	b.one(accept)
	b.one(Update{Submission: Submission{Source: b.target, State: StateRejected, Seq: 1, Record: "urn:a", Reason: "no"}, Rejected: true,
		Incoming: received(2, NotificationMatched, StateRejected, "")})
	b.one(Update{Submission: Submission{Source: b.source, State: StateProvisional, Due: 5, Deadline: 5}})
	b.write(&Batch{Source: b.other, Replies: []StoredReply{{Request: [32]byte{7}, Disposition: []byte("<d/>")}}, Rejections: []Rejection{{Anonymous: true}}})
}

// What submissions and notifications refer to is there; what is not is found, and nothing
// else.
func TestVerify(t *testing.T) {
	incoming := func(b *bench, n *IncomingNotification, submission int64, source event.SourceID) {
		n.Submission = submission
		b.write(&Batch{Source: source, Incoming: []IncomingNotification{*n}})
	}
	forget := []string{"DELETE FROM submission WHERE id = 4", "UPDATE submission_count SET n = n - 1 WHERE source = 1 AND what = 1 AND state = 6"}
	for _, c := range []struct {
		name   string
		damage func(b *bench)
		want   string
	}{
		{"accepted and not published", func(b *bench) { b.one(Update{Submission: b.accept("urn:b").Submission}) },
			`submission 4: it was accepted as "urn:b", and its set has no event of such a record`},
		{"accepted and published in another set", func(b *bench) {
			b.must(b.EnsureSet(context.Background(), eventlog.SetConfig{Name: "elsewhere", Content: event.Mirror}))
			b.write(&Batch{Source: b.ensure("elsewhere", "sip", "/sip/elsewhere"), Items: []*event.Item{accepted("urn:b")}})
			b.one(Update{Submission: b.accept("urn:b").Submission})
		}, `submission 4: it was accepted as "urn:b"`},
		{"accepted as nothing", func(b *bench) { b.one(Update{Submission: b.accept("").Submission}) }, `submission 4: it was accepted as ""`},
		{"accepted and only waiting for its content", func(b *bench) {
			u := b.accept("urn:b")
			u.Outgoing, u.Item.Pending, u.Item.Fetched = nil, "503", false
			b.one(u)
		}, `submission 4: it was accepted as "urn:b"`},
		{"made of no event", func(b *bench) {
			b.one(Update{Submission: Submission{Source: b.target, State: StateWaiting, Seq: 99, Record: "urn:a"}})
		}, "submission 4: it was made of event 99, which is missing"},
		{"made of another record's event", func(b *bench) {
			b.one(Update{Submission: Submission{Source: b.target, State: StateWaiting, Seq: 1, Record: "urn:b"}})
		}, `submission 4: it was made of event 1, which is not one of record "urn:b" in its set`},
		{"import pending and not accepted", func(b *bench) {
			b.one(Update{Submission: Submission{Source: b.target, State: StateProvisional, Seq: 1, Record: "urn:a", ImportPending: true}})
		}, "submission 4: it is to be imported into another set, and is provisional, made of event 1"},
		{"import pending and received", func(b *bench) {
			b.one(Update{Submission: Submission{Source: b.source, State: StateAccepted, Assigned: "urn:a", ImportPending: true}})
		}, "submission 4: it is to be imported into another set, and is accepted, made of event 0"},
		{"outgoing of no submission", func(b *bench) {
			b.one(Update{Submission: b.in(StateRejected), Outgoing: &OutgoingNotification{Recipient: "https://r.example/"}})
			b.exec(forget...)
		}, "outgoing notification 2: it belongs to submission 4, which is missing"},
		{"outgoing of what is not decided", func(b *bench) {
			b.one(Update{Submission: b.in(StateProvisional), Outgoing: &OutgoingNotification{Recipient: "https://r.example/"}})
		}, "outgoing notification 2: it says what was decided about submission 4, which is provisional"},
		{"outgoing to nobody", func(b *bench) {
			b.one(Update{Submission: b.in(StateRejected), Outgoing: &OutgoingNotification{}})
		}, "outgoing notification 2: it waits, and has no recipient or no time to be delivered at: nobody will be notified of submission 4"},
		{"outgoing at no time", func(b *bench) {
			b.write(&Batch{Outgoing: []OutgoingNotification{{ID: 1, State: DeliveryWaiting, Recipient: "https://r.example/"}}})
		}, "outgoing notification 1: it waits, and has no recipient or no time"},
		{"incoming of no submission", func(b *bench) {
			b.one(Update{Submission: b.in(StateRejected), Incoming: received(3, NotificationMatched, StateRejected, "")})
			b.exec(forget...)
		}, "incoming notification 3: it belongs to submission 4, which is missing"},
		{"matched and of no submission", func(b *bench) {
			incoming(b, received(3, NotificationMatched, StateAccepted, "urn:a"), 0, b.source)
		}, "incoming notification 3: it is matched, and belongs to submission 0"},
		{"uncorrelated and of a submission", func(b *bench) {
			incoming(b, received(3, NotificationUncorrelated, StateAccepted, "urn:a"), 1, b.source)
		}, "incoming notification 3: it is uncorrelated, and belongs to submission 1"},
		{"of another Source's submission", func(b *bench) {
			incoming(b, received(3, NotificationMatched, StateAccepted, "urn:a"), 1, b.target)
		}, "incoming notification 3: it is of Source 3, and submission 1, to which it belongs, is of Source 1"},
		{"matched and not followed", func(b *bench) {
			b.one(Update{Submission: b.in(StateProvisional), Incoming: received(3, NotificationMatched, StateAccepted, "urn:b")})
		}, `incoming notification 3: it is matched: accepted "urn:b"; submission 4 is provisional ""`},
		{"a contradiction that is none", func(b *bench) {
			incoming(b, received(3, NotificationConflict, StateAccepted, "urn:a"), 1, b.source)
		}, `incoming notification 3: it is conflict: accepted "urn:a"; submission 1 is accepted "urn:a"`},
		{"counted wrong", func(b *bench) { b.exec("UPDATE submission_count SET n = n + 1 WHERE source = 1 AND what = 2") }, "counts of Source 1: "},
		{"not counted", func(b *bench) { b.exec("DELETE FROM submission_count WHERE source = 1 AND what = 3") }, "counts of Source 1: 1 in state 1 of 3 are not counted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := begin(t, event.Mirror)
			b.fill()
			if found := b.findings(); len(found) > 0 {
				t.Fatalf("before: %q", found)
			}
			c.damage(b)
			if found := b.findings(); len(found) != 1 || !strings.HasPrefix(found[0], "tables of submissions, "+c.want) || !strings.HasSuffix(found[0], "restore the data folder from a backup") {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// Whatever column of whatever row is damaged, verify finds it, and reading the row is an
// error.
func TestVerify_Columns(t *testing.T) {
	b := begin(t, event.Mirror)
	b.fill()
	tables := 0
	for _, table := range []string{"submission", "outgoing_notification", "incoming_notification", "rejection", "reply"} {
		for column, was := range b.row(table) {
			if column == "id" {
				continue
			}
			tables++
			var other any // of the same type
			switch was := was.(type) {
			case int64:
				other = map[int64]int64{0: 1, 1: 2}[was]
			case string:
				other = was + "x"
			default:
				other = []byte{0}
			}
			b.set(table, column, other)
			found := b.findings()
			if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, " 1: it is not what was stored") }) {
				t.Errorf("%s.%s is damaged: %q", table, column, found)
			}
			if table == "submission" && column != "subject" {
				if s, err := b.Submission(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "submission 1: damaged") {
					t.Errorf("%s.%s is damaged, and is read: %+v, %v", table, column, s, err)
				}
			}
			b.set(table, column, was)
		}
	}
	if found := b.findings(); len(found) > 0 || tables < 50 {
		t.Errorf("of %d columns, afterwards: %q", tables, found)
	}
}

// A value that its column cannot have is damage of its row: verify names it, and goes on
// with the other rows and tables.
func TestVerify_Values(t *testing.T) {
	b := begin(t, event.Mirror)
	b.fill()
	b.set("reply", "disposition", []byte{0})
	for table, columns := range map[string][]string{
		"submission":            {"state", "import_pending", "late", "source", "tries"},
		"outgoing_notification": {"state", "submission"},
		"incoming_notification": {"verdict", "outcome", "anonymous", "times"},
		"rejection":             {"at"},
		"reply":                 {"at"},
	} {
		was := b.row(table)
		for _, column := range columns {
			// A state of one byte is negative when its first bit flips.
			b.set(table, column, -122)
			found := b.findings()
			for _, want := range []string{strings.ReplaceAll(table, "_", " ") + " 1: it is not what was stored", "reply 1: it is not what was stored"} {
				if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, want) }) {
					t.Errorf("%s.%s is -122: %q, want %q", table, column, found, want)
				}
			}
			b.set(table, column, was[column])
		}
	}
}

// Without its Source nothing of a submission is sound, and all that is said names the
// Source.
func TestVerify_Source(t *testing.T) {
	b := begin(t, event.Mirror)
	b.fill()
	b.exec("DELETE FROM source WHERE id IN (2, 3)")
	found := b.findings()
	for _, want := range []string{"submission 2: its Source 3", "incoming notification 2: its Source 3", "rejection 1: its Source 2", "reply 1: its Source 2"} {
		if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, ", "+want+" is missing") }) {
			t.Errorf("%s is not among %q", want, found)
		}
	}
	if len(found) != 4 {
		t.Errorf("found %q", found)
	}
}

// meanwhile is a context that does something when it is asked for the n-th time.
type meanwhile struct {
	context.Context
	left atomic.Int64
	do   func()
	done chan struct{}
}

func (c *meanwhile) Err() error {
	if c.left.Add(-1) == 0 {
		c.do()
		close(c.done)
	}
	return c.Context.Err()
}

// A set that gets another name, or is removed, at any moment of the check is no damage.
func TestVerify_SetGoes(t *testing.T) {
	b := begin(t, event.Mirror)
	b.fill()
	name := func() string {
		sets, err := b.Sets(context.Background())
		b.must(err)
		return sets[0].Name
	}
	verify := func(n int64, do func()) (asked bool) {
		t.Helper()
		ctx := &meanwhile{Context: t.Context(), do: do, done: make(chan struct{})}
		ctx.left.Store(n)
		b.must(b.Verify(ctx, func(f eventlog.Finding) {
			if f.Do != "run bridge verify again" {
				t.Errorf("at the moment %d: %+v", n, f)
			}
		}))
		if asked = ctx.left.Add(1<<40) <= 1<<40; asked { // perhaps by a goroutine that is still at it
			<-ctx.done
		}
		return asked
	}
	for n := int64(1); verify(n, func() {
		b.must(b.RenameSet(context.Background(), name(), fmt.Sprintf("renamed-%d", n), true))
	}); n++ {
	}
	if found := b.findings(); found != nil {
		t.Errorf("the sets have their names: %q", found)
	}
	verify(3, func() { b.must(b.RemoveSet(context.Background(), name())) })
	if found := b.findings(); len(found) != 1 || !strings.Contains(found[0], "run bridge verify again") {
		t.Errorf("while the set is being removed: %q", found)
	}
	b.must(b.FinishRemovals(t.Context()))
	if found := b.findings(); found != nil {
		t.Errorf("the set is gone: %q", found)
	}
}

// Whatever becomes of submissions, in any number and order, verify has nothing to
// say: not of records that were deleted, or are another Source's, since.
func TestVerify_AnyHistory(t *testing.T) {
	checks(t, 15)
	testenv.Heavy(t)
	rapid.Check(t, func(rt *rapid.T) {
		b := begin(t, event.Mirror)
		notifications := 0
		for range rapid.IntRange(1, 5).Draw(rt, "batches") {
			in := &Batch{}
			for range rapid.SampledFrom([]int{1, 3, 9, 520}).Draw(rt, "submissions") {
				id := fmt.Sprintf("urn:%d", rapid.IntRange(0, 40).Draw(rt, "record"))
				u := b.accept(id)
				switch rapid.SampledFrom([]string{"accepted", "rejected", "open", "deleted"}).Draw(rt, "kind") {
				case "accepted":
					notifications++
					u.Incoming = received(notifications, NotificationMatched, StateAccepted, id)
				case "rejected":
					u = Update{Submission: b.in(StateRejected), Rejected: true, Outgoing: u.Outgoing}
				case "open":
					s := b.in(rapid.SampledFrom([]State{StateForwarding, StateInDoubt, StateProvisional, StateUnresolved, StateUnsent}).Draw(rt, "state"))
					s.Due = 5
					u = Update{Submission: s}
				case "deleted":
					in.Items = append(in.Items, &event.Item{Observation: event.Observation{Record: id, Deleted: true}})
					continue
				}
				in.Updates = append(in.Updates, u)
			}
			b.write(in)
			b.submit()
		}
		if found := b.findings(); len(found) > 0 {
			rt.Fatalf("%q", found)
		}
	})
}

// submit makes submissions of the target out of all events that it has not seen.
func (b *bench) submit() {
	b.t.Helper()
	newest, err := b.Submissions(context.Background(), Query{Source: b.target, Newest: true, Limit: 1})
	b.must(err)
	r := event.Range{Upto: 1 << 60}
	for _, s := range newest {
		r.After = s.Seq
	}
	in := &Batch{Source: b.target}
	for ev, err := range b.Events(context.Background(), "main", r) {
		b.must(err)
		if ev.Kind != event.Rejected {
			state := StateAccepted // and imported into another set, or into none
			if ev.Kind == event.Deleted {
				state = StateUnsent
			}
			in.Updates = append(in.Updates, Update{Submission: Submission{Source: b.target, State: state, Seq: ev.Seq, Record: ev.Record, Assigned: "elsewhere:" + ev.Record}})
		}
	}
	b.write(in)
}

// plans records the queries of a reader, and explains each instead of running it.
type plans struct {
	*eventlog.Log
	steps []string
}

func (p *plans) Each(ctx context.Context, text string, args []any, _ func(*sql.Rows) error) error {
	return p.Log.Each(ctx, "EXPLAIN QUERY PLAN "+text, args, func(rows *sql.Rows) error {
		var id, parent, unused int
		var step string
		err := rows.Scan(&id, &parent, &unused, &step)
		p.steps = append(p.steps, step)
		return err
	})
}

// What is asked for each request, each notification and each page finds its rows
// by an index, in their order, whatever else is in the database. SQLite plans without
// knowing how many rows there are, so an empty table has the plans of a full one.
func TestPlans(t *testing.T) {
	b := begin(t, event.Redirect)
	ctx := t.Context()
	p := &plans{Log: b.Log}
	r := store.QueriesOf(p)
	request, source := [32]byte{1}, "<source/>"
	open := []State{StateWaiting, StateForwarding, StateInDoubt, StateProvisional, StateUnresolved}
	for _, c := range []struct {
		name string
		do   func()
		want string
		sort bool // of a few rows: each index range is in order, and is left at the limit
	}{
		{"by number", func() { _, _ = r.Submission(ctx, 1) }, "t USING INTEGER PRIMARY KEY (rowid=?)", false},
		{"by token", func() { _, _ = r.SubmissionByToken(ctx, "token") }, "t USING INDEX submission_token (token=?)", false},
		{"the last repeat of a request", func() { _, _ = r.Submissions(ctx, Query{Source: 1, Request: &request, Newest: true, Limit: 1}) },
			"t USING INDEX submission_request (request=?)", false},
		{"the versions of a subject", func() {
			_, _ = r.Submissions(ctx, Query{Set: "main", States: open, Subject: source, Newest: true, Limit: 2})
		},
			"t USING INDEX submission_subject (subject=?)", false},
		{"a later version", func() {
			_, _ = r.HasNewerVersion(ctx, &Submission{ID: 1, Source: 1, SourceXML: []byte(source)}, open, "")
		}, "t USING INDEX submission_subject (subject=? AND rowid>?)", false},
		{"import pending", func() { _, _ = r.Submissions(ctx, Query{Source: 1, ImportPending: true}) }, "t USING INDEX submission_import (source=? AND rowid>?)", false},
		{"due", func() { _, _ = r.SubmissionsDue(ctx, 1, StateProvisional, 9, nil, 1000) },
			"t USING INDEX submission_due (source=? AND state=? AND due>? AND due<?)", false},
		{"under way", func() { _, _ = r.Submissions(ctx, Query{Source: 1, States: open[1:2]}) }, "t USING INDEX submission_state (source=? AND state=? AND rowid>?)", false},
		{"under review", func() { _, _ = r.Submissions(ctx, Query{Set: "main", UnderReview: true, Limit: 51}) }, "t USING INDEX submission_state (source=? AND state=? AND rowid>?)", true},
		{"undelivered", func() { _, _ = r.Undelivered(ctx, &Submission{ID: 1, Source: 1}) }, "t USING INDEX outgoing_state (source=? AND state=?)", false},
		{"the newest of a target", func() { _, _ = r.Submissions(ctx, Query{Source: 1, Newest: true, Limit: 1}) }, "t USING INDEX submission_state (source=? AND state=?)", true},
		{"the newest with some states", func() { _, _ = r.Submissions(ctx, Query{Set: "main", States: open, Newest: true, Limit: 20}) },
			"t USING INDEX submission_state (source=? AND state=?)", true},
		{"outgoing that are due", func() { _, _ = r.OutgoingDue(ctx, 9, nil, 100) }, "t USING INDEX outgoing_due (due>? AND due<?)", false},
		{"the newest outgoing", func() { _, _ = r.Outgoing(ctx, "main", 0, 0, 1) }, "t USING INDEX outgoing_state (source=? AND state=? AND rowid<?)", true},
		{"the newest incoming", func() { _, _ = r.Incoming(ctx, "main", 0, 0, 1) }, "t USING INDEX incoming_verdict (source=? AND verdict=? AND rowid<?)", true},
		{"the newest rejections", func() { _, _ = r.Rejections(ctx, "main", 0, 1) }, "t USING INDEX rejection_source (source=? AND rowid<?)", true},
	} {
		p.steps = nil
		c.do()
		if !slices.Contains(p.steps, "SEARCH "+c.want) || slices.ContainsFunc(p.steps, func(s string) bool {
			return strings.HasPrefix(s, "SCAN ") || strings.HasPrefix(s, "USE TEMP") && !c.sort
		}) {
			t.Errorf("%s: %q, want %q", c.name, p.steps, c.want)
		}
	}
}
