package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// file answers a file: URL as a web server would.
func (t *transport) file(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, context.Cause(req.Context())
	}
	refused := func(err error) error { return &Error{URL: Plain(req.URL), Err: err} }
	if t.root == "" {
		return nil, refused(errScheme)
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != "" {
		return reply(req, http.StatusMethodNotAllowed), nil
	}
	name, err := t.below(req.URL)
	if err != nil {
		return nil, refused(err)
	}
	if req.URL.RawQuery != "" {
		return reply(req, http.StatusNotFound), nil // no file has a query
	}
	f, info, err := openBelow(t.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return reply(req, http.StatusNotFound), nil
	}
	if err != nil {
		return nil, refused(err)
	}
	return answer(req, f, info), nil
}

// below returns the URL's path relative to the root. Whether symbolic links
// lead out of it is seen on opening.
func (t *transport) below(u *url.URL) (string, error) {
	if u.Host != "" && u.Host != "localhost" {
		return "", fmt.Errorf("%w: it is on another machine; give its http address", errFile)
	}
	root, err := filepath.Abs(t.root)
	if err != nil {
		return "", err
	}
	// Path is decoded, so that %2e%2e is seen as what it is.
	name, err := filepath.Rel(root, filepath.FromSlash(path.Clean("/"+u.Path)))
	if err != nil || !filepath.IsLocal(name) {
		return "", outside(root)
	}
	return name, nil
}

func outside(root string) error {
	return fmt.Errorf("%w: it lies outside of %s; a document may name files in its own folder and below only", errFile, root)
}

func openBelow(root, name string) (*os.File, fs.FileInfo, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	info, err := r.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		// Opening a pipe would wait for its writer.
		return nil, nil, fmt.Errorf("%w: it is not a regular file; name one", errFile)
	}
	var f *os.File
	if err == nil {
		f, err = r.Open(name)
	}
	if err == nil {
		if info, err = f.Stat(); err != nil {
			f.Close()
		}
	}
	var number syscall.Errno
	if err != nil && !errors.As(err, &number) && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, outside(root) // os.Root has refused it, not the system
	}
	if err != nil {
		return nil, nil, err
	}
	return f, info, nil
}

func reply(req *http.Request, status int) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:  http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}},
		Body:    http.NoBody,
		Request: req,
	}
}

func answer(req *http.Request, f *os.File, info fs.FileInfo) *http.Response {
	resp := reply(req, http.StatusOK)
	// The times in nanoseconds, since a file may be written twice in a second. The one of its
	// modification alone may be set to what it was.
	tag := fmt.Sprintf(`"%x-%x-%x"`, info.Size(), info.ModTime().UnixNano(), ChangedAt(info))
	resp.Header.Set("Etag", tag)
	resp.Header.Set("Last-Modified", info.ModTime().UTC().Format(http.TimeFormat))
	if matches(req.Header.Values("If-None-Match"), tag) {
		f.Close()
		resp.StatusCode, resp.Status = http.StatusNotModified, "304 Not Modified"
		return resp
	}
	resp.Header.Set("Content-Type", MediaType(info.Name()))
	resp.Header.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	resp.ContentLength = info.Size()
	if req.Method == http.MethodHead {
		f.Close()
		return resp
	}
	resp.Body = &fileBody{f: f, ctx: req.Context(), url: Plain(req.URL), info: info, left: info.Size()}
	return resp
}

// matches compares weakly (RFC 9110 13.1.2). Our own tags have no commas.
func matches(fields []string, tag string) bool {
	for _, field := range fields {
		for t := range strings.SplitSeq(field, ",") {
			if t = strings.TrimSpace(t); t == "*" || strings.TrimPrefix(t, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// fileBody reads a file as it was when it was opened, or fails.
type fileBody struct {
	f    *os.File
	ctx  context.Context
	url  string
	info fs.FileInfo
	left int64
	err  error
}

// Read implements io.Reader.
func (b *fileBody) Read(p []byte) (n int, err error) {
	if b.err == nil && b.ctx.Err() != nil {
		b.err = context.Cause(b.ctx)
	}
	if b.err != nil {
		return 0, b.err
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	if b.left > 0 {
		n, err = b.f.Read(p)
		b.left -= int64(n)
	}
	switch {
	case err == nil && b.left > 0:
	case (err == nil || err == io.EOF) && b.left == 0 && b.untouched():
		b.err = io.EOF
	case err == nil || err == io.EOF:
		b.fail(fmt.Errorf("%w: the file was changed while it was read", errBroken))
	default:
		b.fail(err)
	}
	return n, b.err
}

func (b *fileBody) untouched() bool {
	now, err := b.f.Stat()
	return err == nil && now.Size() == b.info.Size() && now.ModTime().Equal(b.info.ModTime())
}

func (b *fileBody) fail(err error) {
	b.err = &Error{URL: b.url, Err: err, body: true, transient: errors.Is(err, errBroken)}
}

// Close implements io.Closer.
func (b *fileBody) Close() error {
	if b.err == nil {
		b.err = http.ErrBodyReadAfterClose
	}
	return b.f.Close()
}

// MediaType returns the media type of a file, application/octet-stream where it is not
// known. It depends on the name alone, and not on the machine's table of types, since
// the type is published.
func MediaType(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".atom":
		return "application/atom+xml"
	case ".rss":
		return "application/rss+xml"
	case ".rdf":
		return "application/rdf+xml"
	case ".xml", ".xsd", ".xsl":
		return "application/xml"
	case ".json":
		return "application/json"
	case ".jsonld":
		return "application/ld+json"
	case ".ttl":
		return "text/turtle"
	case ".nt":
		return "application/n-triples"
	case ".html", ".htm":
		return "text/html"
	case ".xhtml":
		return "application/xhtml+xml"
	case ".txt":
		return "text/plain"
	case ".md":
		return "text/markdown"
	case ".csv":
		return "text/csv"
	case ".mrc":
		return "application/marc"
	case ".pdf":
		return "application/pdf"
	case ".zip":
		return "application/zip"
	case ".gz":
		return "application/gzip"
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".tif", ".tiff":
		return "image/tiff"
	}
	return "application/octet-stream"
}
