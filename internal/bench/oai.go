package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
)

const (
	oaiPage   = 1000 // records of a page
	oaiRecord = 1600 // bytes of a record, its header included
	oaiPath   = "/oai"
)

// recordsOf is the job of an OAI-PMH repository with n records.
func recordsOf(n int) job {
	return job{Name: "provider", Kind: config.OAIPMH, Documents: n / oaiPage, Number: oaiPage, Body: oaiRecord}
}

// savePages is the rival of an OAI-PMH harvest: it walks the list as most harvesters do,
// and stores each page compressed and durably in a file before it requests the next one. It
// parses nothing of a page but the token.
func savePages(ctx context.Context, j job, _ func(result)) (out result, err error) {
	start := time.Now()
	query := url.Values{"verb": {"ListRecords"}, "metadataPrefix": {"oai_dc"}}
	for n := 0; ; n++ {
		page, err := get(ctx, j.URL+oaiPath+"?"+query.Encode())
		if err != nil {
			return out, err
		}
		token, err := tokenOf(page)
		if err != nil {
			return out, err
		}
		if err := saveCompressed(filepath.Join(j.Folder, fmt.Sprintf("page-%06d.xml.gz", n)), page); err != nil {
			return out, err
		}
		out.Count += int64(bytes.Count(page, []byte("<record>")))
		out.Requests++
		if token == "" {
			out.Took = time.Since(start)
			return out, nil
		}
		query = url.Values{"verb": {"ListRecords"}, "resumptionToken": {token}}
	}
}

// tokenOf returns the resumptionToken of a page, which is near its end.
func tokenOf(page []byte) (string, error) {
	at := bytes.LastIndex(page, []byte("<resumptionToken"))
	if at < 0 {
		return "", nil
	}
	var token string
	err := xml.NewDecoder(bytes.NewReader(page[at:])).Decode(&token)
	return token, err
}

func saveCompressed(name string, page []byte) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := gzip.NewWriter(f)
	if _, err := z.Write(page); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return f.Sync()
}

// oaiRows are a harvest of all records with its rival, and one of an unchanged repository.
func oaiRows(n int) rowsOf {
	return func(all []results) ([]row, error) {
		r := last(all).jobs
		ours, again, rival := r[0], r[1], r[2]
		if ours.Events != int64(n) || rival.Count != int64(n) || again.Events != 0 {
			return nil, fmt.Errorf("%d and %d of %d records were taken, then %d", ours.Events, rival.Count, n, again.Events)
		}
		have, plain := rate(ours.Count, ours.Took), rate(rival.Count, rival.Took)
		return []row{
			{name: fmt.Sprintf("OAI-PMH: %s records of 1.6 KB in pages of %s, mirror, durable", thousands(n), thousands(oaiPage)), ours: perSecond(have, "records"),
				rival: "a plain client that stores pages, gzip, fsync: " + perSecond(plain, "records"), ratio: have / plain, peak: ours.Peak, cpu: ours.CPU,
				bars: []bar{atLeast("25,000/s", have, 25_000), under(250, ours.Peak)}},
			{name: "harvested again, unchanged", ours: fmt.Sprintf("%s, %d requests, %d events", short(again.Took), again.Requests, again.Events), peak: again.Peak,
				bars: []bar{exactly("2 requests", again.Requests, 2), exactly("0 events", again.Events, 0)}},
		}, nil
	}
}

// oaiMemoryRow is the memory of a harvest of n records. The measurement before it is the
// same with half of them.
func oaiMemoryRow(n int) rowsOf {
	return func(all []results) ([]row, error) {
		half, ours := all[0].jobs[0], last(all).jobs[0]
		if ours.Events != int64(n) || half.Events != int64(n/2) {
			return nil, fmt.Errorf("%d and %d of %d records were taken", half.Events, ours.Events, n)
		}
		growth := float64(ours.Peak) / float64(half.Peak)
		return []row{{name: fmt.Sprintf("its memory with %s records", thousands(n)), ours: megabytes(ours.Peak), rival: "with half of them: " + megabytes(half.Peak), ratio: growth, peak: ours.Peak, cpu: ours.CPU,
			bars: []bar{below("flat, within 1.1", growth, 1.1)}}}, nil
	}
}
