package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

func submissionCommand() *cobra.Command {
	return group("submission", submissionListCommand(), submissionShowCommand(), submissionNotificationsCommand(), submissionNoticesCommand(),
		decideCommand("submission accept", true), decideCommand("submission reject", false), withdrawCommand(), resendCommand())
}

func submissionListCommand() *cobra.Command {
	cmd := command("submission ls")
	var in inputs
	var set, states string
	var limit int
	var asJSON bool
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().StringVar(&set, "set", "", "only those of the set with this `name`")
	cmd.Flags().StringVar(&states, "state", "", "only those in these `states`, with commas between them")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this many, the newest; 0 is all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q := event.SubmissionQuery{Set: set, Newest: true}
		for _, word := range strings.FieldsFunc(states, func(r rune) bool { return r == ',' }) {
			s := event.ParseState(strings.TrimSpace(word))
			if s == 0 {
				return usage(fmt.Errorf("--state: there is no state %q; the states are %s", word, stateWords()))
			}
			q.States = append(q.States, s)
		}
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		return errors.Join(eachSet(cmd.Context(), h, set, func(string) error { return nil }),
			printSubmissions(cmd.Context(), cmd.OutOrStdout(), h, q, limit, asJSON), h.Close())
	}
	return cmd
}

func stateWords() string {
	var words []string
	for _, s := range event.States() {
		words = append(words, s.String())
	}
	return strings.Join(words, ", ")
}

// printSubmissions prints the newest first, a page of the log at a time.
func printSubmissions(ctx context.Context, w io.Writer, h *daemon.House, q event.SubmissionQuery, limit int, asJSON bool) error {
	peers, err := partners(ctx, h)
	if err != nil {
		return err
	}
	return newest(limit, func(after int64, most int) ([]event.Submission, error) {
		q.After, q.Limit = after, most
		return h.Log.Submissions(ctx, q)
	}, func(s *event.Submission) (int64, error) { return s.ID, printSubmission(w, s, peers, asJSON) })
}

// partner is who has submitted, or is submitted to.
type partner struct {
	url     string
	trouble *daemon.Trouble // of an ingest server; nil is none
}

