package api

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// Event is an event, as bridge log --json prints it. Unknown fields are absent.
type Event struct {
	Seq             event.Seq `json:"seq"`
	Set             string    `json:"set"`
	Record          string    `json:"record,omitempty"`
	Kind            string    `json:"kind"`
	Observed        string    `json:"observed"`
	Modified        string    `json:"modified,omitempty"`
	Title           string    `json:"title,omitempty"`
	Representations []Link    `json:"representations,omitempty"`
	Via             *Link     `json:"via,omitempty"`
	// These fields are rare.
	Links      []event.Link     `json:"links,omitempty"`
	Categories []event.Category `json:"categories,omitempty"`
	Details    *event.Details   `json:"details,omitempty"`
	Origin     Origin           `json:"origin"`
}

// Link is a representation of a record, or the original.
type Link struct {
	Href     string `json:"href"`
	Modified string `json:"modified,omitempty"` // of the original
	Type     string `json:"type,omitempty"`
	Length   *int64 `json:"length,omitempty"`
	SHA256   string `json:"sha256,omitempty"`
	Hash     string `json:"hash,omitempty"` // other than those above
}

func linkLine(href, modified, mediaType string, length int64, hash string) Link {
	l := Link{Href: href, Modified: modified, Type: mediaType}
	if length >= 0 {
		l.Length = &length
	}
	if l.SHA256 = event.SHA256Of(hash); l.SHA256 == "" {
		l.Hash = hash
	}
	return l
}

// Origin is where an event came from.
type Origin struct {
	Protocol         string `json:"protocol,omitempty"`
	Source           string `json:"source,omitempty"`
	Document         string `json:"document,omitempty"`
	SourceIdentifier string `json:"source-identifier,omitempty"`
	Reason           string `json:"reason,omitempty"`
}

// EventOf returns an event without the secrets of its URLs.
func EventOf(ev *event.Event) Event {
	o := ev.Origin
	line := Event{Seq: ev.Seq, Set: ev.Set, Record: ev.Record, Kind: ev.Kind.String(), Observed: ev.Observed.String(),
		Modified: ev.Modified.String(), Title: ev.Title, Links: ev.Links, Categories: ev.Categories, Details: ev.Details,
		Origin: Origin{o.Protocol, daemon.Redact(o.Source), daemon.Redact(o.Document), o.SourceIdentifier, daemon.Redact(o.Reason)}}
	for _, r := range ev.Representations {
		line.Representations = append(line.Representations, linkLine(r.Href, "", r.Type, r.Length, r.Hash))
	}
	if v := ev.Via; v.Href != "" {
		via := linkLine(v.Href, v.Modified.String(), v.Type, v.Length, v.Hash)
		line.Via = &via
	}
	return line
}

// Source is a Source, as bridge source ls --json prints it.
type Source struct {
	ID  event.SourceID `json:"id"`
	Set string         `json:"set"`
	*status.Source
}

// SourceOf returns a Source of the status.
func SourceOf(s *status.Source) Source { return Source{s.ID, s.Set, s} }

// Quarantined is bad input, as bridge quarantine ls --json prints it.
type Quarantined struct {
	ID       int64  `json:"id"`
	Set      string `json:"set"`
	URL      string `json:"url"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Record   string `json:"record,omitempty"`
	Rule     string `json:"rule"`
	Reason   string `json:"reason"`
	First    string `json:"first"`
	Last     string `json:"last"`
	Times    int    `json:"times"`
	Replayed string `json:"replayed,omitempty"`
}

// QuarantinedOf returns bad input without the secrets of its URLs, and without its bytes.
func QuarantinedOf(q *event.Quarantined) Quarantined {
	out := Quarantined{q.ID, q.Set, daemon.Redact(q.URL), q.Line, q.Column, q.Record, q.Rule, daemon.Redact(q.Reason), q.First.String(), q.Last.String(), q.Times, ""}
	if q.Replayed != 0 {
		out.Replayed = q.Replayed.String()
	}
	return out
}

// Partner is a submitter, or an ingest server that we submit to.
type Partner struct {
	URL     string
	Trouble *daemon.Trouble // of an ingest server; nil if it works
}

// Partners returns Sources and targets by their ID.
func Partners(ctx context.Context, h *daemon.Bridge) (map[event.SourceID]Partner, error) {
	sets, err := h.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	peers := map[event.SourceID]Partner{}
	for _, s := range sets {
		sources, err := h.Log.Sources(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		for _, src := range sources {
			peers[src.ID] = Partner{URL: src.URL}
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
			peers[targets[i].ID] = Partner{targets[i].URL, trouble}
		}
	}
	return peers, nil
}

// Submission is a submission as bridge submission ls --json prints it. Unknown fields are
// absent.
type Submission struct {
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
	// For a submission under review: whether its record would be new, or which one it would
	// replace.
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
	// Withdrawn reports that its record was withdrawn since. Only bridge submission show
	// sets it.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// damaged is the reason of a submission that is damaged in the log.
const damaged = "what is stored of it does not match its checksum: run bridge verify"

// SubmissionOf returns a submission without the secrets of its URLs; peers comes from
// Partners. Of a damaged one, with the State 0, it tells only that.
func SubmissionOf(ctx context.Context, h *daemon.Bridge, s *submission.Submission, peers map[event.SourceID]Partner) (Submission, error) {
	if s.State == 0 {
		return Submission{ID: s.ID, Set: s.Set, Direction: "received", State: s.State.String(), Reason: damaged, Created: s.Created.String(), Changed: s.Changed.String()}, nil
	}
	line := Submission{ID: s.ID, Set: s.Set, Server: daemon.Redact(peers[s.Source].URL), Direction: "received", State: s.State.String(), Record: s.Record,
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
	if line.Sequence, line.Submitter, line.Email, err = SourceTexts(s.SourceXML); err != nil {
		return line, fmt.Errorf("submission %d: %w", s.ID, err)
	}
	if s.State == submission.StateProvisional && s.UnderReview() {
		replaced, err := h.Replaces(ctx, s)
		switch {
		case ctx.Err() != nil:
			return line, ctx.Err()
		case err != nil: // it can be decided all the same, and the others can
			line.Reason = "which record it would replace cannot be read: " + err.Error()
		case replaced != nil:
			line.Replaces = replaced.Record
		default:
			line.New = true
		}
	}
	return line, nil
}

// SourceTexts returns the texts of a source element besides the identifier.
func SourceTexts(element []byte) (sequence, submitter, email string, err error) {
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
