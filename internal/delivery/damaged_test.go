package delivery

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// damage changes rows behind the store's back.
func (h *harness) damage(what string) {
	h.t.Helper()
	h.do(h.log.Do(context.Background(), func(ctx context.Context, tx *store.Tx) error { return tx.Exec(ctx, "UPDATE submission SET "+what) }))
}

// others returns the submissions but the first one, as their columns have them.
func (h *harness) others() (out []string) {
	h.t.Helper()
	h.do(h.log.Each(context.Background(), "SELECT id, record, state FROM submission WHERE id > 1 ORDER BY id", nil, func(rows *sql.Rows) error {
		var id, state int
		var record string
		err := rows.Scan(&id, &record, &state)
		out = append(out, fmt.Sprintf("%d %s %s", id, record, submission.State(state)))
		return err
	}))
	return out
}

// A damaged submission is named once and left out; all others of its target go on, whichever
// column is damaged, before the process starts or while it runs.
func TestDamagedSubmissionHoldsUpNoOthers(t *testing.T) {
	for name, damaged := range map[string]string{
		"a text":            "title = 'other'",
		"a time":            "due = 1",
		"its record":        "record = 'urn:c'",
		"what cannot be so": "late = 300",
	} {
		t.Run(name, func(t *testing.T) {
			for when, early := range map[string]bool{"before": true, "meanwhile": false} {
				t.Run(when, func(t *testing.T) {
					inBubble(t, func(t *testing.T, h *harness) {
						said := &testenv.Log{}
						up := false
						h.server.answer = func(_ int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
							if !up {
								return nil, &sip.Fault{Code: sip.Server, Text: "later"}
							}
							return keep(), nil
						}
						h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"}, [2]string{"urn:c", "three"})
						start := func() func() {
							return h.start(h.submitter(func(o *Submitter) {
								o.Log, o.ImportTo, o.ImportURL = slog.New(slog.NewTextHandler(said, nil)), h.importTo, "/sip/accepted"
							}))
						}
						stop := start()
						time.Sleep(3 * time.Minute)
						synctest.Wait()
						if early {
							stop()
						}
						h.damage(damaged + " WHERE id = 1")
						if early {
							stop = start()
						}
						defer func() { stop() }()
						up = true
						h.keep([2]string{"urn:a", "new"})
						time.Sleep(3 * time.Hour)
						synctest.Wait()
						if got, want := strings.Join(h.others(), ", "), "2 urn:b accepted, 3 urn:c accepted, 4 urn:a accepted"; got != want {
							t.Errorf("%s, want %s\n%s", got, want, said)
						}
						if set, err := h.log.Set(t.Context(), "accepted"); err != nil || set.Live != 3 {
							t.Errorf("the other set: %+v, %v", set, err)
						}
						if n := strings.Count(said.String(), "a submission is damaged"); n != 1 || !strings.Contains(said.String(), "submission=1\n") {
							t.Errorf("it is named %d times: %s", n, said)
						}
					})
				})
			}
		})
	}
}

// All of a target are sent again but the damaged one.
func TestResendBesideADamagedSubmission(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.formats = []string{"https://schemas.example/other.xsd"}
		h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
		stop := h.start(h.submitter(nil))
		synctest.Wait()
		stop()
		h.damage("title = 'other' WHERE id = 1")
		n, err := h.submitter(nil).Resend(t.Context(), 0, submission.StateUnsent)
		if got := strings.Join(h.others(), ", "); err != nil || n != 1 || got != "2 urn:b waiting" {
			t.Errorf("%d, %v: %s", n, err, got)
		}
	})
}

// An accepted record is not imported where its event, or a later accepted version of it, is
// damaged; all others are, and the target goes on.
func TestImportBesideWhatIsDamaged(t *testing.T) {
	const itsEvent, laterVersion = "its event", "a later version"
	for name, damaged := range map[string]string{
		itsEvent:     "UPDATE event SET body = zeroblob(length(body)) WHERE id & 1099511627775 = 1",
		laterVersion: "UPDATE submission SET title = 'other' WHERE id = 3",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				said := &testenv.Log{}
				h.keep([2]string{"urn:a", "one"}, [2]string{"urn:b", "two"})
				stop := h.start(h.submitter(nil))
				synctest.Wait()
				want := int64(2)
				if name == laterVersion {
					want = 3 // a restart submits its last change again
					h.keep([2]string{"urn:a", "new"})
					synctest.Wait()
				}
				stop()
				h.do(h.log.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error { return tx.Exec(ctx, damaged) }))
				stop = h.start(h.submitter(func(o *Submitter) {
					o.Log, o.ImportTo, o.ImportURL = slog.New(slog.NewTextHandler(said, nil)), h.importTo, "/sip/accepted"
				}))
				defer func() { stop() }()
				time.Sleep(time.Hour)
				h.keep([2]string{"urn:c", "three"})
				time.Sleep(time.Hour)
				synctest.Wait()
				if set, err := h.log.Set(t.Context(), "accepted"); err != nil || int64(set.Live) != want {
					t.Errorf("the other set: %+v, %v\n%s", set, err, said)
				}
				if n := strings.Count(said.String(), "submission=1 "); n != 1 || strings.Contains(said.String(), "wait for the log") {
					t.Errorf("it is named %d times:\n%s", n, said)
				}
			})
		})
	}
}

// A notification that is damaged while it is being sent keeps none of those that were sent with
// it from being noted: they are not sent again.
func TestNotificationDamagedWhileItIsSent(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	for i := range 3 {
		h.owe(h.boxURL+"/"+fmt.Sprint(i+1), fmt.Sprint(i+1))
	}
	h.boxes.Refuse = func(d *sip.Disposition) error {
		if *d.Source.Identifier != "2" {
			return nil
		}
		return h.log.Do(context.Background(), func(ctx context.Context, tx *store.Tx) error {
			return tx.Exec(ctx, "UPDATE outgoing_notification SET message = 'other' WHERE id = 2")
		})
	}
	said := &testenv.Log{}
	p := h.notifier(&testenv.Life{})
	p.Log = slog.New(slog.NewTextHandler(said, nil))
	r := newNotifyLoop(p)
	r.deliverDue()
	if done := h.in(submission.DeliveryDone); len(done) != 2 || done[0].ID != 3 || done[1].ID != 1 {
		t.Errorf("noted as delivered: %+v", done)
	}
	r.deliverDue()
	for i := range 3 {
		if n := len(h.boxes.Of(fmt.Sprint(i + 1))); n != 1 {
			t.Errorf("notification %d was sent %d times", i+1, n)
		}
	}
	if !strings.Contains(said.String(), "notification is damaged") || !strings.Contains(said.String(), "notification=2\n") {
		t.Errorf("it is not named: %s", said)
	}
}
