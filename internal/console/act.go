package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// The actions of people at the console. The response to each form is 303 to the page that
// it names in "to". That page shows what was done, or why nothing was.

// back redirects to a page below the console, which shows a note.
func (c *Console) back(w http.ResponseWriter, r *http.Request, text string, failed bool) {
	c.forget()
	to := strings.TrimPrefix(below(r.PostFormValue("to")), "./")
	up := strings.Repeat("../", strings.Count(strings.TrimPrefix(r.URL.Path, Path), "/")-1)
	mark := "?"
	if strings.Contains(to, "?") {
		mark = "&"
	}
	up = cmp.Or(up, "./")
	redirect(w, up+to+mark+"note="+c.notes.add(daemon.Redact(text), failed, c.opt.Now()))
}

// sourceActions are the actions of the forms, and whether the person must confirm them.
var sourceActions = map[string]bool{"harvest": false, "pause": false, "resume": false, "keep": false, "release": true, "accept-gap": true, "reset": true}

func (c *Console) actOnSource(w http.ResponseWriter, r *http.Request) error {
	c.forget()
	row, err := c.sourceOf(r)
	if err != nil {
		return err
	}
	sure, known := sourceActions[r.PathValue("action")]
	switch {
	case !known:
		return errNotFound
	case sure && r.PostFormValue("sure") == "":
		c.back(w, r, "Nothing was done: tick the box to say that you are sure.", true)
		return nil
	}
	a := daemon.SourceAction{Do: r.PathValue("action"), Set: row.Set, Reason: strings.TrimSpace(r.PostFormValue("reason"))}
	if a.Source, err = api.SourceURL(r.Context(), c.bridge, row.Set, row.ID); err != nil {
		return err
	}
	if end := r.PostFormValue("for"); a.Do == "pause" && end != "" {
		d, err := time.ParseDuration(end)
		if err != nil || d <= 0 {
			c.back(w, r, "Nothing was done: choose how long the pause is.", true)
			return nil
		}
		a.Until = c.opt.Now().Add(d)
	}
	switch a.Do { // a confirmation is of what the page has shown
	case "release":
		since, err := number64(r.PostFormValue("until"))
		if err != nil {
			c.back(w, r, "Nothing was done: release held deletions on the page that shows them.", true)
			return nil
		}
		a.Since = event.Micros(since)
	case "accept-gap":
		if !slices.Equal(strings.Fields(r.PostFormValue("gap")), strings.Fields(row.Gap)) {
			c.back(w, r, "Nothing was done: what is missing has changed meanwhile. Look at it again.", true)
			return nil
		}
	}
	done, err := c.bridge.Decide(context.WithoutCancel(r.Context()), daemon.Decision{Action: &a})
	c.log.Info("somebody has acted on a Source at the console", "action", a.Do, "set", row.Set, "source", row.URL, "client", r.RemoteAddr, "error", err)
	if err != nil {
		c.back(w, r, "This did not work: "+err.Error(), true)
		return nil
	}
	c.back(w, r, done.Result, false)
	return nil
}

// mostChosen bounds the number of items that one form decides on.
const mostChosen = 1000

// chosen returns the numbers that a form has selected.
func chosen(r *http.Request) (ids []int64, err error) {
	if err := r.ParseForm(); err != nil {
		return nil, &problem{http.StatusBadRequest, "The form cannot be read, so nothing was done: go back and try again."}
	}
	for _, text := range r.PostForm["id"] {
		id, err := number64(text)
		if err != nil || len(ids) == mostChosen {
			return nil, &problem{http.StatusBadRequest, "The form cannot be read, so nothing was done: go back and try again."}
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// decideAll decides on each ID, and returns the message about the results. It continues
// after failures.
func decideAll(ids []int64, what, done string, decide func(id int64) error) (text string, failed bool) {
	var refused []string
	for _, id := range ids {
		if err := decide(id); err != nil {
			refused = append(refused, err.Error())
		}
	}
	if n := len(ids) - len(refused); n > 0 || len(refused) == 0 {
		text = fmt.Sprintf("%s %s.", counted(n, what, what+"s"), done)
	}
	if len(refused) > 0 {
		text = strings.TrimSpace(fmt.Sprintf("%s %s could not be decided. The first: %s.", text, counted(len(refused), what, what+"s"), strings.TrimSuffix(refused[0], ".")))
	}
	return text, len(refused) > 0
}

// shownInput returns the input with a number if it is the one that a page has shown: the
// number of a discarded input may belong to another one now.
func (c *Console) shownInput(ctx context.Context, r *http.Request, id int64) (event.Quarantined, error) {
	q, err := c.bridge.Log.QuarantinedInput(ctx, id)
	if err == nil && !slices.Contains(r.PostForm["shown"], shownAs(&q)) {
		err = fmt.Errorf("input %d is another one than the page has shown: look at it", id)
	}
	return q, err
}

// shownAs returns the value of a form that identifies an input beyond its number.
func shownAs(q *event.Quarantined) string { return fmt.Sprintf("%d.%d", q.ID, q.First) }

func (c *Console) decideQuarantined(w http.ResponseWriter, r *http.Request) error {
	ids, err := chosen(r)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		c.back(w, r, "Nothing was done: choose at least one input.", true)
		return nil
	}
	ctx := context.WithoutCancel(r.Context())
	var done string
	var decide func(*event.Quarantined) error
	switch r.PostFormValue("do") {
	case "replay":
		done, decide = "replayed", func(q *event.Quarantined) error { _, err := c.bridge.Replay(ctx, q); return err }
	case "discard":
		done, decide = "discarded", func(q *event.Quarantined) error { return c.bridge.Discard(ctx, q.ID) }
	default:
		return errNotFound
	}
	text, failed := decideAll(ids, "input", done, func(id int64) error {
		q, err := c.shownInput(ctx, r, id)
		if err == nil {
			err = decide(&q)
		}
		return err
	})
	c.log.Info("somebody has decided on bad inputs at the console", "decided", done, "inputs", len(ids), "client", r.RemoteAddr, "failed", failed)
	c.back(w, r, text, failed)
	return nil
}

func (c *Console) decideReviews(w http.ResponseWriter, r *http.Request) error {
	ids, err := chosen(r)
	if err != nil {
		return err
	}
	d := daemon.Decision{Reason: strings.TrimSpace(r.PostFormValue("reason"))}
	done := "rejected"
	switch r.PostFormValue("do") {
	case "accept":
		if d.Reason != "" { // Enter in the field of the reason presses the first button
			c.back(w, r, "Nothing was decided: a reason is for a rejection. Press Reject, or leave the reason empty.", true)
			return nil
		}
		d.Accept, done = true, "accepted"
	case "reject":
	default:
		return errNotFound
	}
	if len(ids) == 0 {
		c.back(w, r, "Nothing was decided: choose at least one submission.", true)
		return nil
	}
	text, failed := decideAll(ids, "submission", done, func(id int64) error {
		one := d
		one.ID = id
		_, err := c.bridge.Decide(context.WithoutCancel(r.Context()), one)
		return err
	})
	c.log.Info("somebody has decided on submissions at the console", "decided", done, "submissions", len(ids), "client", r.RemoteAddr, "failed", failed)
	c.back(w, r, text, failed)
	return nil
}
