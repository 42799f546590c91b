package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/internal/publish"
)

const (
	// pieceSize is how much of a file goes out under one deadline.
	pieceSize = 256 << 10
	// bufferSize is how much of anything else does. A file of this size goes the
	// same way: one read and one write cost less than setting up sendfile.
	bufferSize = 64 << 10
)

// answer is the response writer of a request. It lets a client take as long as
// it wants in all, and no longer than patience for one piece, and it passes
// files on to sendfile, which echo's own would not.
type answer struct {
	http.ResponseWriter
	patience time.Duration
	// goodbye is how long the rest of a body is waited for that nobody reads.
	goodbye time.Duration
	buffers *sync.Pool
	body    *intake // of the request, nil when it has none
	token   string  // in the request's path; no log may have it

	status int // 0: nothing was sent
	// refused: the server itself has answered, and the handler is not heard.
	refused bool
	bytes   int64
	err     error // the first that cut the answer short
	// reading: the error is one of reading our own bytes.
	reading bool
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader is http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.refused {
		return
	}
	a.begin(status)
	a.ResponseWriter.WriteHeader(status)
}

// begin is called before anything is sent; only its first call counts.
func (a *answer) begin(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	if a.body != nil {
		a.body.leave(a.Header(), a.goodbye)
	}
	a.extend()
}

// extend gives the client its time anew.
func (a *answer) extend() {
	// A writer that has no deadlines is not on a network.
	_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.patience))
}

// Write is io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	if a.refused {
		return len(p), nil
	}
	a.begin(http.StatusOK)
	a.extend()
	n, err := a.ResponseWriter.Write(p)
	a.sent(int64(n), err)
	return n, err
}

func (a *answer) sent(n int64, err error) {
	a.bytes += n
	if a.err == nil {
		a.err = err
	}
}

// ReadFrom is io.ReaderFrom, through which io.CopyN and http.ServeContent hand
// over a body.
func (a *answer) ReadFrom(src io.Reader) (int64, error) {
	if lr, ok := src.(*io.LimitedReader); ok && lr.N > bufferSize {
		_, file := lr.R.(*os.File)
		if w, ok := a.ResponseWriter.(io.ReaderFrom); ok && file {
			return a.send(w, lr)
		}
	}
	return a.copy(src)
}

// send hands a file to sendfile, piece by piece.
func (a *answer) send(w io.ReaderFrom, file *io.LimitedReader) (total int64, err error) {
	a.begin(http.StatusOK)
	for file.N > 0 && err == nil {
		piece := io.LimitedReader{R: file.R, N: min(file.N, pieceSize)}
		a.extend()
		var n int64
		n, err = w.ReadFrom(&piece)
		if n == 0 && err == nil {
			err = fmt.Errorf("a file became shorter while it was sent: %w", io.ErrUnexpectedEOF)
			a.reading = true
		}
		a.sent(n, err)
		total += n
		file.N -= n
	}
	return total, err
}

// copy sends what is no file.
func (a *answer) copy(src io.Reader) (total int64, err error) {
	buf := a.buffers.Get().(*[bufferSize]byte)
	defer a.buffers.Put(buf)
	for {
		n, err := io.ReadFull(src, buf[:])
		if n > 0 {
			m, err := a.Write(buf[:n])
			total += int64(m)
			if err != nil {
				return total, err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return total, nil
		default:
			a.reading = a.err == nil
			a.sent(0, err)
			return total, err
		}
	}
}

// say answers in plain text. What was meant for another answer goes.
func say(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	for _, name := range []string{"Etag", "Last-Modified", "Content-Encoding", "Accept-Ranges", "Content-Range"} {
		h.Del(name)
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // answer remembers the error
}

// busy answers that the server has too much to do to look at the request.
func (s *Server) busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "5")
	say(w, http.StatusServiceUnavailable, "The server is busy: ask again.\n")
}

// nothing answers that there is nothing at this address.
func (s *Server) nothing(w http.ResponseWriter) {
	say(w, http.StatusNotFound, "There is nothing at this address. For people all starts at "+s.base+"/ and for programs at "+
		s.base+"/.well-known/resourcesync; a set takes SIP at "+s.base+"/sip/ and its name, if it does.\n")
}

// broken answers that we failed. Half an answer cannot be taken back: its
// connection is cut, so that nobody takes it for whole.
func (s *Server) broken(a *answer) {
	if a.status != 0 {
		panic(http.ErrAbortHandler)
	}
	say(a, http.StatusInternalServerError, "The server failed to make this answer; its log says why.\n")
}

// fail is echo's error handler: it turns the error of a handler into an answer.
func (s *Server) fail(err error, c echo.Context) {
	r, a := c.Request(), c.Response().Writer.(*answer)
	var route *echo.HTTPError
	var wait *publish.NotReadyError
	var tooMany *publish.TooManyError
	switch {
	case a.status != 0:
		s.broken(a)
	case errors.Is(err, publish.ErrNotFound), errors.As(err, &route) && route.Code == http.StatusNotFound:
		s.nothing(a)
	case errors.As(err, &tooMany):
		say(a, http.StatusNotFound, tooMany.Error()+"\n")
	case errors.As(err, &wait):
		a.Header().Set("Retry-After", strconv.FormatInt(int64((wait.RetryAfter+time.Second-1)/time.Second), 10))
		if wait.Partial != "" && s.opt.PartialHeader != nil {
			a.Header().Set("Bridge-Partial", s.opt.PartialHeader(r.Context(), wait.Partial))
		}
		say(a, http.StatusServiceUnavailable, "This document will be here, but it is still being made: ask again.\n")
	case r.Context().Err() != nil:
		// Nobody waits any more. To return would be to answer 200.
		panic(http.ErrAbortHandler)
	default:
		s.log.Error("a request failed", "path", s.loggable(r.URL.Path), "error", err)
		s.broken(a)
	}
}

// notFound turns the log's word for "no such thing" into publish's, which fail
// answers with 404. Any other fs.ErrNotExist is a fault of ours.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return publish.ErrNotFound
	}
	return err
}
