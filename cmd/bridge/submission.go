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
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
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
		if err = cmp.Or(err, checkLimit(l.limit)); err != nil {
			return err
		}
		return l.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			if err := eachSet(ctx, b, l.set, func(string) error { return nil }); err != nil {
				return err
			}
			peers, err := api.Partners(ctx, b)
			if err != nil {
				return err
			}
			return eachSelected(ctx, b, q, l.limit, func(s *submission.Submission) error {
				line, err := api.SubmissionOf(ctx, b, s, peers)
				if err != nil {
					return err
				}
				return printSubmission(w, s, &line, peers, l)
			})
		})
	}
	return cmd
}

// selection has the flags that select submissions of a set, or of all sets.
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
	q := submission.Query{Set: set, UnderReview: p.review, Newest: true, Damaged: true}
	if p.review && p.states != "" {
		return q, usage(errors.New("--review and --state exclude each other"))
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

// eachSelected calls do with the newest submissions, at most limit of them (0 means all).
func eachSelected(ctx context.Context, h *daemon.Bridge, q submission.Query, limit int, do func(*submission.Submission) error) error {
	return newest(limit, func(after int64, most int) ([]submission.Submission, error) {
		q.After, q.Limit = after, most
		return h.SIP.Submissions(ctx, q)
	}, func(s *submission.Submission) (int64, error) { return s.ID, do(s) })
}

func printSubmission(w io.Writer, s *submission.Submission, line *api.Submission, peers map[event.SourceID]api.Partner, l *listing) error {
	if l.asJSON {
		return printJSON(w, line)
	}
	if s.State == 0 {
		return printDamaged(w, s.ID, s.Set)
	}
	which := l.brief(cmp.Or(s.SourceIdentifier, s.Record, "(no identifier)"))
	if s.Title != "" {
		which += fmt.Sprintf("  \"%s\"", l.brief(s.Title))
	}
	said := cmp.Or(s.Assigned, line.Reason)
	switch t := peers[s.Source].Trouble; {
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

// printDamaged prints the line of a row that is damaged in the log.
func printDamaged(w io.Writer, id int64, set string) error {
	_, err := fmt.Fprintf(w, "%6d  %s  damaged: run bridge verify\n", id, set)
	return err
}

func submissionShowCommand() *cobra.Command {
	cmd := command("submission show")
	var record bool
	in := newInputs(cmd)
	cmd.Flags().BoolVar(&record, "record", false, "print the record itself and nothing else")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.Args = takes(1, 1)
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
					_, err = unescaped(w).Write(record)
				}
				return err
			}
			peers, err := api.Partners(ctx, b)
			if err != nil {
				return err
			}
			line, err := api.SubmissionOf(ctx, b, s, peers)
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

// printFields prints a flat JSON object for people, a field a line.
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

// The line of bridge submission rejections --json. Fields are absent when unknown; one that is
// damaged has nothing but its ID and its set.
type jsonRejection struct {
	ID               int64  `json:"id"`
	Set              string `json:"set"`
	Damaged          bool   `json:"damaged,omitempty"`
	At               string `json:"at,omitempty"`
	Record           string `json:"record,omitempty"`
	SourceIdentifier string `json:"source-identifier,omitempty"`
	Title            string `json:"title,omitempty"`
	Reason           string `json:"reason,omitempty"`
}

func printRejection(w io.Writer, r *submission.Rejection, l *listing) error {
	switch damaged := r.Source == 0; {
	case damaged && l.asJSON:
		return printJSON(w, jsonRejection{ID: r.ID, Set: r.Set, Damaged: true})
	case damaged:
		return printDamaged(w, r.ID, r.Set)
	case l.asJSON:
		return printJSON(w, jsonRejection{ID: r.ID, Set: r.Set, At: r.At.String(), Record: r.Record, SourceIdentifier: r.SourceIdentifier, Title: r.Title, Reason: daemon.Redact(r.Reason)})
	}
	which := l.brief(cmp.Or(r.SourceIdentifier, r.Record, "(no identifier)"))
	if r.Title != "" {
		which += fmt.Sprintf("  \"%s\"", l.brief(r.Title))
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %s  %s  %s\n", r.ID, stamp(r.At.Time()), r.Set, which, l.brief(dropRepeat(daemon.Redact(r.Reason))))
	return err
}
