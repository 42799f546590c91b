package eventlog

import (
	"context"
	"database/sql"

	"github.com/pmh-bridge/bridge/event"
)

// document returns the id of the item's document, giving it one when something
// first refers to it.
func (b *batch) document(ctx context.Context, i int) (int64, error) {
	if len(b.in.Documents) == 0 {
		return 0, nil
	}
	return b.documentOf(ctx, b.in.Documents[b.in.Items[i].Document])
}

func (b *batch) documentOf(ctx context.Context, d event.Document) (int64, error) {
	d.Bound()
	if id, ok := b.docs[d]; ok {
		return id, nil
	}
	asked := d
	var feed []byte
	if d.Feed != nil { // of the same feed there may be many copies
		feed = appendFeed(nil, d.Feed)
		if same := b.feeds[string(feed)]; same == nil {
			b.feeds[string(feed)] = d.Feed
		} else if d.Feed = same; b.docs[d] != 0 {
			b.docs[asked] = b.docs[d]
			return b.docs[d], nil
		}
	}
	if b.in.Mode == event.ModeSubmission { // a service is one document for ever
		if id, err := b.service(ctx, d); id != 0 || err != nil {
			return id, err
		}
	}
	var id int64
	if err := b.tx.Each(ctx, "INSERT INTO document (source, url, feed_id, title, updated, feed, sum) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id",
		[]any{int64(b.source.id), d.URL, d.FeedID, d.FeedTitle, stampArg(d.FeedUpdated), feed, documentSum(b.source.id, &d, feed)},
		func(rows *sql.Rows) error { return rows.Scan(&id) }); err != nil {
		return 0, err
	}
	b.docs[d], b.docs[asked] = id, id
	return id, nil
}

func documentSum(source event.SourceID, d *event.Document, feed []byte) int64 {
	return sumOf(source, d.URL, d.FeedID, d.FeedTitle, d.FeedUpdated, feed)
}

// service finds the row of a document that the Source's events came from before.
// Submissions commit in small groups, and each would add another.
func (b *batch) service(ctx context.Context, d event.Document) (id int64, err error) {
	key := servedBy{b.source.id, d}
	if id := b.l.services[key]; id != 0 {
		b.docs[d] = id
		return id, nil
	}
	if d != (event.Document{URL: d.URL}) {
		return 0, nil
	}
	err = b.tx.Each(ctx, "SELECT max(id) FROM document WHERE source = $1 AND url = $2 AND feed_id = '' AND title = '' AND updated IS NULL",
		[]any{int64(b.source.id), d.URL}, func(rows *sql.Rows) error {
			var n sql.NullInt64
			err := rows.Scan(&n)
			id = n.Int64
			return err
		})
	if id != 0 && err == nil {
		b.docs[d] = id
	}
	return id, err
}

// servedBy is a Source and what its documents say of themselves.
type servedBy struct {
	source   event.SourceID
	document event.Document
}

// remember keeps the numbers of a batch's documents, now that it has committed.
func (b *batch) remember() {
	if b.in.Mode != event.ModeSubmission {
		return
	}
	if len(b.l.services) > 1000 {
		clear(b.l.services)
	}
	for d, id := range b.docs {
		b.l.services[servedBy{b.source.id, d}] = id
	}
}
