package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// longListPath is where the one document of the provider of a long list is.
const longListPath = "/list.xml"

// longLists: a list sixty times as long as one may be, in one document: of
// resources, and of changes. What counts is the memory of the process.
func (b *bench) longLists() error {
	entries := b.scaled(3 * million)
	for _, capability := range []string{"resourcelist", "changelist"} {
		var r result
		err := b.in("longlist", func(folder string) error {
			return b.beside(job{Name: "longlist", Path: capability, Number: entries}, func(url string) error {
				return b.try(&r, job{Name: "takelong", Folder: folder, URL: url + longListPath, Kind: config.ResourceSync, Content: config.Reference})
			})
		})
		if err == nil && (r.Count != int64(entries) || r.Bytes != int64(entries)) {
			err = fmt.Errorf("%s of %d entries: %d were read, and %d events logged", capability, entries, r.Count, r.Bytes)
		}
		err = show(err, row{name: fmt.Sprintf("%s of %s entries in one document, mode reference (once)", capability, thousands(float64(entries))),
			ours: perSecond(rate(r.Count, r.Took), "entries"), peak: r.Peak, cpu: r.CPU, bars: []bar{under(250, r.Peak)}})
		if err != nil {
			return err
		}
	}
	return nil
}

// serveLongList serves a list of a job's capability (its Path) and length, as it is
// being written.
func serveLongList(_ context.Context, j job, ready func(result)) (result, error) {
	return result{}, serveUntil(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != longListPath {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/xml")
		out := bufio.NewWriterSize(w, 64<<10)
		defer func() { _ = out.Flush() }() // who does not read it to its end finds out
		stamp, change := `at="2026-01-01T00:00:00Z"`, ""
		if j.Path == "changelist" {
			stamp, change = `from="2026-01-01T00:00:00Z"`, `<rs:md change="created"/>`
		}
		fmt.Fprintf(out, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability=%q %s/>`, j.Path, stamp)
		for i := range j.Number {
			fmt.Fprintf(out, "<url><loc>http://127.0.0.1/r/%07d</loc>%s</url>\n", i, change)
		}
		fmt.Fprint(out, "</urlset>")
	}), ready)
}

// takeLongList harvests the list at a job's URL, whatever there is to say of it.
func takeLongList(ctx context.Context, j job, _ func(result)) (result, error) {
	h, err := openOn(ctx, &j)
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	r, err := h.Harvest(ctx, h.Sources[0], harvest.Options{})
	took := time.Since(start)
	if err == nil && (r.Gap != "" || r.Error != "") {
		err = fmt.Errorf("the list was not taken: %s%s", r.Gap, r.Error)
	}
	return result{Took: took, Count: r.Entries, Bytes: r.Events()}, errors.Join(err, h.Close())
}
