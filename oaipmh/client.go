package oaipmh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Client makes single requests to a repository. To harvest it use a Walk. It is safe
// for concurrent use if its functions are; do not change its fields meanwhile.
type Client struct {
	// HTTP makes every request; nil is http.DefaultClient. See Walk.Client.
	HTTP *http.Client
	// URL is the base URL, or any request that somebody has copied: see ParseURL.
	URL string
	// AllowHost reports whether redirects may lead to another host, see Walk.AllowHost.
	AllowHost func(host string) bool
	// Limits cap each answer.
	Limits Limits
	// Strict checks also the rules that no harvester depends on.
	Strict bool
	// Report is called with each broken rule; nil is allowed.
	Report func(Problem)
}

const (
	// maxSets is how many sets Client.Sets returns at most, maxSetPages in how many
	// answers; after maxSetBytes of text it asks for no further one.
	maxSets     = 100_000
	maxSetBytes = 16 << 20
	maxSetPages = 10_000
)

// Errors are those of Walk.Documents: an *Error when the repository answers with one.

// Identify returns the repository's description of itself (4.2).
func (c *Client) Identify(ctx context.Context) (*Identity, error) {
	a, _, err := c.ask(ctx, Request{Verb: Identify})
	if err != nil {
		return nil, err
	}
	return a.Identity, nil
}

// Formats returns the formats of one item, or with "" those of the repository (4.4).
func (c *Client) Formats(ctx context.Context, identifier string) ([]Format, error) {
	a, _, err := c.ask(ctx, Request{Verb: ListMetadataFormats, Identifier: identifier})
	if err != nil {
		return nil, err
	}
	return a.Formats, nil
}

// Sets returns all sets (4.6), or the first 100,000, or fewer where their text has more
// than 16 MiB. A repository without sets answers with an *Error, whose Code is
// NoSetHierarchy.
func (c *Client) Sets(ctx context.Context) ([]Set, error) {
	var sets []Set
	token, size := "", 0
	for range maxSetPages {
		a, _, err := c.ask(ctx, Request{Verb: ListSets, Token: token})
		if err != nil {
			return nil, err
		}
		sets = append(sets, a.Sets...)
		for i := range a.Sets {
			size += len(a.Sets[i].Spec) + len(a.Sets[i].Name)
			for _, d := range a.Sets[i].Descriptions {
				size += len(d)
			}
		}
		if a.Token == nil || a.Token.Value == "" || len(sets) >= maxSets || size > maxSetBytes {
			return sets[:min(len(sets), maxSets)], nil
		}
		if a.Token.Value == token || len(a.Sets) == 0 {
			break
		}
		token = a.Token.Value
	}
	return nil, fmt.Errorf("%s: the sets: %w; tell the repository's operator", c.URL, ErrLoop)
}

// Record returns one record (4.1), or a *RecordError when it cannot be taken.
func (c *Client) Record(ctx context.Context, identifier, prefix string) (*Record, error) {
	_, rec, err := c.ask(ctx, Request{Verb: GetRecord, Identifier: identifier, Prefix: prefix})
	return rec, err
}

// ask makes a request and reads its answer to the end; rec is the one record of
// GetRecord.
func (c *Client) ask(ctx context.Context, q Request) (a *Answer, rec *Record, err error) {
	base, _, err := ParseURL(c.URL)
	if err != nil {
		return nil, nil, fmt.Errorf("base URL: %w", err)
	}
	client, err := newClient(c.HTTP, base, c.AllowHost, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	o := ReadOptions{Limits: c.Limits, Strict: c.Strict, Lenient: true, Report: c.Report}
	return answer(ctx, client, base, q, o)
}

// fetch makes a request.
func fetch(ctx context.Context, client *follow.Client, to string) (*follow.Answer, error) {
	answer, err := client.Get(ctx, to, follow.Validators{})
	if status, ok := errors.AsType[*follow.StatusError](err); ok {
		return nil, (*StatusError)(status)
	}
	return answer, err
}

// answer makes a request and reads the answer to its end.
func answer(ctx context.Context, client *follow.Client, base string, q Request, o ReadOptions) (*Answer, *Record, error) {
	in, err := fetch(ctx, client, q.URL(base))
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	o.URL, o.ContentType = in.URL, in.Header.Get("Content-Type")
	r := NewReader(in.Body, o)
	var rec *Record
	var bad *RecordError
	for err == nil || errors.As(err, &bad) {
		var next *Record
		if next, err = r.Next(); next != nil && rec == nil {
			rec = next
		}
	}
	a := r.Answer()
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return nil, nil, err
	case in.Status != http.StatusOK:
		return nil, nil, &StatusError{URL: in.Requested, Status: in.Status, Partial: in.Header.Get(follow.PartialHeader)}
	case !errors.Is(err, io.EOF):
		return nil, nil, err
	case a.Verb != q.Verb:
		return nil, nil, &DocumentError{URL: in.URL, Line: 1, Column: 1, Reason: fmt.Sprintf("an answer to %s; want one to %s", a.Verb, q.Verb)}
	case q.Verb == GetRecord && rec != nil && rec.Identifier != q.Identifier:
		return nil, nil, &DocumentError{URL: in.URL, Line: rec.Line, Column: rec.Column, Reason: fmt.Sprintf("record %q; want %q", clip(rec.Identifier), clip(q.Identifier))}
	case q.Verb == GetRecord && bad != nil:
		return nil, nil, bad
	case q.Verb == GetRecord && rec == nil:
		return nil, nil, &DocumentError{URL: in.URL, Line: 1, Column: 1, Reason: "no record; want one"}
	}
	if in.Moved {
		a.movedTo, _, _ = strings.Cut(in.URL, "?")
	}
	return a, rec, nil
}
