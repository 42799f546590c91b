package console

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// reviewsPage is the data of the page of submissions under review.
type reviewsPage struct {
	Rows     []reviewRow
	Set      string
	Sets     []string // with submissions under review
	Waiting  int64
	PerPage  int
	Older    string
	ShowMore string // link to a longer page
}

// reviewRow is a submission under review.
type reviewRow struct {
	submission.Submission
	Submitter, Email string
	// Replaces is the record that it would replace, "" when it would be a new one.
	Replaces, ReplacesTitle string
	// Unknown is why it cannot be said whether it would replace one, "" if it can.
	Unknown string
}

// Name returns the name of the record for people.
func (r reviewRow) Name() string {
	return cmp.Or(r.Title, r.SourceIdentifier, fmt.Sprintf("submission %d", r.ID))
}

// manyReviews is how many submissions the longer page has.
const manyReviews = 500

func (c *Console) reviews(w http.ResponseWriter, r *http.Request) error {
	p := reviewsPage{Set: argument(r.URL.Query(), "set"), PerPage: perPage}
	s, err := c.status(r.Context())
	if err != nil {
		return err
	}
	for i := range s.Sets {
		n := int64(0)
		for j := range s.Sets[i].Submissions {
			n += s.Sets[i].Submissions[j].UnderReview
		}
		if n == 0 {
			continue
		}
		p.Sets = append(p.Sets, s.Sets[i].Name)
		if p.Set == "" || p.Set == s.Sets[i].Name {
			p.Waiting += n
		}
	}
	if r.URL.Query().Get("many") != "" {
		p.PerPage = manyReviews
	}
	found, err := c.bridge.SIP.Submissions(r.Context(), submission.Query{Set: p.Set, UnderReview: true, After: after(r), Limit: p.PerPage + 1, Damaged: true})
	if err != nil {
		return err
	}
	for i := range found {
		if i == p.PerPage {
			p.Older = query(r, "after", fmt.Sprint(found[i-1].ID))
			break
		}
		row, err := c.reviewRow(r, &found[i])
		if err != nil {
			return err
		}
		p.Rows = append(p.Rows, row)
	}
	if p.Older != "" && p.PerPage < manyReviews {
		p.ShowMore = query(r, "many", "1")
	}
	c.write(w, r, http.StatusOK, "reviews", &page{Title: "Submissions under review", Section: "reviews", Body: p})
	return nil
}

func (c *Console) reviewRow(r *http.Request, s *submission.Submission) (row reviewRow, err error) {
	row.Submission = *s
	if s.State == 0 {
		return row, nil
	}
	_, row.Submitter, row.Email, _ = api.SourceTexts(s.SourceXML) // it has been parsed before
	replaced, err := c.bridge.Replaces(r.Context(), s)
	switch {
	case r.Context().Err() != nil:
		return row, err
	case err != nil:
		row.Unknown = "Which record it would replace cannot be read: " + err.Error()
	case replaced != nil:
		row.Replaces, row.ReplacesTitle = replaced.Record, replaced.Title
	}
	return row, nil
}

// reviewPage is the data of the page of one submission.
type reviewPage struct {
	reviewRow
	Text    string
	Missing string
	Binary  bool
	Cut     bool
	Diff    []daemon.DiffLine // to the record that it would replace
}

func (c *Console) review(w http.ResponseWriter, r *http.Request) error {
	id, err := number64(r.PathValue("id"))
	if err != nil {
		return err
	}
	s, err := c.bridge.SIP.Submission(r.Context(), id)
	if err != nil {
		return err
	}
	if s.Seq != 0 {
		return errNotFound // it was sent to another server, which decides
	}
	var p reviewPage
	if s.State == submission.StateProvisional && s.UnderReview() {
		p.reviewRow, err = c.reviewRow(r, s)
	} else {
		p.Submission = *s
	}
	if err != nil {
		return err
	}
	record, _, err := c.content(r, event.SHA256Of(event.HashOf(s.Content)))
	if err != nil {
		p.Missing = "The record cannot be read: " + err.Error()
	} else {
		p.Cut = int64(len(record)) < s.Length
		p.Text, p.Binary = shown(record)
	}
	if p.Replaces != "" && !p.Binary && p.Missing == "" {
		if p.Diff, err = c.diffOf(r, &p); err != nil {
			return err
		}
	}
	c.write(w, r, http.StatusOK, "review", &page{Title: p.Name(), Section: "reviews", Body: p})
	return nil
}

// diffOf compares a submission with the record that it would replace; nil when that is not
// text.
func (c *Console) diffOf(r *http.Request, p *reviewPage) ([]daemon.DiffLine, error) {
	ev, err := c.bridge.Log.Record(r.Context(), p.Set, event.Key(p.Replaces))
	if err != nil {
		return nil, err
	}
	rep, ok := ev.Pref()
	if !ok {
		return nil, nil
	}
	before, _, err := c.content(r, rep.SHA256())
	if err != nil {
		return nil, nil //nolint:nilerr // the page shows the new one alone
	}
	text, binary := shown(before)
	if binary {
		return nil, nil
	}
	return daemon.Diff(text, p.Text), nil
}

// Decided returns the decision in words, "" if there is none.
func (p reviewPage) Decided() string {
	if p.State == submission.StateProvisional && p.UnderReview() {
		return ""
	}
	return p.State.String()
}
