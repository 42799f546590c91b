package daemon

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A decision on a submission under review is made by a person, or by a program,
// with bridge submission accept and reject; so are the orders to resend and to
// withdraw. Where bridge serve has the data folder, the command leaves the decision
// there as a file and serve takes it: whoever may write into the folder may decide,
// and nobody else.

// Decision settles a submission under review, sends submissions again, or
// withdraws a record.
type Decision struct {
	ID     int64 `json:"id,omitempty"` // 0: what Set names, with Resend or Withdraw
	Accept bool  `json:"accept,omitempty"`
	// Resend is the state (unsent or unresolved) of submissions of targets that are
	// put back into the outbox; "" is a decision on a review.
	Resend string `json:"resend,omitempty"`
	Set    string `json:"set,omitempty"`
	// Assigned is the identifier of an accepted record; "" lets the set assign
	// one.
	Assigned string `json:"assigned-identifier,omitempty"`
	// Withdraw is the identifier of a record of Set that its SIP Source shall have
	// no more; "" is another decision.
	Withdraw string `json:"withdraw,omitempty"`
	// Seq is the last one in the log when it was decided to withdraw the record.
	// What was withdrawn after that, and submitted again, is not meant.
	Seq event.Seq `json:"seq,omitempty"`
	// Reason of a rejection, or a withdrawal.
	Reason string `json:"reason,omitempty"`
}

const (
	decisionFolder = "decisions"
	draftSuffix    = ".draft"
	decisionSuffix = ".json"
	refusalSuffix  = ".refused"
	decisionEvery  = time.Second / 2
	// decisionKept is how long drafts and refusals stay that nobody comes for.
	decisionKept = time.Hour
)

// Decide takes a decision, in the process that holds the data folder.
func (h *House) Decide(ctx context.Context, d Decision) error {
	switch {
	case d.Resend != "":
		return h.resend(ctx, d)
	case d.Withdraw != "":
		return h.withdraw(ctx, d)
	}
	s, err := h.Log.Submission(ctx, d.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return h.noSubmission(d.ID)
	}
	if err != nil {
		return err
	}
	for _, v := range h.exchange.services {
		if v.desk.Source == s.Source {
			return v.desk.Decide(ctx, d.ID, d.Accept, d.Assigned, d.Reason)
		}
	}
	return fmt.Errorf("submission %d belongs to set %s, which is not configured as a SIP service: give its configuration with --config", d.ID, s.Set)
}

