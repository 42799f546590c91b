package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

const (
	// requestsPath is where a provider returns the number of requests so far, changesPath
	// where a ResourceSync provider adds changes to its Change List.
	requestsPath = "/bench/requests"
	changesPath  = "/bench/changes/"
	// longListPath is the path of the only document of a provider of a long list.
	longListPath = "/list.xml"
)

// chainOf is the job of an Atom-PMH provider with bodies of body bytes, 0 for none.
func chainOf(documents, entries, body int) job {
	return job{Name: "provider", Kind: config.AtomPMH, Documents: documents, Number: entries, Body: body}
}

// sourceOf is the job of a ResourceSync Source with some number of resources in its
// Resource List, and of changes in its Change List.
func sourceOf(resources, changes, body int, latency time.Duration) job {
	return job{Name: "provider", Kind: config.ResourceSync, Number: resources, Changes: changes, Body: body, Latency: latency}
}

// dumpOf is the job of a Source that has its resources in a Resource Dump.
func dumpOf(resources, body int) job {
	j := sourceOf(resources, 0, body, 0)
	j.Dumps = true
	return j
}

// source returns the SOURCE argument to harvest the provider at a job's URL.
func (j *job) source() string {
	switch {
	case j.Kind == config.OAIPMH:
		return config.OAIPMH + ":" + j.URL + oaiPath
	case j.Kind != config.ResourceSync:
		return config.AtomPMH + ":" + j.URL + fixtures.Subscription
	case j.LongList != "":
		return config.ResourceSync + ":" + j.URL + longListPath
	}
	return config.ResourceSync + ":" + j.URL
}

// provide serves the records of a job, by its Kind.
func provide(_ context.Context, j job, ready func(result)) (result, error) {
	var answered, changes atomic.Int64
	changes.Store(int64(j.Changes))
	records := func() http.Handler {
		switch {
		case j.Kind == config.OAIPMH:
			return &testserver.RecordChain{Pages: j.Documents, Records: j.Number, Size: j.Body}
		case j.Kind != config.ResourceSync:
			return &testserver.Chain{Documents: j.Documents, Entries: j.Number, BodySize: j.Body}
		case j.LongList != "":
			return &endlessList{capability: j.LongList, entries: j.Number}
		}
		return &testserver.ResourceChain{Resources: j.Number, Changes: int(changes.Load()), BodySize: j.Body, Latency: j.Latency, Dumps: j.Dumps}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answered.Add(1)
		records().ServeHTTP(w, r)
	})
	mux.HandleFunc(requestsPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, answered.Load())
	})
	mux.HandleFunc(changesPath+"{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		changes.Add(n)
	})
	return result{}, serveUntil(mux, ready)
}

// endlessList is a list with a capability in one document of any length.
type endlessList struct {
	capability string
	entries    int
}

func (l *endlessList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != longListPath {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	out := bufio.NewWriterSize(w, 64<<10)
	defer func() { _ = out.Flush() }() // a client that does not read to the end notices
	stamp, change := `at="2026-01-01T00:00:00Z"`, ""
	if l.capability == "changelist" {
		stamp, change = `from="2026-01-01T00:00:00Z"`, `<rs:md change="created"/>`
	}
	fmt.Fprintf(out, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability=%q %s/>`, l.capability, stamp)
	for i := range l.entries {
		fmt.Fprintf(out, "<url><loc>http://127.0.0.1/r/%07d</loc>%s</url>\n", i, change)
	}
	fmt.Fprint(out, "</urlset>")
}

// serveUntil serves on loopback until the parent ends its input.
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

// requests returns the number of requests that a provider has answered.
func requests(ctx context.Context, url string) (int64, error) {
	text, err := get(ctx, url+requestsPath)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
