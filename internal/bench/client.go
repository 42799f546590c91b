package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// parallel runs workers calls of work at once, until one fails. next returns the next
// number below n, each number once, and false when there are no more.
func parallel(ctx context.Context, workers, n int, work func(ctx context.Context, next func() (int, bool)) error) (time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var taken atomic.Int64
	next := func() (int, bool) {
		i := int(taken.Add(1)) - 1
		return i, i < n && ctx.Err() == nil
	}
	var group sync.WaitGroup
	start := time.Now()
	for range workers {
		group.Go(func() {
			if err := work(ctx, next); err != nil {
				stop(err)
			}
		})
	}
	group.Wait()
	return time.Since(start), context.Cause(ctx)
}

// reply is the response of a server, read to the end.
type reply struct {
	code   int
	status string
	header http.Header
	body   []byte
}

// send sends a request and reads the response.
func send(ctx context.Context, client *http.Client, method, url string, header http.Header, body []byte) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Status, resp.Header, content}, err
}

// get returns the body of a response with 200 OK.
func get(ctx context.Context, url string) ([]byte, error) {
	a, err := send(ctx, http.DefaultClient, http.MethodGet, url, nil, nil)
	if err == nil && a.code != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, a.status)
	}
	return a.body, err
}
