package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/sip"
)

// The kinds of messages that are posted.
const (
	newRecords   = "new"    // requests, each of a record of its own
	halfRecords  = "half"   // the same, but every other one is a new version of a record of newRecords
	dispositions = "notify" // to the recipients of invented submissions; see buildSubmissions
)

// message returns the path and the body of the n-th POST of a kind.
func message(kind string, n int, filling string) (path string, body []byte) {
	record, version := n, 1
	switch {
	case kind == dispositions:
		d := &sip.Disposition{Source: sourceOfRecord(n), Outcome: sip.Accepted, AssignedIdentifier: fmt.Sprintf("B-%08d", n)}
		return servicePath + "/" + token(n), sip.AppendMessage(nil, &sip.Message{Kind: sip.KindDisposition, Disposition: d})
	case kind == halfRecords && n%2 == 0:
		version = 2
	case kind == halfRecords:
		record += 1 << 24 // not one of newRecords
	}
	q := &sip.Request{Source: sourceOfRecord(record), Record: sip.Record{XML: appendRecord(nil, record, version, filling)}}
	return servicePath, sip.AppendMessage(nil, &sip.Message{Kind: sip.KindRequest, Request: q})
}

func sourceOfRecord(n int) *sip.Source {
	id := identifier(n)
	return &sip.Source{Submitter: &sip.Submitter{Name: "Survey", EmailAddress: "survey@bench.example"}, Identifier: &id}
}

// token returns the token of an invented submission, as random as real ones.
func token(n int) string {
	sum := sha256.Sum256([]byte(identifier(n)))
	return fmt.Sprintf("%X", sum[:13])
}

// postAll posts Number messages of a kind on Repeat keep-alive connections. Took is from
// the first to the last response; each response must be that of the protocol. Half and Tail
// are the times within which half of them, and 99 in a hundred, came.
func postAll(ctx context.Context, j job, _ func(result)) (result, error) {
	u, err := url.Parse(j.URL)
	if err != nil {
		return result{}, err
	}
	each := make([]time.Duration, j.Number)
	took, err := parallel(ctx, j.Repeat, j.Number, func(ctx context.Context, next func() (int, bool)) error {
		return postSome(ctx, u.Host, j.Kind, next, each)
	})
	slices.Sort(each)
	return result{Took: took, Count: int64(j.Number), Half: each[len(each)/2], Tail: each[len(each)*99/100]}, err
}

// postSome posts the next messages on one connection, and stores how long each took.
func postSome(ctx context.Context, host, kind string, next func() (int, bool), each []time.Duration) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	in, filling := bufio.NewReaderSize(conn, 16<<10), filling()
	var out []byte
	for n, more := next(); more; n, more = next() {
		path, body := message(kind, n, filling)
		out = fmt.Appendf(out[:0], "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: text/xml; charset=utf-8\r\nSOAPAction: \"\"\r\nContent-Length: %d\r\n\r\n", path, host, len(body))
		out = append(out, body...)
		start := time.Now()
		if _, err := conn.Write(out); err != nil {
			return err
		}
		if err := acknowledged(in, kind); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		each[n] = time.Since(start)
	}
	return nil
}

// acknowledged reads one response: the disposition accepted, or 202 for a notification.
func acknowledged(in *bufio.Reader, kind string) error {
	want := "HTTP/1.1 200 OK"
	if kind == dispositions {
		want = "HTTP/1.1 202 Accepted"
	}
	h, err := readHead(in)
	if err == nil && h.status != want {
		err = fmt.Errorf("a server answered %q", h.status)
	}
	if err != nil {
		return err
	}
	body := make([]byte, max(h.length, 0))
	if _, err := io.ReadFull(in, body); err != nil {
		return err
	}
	if kind != dispositions && !bytes.Contains(body, []byte("assigned-identifier>")) {
		return fmt.Errorf("a server answered %q", body)
	}
	return nil
}

// postBare is the rival of an outbox: it sends the same records to the same server in the
// same messages, Repeat at a time, with net/http's client, and stores nothing.
func postBare(ctx context.Context, j job, _ func(result)) (result, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: j.Repeat, DisableCompression: true}}
	header := http.Header{"Content-Type": {"text/xml; charset=utf-8"}}
	took, err := parallel(ctx, j.Repeat, j.Number, func(ctx context.Context, next func() (int, bool)) error {
		filling := filling()
		for n, more := next(); more; n, more = next() {
			path, body := message(newRecords, n, filling)
			a, err := send(ctx, client, http.MethodPost, j.URL+path, header, body)
			if err == nil && a.code != http.StatusOK {
				err = fmt.Errorf("%s: %s", j.URL+path, a.status)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return result{Took: took, Count: int64(j.Number)}, err
}

const (
	// outboxWorkers is how many requests an outbox has under way by default.
	outboxWorkers = 4
	// lookEvery is how often the progress of an outbox is read.
	lookEvery = 50 * time.Millisecond
	tenths    = 10
)

// tenth is the state of an outbox when it has sent another tenth.
type tenth struct {
	At       time.Duration // since the start
	Resident int64         // memory of the process, in bytes
}

// drainOutbox runs bridge serve until all Number records have been submitted to the server
// at the job's URL and accepted. Other is the time until the first one arrived.
func drainOutbox(ctx context.Context, j job, _ func(result)) (r result, err error) {
	before, err := requests(ctx, j.URL)
	if err != nil {
		return r, err
	}
	start := time.Now()
	h, err := openSIP(ctx, j.Folder, targetLines(j.URL+servicePath))
	if err != nil {
		return r, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, errors.Join(err, h.Close())
	}
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := h.Serve(ctx, l, nil)
		stop(err)
		ended <- err
	}()
	err = r.watch(ctx, j, h, start, before)
	stop(nil)
	return r, errors.Join(err, <-ended, h.Close())
}

// watch polls the server until it has everything, then the log until it has stored that.
func (r *result) watch(ctx context.Context, j job, h *daemon.Bridge, start time.Time, before int64) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the bridge ended early: %w", context.Cause(ctx))
		case <-tick.C:
		}
		n, err := requests(ctx, j.URL)
		if err != nil {
			return err
		}
		n -= before
		if n > 0 && r.Other == 0 {
			r.Other = time.Since(start)
		}
		for n >= int64((len(r.Tenths)+1)*j.Number/tenths) && len(r.Tenths) < tenths {
			r.Tenths = append(r.Tenths, tenth{time.Since(start), memory("self", "VmRSS")})
		}
		if n < int64(j.Number) {
			continue
		}
		r.Took = time.Since(start)
		if r.Count, err = acceptedBy(ctx, h.SIP); err != nil || r.Count == int64(j.Number) {
			return err
		}
		if n > int64(j.Number) {
			return fmt.Errorf("%d requests were sent for %d records", n, j.Number)
		}
	}
}
