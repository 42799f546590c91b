package server

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/oaipmh"
)

// repositoryPath returns the set whose OAI-PMH repository has a path.
func repositoryPath(path string) (set string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/sets/")
	if !ok {
		return "", false
	}
	set, ok = strings.CutSuffix(rest, "/oai")
	return set, ok && set != "" && !strings.Contains(set, "/")
}

// serveRepository answers a request to the OAI-PMH repository of a set: GET, HEAD and
// POST. An answer has no entity tag, since its responseDate is another each time.
func (s *Server) serveRepository(rw *responseWriter, r *http.Request, set string) {
	switch {
	case r.URL.RawPath != "":
		s.writeNotFound(rw)
		return
	case r.ContentLength != 0 && r.Method != http.MethodPost:
		writeText(rw, http.StatusRequestEntityTooLarge, "A request here has no body, unless it is a POST: send it without one.\n")
		return
	case s.draining.Err() != nil:
		s.writeBusy(rw)
		return
	}
	repository, err := s.opt.Repository(r.Context(), set)
	if err != nil {
		s.writeError(rw, r, err)
		return
	}
	state, err := s.opt.Log.Set(r.Context(), set)
	if err != nil {
		s.writeError(rw, r, notFound(err))
		return
	}
	// A list that is under way goes on when the set gets another name.
	first := publish.RepositoryURL(s.base, state.IdentifierName())
	h := &oaipmh.Handler{Repository: repository, BaseURL: publish.RepositoryURL(s.base, set), TokenBase: first, Log: s.log,
		Now:  func() time.Time { return repository.Now(r.Context()) },
		Fail: func(_ http.ResponseWriter, r *http.Request, err error) { s.writeError(rw, r, err) }}
	rw.Header().Set("Vary", "Accept-Encoding")
	if !acceptsGzip(r.Header) {
		h.ServeHTTP(rw, r)
		return
	}
	w := &compressingWriter{responseWriter: rw, compressors: &s.compressors}
	defer w.close() // also when the handler panics
	h.ServeHTTP(w, r)
}

// compressingWriter compresses an answer while it is written, unless the handler sets a status
// first.
type compressingWriter struct {
	*responseWriter
	compressors *sync.Pool
	compressor  *publish.Compressor // nil until something is written
	stated      bool                // a status was
}

// WriteHeader implements http.ResponseWriter.
func (w *compressingWriter) WriteHeader(status int) {
	w.stated = true
	w.responseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *compressingWriter) Write(p []byte) (int, error) {
	switch {
	case w.stated:
		return w.responseWriter.Write(p)
	case w.compressor == nil:
		w.Header().Set("Content-Encoding", "gzip")
		w.compressor = w.compressors.Get().(*publish.Compressor)
		w.compressor.Begin(w.responseWriter)
	}
	return w.compressor.Write(p)
}

func (w *compressingWriter) close() {
	if w.compressor != nil && w.compressor.Close() == nil { // responseWriter keeps the error
		w.compressors.Put(w.compressor)
	}
}
