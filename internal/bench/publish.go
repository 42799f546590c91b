package main

import (
	stdgzip "compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/translate"
)

const (
	base    = "https://bridge.example"
	segment = 50_000 // events of the longest Change List that there is
)

// house opens a data folder as bridge serve does without Sources.
func house(ctx context.Context, folder string) (*daemon.House, error) {
	c, err := config.FromArguments(config.Flags{Data: folder, Listen: "127.0.0.1:0"}, nil)
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// changeLists: the longest Change List there is, from the log to compressed
// bytes in the cache.
func (b *bench) changeLists() error {
	folder, done, err := b.work("changelist")
	if err != nil {
		return err
	}
	defer done()
	if _, err := b.do(job{Name: "build", Folder: folder, Content: config.Mirror, Number: segment, Segment: segment}); err != nil {
		return err
	}
	var ours, rival result
	for range b.runs {
		r, err := b.do(job{Name: "changelist", Folder: folder, Repeat: 5})
		if err != nil {
			return err
		}
		ours = faster(ours, r)
		if r, err = b.do(job{Name: "encode", Folder: folder, Repeat: 2}); err != nil {
			return err
		}
		rival = faster(rival, r)
	}
	have, bare := rate(segment, ours.Took), rate(segment, rival.Took)
	row{name: "cold Change List of 50,000 events, log to gzip", ours: perSecond(have, "urls"),
		rival: "encoding/xml and compress/gzip: " + perSecond(bare, "urls"), ratio: have / bare, peak: ours.Peak,
		bars: []bar{atLeast("250,000/s", have, 250_000), under(30, ours.Peak)}}.print()
	return nil
}

// renderChangeList renders the first segment, each time with an empty cache;
// Took is the best time.
func renderChangeList(ctx context.Context, j job, _ func(result)) (best result, err error) {
	h, err := house(ctx, j.Folder)
	if err != nil {
		return best, err
	}
	for range j.Repeat {
		var r result
		if r, err = renderCold(ctx, h); err != nil {
			break
		}
		best = faster(best, r)
	}
	return best, errors.Join(err, h.Close())
}

func renderCold(ctx context.Context, h *daemon.House) (result, error) {
	if err := os.RemoveAll(filepath.Join(h.Config.Data, "cache")); err != nil {
		return result{}, err
	}
	p, err := h.Publisher(base)
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	doc, err := p.Document(ctx, "/sets/main/changelist/1.xml", true)
	if err != nil {
		return result{}, err
	}
	body, size, err := doc.Open()
	if err != nil {
		return result{}, err
	}
	took := time.Since(start)
	if !doc.Immutable {
		err = errors.New("the segment is not closed: its Change List is not what was to be measured")
	}
	return result{Took: took, Bytes: size}, errors.Join(err, body.Close())
}

// xmlURL is a Change List's entry for encoding/xml.
type xmlURL struct {
	XMLName xml.Name  `xml:"url"`
	Loc     string    `xml:"loc"`
	LastMod string    `xml:"lastmod"`
	MD      xmlMD     `xml:"rs:md"`
	Links   []xmlLink `xml:"rs:ln"`
}

type xmlMD struct {
	Change   string `xml:"change,attr"`
	Datetime string `xml:"datetime,attr"`
	Hash     string `xml:"hash,attr"`
	Length   int64  `xml:"length,attr"`
	Type     string `xml:"type,attr"`
	ID       string `xml:"b:id,attr"`
	Title    string `xml:"b:title,attr"`
}

type xmlLink struct {
	Rel      string `xml:"rel,attr"`
	Href     string `xml:"href,attr"`
	Modified string `xml:"modified,attr"`
	Hash     string `xml:"hash,attr"`
	Length   int64  `xml:"length,attr"`
	Type     string `xml:"type,attr"`
}

// encodeChangeList is the rival: the same entries from the same log through
// encoding/xml's Encoder and compress/gzip, into nothing.
func encodeChangeList(ctx context.Context, j job, _ func(result)) (best result, err error) {
	l, err := eventlog.Open(ctx, j.Folder, eventlog.Options{ReadOnly: true})
	if err != nil {
		return best, err
	}
	for range j.Repeat {
		start := time.Now()
		if err = encode(ctx, l); err != nil {
			break
		}
		best = faster(best, result{Took: time.Since(start)})
	}
	return best, errors.Join(err, l.Close())
}

func encode(ctx context.Context, l *eventlog.Log) error {
	zw := stdgzip.NewWriter(io.Discard)
	enc := xml.NewEncoder(zw)
	for e, err := range l.Events(ctx, "main", event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			return err
		}
		r := &e.Representations[e.Preferred]
		u := xmlURL{Loc: translate.RecordURL(base, "main", e.Record), LastMod: e.Observed.Time().Format("2006-01-02T15:04:05Z"),
			MD:    xmlMD{Change: e.Kind.String(), Datetime: e.Observed.String(), Hash: r.Hash, Length: r.Length, Type: r.Type, ID: e.Record, Title: e.Title},
			Links: []xmlLink{{Rel: "via", Href: e.Via.Href, Modified: e.Via.Modified.String(), Hash: e.Via.Hash, Length: e.Via.Length, Type: e.Via.Type}}}
		if err := enc.Encode(&u); err != nil {
			return err
		}
	}
	return errors.Join(enc.Close(), zw.Close())
}

// snapshots: all live records into the parts of a Resource List.
func (b *bench) snapshots() error {
	folder, done, err := b.work("snapshot")
	if err != nil {
		return err
	}
	defer done()
	records := b.scaled(1_000_000)
	if _, err := b.do(job{Name: "build", Folder: folder, Content: config.Mirror, Number: records}); err != nil {
		return err
	}
	var ours result
	for range b.runs {
		r, err := b.do(job{Name: "snapshot", Folder: folder})
		if err != nil {
			return err
		}
		ours = faster(ours, r)
	}
	row{name: "snapshot of " + thousands(float64(records)) + " records, gzip, durable", ours: fmt.Sprintf("%s (%s)", short(ours.Took), perSecond(rate(int64(records), ours.Took), "urls")),
		peak: ours.Peak, cpu: ours.CPU, bars: []bar{below("under 7 s", ours.Took.Seconds(), 7), under(100, ours.Peak)}}.print()
	return nil
}

// makeSnapshot makes one where none is, and checks that it is shown.
func makeSnapshot(ctx context.Context, j job, _ func(result)) (r result, err error) {
	h, err := house(ctx, j.Folder)
	if err != nil {
		return r, err
	}
	r, err = snapshot(ctx, h)
	return r, errors.Join(err, h.Close())
}

func snapshot(ctx context.Context, h *daemon.House) (r result, err error) {
	if err := os.RemoveAll(filepath.Join(h.Config.Data, "snapshots")); err != nil {
		return r, err
	}
	p, err := h.Publisher(base)
	if err != nil {
		return r, err
	}
	start := time.Now()
	if err := p.Snapshot(ctx, "main"); err != nil {
		return r, err
	}
	r.Took = time.Since(start)
	items, err := p.Plan(ctx, "main")
	if err != nil {
		return r, err
	}
	for _, it := range items {
		if it.Kind == publish.ResourceListPart {
			r.Count++
		}
	}
	if r.Count == 0 {
		err = errors.New("the snapshot has no parts: the set is too small for one")
	}
	return r, err
}
