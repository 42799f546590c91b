package atompmh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Walk follows a logical feed from its subscription document back along the
// prev-archive links (RFC 5005 4), one document at a time. It decides how far back
// to read and what that was worth; storing is the caller's. A Walk is used by one
// goroutine at a time.
type Walk struct {
	// Client makes every request; nil is http.DefaultClient. Its CheckRedirect
	// is called after the walk's own check of where a redirect leads; without
	// one, five redirects are followed.
	Client *http.Client
	// URL of the subscription document: http, https, or file when the Client's
	// transport can read it.
	URL string

	// State is what the last walk of this URL left: Result.State, or the
	// Document.State of the last document that was taken in, from which an
	// unfinished walk goes on. With the zero State everything is read.
	State State
	// Overlap is how far before the mark of State the walk reads again, to catch
	// entries that were committed late. An unfinished walk goes on with the same.
	Overlap time.Duration
	// Full reads to the oldest document whatever State says. An unfinished walk
	// goes on as it began.
	Full bool
	// FeedID is the atom:id that the feed must have; "" is that of State.
	FeedID string
	// Accepted are URLs of archive documents that are known to be gone, such as
	// Gap.URL. The chain counts as ending before them.
	Accepted []string

	// MaxDocuments caps the documents of one walk, resumed parts included; 0 is
	// 10,000.
	MaxDocuments int
	// AllowHost reports whether links and redirects may lead to a host (without
	// port) other than that of URL; nil allows none. It may be called from two
	// goroutines at once. A host that URL itself is redirected to is allowed: the
	// Client has to refuse what may not be asked at all.
	AllowHost func(host string) bool
	// Limits cap each document.
	Limits Limits
	// Report is called with each broken rule, from the goroutine of the loop over
	// Documents; nil is allowed.
	Report func(Problem)
	// Now is the clock for answers without a Date; nil is time.Now.
	Now func() time.Time

	result Result
}

// State is what a walk leaves for the next one: how far the feed was read, which
// feed it is, what makes the next request conditional and, in an unfinished walk,
// where it goes on. It belongs to the URL of its Walk. The zero State is that of a
// feed of which nothing was read.
//
// Its text is JSON. As a field of something that is stored as JSON it is an object.
type State struct{ m *memory }

// Unfinished reports whether the walk goes on with this State where another one
// was broken off.
func (s State) Unfinished() bool { return s.m != nil && s.m.Walk != nil }

// IsZero reports whether this is the State of a feed of which nothing was read.
func (s State) IsZero() bool { return s.m == nil }

// MarshalText returns the form in which a State is stored.
func (s State) MarshalText() ([]byte, error) { return json.Marshal(s.memory()) }

// UnmarshalText reads what MarshalText has returned.
func (s *State) UnmarshalText(text []byte) error {
	m := new(memory)
	if err := json.Unmarshal(text, m); err != nil {
		return fmt.Errorf("state of a walk: %w", err)
	}
	s.m = m
	return nil
}

// MarshalJSON returns the text as it is.
func (s State) MarshalJSON() ([]byte, error) { return s.MarshalText() }

// UnmarshalJSON reads what MarshalJSON has returned.
func (s *State) UnmarshalJSON(text []byte) error { return s.UnmarshalText(text) }

func (s State) memory() memory {
	if s.m == nil {
		return memory{}
	}
	return *s.m
}

// memory is what a State holds.
type memory struct {
	// Mark is the largest stamp that counts as read.
	Mark   time.Time `json:"mark,omitzero"`
	FeedID string    `json:"feed_id,omitempty"`
	// Validators of the subscription document.
	Validators follow.Validators `json:"validators,omitzero"`
	// Heads maps URLs of archive documents to their feed/updated, at most the
	// newest 100.
	Heads map[string]time.Time `json:"heads,omitempty"`
	// Gap is the archive document that was missing, and Target the mark once it is
	// accepted.
	Gap    string    `json:"gap,omitempty"`
	Target time.Time `json:"target,omitzero"`
	// Walk is where an unfinished walk goes on; nil when none is.
	Walk *cursor `json:"walk,omitempty"`
}

