package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

func submissionCommand() *cobra.Command {
	return group("submission", submissionListCommand(), submissionShowCommand(), submissionDiffCommand(), submissionExportCommand(), submissionRejectionsCommand(),
		reviewCommand("submission accept", true), reviewCommand("submission reject", false), settleCommand(), withdrawCommand(), resendCommand())
}

func submissionListCommand() *cobra.Command {
	cmd := command("submission ls")
	l, pick := newListing(cmd), newSelection(cmd)
	cmd.Flag("limit").Usage = "at most this many, the newest; 0 is all"
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := pick.query(l.set)
		if err != nil {
			return err
		}
		return l.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			if err := eachSet(ctx, b, l.set, func(string) error { return nil }); err != nil {
				return err
			}
			peers, err := partners(ctx, b)
			if err != nil {
				return err
			}
			return eachSelected(ctx, b, q, pick.review, l.limit, func(s *submission.Submission) error {
				line, err := submissionLine(ctx, b, s, peers)
				if err != nil {
					return err
				}
				return printSubmission(w, s, &line, peers, l)
			})
		})
	}
	return cmd
}

// selection says which submissions of a set, or of all sets, are meant.
type selection struct {
	states string
	review bool
}

func newSelection(cmd *cobra.Command) *selection {
	p := &selection{}
	cmd.Flags().StringVar(&p.states, "state", "", "only those in these `states`, separated by commas")
	cmd.Flags().BoolVar(&p.review, "review", false, "only those under review")
	return p
}

func (p *selection) query(set string) (submission.Query, error) {
	q := submission.Query{Set: set, Newest: true}
	if p.review && p.states != "" {
		return q, usage(errors.New("--review and --state exclude each other"))
	}
	if p.review {
		q.States = []submission.State{submission.StateProvisional}
	}
	for _, word := range strings.FieldsFunc(p.states, func(r rune) bool { return r == ',' }) {
		s := submission.ParseState(strings.TrimSpace(word))
		if s == 0 {
			var words []string
			for _, s := range submission.States() {
				words = append(words, s.String())
			}
			return q, usage(fmt.Errorf("--state: there is no state %q; the states are %s", word, strings.Join(words, ", ")))
		}
		q.States = append(q.States, s)
	}
	return q, nil
}

// eachSelected calls do with the newest submissions, at most limit of them (0 is
// all).
func eachSelected(ctx context.Context, h *daemon.Bridge, q submission.Query, review bool, limit int, do func(*submission.Submission) error) error {
	left := limit
	err := newest(0, func(after int64, most int) ([]submission.Submission, error) {
		q.After, q.Limit = after, most
		return h.SIP.Submissions(ctx, q)
	}, func(s *submission.Submission) (int64, error) {
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

func printSubmission(w io.Writer, s *submission.Submission, line *jsonSubmission, peers map[event.SourceID]partner, l *listing) error {
	if l.asJSON {
		return printJSON(w, line)
	}
	which := l.brief(cmp.Or(s.SourceIdentifier, s.Record, "(no identifier)"))
	if s.Title != "" {
		which += fmt.Sprintf("  \"%s\"", l.brief(s.Title))
	}
	said := cmp.Or(s.Assigned, line.Reason)
	switch t := peers[s.Source].trouble; {
	case line.New:
		said = "new"
	case line.Replaces != "":
		said = "replaces " + line.Replaces
	case t != nil && said == "" && s.State == submission.StateWaiting:
		said = "not tried, since the ingest server fails: " + daemon.Redact(t.Reason)
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %-11s  %s  %s  %s\n", s.ID, stamp(s.Changed.Time()), s.State, s.Set, which, l.brief(dropRepeat(said)))
	return err
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

func submissionLine(ctx context.Context, h *daemon.Bridge, s *submission.Submission, peers map[event.SourceID]partner) (jsonSubmission, error) {
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
	if s.State == submission.StateProvisional && s.UnderReview() {
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
	var record bool
	in := newInputs(cmd)
	cmd.Flags().BoolVar(&record, "record", false, "print the record itself and nothing else")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := submissionID(args[0])
		if err != nil {
			return err
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			s, err := b.Submission(ctx, id)
			if err != nil {
				return err
			}
			if record {
				record, err := b.Record(ctx, s)
				if err == nil {
					_, err = w.Write(record)
				}
				return err
			}
			peers, err := partners(ctx, b)
			if err != nil {
				return err
			}
			line, err := submissionLine(ctx, b, s, peers)
			if err != nil {
				return err
			}
			if s.State == submission.StateAccepted {
				holds, err := b.Log.Presence(ctx, s.Source, s.Assigned)
				if err != nil {
					return err
				}
				line.Withdrawn = holds == event.Withdrawn
			}
			if *asJSON {
				return printJSON(w, line)
			}
			return printFields(w, line)
		})
	}
	return cmd
}

func submissionID(word string) (int64, error) {
	return number(word, "a submission", "bridge submission ls")
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
		return l.each(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge, set string) error {
			return newest(l.limit, func(after int64, most int) ([]submission.Rejection, error) {
				return b.SIP.Rejections(ctx, set, after, most)
			}, func(r *submission.Rejection) (int64, error) { return r.ID, printRejection(w, r, l) })
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

func printRejection(w io.Writer, r *submission.Rejection, l *listing) error {
	if l.asJSON {
		return printJSON(w, jsonRejection{ID: r.ID, Set: r.Set, At: r.At.String(), Record: r.Record, SourceIdentifier: r.SourceIdentifier, Title: r.Title, Reason: daemon.Redact(r.Reason)})
	}
	which := l.brief(cmp.Or(r.SourceIdentifier, r.Record, "(no identifier)"))
	if r.Title != "" {
		which += fmt.Sprintf("  \"%s\"", l.brief(r.Title))
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %s  %s  %s\n", r.ID, stamp(r.At.Time()), r.Set, which, l.brief(dropRepeat(daemon.Redact(r.Reason))))
	return err
}
