package api

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// Record is a record with its events, as bridge record show --json prints it.
type Record struct {
	Set        string `json:"set"`
	Identifier string `json:"identifier"`
	Key        string `json:"key"` // of the record in URLs
	Title      string `json:"title,omitempty"`
	// State is the kind of its last event, Seq its number, and Observed when it was logged.
	State    string    `json:"state"`
	Seq      event.Seq `json:"seq"`
	Observed string    `json:"observed"`
	// URL is where it is published, "" when it is deleted, or is published elsewhere.
	URL string `json:"url,omitempty"`
	// Sources are those that have it or have had it.
	Sources []Presence `json:"sources"`
	// Events are its events, the newest first; with Next there are more.
	Events []Event `json:"events"`
	Next   string  `json:"next,omitempty"`
}

// Presence is what a Source of the set has of a record.
type Presence struct {
	ID   event.SourceID `json:"id"`
	Name string         `json:"name,omitempty"`
	URL  string         `json:"url"`
	// Has reports that the Source has the record; otherwise it had it before.
	Has bool `json:"has"`
}

// FindRecord returns the last event of the record of a set whose identifier, key, or URL
// here is text; fs.ErrNotExist when there is none.
func FindRecord(ctx context.Context, b *daemon.Bridge, set, text string) (*event.Event, error) {
	ev, err := b.Log.Record(ctx, set, event.Key(text))
	if errors.Is(err, fs.ErrNotExist) {
		ev, err = b.Log.Record(ctx, set, text[strings.LastIndexByte(text, '/')+1:])
	}
	return ev, err
}

// RecordOf returns the record of a last event, with at most limit of its events before a
// Seq; before 0 begins with the newest, limit 0 is all. base is the start of published
// URLs.
func RecordOf(ctx context.Context, b *daemon.Bridge, base string, ev *event.Event, before event.Seq, limit int) (*Record, error) {
	set, err := b.Log.Set(ctx, ev.Set)
	if err != nil {
		return nil, err
	}
	out := &Record{Set: ev.Set, Identifier: ev.Record, Key: event.Key(ev.Record), Title: ev.Title, State: ev.Kind.String(), Seq: ev.Seq, Observed: ev.Observed.String(),
		Sources: []Presence{}, Events: []Event{}}
	if ev.Live() && set.Content != event.Reference {
		out.URL = base + "/sets/" + set.Name + "/records/" + out.Key
	}
	sources, err := b.Log.Sources(ctx, ev.Set)
	if err != nil {
		return nil, err
	}
	for i := range sources {
		has, err := b.Log.Presence(ctx, sources[i].ID, ev.Record)
		if err != nil {
			return nil, err
		}
		if has != event.NeverPresent {
			out.Sources = append(out.Sources, Presence{sources[i].ID, sources[i].Name, daemon.Redact(sources[i].URL), has == event.Present})
		}
	}
	return out, b.Log.EventsOf(ctx, ev.Set, out.Key, before, func(e *event.Event) bool {
		if limit > 0 && len(out.Events) == limit {
			out.Next = strconv.FormatInt(int64(out.Events[limit-1].Seq), 10)
			return false
		}
		out.Events = append(out.Events, EventOf(e))
		return true
	})
}

// RecordLine is a record in a list.
type RecordLine struct {
	Identifier string    `json:"identifier"`
	Key        string    `json:"key"`
	Title      string    `json:"title,omitempty"`
	State      string    `json:"state"`
	Seq        event.Seq `json:"seq"`
	Observed   string    `json:"observed"`
}

// SearchTime bounds how long a request searches the log. The next request continues further
// back.
const SearchTime = 80 * time.Millisecond

// Found is what Search has found.
type Found[T any] struct {
	Rows   []T          // the records, the last changed first
	Exact  bool         // it is the one record that has the text as its identifier or URL
	Looked int          // number of searched events
	Back   event.Micros // when the earliest of them was observed
	Next   event.Seq    // before which to continue, 0 at the end
}

// Search finds records of a set whose identifier or title contains a text, and returns a row
// of each, made of its last event. An identifier, or a URL here, is found at once, since the
// log has an index of these; other texts as far back as SearchTime allows.
func Search[T any](ctx context.Context, b *daemon.Bridge, set, text string, before event.Seq, limit int, row func(*event.Event) T) (Found[T], error) {
	out := Found[T]{Rows: []T{}}
	if text != "" && before == 0 {
		ev, err := FindRecord(ctx, b, set, text)
		if err == nil {
			out.Rows, out.Exact = append(out.Rows, row(ev)), true
			return out, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
	}
	until, lower, seen := time.Now().Add(SearchTime), strings.ToLower(text), map[string]bool{}
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), lower) }
	var all []T
	var seqs []event.Seq
	last, err := b.Log.Back(ctx, set, before, func(e *event.Event) bool {
		out.Looked++
		out.Back = e.Observed
		if e.Kind != event.Rejected && !seen[e.Record] && (lower == "" || has(e.Record) || has(e.Title)) {
			seen[e.Record] = true
			all, seqs = append(all, row(e)), append(seqs, e.Seq)
		}
		return len(all) < limit && (out.Looked%64 != 0 || time.Now().Before(until))
	})
	if err != nil {
		return out, err
	}
	if last > 1 {
		out.Next = last
	}
	latest, err := b.Log.Latest(ctx, set, seqs)
	for i := range all { // the others are on an earlier page
		if latest[seqs[i]] {
			out.Rows = append(out.Rows, all[i])
		}
	}
	return out, err
}
