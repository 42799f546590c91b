package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// Where a provider answers how many requests it has had, and where one of ResourceSync
// gets the number of changes in its Change List.
const (
	requestsPath = "/bench/requests"
	changesPath  = "/bench/changes/"
)

// chainOf is the job of an Atom-PMH provider with bodies of so many bytes, 0 for
// none.
func chainOf(documents, entries, body int) job {
	return job{Name: "provider", Kind: config.AtomPMH, Documents: documents, Number: entries, Body: body}
}

// sourceOf is the job of a ResourceSync Source: so many resources in its Resource
// List, and so many more in its Change List.
func sourceOf(resources, changes, body int, latency time.Duration) job {
	return job{Name: "provider", Kind: config.ResourceSync, Number: resources, Changes: changes, Body: body, Latency: latency}
}

// source is the SOURCE that a user types to harvest the provider at a job's URL.
func (j *job) source() string {
	if j.Kind == config.ResourceSync {
		return config.ResourceSync + ":" + j.URL
	}
	return config.AtomPMH + ":" + j.URL + fixtures.Subscription
}

// provide serves the records of a job, of its kind.
func provide(_ context.Context, j job, ready func(result)) (result, error) {
	var now atomic.Pointer[http.Handler]
	change := func(changes int) {
		var h http.Handler = &testserver.Chain{Documents: j.Documents, Entries: j.Number, BodySize: j.Body}
		if j.Kind == config.ResourceSync {
			h = &testserver.ResourceChain{Resources: j.Number, Changes: changes, BodySize: j.Body, Latency: j.Latency}
		}
		now.Store(&h)
	}
	change(j.Changes)
	var answered atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answered.Add(1)
		(*now.Load()).ServeHTTP(w, r)
	})
	mux.HandleFunc(requestsPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, answered.Load())
	})
	mux.HandleFunc(changesPath+"{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.PathValue("n"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		change(n)
	})
	return result{}, serveUntil(mux, ready)
}

// serveUntil serves on loopback until the parent wants no more.
func serveUntil(h http.Handler, ready func(result)) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	ready(result{URL: "http://" + l.Addr().String()})
	err = s.Close()
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// requests asks a provider how many requests it has answered.
func requests(ctx context.Context, url string) (int64, error) {
	text, err := get(ctx, url+requestsPath)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// setChanges sets how many changes the Change List of a ResourceSync Source has.
func setChanges(ctx context.Context, url string, n int) error {
	_, err := get(ctx, url+changesPath+strconv.Itoa(n))
	return err
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, err
}

// beside runs use beside a provider.
func (b *bench) beside(provider job, use func(url string) error) error {
	p, at, err := b.serve(provider)
	if err != nil {
		return err
	}
	err = use(at.URL)
	_, ended := p.end()
	return errors.Join(err, ended)
}
