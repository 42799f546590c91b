package atompmh

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Walk follows a logical feed from its subscription document back along the
// prev-archive links (RFC 5005 4), one document at a time. It decides how far to
// climb and what the walk was worth; storing is the caller's. A Walk is used for
// one loop over its Documents at a time.
type Walk struct {
	// Client makes every request; nil is http.DefaultClient. Its CheckRedirect
	// is called after the walk's own check of where a redirect leads; without
	// one, five redirects are followed.
	Client *http.Client
	// URL of the subscription document: http, https, or file when the Client's
	// transport can read it.
	URL string

	// Mark is the Target of the last walk that ended whole; zero when there was
	// none, and then the walk climbs to the oldest document.
	Mark time.Time
	// Overlap is how far before Mark the walk reads again, to catch entries
	// that were committed late.
	Overlap time.Duration
	// Full climbs to the oldest document whatever Mark says.
	Full bool
	// WantID is the feed's atom:id as the last walk saw it, "" for any.
	WantID string
	// Validators of the last walk that ended whole make the first request
	// conditional. Full and resumed walks ignore them.
	Validators Validators
	// Heads are Result.Heads of the last walk.
	Heads map[string]time.Time
	// Accepted are URLs of archive documents that are known to be gone. The
	// chain counts as ending before them.
	Accepted []string
	// Resume goes on with an unfinished walk; nil starts a new one.
	Resume *Cursor

	// MaxDocuments caps the documents of one walk, resumed parts included; 0 is
	// 10,000.
	MaxDocuments int
	// AllowHost tells whether links and redirects may lead to a host (without
	// port) other than that of URL; nil allows none. It may be called from two
	// goroutines at once. A host that URL itself is redirected to needs no leave:
	// the Client has to refuse what may not be asked at all.
	AllowHost func(host string) bool
	// Limits cap each document.
	Limits Limits
	// Report is told of each broken rule; nil is allowed. It is called from the
	// goroutine of the loop.
	Report func(Problem)
	// Now is the clock for answers without a Date; nil is time.Now.
	Now func() time.Time

	result Result
}

// Validators are what makes a request conditional (RFC 9110 8.8).
type Validators = follow.Validators

// Cursor is an unfinished walk, to be stored together with what its documents
// said. It belongs to the Mark, Overlap and URL of its Walk; its fields are the
// walk's own.
type Cursor struct {
	// Next is the URL of the document that comes next, "" when the chain has
	// ended.
	Next string `json:"next,omitempty"`
	// Documents counts those that were read to their end.
	Documents int `json:"documents"`
	// Entries counts those of these documents, TotalResults is what the first
	// one that says so claims to be there.
	Entries      int64 `json:"entries,omitempty"`
	TotalResults int64 `json:"total_results,omitempty"`
	// Full tells that the walk climbs to the oldest document.
	Full bool `json:"full,omitempty"`
	// Paged tells that Next is a page (RFC 5005 3), not an archive document.
	Paged bool `json:"paged,omitempty"`
	// Target is the mark to be, once the first document with entries was read.
	Target time.Time `json:"target,omitzero"`
	// Fixed tells that Target will not change any more. It may be zero then:
	// all stamps were later than the answer's date.
	Fixed bool `json:"fixed,omitempty"`
	// FeedID is the atom:id of the subscription document.
	FeedID string `json:"feed_id,omitempty"`
	// Active tells that some document had, or may have had, an active entry.
	Active bool `json:"active,omitempty"`
	// Complete tells that the last document is a complete enumeration.
	Complete bool `json:"complete,omitempty"`
	// Smallest is the earliest stamp of the walk, Last that of the last
	// document; zero when there was none.
	Smallest time.Time `json:"smallest,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	// Validators of the subscription document, for when the walk has ended.
	Validators Validators `json:"validators,omitzero"`
	// Hosts are others that the Walk's URL was redirected to, and where the
	// chain may go on.
	Hosts []string `json:"hosts,omitempty"`
	// Heads are feed/updated of the archive documents met so far.
	Heads map[string]time.Time `json:"heads,omitempty"`
}

// Result says what a walk was worth. It is filled as far as the walk came when
// it ends early. Only a walk without error and without Gap has ended
// whole: then Target is the new mark, and Validators, Heads and FeedID are to be
// stored.
type Result struct {
	// NotModified: the subscription document has not changed; nothing was read.
	NotModified bool
	// Ended: the subscription document answered 410; the feed has ended.
	Ended bool
	// FeedID is the atom:id of the subscription document, "" when it has none.
	FeedID string
	// Target is the largest stamp in the first document that had entries, later
	// ones than its answer's date left out. Zero when there is none: the mark
	// stays.
	Target time.Time
	// Validators of the subscription document.
	Validators Validators
	// Heads maps URLs of archive documents to their feed/updated, at most the
	// newest 100.
	Heads map[string]time.Time
	// Documents counts those read to their end, those before a Resume included.
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
	// Lost: the chain ended while everything in it was later than Mark.
	// Archives are missing at its end; deletions may be lost.
	Lost bool
	// Gap is the archive document that is missing; nil when none is. What is
	// newer was read, the mark must stay.
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
	// ErrTooManyDocuments: MaxDocuments were read. The walk can be resumed with
	// a higher one.
	ErrTooManyDocuments = errors.New("too many documents in one walk")
	// ErrStaleCursor: the document that Resume names is gone; start anew.
	ErrStaleCursor = errors.New("the walk cannot be resumed: its next document is gone; start anew")
	// ErrUnread: the loop went on before it had read the document to its end.
	ErrUnread = errors.New("the document was not read to its end")
	// ErrRefused: a link or redirect leads where the walk may not go.
	ErrRefused = follow.ErrRefused
)

// StatusError is an answer with a status that the walk cannot go on from.
type StatusError = follow.StatusError

// Documents walks, and yields each document, newest first. Whoever gets one reads
// its entries with Next until io.EOF; an *EntryError is no reason to stop. After any
// other error of Next the loop goes on: the walk knows what a document means that
// cannot be read. Where that is an archive document with a *DocumentError, it is the
// Gap; everything else that goes wrong is yielded as an error, which is the last thing
// that is. A loop may end early. In both cases a walk can be resumed from the last
// Document.Cursor. Result says what the walk was worth.
//
// The next document is requested while the one before is read.
func (w *Walk) Documents(ctx context.Context) iter.Seq2[*Document, error] {
	return func(yield func(*Document, error) bool) {
		w.result = Result{}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		c, err := newClimb(ctx, w)
		if err != nil {
			yield(nil, err)
			return
		}
		defer c.client.Close()
		more := true
		doc, err := c.first()
		for err == nil && doc != nil && more {
			if more, err = c.visit(doc, yield); more && err == nil {
				doc, err = c.next(doc)
			}
		}
		w.result = c.result()
		if err != nil {
			yield(nil, err)
		}
	}
}

// Result says what the last walk was worth, once the loop over its Documents has
// ended.
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
