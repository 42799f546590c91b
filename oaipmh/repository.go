package oaipmh

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Repository is what a Handler serves. Its methods are called from several goroutines at
// once, with a context that ends when the answer has been written. An *Error is answered as
// it is, an *UnavailableError with 503; any other error with 500, and only Handler.Log gets its
// text.
type Repository interface {
	// Identity returns the repository's description of itself. It must be cheap.
	Identity(ctx context.Context) (*Identity, error)
	// Formats returns the formats of an item, or of all items where identifier is "". The
	// error is an *Error with IDDoesNotExist or NoMetadataFormats.
	Formats(ctx context.Context, identifier string) ([]Format, error)
	// Sets returns the first sets whose setSpecs are greater than after, in the order of
	// their bytes, and no more than most. The error is an *Error with NoSetHierarchy where
	// there are no sets.
	Sets(ctx context.Context, after string, most int) ([]Set, error)
	// Record returns a record in a format. The error is an *Error with IDDoesNotExist or
	// CannotDisseminateFormat.
	Record(ctx context.Context, identifier, prefix string) (*Record, error)
	// List returns a part of a list: as much as is one answer. The error is an *Error with
	// NoRecordsMatch, CannotDisseminateFormat, NoSetHierarchy, or with
	// BadResumptionToken where Position is not of this repository, or no longer.
	List(ctx context.Context, q *Query) (*List, error)
}

// Query selects records.
type Query struct {
	Verb   Verb // ListRecords or ListIdentifiers
	Prefix string
	Set    string // "" is all
	// From and Until are both inclusive, in UTC; zero is no limit. An Until that was a
	// day is the last second of it.
	From, Until time.Time
	// Position is what Next has returned, nil at the beginning. It is a part of the
	// resumptionToken, so a short one is better. A client could have made it up.
	Position []byte
}

// List is one answer's part of a list of records.
type List struct {
	// Date is the responseDate; zero is now. A harvester asks later for what has changed
	// from this second on: it must not be later than the datestamp of any change that the
	// list leaves out.
	Date time.Time
	// Records are the records, or for ListIdentifiers their headers at least; a record may
	// be the same variable with another value. There must be one at least. It is called
	// once.
	Records iter.Seq2[*Record, error]
	// Next returns, after Records, the position of the rest; nil at the end.
	Next func() []byte
	// Size is how many records the whole list has, 0 when it is not known; Cursor how many
	// were in earlier answers, -1 when that is not known. They are hints (3.5).
	Size, Cursor int64
}

// UnavailableError says that the repository cannot answer now, but later (3.1.2.2).
type UnavailableError struct {
	// RetryAfter is when to ask again; less than a second is a second.
	RetryAfter time.Duration
	Reason     string
}

// Error returns the reason.
func (e *UnavailableError) Error() string { return e.Reason }

// continuation is the content of a resumptionToken of a Handler: the verb and the
// arguments of the list, and the position. Nothing is kept of it, so it never expires.
type continuation struct {
	Query
	granularity Granularity // of From and Until
}

// tokenVersion is the first byte of a token. Another form needs another number.
const tokenVersion = 1

// tokenSum is how many bytes of a hash end a token: it finds what was cut, mistyped, or
// made by another repository. It is no secret.
const tokenSum = 6

// token returns the resumptionToken of the repository at a base URL. It has letters,
// digits, - and _ alone, which no URL has to escape.
func (c *continuation) token(base string) string {
	b := []byte{tokenVersion, verbNumber(c.Verb), byte(c.granularity)}
	for _, s := range [...]string{c.Prefix, c.Set} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	for _, t := range [...]time.Time{c.From, c.Until} {
		if t.IsZero() {
			b = append(b, 0)
		} else {
			b = binary.AppendVarint(append(b, 1), t.Unix())
		}
	}
	b = append(b, c.Position...)
	return base64.RawURLEncoding.EncodeToString(append(b, sumOfToken(base, b)...))
}

func sumOfToken(base string, b []byte) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", base)
	h.Write(b)
	return h.Sum(nil)[:tokenSum]
}

var errToken = errors.New("it is not one of this repository")

// parseToken reads what token has returned.
func parseToken(base, token string) (*continuation, error) {
	all, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(all) < 3+tokenSum {
		return nil, errToken
	}
	b, sum := all[:len(all)-tokenSum], all[len(all)-tokenSum:]
	if b[0] != tokenVersion || !bytes.Equal(sum, sumOfToken(base, b)) {
		return nil, errToken
	}
	c := &continuation{granularity: Granularity(b[2])}
	if c.Verb = verbOfNumber(b[1]); c.Verb == "" || c.granularity > Second {
		return nil, errToken
	}
	b = b[3:]
	for _, s := range [...]*string{&c.Prefix, &c.Set} {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil, errToken
		}
		*s, b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	for _, t := range [...]*time.Time{&c.From, &c.Until} {
		if len(b) == 0 || b[0] > 1 {
			return nil, errToken
		}
		given := b[0] == 1
		if b = b[1:]; given {
			seconds, size := binary.Varint(b)
			if size <= 0 {
				return nil, errToken
			}
			if *t, b = time.Unix(seconds, 0).UTC(), b[size:]; !dated(*t) {
				return nil, errToken
			}
		}
	}
	c.Position = b
	return c, nil
}

// The verbs of lists, by their numbers in a token.
func verbNumber(v Verb) byte {
	switch v {
	case ListRecords:
		return 1
	case ListIdentifiers:
		return 2
	case ListSets:
		return 3
	}
	return 0
}

func verbOfNumber(n byte) Verb {
	for _, v := range [...]Verb{ListRecords, ListIdentifiers, ListSets} {
		if verbNumber(v) == n {
			return v
		}
	}
	return ""
}
