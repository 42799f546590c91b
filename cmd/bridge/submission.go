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

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/sip"
)

func submissionCommand() *cobra.Command {
	return group("submission", submissionListCommand(), submissionShowCommand(), submissionDiffCommand(), submissionExportCommand(),
		submissionRejectionsCommand(), submissionNotificationsCommand(), submissionNoticesCommand(), reviewCommand("submission accept", true), reviewCommand("submission reject", false),
		settleCommand(), withdrawCommand(), resendCommand())
}

func submissionListCommand() *cobra.Command {
	cmd := command("submission ls")
	var in inputs
	var pick selection
	var limit int
	var asJSON, full bool
	in.addFile(cmd)
	in.addData(cmd)
	pick.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this many, the newest; 0 is all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	cmd.Flags().BoolVar(&full, "full", false, "do not cut long texts")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := pick.query()
		if err != nil {
			return err
		}
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		return errors.Join(eachSet(cmd.Context(), h, pick.set, func(string) error { return nil }),
			printSubmissions(cmd.Context(), cmd.OutOrStdout(), h, q, pick.review, limit, asJSON, full), h.Close())
	}
	return cmd
}

// selection says which submissions are meant.
type selection struct {
	set, states string
	review      bool
}

func (p *selection) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.set, "set", "", "only those of the set with this `name`")
	cmd.Flags().StringVar(&p.states, "state", "", "only those in these `states`, with commas between them")
	cmd.Flags().BoolVar(&p.review, "review", false, "only those under review, which wait for a decision here")
}

func (p *selection) query() (event.SubmissionQuery, error) {
	q := event.SubmissionQuery{Set: p.set, Newest: true}
	if p.review && p.states != "" {
		return q, usage(errors.New("--review and --state exclude each other"))
	}
	if p.review {
		q.States = []event.State{event.StateProvisional}
	}
	for _, word := range strings.FieldsFunc(p.states, func(r rune) bool { return r == ',' }) {
		s := event.ParseState(strings.TrimSpace(word))
		if s == 0 {
			return q, usage(fmt.Errorf("--state: there is no state %q; the states are %s", word, stateWords()))
		}
		q.States = append(q.States, s)
	}
	return q, nil
}

// eachSelected calls do with the newest submissions, at most limit of them (0 is
// all).
func eachSelected(ctx context.Context, h *daemon.Bridge, q event.SubmissionQuery, review bool, limit int, do func(*event.Submission) error) error {
	left := limit
	err := newest(0, func(after int64, most int) ([]event.Submission, error) {
		q.After, q.Limit = after, most
		return h.Log.Submissions(ctx, q)
	}, func(s *event.Submission) (int64, error) {
		if review && !s.UnderReview() {
			return s.ID, nil
		}
		if err := do(s); err != nil {
			return s.ID, err
		}
		if left--; left == 0 {
			return s.ID, errLimit
		}
		return s.ID, nil
	})
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// errLimit ends what prints a list.
var errLimit = errors.New("that was all that was asked for")

func stateWords() string {
	var words []string
	for _, s := range event.States() {
		words = append(words, s.String())
	}
	return strings.Join(words, ", ")
}

// printSubmissions prints the newest first, a page of the log at a time.
func printSubmissions(ctx context.Context, w io.Writer, h *daemon.Bridge, q event.SubmissionQuery, review bool, limit int, asJSON, full bool) error {
	peers, err := partners(ctx, h)
	if err != nil {
		return err
	}
	return eachSelected(ctx, h, q, review, limit, func(s *event.Submission) error {
		line, err := submissionLine(ctx, h, s, peers)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(w, line)
		}
		return printSubmission(w, s, &line, peers, full)
	})
}

// partner is who has submitted, or is submitted to.
type partner struct {
	url     string
	trouble *daemon.Trouble // of an ingest server; nil is none
}

