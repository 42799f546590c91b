package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/url"

	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/fetch"

	"github.com/pmh-bridge/bridge/sip"
)

type (
	// Files are the options of a submission of documents.
	Files = delivery.Files
	// File is a document to be submitted.
	File = delivery.File
	// FileResult is the outcome of a File.
	FileResult = delivery.FileResult
)

// IngestServer is the server to which documents are submitted.
type IngestServer struct {
	// URL is http or https. The user name and password in it are used when User is "".
	URL            string
	User, Password string
	// Version goes into the user agent.
	Version string
	Logger  *slog.Logger
}

// RequestError means that the request is invalid, whatever the server would respond.
type RequestError struct{ Err error }

// Error is the reason, as text.
func (e *RequestError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RequestError) Unwrap() error { return e.Err }

// Submit submits files to a server whose URL the operator has typed, and reports on each in
// their order. It needs no data folder. how.Server is not used. A *RequestError is returned
// before anything is sent; see delivery.Files.Submit for other errors.
func (s *IngestServer) Submit(ctx context.Context, how Files, files []File, report func(FileResult)) error {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return &RequestError{errors.New("the URL of the ingest server has no http:// or https://: write it like https://library.example.org/sip")}
	}
	if err := how.Check(); err != nil {
		return &RequestError{err}
	}
	plain := fetch.Plain(u)
	guard := fetch.New(fetch.Options{UserAgent: "bridge/" + s.Version, Reach: fetch.Reach{Origin: plain}, PerHost: how.Workers, Log: s.Logger})
	defer guard.Close()
	client := &sip.HTTPClient{HTTP: guard.Client(""), URL: plain, User: s.User, Password: s.Password}
	if s.User == "" && u.User != nil {
		client.User = u.User.Username()
		client.Password, _ = u.User.Password()
	}
	how.Server = client
	return how.Submit(ctx, files, report)
}
