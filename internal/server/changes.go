package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// The changes of a set for programs that read JSON: in pages, and as server-sent events. Both
// read the log from a place (a Seq) on, so that no client misses a change, gets one twice, or
// in another order. A place that this log has never given out, or has lost, is answered with
// 410: the client has to begin anew.

const (
	// streamPoll is how often a stream looks for new events.
	streamPoll = time.Second
	// streamAlive is how long it is silent at most, so that proxies keep it and a client
	// that has gone is noticed.
	streamAlive = 15 * time.Second
	// streamRetry is how long a client waits before it comes back, in milliseconds.
	streamRetry = 5000
	// streams are how many may be open at most, and streamsPerAddress those of one client.
	streams, streamsPerAddress = 512, 64
)

// Problem is an error as JSON (RFC 9457).
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Restart is the URL at which a consumer begins anew, "" where that is no help.
	Restart string `json:"restart,omitempty"`
}

// Write answers with the problem.
func (p Problem) Write(w http.ResponseWriter) {
	p.Title = http.StatusText(p.Status)
	body := encodeLine(p)
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-cache") // 404 and 410 may be kept otherwise
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that has gone needs none
}

// encodeLine writes a value as a line of JSON; none of ours fails.
func encodeLine(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// changesPlace is what a request for changes begins at.
type changesPlace struct {
	set   event.Set
	after event.Seq
	limit int
}

// placeOf reads what a request asks for; after, if not "", takes the place of that in the
// query. The problem is nil when it can be answered.
func (s *Server) placeOf(c echo.Context, after string) (p changesPlace, problem *Problem, err error) {
	ctx, q := c.Request().Context(), c.QueryParams()
	if p.set, err = s.opt.Log.Set(ctx, c.Param("set")); err != nil {
		return p, nil, notFound(err)
	}
	after = cmp.Or(after, q.Get("after"))
	p.limit = publish.DefaultChanges
	if after != "" {
		n, err := strconv.ParseInt(after, 10, 64)
		if err != nil || n < 0 {
			return p, &Problem{Status: http.StatusBadRequest, Detail: fmt.Sprintf("after: %.50q is no place: write the after of the last answer, or 0 for the beginning", after)}, nil
		}
		p.after = event.Seq(n)
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return p, &Problem{Status: http.StatusBadRequest, Detail: fmt.Sprintf("limit: %.50q is no number of changes: write 1 to %d", text, publish.MostChanges)}, nil
		}
		p.limit = min(n, publish.MostChanges)
	}
	lost := q.Has("feed") && q.Get("feed") != p.set.Feed
	if p.after > 0 && !lost {
		if lost, err = s.opt.Log.Forgotten(ctx, p.after); err != nil {
			return p, nil, err
		}
	}
	if lost {
		return p, &Problem{Status: http.StatusGone, Restart: publish.ChangesURL(s.base, &p.set, 0, p.limit),
			Detail: "The log that this place belongs to was replaced, or has lost events that you may have seen. Start again at restart, and delete the records that are not listed there."}, nil
	}
	return p, nil, nil
}

// changes answers with a page of the changes of a set.
func (s *Server) changes(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	place, problem, err := s.placeOf(c, "")
	if err != nil {
		return err
	}
	if problem != nil {
		problem.Write(w)
		return nil
	}
	page, err := publish.Changes(r.Context(), s.opt.Log, s.base, &place.set, place.after, place.limit)
	if err != nil {
		return notFound(err)
	}
	m := publish.Meta{ContentType: "application/json", ETag: page.ETag(), Gzip: acceptsGzip(r.Header)}
	if m.Gzip {
		m.ETag = m.ETag[:len(m.ETag)-1] + `-gz"`
	}
	maps.Copy(w.Header(), headerOf(&m))
	w.Header().Set("Link", "<"+page.Next+`>; rel="next"`)
	if answeredNotModified(w, r, &m) {
		return nil
	}
	body := encodeLine(page)
	if m.Gzip {
		var packed bytes.Buffer
		z := s.compressors.Get().(*publish.Compressor)
		z.Begin(&packed)
		if _, err := z.Write(body); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		s.compressors.Put(z)
		body = packed.Bytes()
	}
	send(w, r, &m, bytes.NewReader(body), int64(len(body)))
	return nil
}

// changeStream sends the changes of a set as server-sent events, those that there are and
// then new ones, until the client leaves or the server ends. The id of an event is its Seq.
// It has one page in memory, however slowly the client reads.
func (s *Server) changeStream(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer.(*responseWriter)
	place, problem, err := s.placeOf(c, r.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	if problem != nil {
		problem.Write(w)
		return nil
	}
	client := limit.ClientOf(r.RemoteAddr)
	if !s.streams.acquire(client, false) {
		w.Header().Set("Retry-After", "60")
		writeText(w, http.StatusServiceUnavailable, "Too many streams are open: close some, or read changes.json.\n")
		return nil
	}
	defer s.streams.release(client)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	err = s.stream(r.Context(), w, &place)
	if errors.Is(err, publish.ErrNotFound) || r.Context().Err() != nil || w.err != nil {
		return nil
	}
	if err != nil {
		s.log.Error("a stream of changes was cut", "set", place.set.Name, "error", err)
	}
	return err
}

// stream sends pages until ctx or the server ends, the client takes no more, or the set is
// another one.
func (s *Server) stream(ctx context.Context, w *responseWriter, place *changesPlace) error {
	feed, silent := place.set.Feed, time.Now()
	text := fmt.Appendf(nil, "retry: %d\n: changes of %s, feed %s\n\n", streamRetry, place.set.Name, feed)
	tick := time.NewTicker(streamPoll)
	defer tick.Stop()
	for {
		page, err := publish.Changes(ctx, s.opt.Log, s.base, &place.set, place.after, publish.DefaultChanges)
		if err != nil {
			return notFound(err)
		}
		last := place.after
		for i := range page.Changes {
			last = page.Changes[i].Seq
			text = append(fmt.Appendf(text, "id: %d\ndata: ", last), encodeLine(&page.Changes[i])...)
			text = append(text, '\n')
		}
		if last < page.After { // events that are not published were read
			text = fmt.Appendf(text, "id: %d\n\n", page.After)
		}
		if len(text) == 0 && time.Since(silent) >= streamAlive {
			text = append(text, ":\n\n"...)
		}
		if len(text) > 0 {
			if _, err := w.Write(text); err != nil {
				return err
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return err
			}
			text, silent = text[:0], time.Now()
		}
		place.after = page.After
		for more := !page.Complete; ; {
			if !more {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-s.ending.Done():
				case <-tick.C:
				}
			}
			if s.ending.Err() != nil {
				return nil
			}
			if place.set, err = s.opt.Log.Set(ctx, page.Set); err != nil {
				return notFound(err)
			}
			if place.set.Feed != feed {
				return nil // a client that comes back gets 410
			}
			if more || place.set.Last != place.after || time.Since(silent) >= streamAlive {
				break
			}
		}
	}
}
