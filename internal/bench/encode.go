package main

import (
	stdgzip "compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/translate"
)

// xmlURL is an entry of a Change List for encoding/xml.
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

// xmlEntry is an entry of an archive document for encoding/xml.
type xmlEntry struct {
	XMLName xml.Name      `xml:"entry"`
	ID      string        `xml:"id"`
	Title   string        `xml:"title"`
	Updated string        `xml:"updated"`
	Links   []xmlAtomLink `xml:"link"`
	Source  xmlSource     `xml:"source"`
}

type xmlAtomLink struct {
	Rel      string `xml:"rel,attr"`
	Href     string `xml:"href,attr"`
	Type     string `xml:"type,attr"`
	Length   int64  `xml:"length,attr,omitempty"`
	Modified string `xml:"b:modified,attr,omitempty"`
	Hash     string `xml:"b:hash,attr,omitempty"`
	Carried  int64  `xml:"b:length,attr,omitempty"`
}

type xmlSource struct {
	ID    string `xml:"id"`
	Title string `xml:"title"`
}

// encodeChangeList is the rival of a Change List: it encodes the same entries from the same
// log with encoding/xml's Encoder and compress/gzip, and discards the result.
func encodeChangeList(ctx context.Context, j job, _ func(result)) (result, error) {
	return encoded(ctx, j, func(e *event.Event, r *event.Representation) any {
		return &xmlURL{Loc: translate.RecordURL(base, "main", e.Record), LastMod: e.Observed.Time().Format("2006-01-02T15:04:05Z"),
			MD:    xmlMD{Change: e.Kind.String(), Datetime: e.Observed.String(), Hash: r.Hash, Length: r.Length, Type: r.Type, ID: e.Record, Title: e.Title},
			Links: []xmlLink{{Rel: "via", Href: e.Via.Href, Modified: e.Via.Modified.String(), Hash: e.Via.Hash, Length: e.Via.Length, Type: e.Via.Type}}}
	})
}

// encodeFeed is the rival of an archive document, like encodeChangeList.
func encodeFeed(ctx context.Context, j job, _ func(result)) (result, error) {
	return encoded(ctx, j, func(e *event.Event, r *event.Representation) any {
		return &xmlEntry{ID: e.Record, Title: e.Title, Updated: e.Observed.String(), Links: []xmlAtomLink{
			{Rel: "alternate", Href: translate.RecordURL(base, "main", e.Record), Type: r.Type, Length: r.Length, Hash: r.Hash},
			{Rel: "via", Href: e.Via.Href, Type: e.Via.Type, Modified: e.Via.Modified.String(), Hash: e.Via.Hash, Carried: e.Via.Length}},
			Source: xmlSource{e.Origin.FeedID, e.Origin.FeedTitle}}
	})
}

// encoded encodes the events of the first segment. entry makes an entry from an event and
// its preferred representation.
func encoded(ctx context.Context, j job, entry func(*event.Event, *event.Representation) any) (best result, err error) {
	l, err := eventlog.Open(ctx, j.Folder, eventlog.Options{ReadOnly: true})
	if err != nil {
		return best, err
	}
	for range j.Repeat {
		start := time.Now()
		if err = encode(ctx, l, entry); err != nil {
			break
		}
		best = faster(best, result{Took: time.Since(start)})
	}
	return best, errors.Join(err, l.Close())
}

func encode(ctx context.Context, l *eventlog.Log, entry func(*event.Event, *event.Representation) any) error {
	zw := stdgzip.NewWriter(io.Discard)
	enc := xml.NewEncoder(zw)
	for e, err := range l.Events(ctx, "main", event.Range{Upto: segment}) {
		if err != nil {
			return err
		}
		if err := enc.Encode(entry(e, &e.Representations[e.Preferred])); err != nil {
			return err
		}
	}
	return errors.Join(enc.Close(), zw.Close())
}
