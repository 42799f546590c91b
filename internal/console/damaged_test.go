package console_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/api/testdata/client"
	"github.com/pmh-bridge/bridge/internal/submission/store"
)

// A submission that is damaged in the log is named in the lists, and hides no others; nor does
// one whose record cannot be compared with the version before, which is damaged.
func TestListsWithADamagedSubmission(t *testing.T) {
	t.Parallel()
	s, ctx := newSite(t), t.Context()
	for n := range 3 {
		s.submit(n, "Place")
	}
	s.submit(3, "Mill")
	if said, failed := s.act("/reviews", "do", "accept", "to", "reviews", "id", "4"); failed {
		t.Fatal(said)
	}
	s.submit(3, "Mill, repaired")
	if err := s.bridge.SIP.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		return tx.Exec(ctx, "UPDATE submission SET title = 'other' WHERE id IN (2, 4)")
	}); err != nil {
		t.Fatal(err)
	}

	var rows []string
	for _, row := range elements(s.page("/reviews").root, "tr")[1:] {
		rows = append(rows, text(row))
	}
	if all := strings.Join(rows, "\n"); len(rows) != 4 || !strings.Contains(rows[1], "submission 2") || !strings.Contains(rows[1], "damaged run bridge verify") ||
		!strings.Contains(rows[3], "Which record it would replace cannot be read: submission 4: damaged") || strings.Count(all, "damaged") != 2 {
		t.Errorf("the page has %d rows:\n%s", len(rows), all)
	}
	if page := text(s.page("/reviews/5").root); !strings.Contains(page, "Which record it would replace cannot be read: submission 4: damaged") {
		t.Errorf("the page of the new version:\n%s", page)
	}

	c, _ := programOf(t, s, "")
	got, err := c.ListSubmissionsWithResponse(ctx, &client.ListSubmissionsParams{})
	if err != nil || got.JSON200 == nil || len(got.JSON200.Items) != 5 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, sub := range got.JSON200.Items {
		if damaged := sub.Id == 2 || sub.Id == 4; damaged != (sub.State == "damaged") || sub.Set != "deposits" {
			t.Errorf("%+v", sub)
		}
	}
}