// cursor is an unfinished walk.
type cursor struct {
	// Next is the URL of the document that comes next, "" when the chain has
	// ended.
	Next string `json:"next,omitempty"`
	// Documents counts those that were read to their end.
	Documents int `json:"documents"`
	// Entries counts those of these documents, TotalResults is what the first
	// one that says so claims to be there.
	Entries      int64 `json:"entries,omitempty"`
	TotalResults int64 `json:"total_results,omitempty"`
	// Full: the walk reads to the oldest document.
	Full bool `json:"full,omitempty"`
	// Paged: Next is a page (RFC 5005 3), not an archive document.
	Paged bool `json:"paged,omitempty"`
	// Target is the mark to be, once the first document with entries was read.
	Target time.Time `json:"target,omitzero"`
	// Fixed: Target will not change any more. It may be zero then: all stamps were
	// later than the answer's date.
	Fixed bool `json:"fixed,omitempty"`
	// FeedID is the atom:id of the subscription document.
	FeedID string `json:"feed_id,omitempty"`
	// Active: some document had, or may have had, an active entry.
	Active bool `json:"active,omitempty"`
	// Complete: the last document is a complete enumeration.
	Complete bool `json:"complete,omitempty"`
	// Smallest is the earliest stamp of the walk, Last that of the last
	// document; zero when there was none.
	Smallest time.Time `json:"smallest,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	// Validators of the subscription document, for when the walk has ended.
	Validators follow.Validators `json:"validators,omitzero"`
	// Hosts are others that the Walk's URL was redirected to, and where the
	// chain may go on.
	Hosts []string `json:"hosts,omitempty"`
	// Heads are feed/updated of the archive documents met so far.
	Heads map[string]time.Time `json:"heads,omitempty"`
}

// Result says what a walk was worth, as far as it came. A walk has ended whole
// when Documents ended without an error and there is no Gap.
type Result struct {
	// State is for the next Walk. After a walk that has not ended whole it is the
	// one that this walk began with, so that the next one reads again what this one
	// read; to go on instead use Document.State.
	State State
	// NotModified: the subscription document has not changed; nothing was read.
	NotModified bool
	// Ended: the subscription document answered 410; the feed has ended.
	Ended bool
	// FeedID is the atom:id of the subscription document, "" when it has none.
	FeedID string
	// Target is the largest stamp in the first document that had entries, later
	// ones than its answer's date left out. It is the mark of State once the walk
	// has ended whole. Zero when there is none: the mark stays.
	Target time.Time
	// Full: the walk was to read to the oldest document, as Walk.Full asked for when
	// it began.
	Full bool
	// Documents counts those read to their end, those before the walk was broken off
	// included.
	Documents int
	// Entries counts those of these documents, bad and historical ones included,
	// and TotalResults is how many there are by the feed's own word, 0 when it does
	// not say.
	Entries, TotalResults int64
	// Oldest: the walk read the whole logical feed, to its oldest document or to
	// a complete one.
	Oldest bool
	// Complete: the last document was a complete enumeration: fh:complete, read
	// to its end, no active entry in any newer document, and not Short of what the
	// feed claims to have.
	Complete bool
	// Lost: the chain ended while everything in it was later than the mark of State.
	// Archives are missing at its end; deletions may be lost.
	Lost bool
	// Gap is the archive document that is missing; nil when none is. What is newer
	// was read, the mark stays.
	Gap *Gap
}

// Gap is a missing or unreadable archive document.
type Gap struct {
	URL, Reason string
}

// String returns both in one line.
func (g Gap) String() string { return g.URL + ": " + g.Reason }

// Errors of a walk that decide what to do next.
var (
	// ErrFeedID: the feed behind the URL is another one than was harvested
	// before.
	ErrFeedID = errors.New("the feed's id has changed")
	// ErrLoop: the chain leads back to a document of this walk. What was read
	// stays good; the mark must not move.
	ErrLoop = errors.New("the chain of archive documents is a loop")
	// ErrTooManyDocuments: MaxDocuments were read. The walk can go on from the last
	// Document.State with a higher one.
	ErrTooManyDocuments = errors.New("too many documents in one walk")
	// ErrStale: the document where an unfinished walk was to go on is gone; start
	// anew.
	ErrStale = errors.New("the walk cannot be resumed: its next document is gone; start anew")
	// ErrUnread: the loop over Documents went on before the document was read to its
	// end.
	ErrUnread = errors.New("the document was not read to its end")
	// ErrRefused: a link or redirect leads where the walk may not go.
	ErrRefused = errors.New("address refused")
)

// StatusError is an answer with a status that the walk cannot go on from.
type StatusError struct {
	URL    string
	Status int // of HTTP
	// Partial is the answer's header field Bridge-Partial, "" when it has none. A
	// bridge sends it while its lists do not have all that its own Sources have.
	Partial string
}

// Error returns the status, the URL and what to do.
func (e *StatusError) Error() string { return (*follow.StatusError)(e).Error() }

// Unwrap returns the error of the HTTP client.
func (e *StatusError) Unwrap() error { return (*follow.StatusError)(e) }

// Documents walks, and returns the documents, newest first. Read the entries of
// each with Document.Next until it returns io.EOF, or another error that is no
// *EntryError; then go on with the loop, which knows what that error means: an
// archive document that cannot be read is the Gap, any other ends the walk. An error
// of Documents is its last value. When the loop has ended, Result says what the walk
// was worth.
//
// Of a document that was not read to io.EOF nothing should be taken: the next walk
// reads it again. After each other one Document.State is where the walk can go on
// should it be broken off.
//
// The next document is requested while the one before is read.
func (w *Walk) Documents(ctx context.Context) iter.Seq2[*Document, error] {
	return func(yield func(*Document, error) bool) {
		w.result = Result{State: w.State}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		k, err := newWalker(ctx, w)
		if err != nil {
			yield(nil, err)
			return
		}
		defer k.client.Close()
		more := true
		doc, err := k.first()
		for err == nil && doc != nil {
			if more, err = k.read(doc, yield); more && err == nil {
				doc, err = k.next(doc)
			}
			if !more {
				break
			}
		}
		w.result = k.result(more && err == nil)
		if err != nil {
			yield(nil, err)
		}
	}
}

// Result returns what the walk of the last Documents was worth.
func (w *Walk) Result() Result { return w.result }

// TooManyError is an ErrTooManyDocuments that says which document was not read.
type TooManyError struct {
	URL  string
	Read int // documents
}

// Error says so, and what to do.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%s: %v: %d were read; if the feed is that long, raise the cap and go on", e.URL, ErrTooManyDocuments, e.Read)
}

// Unwrap returns ErrTooManyDocuments.
func (e *TooManyError) Unwrap() error { return ErrTooManyDocuments }
