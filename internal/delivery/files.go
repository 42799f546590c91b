package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// Files submits documents that belong to no set to an ingest server, once, and stores
// nothing.
type Files struct {
	Server Upstream
	// Recipient is the URL of the notification recipient; "" names none.
	Recipient string
	// Submitter and Sequence describe the source of each record; nil and "" are
	// left out.
	Submitter *sip.Submitter
	Sequence  string
	// Format is the URL of the schema that all of them follow; with "" each names its
	// own, in xsi:schemaLocation.
	Format string
	// Force also sends documents in a format that the server does not list. The server is
	// not even asked for its properties: it may not support our form of that request.
	Force bool
	// Workers is how many requests are under way at a time; 0 is 4.
	Workers int
	// Waits is called when get-properties has failed, with the time until the next try;
	// nil is not called.
	Waits func(err error, wait time.Duration)
}

// File is a document to be submitted.
type File struct {
	Name string
	// Identifier is the source-identifier of the record; nil is none.
	Identifier *string
	Open       func() (io.ReadCloser, error)
}

// FileResult is the result of submitting a file.
type FileResult struct {
	Name string
	// State is StateAccepted, with Assigned; StateRejected or StateProvisional;
	// StateUnsent when the server has certainly not taken it; StateUnresolved when it may
	// have, but no answer came, or one without a disposition.
	State    submission.State
	Assigned string
	// Reason of any other State than StateAccepted, "" when a server gave none.
	Reason string
	// Unlisted: it was not sent because the server does not list its format, or
	// because its format is not known.
	Unlisted bool
	// Took is how long all tries and the waits between them have taken.
	Took time.Duration
}

const (
	// attempts is how often a failing request is sent, attemptWait the wait after the
	// first time, which doubles with each further one.
	attempts    = 4
	attemptWait = time.Second
	// maxRetryAfter is the longest wait that a server may ask for; if it asks for more
	// the request is given up.
	maxRetryAfter = time.Minute
)

// Check returns an error if the recipient or the submitter is not valid.
func (f *Files) Check() error {
	if f.Recipient != "" {
		if err := ParseRecipient(f.Recipient); err != nil {
			return fmt.Errorf("the notification recipient %q cannot be used: %w", f.Recipient, err)
		}
	}
	if s := f.Submitter; s != nil && (s.Name == "" || s.EmailAddress == "") {
		return errors.New("a submitter has a name and a mail address: give both, or neither")
	}
	return nil
}

// Submit submits files and reports on each, in their order, from one goroutine. It
// returns an error if the server does not report which formats it accepts, so that
// nothing was sent, or if ctx has ended. When the server does not answer for several
// files in a row the rest is not sent.
func (f *Files) Submit(ctx context.Context, files []File, report func(FileResult)) error {
	properties := &sip.Properties{}
	if !f.Force {
		if _, err := retryCall(ctx, f.Waits, true, func() (err error) {
			properties, err = f.Server.GetProperties(ctx)
			return err
		}); err != nil {
			return fmt.Errorf("the ingest server does not report which formats it accepts; --force submits anyway: %w", err)
		}
	}
	workers := f.Workers
	if workers <= 0 {
		workers = 4
	}
	var silent atomic.Int32
	// The loop below waits for one more result than fits in here.
	results := make(chan chan FileResult, workers-1)
	go func() {
		defer close(results)
		for i := range files {
			if ctx.Err() != nil {
				return
			}
			result := make(chan FileResult, 1)
			results <- result
			go func() { result <- f.submit(ctx, &files[i], properties.Formats, &silent) }()
		}
	}()
	for result := range results {
		report(<-result)
	}
	return ctx.Err()
}

func (f *Files) submit(ctx context.Context, file *File, listed []string, silent *atomic.Int32) FileResult {
	began := time.Now()
	r := FileResult{Name: file.Name, State: submission.StateUnsent}
	if silent.Load() >= breakerThreshold {
		r.Reason = fmt.Sprintf("not tried, since the server has not answered for the last %d", breakerThreshold)
		return r
	}
	if request := f.request(file, &r, listed); request != nil {
		var disposition *sip.Disposition
		doubt, err := retryCall(ctx, nil, submission.Identifies(request.Source), func() (err error) {
			r := Ask(ctx, f.Server, request)
			disposition = r.Disposition
			return r.Err
		})
		switch {
		case err == nil:
			r.State, r.Assigned, r.Reason = submission.StateAfter(disposition), disposition.AssignedIdentifier, disposition.Reason
		case doubt:
			r.State, r.Reason = submission.StateUnresolved, err.Error()
			if !submission.Identifies(request.Source) {
				r.Reason += "; it is not sent again, since it has no identifier, and would be two records if it has arrived: ask the ingest server"
			}
		default:
			r.Reason = err.Error()
		}
		var fault *sip.Fault
		var status *sip.StatusError
		switch {
		case err == nil, !sip.Temporary(err), errors.As(err, &fault), errors.As(err, &status) && status.Status == http.StatusInternalServerError:
			silent.Store(0) // it answers, and the record may be the cause of its fault
		default:
			silent.Add(1)
		}
	}
	r.Took = time.Since(began)
	return r
}

// request makes the request of a file; nil when it is not to be sent, and then r has the
// reason.
func (f *Files) request(file *File, r *FileResult, listed []string) *sip.Request {
	record, err := readFile(file)
	if err != nil {
		r.Reason = err.Error()
		return nil
	}
	format := cmp.Or(record.Locations()[record.Root.Space], f.Format)
	if reason := unlisted(&record, format, listed); reason != "" && !f.Force {
		r.Reason, r.Unlisted = reason, true
		return nil
	}
	source := sourceElement(f.Submitter, f.Sequence, file.Identifier)
	if r.Reason = unwritable(source); r.Reason != "" {
		return nil
	}
	return &sip.Request{Source: source, Recipient: f.Recipient, Record: record}
}

func readFile(file *File) (sip.Record, error) {
	content, err := file.Open()
	if err != nil {
		return sip.Record{}, err
	}
	defer content.Close()
	return sip.ReadRecord(content, sip.ReadOptions{}.Limits)
}

// sourceElement describes the source of a record; nil when nothing is known of it.
func sourceElement(submitter *sip.Submitter, sequence string, identifier *string) *sip.Source {
	s := sip.Source{Submitter: submitter, Identifier: identifier}
	if sequence != "" {
		s.Sequence = &sequence
	}
	if s == (sip.Source{}) {
		return nil
	}
	return &s
}

// retryCall repeats a failed call a few times, as long as that may help. Unless a repeat
// is harmless, it repeats a call only if the last one has certainly not arrived. doubt
// reports whether one of the failed calls may have arrived; waits, which may be nil, is
// called before each wait.
func retryCall(ctx context.Context, waits func(error, time.Duration), harmless bool, call func() error) (doubt bool, err error) {
	for n := 1; ; n++ {
		err = call()
		if err == nil {
			return false, nil
		}
		doubt = doubt || !(Reply{Err: err}).Refused()
		var status *sip.StatusError
		if n == attempts || doubt && !harmless || !sip.Temporary(err) || errors.As(err, &status) && status.RetryAfter > maxRetryAfter {
			return doubt, err
		}
		wait := max(submission.BackOff(attemptWait, maxRetryAfter, n), retryAfter(err))
		if waits != nil {
			waits(err, wait)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return doubt, err
		case <-timer.C:
		}
	}
}