// partners returns Sources and targets by their number.
func partners(ctx context.Context, h *daemon.Bridge) (map[event.SourceID]partner, error) {
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

func printSubmission(w io.Writer, s *event.Submission, line *jsonSubmission, peers map[event.SourceID]partner, full bool) error {
	which := brief(cmp.Or(s.SourceIdentifier, s.Record, "(no identifier)"), full)
	if s.Title != "" {
		which += fmt.Sprintf("  \"%s\"", brief(s.Title, full))
	}
	said := cmp.Or(s.Assigned, line.Reason)
	switch t := peers[s.Source].trouble; {
	case line.New:
		said = "new"
	case line.Replaces != "":
		said = "replaces " + line.Replaces
	case t != nil && said == "" && s.State == event.StateWaiting:
		said = "not tried, since the ingest server fails: " + daemon.Redact(t.Reason)
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %-11s  %s  %s  %s\n", s.ID, s.Changed.Time().Format("2006-01-02 15:04:05Z"), s.State, s.Set, which, brief(dropRepeat(said), full))
	return err
}

// shown is how many characters of a text a line of a list shows.
const shown = 200

// brief is a stranger's text for a line of a list, cut unless it is wanted in full.
func brief(text string, full bool) string {
	text = oneLine(text)
	if full {
		return text
	}
	n := 0
	for i := range text {
		if n++; n > shown {
			return text[:i] + "…"
		}
	}
	return text
}

// The line of bridge submission ls --json. Fields are absent when unknown.
type jsonSubmission struct {
	ID               int64  `json:"id"`
	Set              string `json:"set"`
	Server           string `json:"server,omitempty"`
	Direction        string `json:"direction"`
	State            string `json:"state"`
	Record           string `json:"record,omitempty"`
	SourceIdentifier string `json:"source-identifier,omitempty"`
	Sequence         string `json:"sequence,omitempty"`
	Submitter        string `json:"submitter,omitempty"`
	Email            string `json:"email-address,omitempty"`
	Title            string `json:"title,omitempty"`
	Assigned         string `json:"assigned-identifier,omitempty"`
	// Of one under review: whether its record would be a new one, or which one it
	// would replace.
	New       bool      `json:"new,omitempty"`
	Replaces  string    `json:"replaces,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Recipient string    `json:"notification-recipient,omitempty"`
	Seq       event.Seq `json:"seq,omitempty"`
	SHA256    string    `json:"sha256,omitempty"`
	Length    int64     `json:"length,omitempty"`
	Created   string    `json:"created"`
	Changed   string    `json:"changed"`
	Due       string    `json:"due,omitempty"`
	Deadline  string    `json:"deadline,omitempty"`
	Tries     int       `json:"tries,omitempty"`
	Late      bool      `json:"late,omitempty"`
	Conflicts int       `json:"conflicts,omitempty"`
	// Withdrawn: its record was taken back since. Only bridge submission show looks.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

func submissionLine(ctx context.Context, h *daemon.Bridge, s *event.Submission, peers map[event.SourceID]partner) (jsonSubmission, error) {
	line := jsonSubmission{ID: s.ID, Set: s.Set, Server: daemon.Redact(peers[s.Source].url), Direction: "received", State: s.State.String(), Record: s.Record,
		SourceIdentifier: s.SourceIdentifier, Title: s.Title, Assigned: s.Assigned, Reason: daemon.Redact(s.Reason), Recipient: daemon.Redact(s.Recipient), Seq: s.Seq, Length: s.Length,
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
	var err error
	if line.Sequence, line.Submitter, line.Email, err = sourceTexts(s.SourceXML); err != nil {
		return line, fmt.Errorf("submission %d: %w", s.ID, err)
	}
	if s.State == event.StateProvisional && s.UnderReview() {
		replaced, err := h.Replaces(ctx, s)
		if err != nil {
			return line, err
		}
		if line.New = replaced == nil; replaced != nil {
			line.Replaces = replaced.Record
		}
	}
	return line, nil
}

// sourceTexts returns what a source element says besides the identifier.
func sourceTexts(element []byte) (sequence, submitter, email string, err error) {
	if element == nil {
		return "", "", "", nil
	}
	source, err := sip.ParseSource(element)
	if err != nil {
		return "", "", "", fmt.Errorf("its source element cannot be read: %w", err)
	}
	if source.Sequence != nil {
		sequence = *source.Sequence
	}
	if source.Submitter != nil {
		submitter, email = source.Submitter.Name, source.Submitter.EmailAddress
	}
	return sequence, submitter, email, nil
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

func copyRecord(ctx context.Context, w io.Writer, h *daemon.Bridge, id int64) error {
	s, err := h.Submission(ctx, id)
	if err != nil {
		return err
	}
	return h.CopyRecord(ctx, w, s)
}

func showSubmission(ctx context.Context, w io.Writer, h *daemon.Bridge, id int64, asJSON bool) error {
	s, err := h.Submission(ctx, id)
	if err != nil {
		return err
	}
	peers, err := partners(ctx, h)
	if err != nil {
		return err
	}
	line, err := submissionLine(ctx, h, s, peers)
	if err != nil {
		return err
	}
	if s.State == event.StateAccepted {
		holds, err := h.Log.Presence(ctx, s.Source, s.Assigned)
		if err != nil {
			return err
		}
		line.Withdrawn = holds == event.Withdrawn
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

func submissionRejectionsCommand() *cobra.Command {
	cmd := command("submission rejections")
	l := newListing(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return l.each(cmd, func(h *daemon.Bridge, set string) error {
			return printRejections(cmd.Context(), cmd.OutOrStdout(), h, set, l.limit, l.asJSON, l.full)
		})
	}
	return cmd
}

// The line of bridge submission rejections --json. Fields are absent when unknown.
type jsonRejection struct {
	ID               int64  `json:"id"`
	Set              string `json:"set"`
	At               string `json:"at"`
	Record           string `json:"record,omitempty"`
	SourceIdentifier string `json:"source-identifier,omitempty"`
	Title            string `json:"title,omitempty"`
	Reason           string `json:"reason,omitempty"`
}

func printRejections(ctx context.Context, w io.Writer, h *daemon.Bridge, set string, limit int, asJSON, full bool) error {
	return newest(limit, func(after int64, most int) ([]event.Rejection, error) {
		return h.Log.Rejections(ctx, set, after, most)
	}, func(r *event.Rejection) (int64, error) {
		if asJSON {
			return r.ID, printJSON(w, jsonRejection{ID: r.ID, Set: r.Set, At: r.At.String(), Record: r.Record, SourceIdentifier: r.SourceIdentifier,
				Title: r.Title, Reason: daemon.Redact(r.Reason)})
		}
		which := brief(cmp.Or(r.SourceIdentifier, r.Record, "(no identifier)"), full)
		if r.Title != "" {
			which += fmt.Sprintf("  \"%s\"", brief(r.Title, full))
		}
		_, err := fmt.Fprintf(w, "%6d  %s  %s  %s  %s\n", r.ID, r.At.Time().Format("2006-01-02 15:04:05Z"), r.Set, which, brief(dropRepeat(daemon.Redact(r.Reason)), full))
		return r.ID, err
	})
}

func submissionNotificationsCommand() *cobra.Command {
	cmd := command("submission notifications")
	var verdict string
	l := newListing(cmd)
	cmd.Flags().StringVar(&verdict, "verdict", "", "only those with this `verdict`: matched, record, rejected, uncorrelated, conflict or settled")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wanted := event.NotificationVerdict(0)
		for v := event.NotificationMatched; v <= event.NotificationSettled; v++ {
			if v.String() == verdict {
				wanted = v
			}
		}
		if verdict != "" && wanted == 0 {
			return usage(fmt.Errorf("--verdict: there is no verdict %q; write matched, record, rejected, uncorrelated, conflict or settled", verdict))
		}
		return l.each(cmd, func(h *daemon.Bridge, set string) error {
			return printNotifications(cmd.Context(), cmd.OutOrStdout(), h, set, wanted, l.limit, l.asJSON, l.full)
		})
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
	Sequence         string `json:"sequence,omitempty"`
	Submitter        string `json:"submitter,omitempty"`
	Email            string `json:"email-address,omitempty"`
	Assigned         string `json:"assigned-identifier,omitempty"`
	Reason           string `json:"reason,omitempty"`
	First            string `json:"first"`
	Last             string `json:"last"`
	Times            int    `json:"times"`
}

func printNotifications(ctx context.Context, w io.Writer, h *daemon.Bridge, set string, verdict event.NotificationVerdict, limit int, asJSON, full bool) error {
	return newest(limit, func(after int64, most int) ([]event.IncomingNotification, error) {
		return h.Log.Incoming(ctx, set, verdict, after, most)
	}, func(n *event.IncomingNotification) (int64, error) {
		if !asJSON {
			return n.ID, printNotification(w, n, full)
		}
		line := jsonNotification{ID: n.ID, Set: n.Set, Verdict: n.Verdict.String(), Submission: n.Submission, Outcome: n.Outcome.String(),
			SourceIdentifier: n.SourceIdentifier, Assigned: n.Assigned, Reason: daemon.Redact(n.Reason), First: n.First.String(), Last: n.Last.String(), Times: n.Times}
		var err error
		if line.Sequence, line.Submitter, line.Email, err = sourceTexts(n.SourceXML); err != nil {
			return n.ID, fmt.Errorf("notification %d: %w", n.ID, err)
		}
		return n.ID, printJSON(w, line)
	})
}

func printNotification(w io.Writer, n *event.IncomingNotification, full bool) error {
	said := n.Outcome.String()
	if more := cmp.Or(n.Assigned, daemon.Redact(n.Reason)); more != "" {
		said += ": " + brief(dropRepeat(more), full)
	}
	if n.Submission != 0 {
		said += fmt.Sprintf("; of submission %d", n.Submission)
	}
	if n.Times > 1 {
		said += fmt.Sprintf("; %d times", n.Times)
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %-12s  %s  %s  %s\n", n.ID, n.Last.Time().Format("2006-01-02 15:04:05Z"), n.Verdict, n.Set, brief(cmp.Or(n.SourceIdentifier, "(no identifier)"), full), said)
	return err
}