// partners returns Sources and targets by their number.
func partners(ctx context.Context, h *daemon.House) (map[event.SourceID]partner, error) {
	sets, err := h.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	peers := map[event.SourceID]partner{}
	for _, s := range sets {
		sources, err := h.Log.Sources(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		for _, src := range sources {
			peers[src.ID] = partner{url: src.URL}
		}
		targets, err := h.Log.Targets(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		for i := range targets {
			trouble, err := h.Trouble(&targets[i])
			if err != nil {
				return nil, err
			}
			peers[targets[i].ID] = partner{targets[i].URL, trouble}
		}
	}
	return peers, nil
}

func printSubmission(w io.Writer, s *event.Submission, peers map[event.SourceID]partner, asJSON bool) error {
	if asJSON {
		return printJSON(w, submissionLine(s, peers))
	}
	which := cmp.Or(s.SourceIdentifier, s.Record, "(no identifier)")
	said := cmp.Or(s.Assigned, daemon.Private(s.Reason))
	if t := peers[s.Source].trouble; t != nil && said == "" && s.State == event.StateWaiting {
		said = "not tried, since the ingest server fails: " + daemon.Private(t.Reason)
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %-11s  %s  %s  %s\n", s.ID, s.Changed.Time().Format("2006-01-02 15:04:05Z"), s.State, s.Set, oneLine(which), oneLine(once(said)))
	return err
}

// The line of bridge submission ls --json. Fields are absent when unknown.
type jsonSubmission struct {
	ID               int64     `json:"id"`
	Set              string    `json:"set"`
	Server           string    `json:"server,omitempty"`
	Direction        string    `json:"direction"`
	State            string    `json:"state"`
	Record           string    `json:"record,omitempty"`
	SourceIdentifier string    `json:"source-identifier,omitempty"`
	Title            string    `json:"title,omitempty"`
	Assigned         string    `json:"assigned-identifier,omitempty"`
	Reason           string    `json:"reason,omitempty"`
	Recipient        string    `json:"notification-recipient,omitempty"`
	Seq              event.Seq `json:"seq,omitempty"`
	SHA256           string    `json:"sha256,omitempty"`
	Length           int64     `json:"length,omitempty"`
	Created          string    `json:"created"`
	Changed          string    `json:"changed"`
	Due              string    `json:"due,omitempty"`
	Deadline         string    `json:"deadline,omitempty"`
	Tries            int       `json:"tries,omitempty"`
	Late             bool      `json:"late,omitempty"`
	Conflicts        int       `json:"conflicts,omitempty"`
	// Withdrawn: its record was taken back since. Only bridge submission show looks.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

func submissionLine(s *event.Submission, peers map[event.SourceID]partner) jsonSubmission {
	line := jsonSubmission{ID: s.ID, Set: s.Set, Server: daemon.Private(peers[s.Source].url), Direction: "received", State: s.State.String(), Record: s.Record,
		SourceIdentifier: s.SourceIdentifier, Title: s.Title, Assigned: s.Assigned, Reason: daemon.Private(s.Reason), Recipient: daemon.Private(s.Recipient), Seq: s.Seq, Length: s.Length,
		Created: s.Created.String(), Changed: s.Changed.String(), Tries: s.Tries, Late: s.Late, Conflicts: s.Conflicts}
	if s.Seq != 0 {
		line.Direction = "sent"
	}
	if s.Content != [32]byte{} {
		line.SHA256 = event.SHA256Of(event.HashOf(s.Content))
	}
	for _, t := range []struct {
		at event.Micros
		to *string
	}{{s.Due, &line.Due}, {s.Deadline, &line.Deadline}} {
		if t.at > 0 {
			*t.to = t.at.String()
		}
	}
	return line
}

func submissionShowCommand() *cobra.Command {
	cmd := command("submission show")
	var in inputs
	var record, asJSON bool
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().BoolVar(&record, "record", false, "print the record itself and nothing else")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := submissionID(args[0])
		if err != nil {
			return err
		}
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if record {
			return errors.Join(copyRecord(cmd.Context(), w, h, id), h.Close())
		}
		return errors.Join(showSubmission(cmd.Context(), w, h, id, asJSON), h.Close())
	}
	return cmd
}

func submissionID(word string) (int64, error) {
	id, err := strconv.ParseInt(word, 10, 64)
	if err != nil || id < 1 {
		return 0, usage(fmt.Errorf("%q is no number of a submission: see bridge submission ls", word))
	}
	return id, nil
}

func copyRecord(ctx context.Context, w io.Writer, h *daemon.House, id int64) error {
	s, err := h.Submission(ctx, id)
	if err != nil {
		return err
	}
	return h.CopyRecord(ctx, w, s)
}

func showSubmission(ctx context.Context, w io.Writer, h *daemon.House, id int64, asJSON bool) error {
	s, err := h.Submission(ctx, id)
	if err != nil {
		return err
	}
	peers, err := partners(ctx, h)
	if err != nil {
		return err
	}
	line := submissionLine(s, peers)
	if s.State == event.StateAccepted {
		holds, err := h.Log.Holding(ctx, s.Source, s.Assigned)
		if err != nil {
			return err
		}
		line.Withdrawn = holds == event.HoldsDeletion
	}
	if asJSON {
		return printJSON(w, line)
	}
	return printFields(w, line)
}

// printFields prints an object of JSON that holds no others for people, a field a
// line.
func printFields(w io.Writer, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var b strings.Builder
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		key, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if _, brace := key.(json.Delim); brace {
			continue
		}
		value, err := d.Token()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%-24s%s\n", key, oneLine(fmt.Sprint(value)))
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func submissionNotificationsCommand() *cobra.Command {
	cmd := command("submission notifications")
	var in inputs
	var set, verdict string
	var limit int
	var asJSON bool
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	cmd.Flags().StringVar(&set, "set", "", "only those of the set with this `name`")
	cmd.Flags().StringVar(&verdict, "verdict", "", "only those with this `verdict`: matched, record, rejected, uncorrelated or conflict")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this many of a set, the newest; 0 is all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wanted := event.NotificationVerdict(0)
		for v := event.NotificationMatched; v <= event.NotificationConflict; v++ {
			if v.String() == verdict {
				wanted = v
			}
		}
		if verdict != "" && wanted == 0 {
			return usage(fmt.Errorf("--verdict: there is no verdict %q; write matched, record, rejected, uncorrelated or conflict", verdict))
		}
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		return errors.Join(eachSet(cmd.Context(), h, set, func(set string) error {
			return printNotifications(cmd.Context(), cmd.OutOrStdout(), h, set, wanted, limit, asJSON)
		}), h.Close())
	}
	return cmd
}

// The line of bridge submission notifications --json. Fields are absent when unknown.
type jsonNotification struct {
	ID               int64  `json:"id"`
	Set              string `json:"set"`
	Verdict          string `json:"verdict"`
	Submission       int64  `json:"submission,omitempty"`
	Outcome          string `json:"outcome"`
	SourceIdentifier string `json:"source-identifier,omitempty"`
	Assigned         string `json:"assigned-identifier,omitempty"`
	Reason           string `json:"reason,omitempty"`
	First            string `json:"first"`
	Last             string `json:"last"`
	Times            int    `json:"times"`
}

func printNotifications(ctx context.Context, w io.Writer, h *daemon.House, set string, verdict event.NotificationVerdict, limit int, asJSON bool) error {
	return newest(limit, func(after int64, most int) ([]event.Notification, error) {
		return h.Log.Notifications(ctx, set, verdict, after, most)
	}, func(n *event.Notification) (int64, error) {
		if !asJSON {
			return n.ID, printNotification(w, n)
		}
		return n.ID, printJSON(w, jsonNotification{ID: n.ID, Set: n.Set, Verdict: n.Verdict.String(), Submission: n.Submission, Outcome: n.Outcome.String(),
			SourceIdentifier: n.SourceIdentifier, Assigned: n.Assigned, Reason: daemon.Private(n.Reason), First: n.First.String(), Last: n.Last.String(), Times: n.Times})
	})
}

func printNotification(w io.Writer, n *event.Notification) error {
	said := n.Outcome.String()
	if more := cmp.Or(n.Assigned, daemon.Private(n.Reason)); more != "" {
		said += ": " + oneLine(once(more))
	}
	if n.Submission != 0 {
		said += fmt.Sprintf("; of submission %d", n.Submission)
	}
	if n.Times > 1 {
		said += fmt.Sprintf("; %d times", n.Times)
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %-12s  %s  %s  %s\n", n.ID, n.Last.Time().Format("2006-01-02 15:04:05Z"), n.Verdict, n.Set, oneLine(cmp.Or(n.SourceIdentifier, "(no identifier)")), said)
	return err
}

// decisionPatience is how long a decision may take that another process makes.
const decisionPatience = 30 * time.Second

// decideCommand settles a submission under review: here when nobody has the data
// folder, else by leaving the decision to who has it.
func decideCommand(name string, accept bool) *cobra.Command {
	cmd := command(name)
	var in inputs
	d := daemon.Decision{Accept: accept}
	in.addFile(cmd)
	in.addData(cmd)
	if accept {
		cmd.Flags().StringVar(&d.Assigned, "identifier", "", "the assigned `identifier` (default: bridge assigns one)")
	} else {
		cmd.Flags().StringVar(&d.Reason, "reason", "", "why, in words for the submitter")
	}
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if d.ID, err = submissionID(args[0]); err != nil {
			return err
		}
		if err := decide(cmd, &in, d); err != nil {
			return err
		}
		word := "rejected"
		if accept {
			word = "accepted"
		}
		fmt.Fprintf(cmd.OutOrStdout(), "submission %d is %s\n", d.ID, word)
		return nil
	}
	return cmd
}

func decide(cmd *cobra.Command, in *inputs, d daemon.Decision) error {
	probe, err := in.read(cmd)
	if err != nil {
		return err
	}
	c := probe.Config
	if d.ID != 0 {
		_, err = probe.Submission(cmd.Context(), d.ID)
	} else {
		_, err = probe.Log.Set(cmd.Context(), d.Set)
	}
	if err != nil {
		return errors.Join(err, probe.Close())
	}
	if err := probe.Close(); err != nil {
		return err
	}
	h, err := openHouse(cmd.Context(), c, daemon.Options{Command: "bridge submission", Logger: warnings(cmd.ErrOrStderr())})
	var locked *eventlog.LockedError
	if errors.As(err, &locked) {
		return daemon.LeaveDecision(cmd.Context(), c.Data, d, decisionPatience)
	}
	if err != nil {
		return err
	}
	return errors.Join(h.Decide(cmd.Context(), d), h.Close())
}

// resendCommand puts submissions that were not sent, or not answered, back into
// the outbox.
func resendCommand() *cobra.Command {
	cmd := command("submission resend")
	var in inputs
	var d daemon.Decision
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().StringVar(&d.Set, "set", "", "all of the set with this `name`")
	cmd.Flags().StringVar(&d.Resend, "state", event.StateUnsent.String(), "those in this `state`: unsent or unresolved")
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch s := event.ParseState(d.Resend); {
		case s != event.StateUnsent && s != event.StateUnresolved:
			return usage(fmt.Errorf("--state: %q cannot be sent again; write unsent or unresolved", d.Resend))
		case len(args) == 0 && d.Set == "" || len(args) == 1 && d.Set != "":
			return usage(errors.New("say what: the number of a submission, or all of a set with --set NAME"))
		}
		if len(args) == 1 {
			var err error
			if d.ID, err = submissionID(args[0]); err != nil {
				return err
			}
		}
		if err := decide(cmd, &in, d); err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), "the order was taken; only what is still the last word on its record, and no deletion, is sent again: see bridge submission ls")
		return nil
	}
	return cmd
}
