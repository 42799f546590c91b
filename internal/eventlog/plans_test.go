package eventlog

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// What is asked for each request, each notification and each page finds its rows
// by an index, in their order, whatever else is in the log. SQLite plans without
// knowing how many rows there are, so an empty log has the plans of a full one.
func TestSubmissionsAreNotSearchedFor(t *testing.T) {
	ctx := t.Context()
	l, err := Open(ctx, t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.EnsureSet(ctx, SetConfig{Name: "main", SegmentEvents: 1000, SegmentHours: 24}); err != nil {
		t.Fatal(err)
	}
	id, err := l.EnsureSource(ctx, "main", "sip", "/sip/main", 0)
	if err != nil {
		t.Fatal(err)
	}
	request, block := [32]byte{1}, "<source/>"
	open := []event.State{event.StateWaiting, event.StateForwarding, event.StateInDoubt, event.StateProvisional, event.StateUnresolved}
	ask := func(q event.SubmissionQuery) func() error {
		return func() error { _, err := l.Submissions(ctx, q); return err }
	}
	for _, c := range []struct {
		name string
		do   func() error
		want []string
		sort bool // of a few rows: each index range is in order, and is left at the limit
	}{
		{"by number", func() error { _, err := l.Submission(ctx, 1); return err }, []string{"b USING INTEGER PRIMARY KEY (rowid=?)"}, false},
		{"by token", func() error { _, err := l.SubmissionByToken(ctx, "token"); return err }, []string{"b USING INDEX submission_token (token=?)"}, false},
		{"the last repeat of a request", ask(event.SubmissionQuery{Source: id, Request: &request, Newest: true, Limit: 1}),
			[]string{"b USING INDEX submission_request (request=?)"}, false},
		{"the versions of a subject", ask(event.SubmissionQuery{Set: "main", States: open, Subject: block, Newest: true, Limit: 2}),
			[]string{"b USING INDEX submission_subject (subject=?)"}, false},
		{"a later version", func() error {
			_, err := l.HasNewerVersion(ctx, &event.Submission{ID: 1, Source: id, SourceXML: []byte(block)}, open, "")
			return err
		},
			[]string{"b USING INDEX submission_subject (subject=? AND rowid>?)"}, false},
		{"a later version of what a target submits", func() error {
			_, err := l.HasNewerVersion(ctx, &event.Submission{ID: 1, Source: id, Seq: 1, Record: "urn:x"}, open, "")
			return err
		}, []string{"b USING INDEX submission_subject (subject=? AND rowid>?)"}, false},
		{"owed", ask(event.SubmissionQuery{Source: id, ImportPending: true, Limit: 1000}), []string{"b USING INDEX submission_owed (source=? AND rowid>?)"}, false},
		{"due", func() error { _, err := l.SubmissionsDue(ctx, id, event.StateProvisional, 9, nil, 1000); return err },
			[]string{"b USING INDEX submission_due (source=? AND state=? AND due>? AND due<?)"}, false},
		{"under way", ask(event.SubmissionQuery{Source: id, States: open[1:2]}), []string{"b USING INDEX submission_state (source=? AND state=? AND rowid>?)"}, false},
		{"the newest of a target", ask(event.SubmissionQuery{Source: id, Newest: true, Limit: 1}), []string{"b USING INDEX submission_state (source=? AND state=?)"}, true},
		{"the newest with some states", ask(event.SubmissionQuery{Set: "main", States: open, Newest: true, Limit: 20}),
			[]string{"src USING COVERING INDEX sqlite_autoindex_source_1 (set_id=?)", "b USING INDEX submission_state (source=? AND state=?)"}, true},
		{"answered", func() error { _, err := l.StoredReply(ctx, id, request); return err }, []string{"answered USING PRIMARY KEY (source=? AND request=?)"}, false},
	} {
		if err := errors.Join(l.readers.Close(), l.openReaders(ctx)); err != nil {
			t.Fatal(err)
		}
		if err := c.do(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s: %v", c.name, err)
		}
		texts := l.readers.Prepared()
		if len(texts) != 1 {
			t.Fatalf("%s: %d queries", c.name, len(texts))
		}
		for _, text := range texts {
			plan := planOf(t, l, text)
			for _, want := range c.want {
				if !slices.Contains(plan, "SEARCH "+want) {
					t.Errorf("%s: %q, want %q", c.name, plan, want)
				}
			}
			if slices.ContainsFunc(plan, func(p string) bool {
				return strings.HasPrefix(p, "SCAN ") || strings.HasPrefix(p, "USE TEMP") && !c.sort
			}) {
				t.Errorf("%s: %q", c.name, plan)
			}
		}
	}
}

// planOf returns the steps in which SQLite does a query.
func planOf(t *testing.T, l *Log, text string) (plan []string) {
	t.Helper()
	if err := l.read(context.Background(), func(q sqlite.Querier) error {
		args := make([]any, strings.Count(text, "?")+strings.Count(text, "$"))
		rows, err := q.QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+text, args...)
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var id, parent, unused int
			var step string
			err := rows.Scan(&id, &parent, &unused, &step)
			plan = append(plan, step)
			return err
		})
	}); err != nil {
		t.Fatal(err)
	}
	return plan
}
