package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/sip"
)

// The kinds of messages that are posted.
const (
	newRecords   = "new"    // requests, each of a record of its own
	halfRecords  = "half"   // the same, but every other one is another version of a record of newRecords
	dispositions = "notify" // to the recipients of made-up submissions; see buildSubmissions
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
		record += 1 << 24 // none of newRecords
	}
	q := &sip.Request{Source: sourceOfRecord(record), Record: sip.Record{XML: appendRecord(nil, record, version, filling)}}
	return servicePath, sip.AppendMessage(nil, &sip.Message{Kind: sip.KindRequest, Request: q})
}

func sourceOfRecord(n int) *sip.Source {
	id := identifier(n)
	return &sip.Source{Submitter: &sip.Submitter{Name: "Survey", EmailAddress: "survey@bench.example"}, Identifier: &id}
}

// token of a made-up submission, as scattered as real ones.
func token(n int) string {
	sum := sha256.Sum256([]byte(identifier(n)))
	return fmt.Sprintf("%X", sum[:13])
}

// postAll posts Number messages of a kind, Path, on Repeat connections that are
// kept. Took is from the first to the last answer; each has to be what the
// protocol wants. Half and Tail are how long half of them, and 99 in a hundred,
// took at most.
func postAll(ctx context.Context, j job, _ func(result)) (result, error) {
	u, err := url.Parse(j.URL)
	if err != nil {
		return result{}, err
	}
	each := make([]time.Duration, j.Number)
	var next atomic.Int64
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	start := time.Now()
	for range j.Repeat {
		group.Go(func() {
			if err := postSome(ctx, u.Host, j.Path, &next, each); err != nil {
				stop(err)
			}
		})
	}
	group.Wait()
	took := time.Since(start)
	slices.Sort(each)
	return result{Took: took, Count: int64(j.Number), Half: each[len(each)/2], Tail: each[len(each)*99/100]}, context.Cause(ctx)
}

// postSome posts the messages whose turn it is on one connection, and writes down
// how long each took.
func postSome(ctx context.Context, host, kind string, next *atomic.Int64, each []time.Duration) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	in, filling := bufio.NewReaderSize(conn, 16<<10), filling()
	var out []byte
	for ctx.Err() == nil {
		n := int(next.Add(1)) - 1
		if n >= len(each) {
			return nil
		}
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

// acknowledged reads one answer: the disposition accepted, or 202 for a notification.
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

// postBare is the rival of an outbox: the same records to the same server in the
// same messages, Repeat at a time, with net/http's client, and nothing is kept
// before or after.
func postBare(ctx context.Context, j job, _ func(result)) (result, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: j.Repeat, DisableCompression: true}}
	var next atomic.Int64
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	start := time.Now()
	for range j.Repeat {
		group.Go(func() {
			filling := filling()
			for n := int(next.Add(1)) - 1; n < j.Number && ctx.Err() == nil; n = int(next.Add(1)) - 1 {
				path, body := message(newRecords, n, filling)
				if err := postOne(ctx, client, j.URL+path, body); err != nil {
					stop(err)
				}
			}
		})
	}
	group.Wait()
	return result{Took: time.Since(start), Count: int64(j.Number)}, context.Cause(ctx)
}

func postOne(ctx context.Context, client *http.Client, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "text/xml; charset=utf-8")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