// resend puts submissions back into the outboxes that they are of.
func (h *House) resend(ctx context.Context, d Decision) error {
	set := d.Set
	if d.ID != 0 {
		s, err := h.Submission(ctx, d.ID)
		if err != nil {
			return err
		}
		set = s.Set
	}
	found := false
	for i, o := range h.exchange.outboxes {
		if o.Set != set {
			continue
		}
		if d.ID != 0 {
			if s, err := h.Log.Submission(ctx, d.ID); err != nil || s.Source != o.Source {
				continue
			}
		}
		found = true
		n, err := o.Resend(ctx, d.ID, event.ParseState(d.Resend))
		if n > 0 {
			select {
			case h.exchange.reload[i] <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return err
		}
		h.opt.Logger.Info("submissions are sent again", "set", o.Set, "target", o.URL, "number", n)
	}
	if !found {
		return fmt.Errorf("set %q has no configured [[set.submit]] that this could be sent to: give its configuration with --config", set)
	}
	return nil
}

// takeDecisions takes what other processes have decided, until ctx ends.
func (h *House) takeDecisions(ctx context.Context) {
	folder := filepath.Join(h.Config.Data, decisionFolder)
	tick := time.NewTicker(decisionEvery)
	defer tick.Stop()
	for {
		files, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.opt.Logger.Error("decisions cannot be read", "error", err)
		}
		for _, f := range files {
			if path := filepath.Join(folder, f.Name()); strings.HasSuffix(path, decisionSuffix) {
				h.takeDecision(ctx, path)
			} else if info, err := f.Info(); err == nil && time.Since(info.ModTime()) > decisionKept {
				_ = os.Remove(path) // who has left it, or should have read it, was killed
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// takeDecision takes one. The file goes when the decision has been committed, or
// has been refused for good.
func (h *House) takeDecision(ctx context.Context, path string) {
	var d Decision
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err == nil {
		err = h.Decide(ctx, d)
	}
	switch {
	case ctx.Err() != nil || errors.Is(err, eventlog.ErrStopped) || errors.Is(err, eventlog.ErrFull):
		return // it stays for the next time
	case err != nil:
		h.opt.Logger.Warn("a decision was refused", "about", d.subject(), "error", err)
		if err := os.WriteFile(strings.TrimSuffix(path, decisionSuffix)+refusalSuffix, []byte(err.Error()), 0o600); err != nil {
			h.opt.Logger.Error("a refusal cannot be told; it is tried again", "error", err)
			return // without the file it would be taken for consent
		}
	}
	if err := os.Remove(path); err != nil {
		h.opt.Logger.Error("a decision that was taken cannot be removed; taking it again does no harm", "error", err)
	}
}

// subject is what a decision is about, in words for people.
func (d *Decision) subject() string {
	switch {
	case d.ID != 0:
		return fmt.Sprintf("submission %d", d.ID)
	case d.Withdraw != "":
		return fmt.Sprintf("record %q of set %s", d.Withdraw, d.Set)
	}
	return "the submissions of set " + d.Set
}

// seen is what shows whether a decision was taken.
func (d *Decision) seen() string {
	switch {
	case d.ID != 0:
		return fmt.Sprintf("bridge submission show %d", d.ID)
	case d.Withdraw != "":
		return "bridge log --set " + d.Set
	}
	return "bridge status"
}

// LeaveDecision lets the process that holds the data folder take a decision, and
// waits until it has. The error is what that process says, or that it did not
// answer in time: then the decision stays and is taken later.
func LeaveDecision(ctx context.Context, folder string, d Decision, patience time.Duration) error {
	return LeaveDecisions(ctx, folder, []Decision{d}, patience)[0]
}

// LeaveDecisions does so with several, which are taken in their order, and returns
// what became of each. patience is how long one may take after the one before.
func LeaveDecisions(ctx context.Context, folder string, all []Decision, patience time.Duration) []error {
	names, errs := make([]string, len(all)), make([]error, len(all))
	for i := range all {
		names[i], errs[i] = leaveDecision(filepath.Join(folder, decisionFolder), &all[i])
	}
	for i := range all {
		if errs[i] != nil {
			continue
		}
		if errs[i] = awaitDecision(ctx, names[i], &all[i], patience); errors.Is(errs[i], errNotTaken) {
			patience = 0 // nobody is there who takes the others
		}
	}
	return errs
}

var errNotTaken = errors.New("has not taken it yet")

// leaveDecision writes a decision whole and returns its name without the suffix.
func leaveDecision(dir string, d *Decision) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	// Of two decisions on one submission both are answered: each has a name of its
	// own, in the order of time.
	name := filepath.Join(dir, fmt.Sprintf("%019d-%s", time.Now().UnixNano(), rand.Text()))
	f, err := os.OpenFile(name+draftSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(name+draftSuffix, name+decisionSuffix)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(name+draftSuffix))
	}
	return name, nil
}

func awaitDecision(ctx context.Context, name string, d *Decision, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(decisionEvery / 4)
	defer tick.Stop()
	for {
		if _, err := os.Stat(name + decisionSuffix); errors.Is(err, fs.ErrNotExist) {
			why, err := os.ReadFile(name + refusalSuffix)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return errors.Join(errors.New(string(why)), err, os.Remove(name+refusalSuffix))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the decision on %s was left for the process that holds the data folder, which %w: see %s", d.subject(), errNotTaken, d.seen())
		case <-tick.C:
		}
	}
}

// Submission returns one, with its record.
func (h *House) Submission(ctx context.Context, id int64) (*event.Submission, error) {
	s, err := h.Log.Submission(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, h.noSubmission(id)
	}
	return s, err
}

func (h *House) noSubmission(id int64) error {
	return fmt.Errorf("there is no submission %d in %s: see bridge submission ls", id, h.Config.Data)
}

// CopyRecord writes the record of a submission.
func (h *House) CopyRecord(ctx context.Context, w io.Writer, s *event.Submission) error {
	if h.Contents == nil || s.Content == [32]byte{} {
		return fmt.Errorf("submission %d has no record here", s.ID)
	}
	b, err := h.Contents.Open(ctx, s.Content)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, b)
	return errors.Join(err, b.Close())
}
