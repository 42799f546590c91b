package atompmh

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

const maxRedirects = 5

// fetcher makes a walk's requests. It is not changed once made, so that two
// goroutines may use it.
type fetcher struct {
	w      *Walk
	client *http.Client
	start  *url.URL
}

func newFetcher(w *Walk) (*fetcher, error) {
	start, err := url.Parse(w.URL)
	if err != nil {
		return nil, fmt.Errorf("URL of the subscription document: %w", err)
	}
	switch start.Scheme {
	case "http", "https", "file":
	default:
		return nil, fmt.Errorf("%s: %w: want http, https or file", w.URL, ErrRefused)
	}
	client := http.Client{}
	if w.Client != nil {
		client = *w.Client
	}
	f := &fetcher{w: w, client: &client, start: start}
	inner := client.CheckRedirect
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if err := f.check(req.URL); err != nil {
			return err
		}
		if inner != nil {
			return inner(req, via)
		}
		if len(via) > maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		return nil
	}
	return f, nil
}

// allowed tells whether the walk may go to a URL.
func (f *fetcher) allowed(to string) error {
	u, err := url.Parse(to)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return f.check(u)
}

func (f *fetcher) check(u *url.URL) error {
	switch u.Scheme {
	case "http", "https":
		host := u.Hostname()
		if f.start.Scheme != "file" && strings.EqualFold(host, f.start.Hostname()) {
			return nil
		}
		if f.w.AllowHost != nil && f.w.AllowHost(host) {
			return nil
		}
		return fmt.Errorf("%s: %w: host %q is not that of %s; allow it if it belongs to the feed", u.Redacted(), ErrRefused, host, f.start.Redacted())
	case "file":
		if f.start.Scheme != "file" {
			return fmt.Errorf("%s: %w: a remote document may not lead to a file", u.Redacted(), ErrRefused)
		}
		folder := path.Dir(path.Clean(f.start.Path))
		if u.Host != f.start.Host || !strings.HasPrefix(path.Clean(u.Path), strings.TrimSuffix(folder, "/")+"/") {
			return fmt.Errorf("%s: %w: a local document may lead only to files below its own folder %s", u.Redacted(), ErrRefused, folder)
		}
		return nil
	}
	return fmt.Errorf("%s: %w: want http or https", u.Redacted(), ErrRefused)
}

// get asks for a document and reads its head. The document holds its connection
// until it is closed.
func (f *fetcher) get(ctx context.Context, to string, v Validators) (*Document, error) {
	if err := f.allowed(to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	doc, err := f.request(ctx, to, v)
	if err != nil {
		cancel()
		return nil, err
	}
	doc.cancel = cancel
	return doc, nil
}

func (f *fetcher) request(ctx context.Context, to string, v Validators) (*Document, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	req.Header.Set("Accept", "application/atom+xml, application/xml;q=0.9, text/xml;q=0.8, */*;q=0.1")
	if v.ETag != "" {
		req.Header.Set("If-None-Match", v.ETag)
	}
	if v.LastModified != "" {
		req.Header.Set("If-Modified-Since", v.LastModified)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	doc := &Document{Requested: to, Date: f.now()}
	if resp.StatusCode == http.StatusOK {
		err = doc.open(resp, Options{Limits: f.w.Limits})
	} else {
		err = &StatusError{URL: to, Status: resp.StatusCode}
	}
	if err != nil {
		// The answer is of no use; closing it cannot make that worse.
		_ = resp.Body.Close()
		return nil, err
	}
	return doc, nil
}

func (f *fetcher) now() time.Time {
	if f.w.Now != nil {
		return f.w.Now().UTC()
	}
	return time.Now().UTC()
}

// missing tells whether an archive document is not to be had (A8): it is gone,
// or is no document. 401 and 5xx may pass. 403 is the one status of S9 that
// counts for an entry's own URI and not here: a feed that is refused is far more
// often a matter of credentials or of a firewall than of an archive taken away,
// and as a gap it would invite the operator to accept it.
func missing(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status == http.StatusNotFound || status.Status == http.StatusGone
	}
	var fault *DocumentError
	return errors.As(err, &fault)
}
