package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/internal/ingest"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Decisions on submissions are made by a person, or by a program, with bridge
// submission accept, reject, settle, resend and withdraw. Where bridge serve has the
// data folder, the command asks it over a Unix socket in that folder: whoever may
// write there may decide, and nobody else. Otherwise the command takes the folder and
// decides itself.

// Settlement is what an operator has learned about a submission in doubt.
type Settlement = ingest.Settlement

// Decision settles a submission, sends submissions again, or withdraws a record.
type Decision struct {
	ID     int64 `json:"id,omitempty"` // 0: what Set names, with Resend or Withdraw
	Accept bool  `json:"accept,omitempty"`
	// Replace: the record may replace one that has the identifier Assigned already and
	// is another submitter's.
	Replace bool `json:"replace,omitempty"`
	// Settle is what became of a submission that was sent on; nil is a decision on
	// one under review.
	Settle *Settlement `json:"settle,omitempty"`
	// Resend is the state (unsent or unresolved) of submissions of targets that are
	// put back into the outbox; "" is another decision.
	Resend string `json:"resend,omitempty"`
	Set    string `json:"set,omitempty"`
	// Assigned is the identifier of an accepted record; "" lets the set assign
	// one.
	Assigned string `json:"assigned-identifier,omitempty"`
	// Withdraw is the identifier of a record of Set that its SIP Source shall have
	// no more; "" is another decision.
	Withdraw string `json:"withdraw,omitempty"`
	// Reason of a rejection, or a withdrawal.
	Reason string `json:"reason,omitempty"`
}

// DecisionResult is the outcome of a Decision.
type DecisionResult struct {
	// Published is the identifier under which the submission had been accepted before
	// it was settled otherwise: the record is still published. "" is none.
	Published string `json:"published,omitempty"`
	// Stays: the record that was withdrawn is still published, since another Source of
	// the set has it.
	Stays bool `json:"stays,omitempty"`
	// Error is why it was refused; "" when it is committed.
	Error string `json:"error,omitempty"`
}

// Decide applies a decision, in the process that holds the data folder.
func (b *Bridge) Decide(ctx context.Context, d Decision) (DecisionResult, error) {
	switch {
	case d.Resend != "":
		return DecisionResult{}, b.resend(ctx, d)
	case d.Withdraw != "":
		if err := b.withdraw(ctx, d); err != nil {
			return DecisionResult{}, err
		}
		stays, err := b.stays(ctx, d.Set, d.Withdraw)
		return DecisionResult{Stays: stays}, err
	}
	s, err := b.Submission(ctx, d.ID)
	if err != nil {
		return DecisionResult{}, err
	}
	v := b.service(s.Set)
	if v == nil || v.server.Source != s.Source && d.Settle == nil {
		return DecisionResult{}, fmt.Errorf("submission %d belongs to set %s, which is not configured as a SIP service: give its configuration with --config", d.ID, s.Set)
	}
	if d.Settle == nil {
		return DecisionResult{}, v.server.Decide(ctx, ingest.Verdict{ID: d.ID, Accept: d.Accept, Assigned: d.Assigned, Reason: d.Reason, Replace: d.Replace})
	}
	before, err := v.server.Settle(ctx, d.ID, *d.Settle)
	if err != nil || before.State != submission.StateAccepted {
		return DecisionResult{}, err
	}
	after, err := b.SIP.Submission(ctx, d.ID)
	if err != nil || after.State == before.State && after.Assigned == before.Assigned {
		return DecisionResult{}, err
	}
	return DecisionResult{Published: before.Assigned}, nil
}

// resend puts submissions back into the queues of their targets.
func (b *Bridge) resend(ctx context.Context, d Decision) error {
	set := d.Set
	if d.ID != 0 {
		s, err := b.Submission(ctx, d.ID)
		if err != nil {
			return err
		}
		if s.Seq == 0 {
			return fmt.Errorf("submission %d was received, and only what a [[set.submit]] sends can be sent again: its submitter may repeat it; enter the ingest server's decision with bridge submission settle", s.ID)
		}
		set = s.Set
	}
	found := false
	for i, o := range b.sip.submitters {
		if o.Set != set {
			continue
		}
		if d.ID != 0 {
			if s, err := b.SIP.Submission(ctx, d.ID); err != nil || s.Source != o.Source {
				continue
			}
		}
		found = true
		n, err := o.Resend(ctx, d.ID, submission.ParseState(d.Resend))
		if n > 0 {
			select {
			case b.sip.reload[i] <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return err
		}
		b.opt.Logger.Info("submissions are sent again", "set", o.Set, "target", o.URL, "number", n)
	}
	if !found {
		return fmt.Errorf("set %q has no configured [[set.submit]] that this could be sent to: give its configuration with --config", set)
	}
	return nil
}

const (
	// controlName is the socket in the data folder.
	controlName = "control"
	// socketPath is the longest path that a socket may have on every system.
	socketPath = 100
	// mostDecisions bounds one request.
	mostDecisions = 64 << 20
)

// serveDecisions applies the decisions of other processes until ctx ends.
func (b *Bridge) serveDecisions(ctx context.Context) {
	l, remove, err := listenControl(b.Config.Data)
	if err != nil {
		b.opt.Logger.Error("no decisions can be taken while bridge runs", "error", err)
		return
	}
	defer remove()
	server := &http.Server{Handler: http.HandlerFunc(b.takeDecisions), ReadTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(end)
	})
	defer stop()
	if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		b.opt.Logger.Error("no more decisions can be taken while bridge runs", "error", err)
	}
}

// listenControl listens on the socket in a data folder. The caller holds the lock, so
// an existing socket is that of a process that was killed. Where the path would be too
// long, the socket is in a temporary folder and the data folder has a link to it.
func listenControl(folder string) (l net.Listener, remove func(), err error) {
	path := filepath.Join(folder, controlName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	remove = func() { _ = os.Remove(path) }
	at := path
	if len(path) > socketPath {
		dir, err := os.MkdirTemp("", "bridge-")
		if err != nil {
			return nil, nil, err
		}
		at = filepath.Join(dir, controlName)
		if err := os.Symlink(at, path); err != nil {
			return nil, nil, errors.Join(err, os.Remove(dir))
		}
		remove = func() { _, _ = os.Remove(path), os.RemoveAll(dir) }
	}
	if l, err = (&net.ListenConfig{}).Listen(context.Background(), "unix", at); err == nil {
		err = os.Chmod(at, 0o600)
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return l, remove, nil
}

// takeDecisions applies the decisions of a request in their order, and answers each
// with a line of JSON when it is committed or refused.
func (b *Bridge) takeDecisions(w http.ResponseWriter, r *http.Request) {
	var all []Decision
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostDecisions)).Decode(&all); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	for i := range all {
		if r.Context().Err() != nil {
			return
		}
		done, err := b.Decide(context.WithoutCancel(r.Context()), all[i])
		if err != nil {
			done.Error = err.Error()
			b.opt.Logger.Warn("a decision was refused", "about", all[i].subject(), "error", err)
		}
		if out.Encode(done) != nil || flush.Flush() != nil {
			return
		}
	}
}

// ErrNotServing: no process serves from the data folder.
var ErrNotServing = errors.New("no process takes decisions")

// SendDecisions asks the process that serves from a data folder to apply decisions in
// their order, and calls told with the result of each. The error is ErrNotServing when
// there is no such process. After any other error the results that told was not called
// with are unknown.
func SendDecisions(ctx context.Context, folder string, all []Decision, told func(i int, done DecisionResult)) error {
	at := filepath.Join(folder, controlName)
	if linked, err := os.Readlink(at); err == nil {
		at = linked
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", at)
		if err != nil {
			return nil, errors.Join(ErrNotServing, err)
		}
		return conn, nil
	}}}
	body, writer := io.Pipe()
	go func() { writer.CloseWithError(json.NewEncoder(writer).Encode(all)) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bridge/decisions", body)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the process that has the data folder answers %s", resp.Status)
	}
	lines := json.NewDecoder(resp.Body)
	for i := range all {
		var done DecisionResult
		if err := lines.Decode(&done); err != nil {
			return fmt.Errorf("the process that has the data folder has ended, or does not answer; whether %s was decided shows %s: %w", all[i].subject(), all[i].seen(), err)
		}
		told(i, done)
	}
	return nil
}

// subject returns in words what a decision is about.
func (d *Decision) subject() string {
	switch {
	case d.ID != 0:
		return fmt.Sprintf("submission %d", d.ID)
	case d.Withdraw != "":
		return fmt.Sprintf("record %q of set %s", d.Withdraw, d.Set)
	}
	return "the submissions of set " + d.Set
}

// seen returns the command that shows whether a decision was applied.
func (d *Decision) seen() string {
	switch {
	case d.ID != 0:
		return fmt.Sprintf("bridge submission show %d", d.ID)
	case d.Withdraw != "":
		return "bridge log --set " + d.Set
	}
	return "bridge status"
}

// Submission returns one, with its record.
func (b *Bridge) Submission(ctx context.Context, id int64) (*submission.Submission, error) {
	s, err := b.SIP.Submission(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no submission %d in %s: see bridge submission ls", id, b.Config.Data)
	}
	return s, err
}

// CopyRecord writes the record of a submission.
func (b *Bridge) CopyRecord(ctx context.Context, w io.Writer, s *submission.Submission) error {
	if b.Contents == nil || s.Content == [32]byte{} {
		return fmt.Errorf("submission %d has no record here", s.ID)
	}
	record, err := b.Contents.Open(ctx, s.Content)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, record)
	return errors.Join(err, record.Close())
}
