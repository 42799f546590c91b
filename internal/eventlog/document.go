package eventlog

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
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
	row := documentRow{source: b.source.id}
	if d.Feed != nil { // of the same feed there may be many copies
		row.feed = appendFeed(nil, d.Feed)
		if same := b.feeds[string(row.feed)]; same == nil {
			b.feeds[string(row.feed)] = d.Feed
		} else if d.Feed = same; b.docs[d] != 0 {
			b.docs[asked] = b.docs[d]
			return b.docs[d], nil
		}
	}
	if b.in.Mode == event.ModeSubmission { // all submissions to a SIP service have the same document
		if id, err := b.service(ctx, d); id != 0 || err != nil {
			return id, err
		}
	}
	row.Document = d
	if err := b.tx.Each(ctx, "INSERT INTO document (id, source, url, feed_id, title, updated, feed, sum) VALUES ((SELECT coalesce(max(id), 0) + 1 FROM document), $1, $2, $3, $4, $5, $6, $7) RETURNING id",
		[]any{int64(row.source), d.URL, d.FeedID, d.FeedTitle, stampArg(d.FeedUpdated), row.feed, row.sum()},
		func(rows *sql.Rows) error { return rows.Scan(&row.id) }); err != nil {
		return 0, err
	}
	b.docs[d], b.docs[asked] = row.id, row.id
	return row.id, nil
}

// documentRow is a row of table document.
type documentRow struct {
	event.Document
	id     int64
	source event.SourceID
	feed   []byte // Document.Feed as it is stored
	kind   string // of the Source when it got another one, "" for the one that it has
}

const selectDocuments = "SELECT id, source, url, feed_id, title, updated, feed, kind, sum FROM document"

func (d *documentRow) sum() int64 {
	all := []any{d.source, d.URL, d.FeedID, d.FeedTitle, d.FeedUpdated, d.feed}
	if d.kind != "" { // few documents have one
		all = append(all, d.kind)
	}
	return sumOf(all...)
}

func (d *documentRow) scan(rows *sql.Rows) (err error) {
	var updated sql.NullInt64
	var sum int64
	if err := rows.Scan(&d.id, &d.source, &d.URL, &d.FeedID, &d.FeedTitle, &updated, &d.feed, &d.kind, &sum); err != nil {
		return err
	}
	if d.FeedUpdated = stampOf(updated); sum != d.sum() {
		return ErrDamaged
	}
	d.Feed, err = readFeed(d.feed)
	return err
}

// readDocument returns a document with its Source; nothing of document 0.
func readDocument(ctx context.Context, q database.Querier, id int64) (d documentRow, src sourceConfig, err error) {
	if id == 0 {
		return d, src, nil
	}
	if err = database.Each(ctx, q, selectDocuments+" WHERE id = $1", []any{id}, d.scan); err == nil && d.id == 0 {
		err = sql.ErrNoRows
	}
	if err == nil {
		src, err = readSource(ctx, q, d.source)
	}
	if err != nil {
		err = fmt.Errorf("document %d: %w: run bridge verify", id, err)
	}
	if d.kind != "" {
		src.kind = d.kind
	}
	return d, src, err
}

// keepKind notes in the documents of a Source that is to have another kind the one that it
// had: what was logged, and is published, says so for ever (I1).
func (l *Log) keepKind(ctx context.Context, tx *database.Tx, was *sourceConfig) error {
	sums := map[int64]int64{}
	if err := tx.Each(ctx, selectDocuments+" WHERE source = $1 AND kind = ''", []any{int64(was.id)}, func(rows *sql.Rows) error {
		var d documentRow
		err := d.scan(rows)
		if err != nil {
			err = fmt.Errorf("document %d: %w: run bridge verify", d.id, err)
		}
		d.kind = was.kind
		sums[d.id] = d.sum()
		return err
	}); err != nil {
		return err
	}
	for id, sum := range sums {
		if err := tx.Exec(ctx, "UPDATE document SET kind = $2, sum = $3 WHERE id = $1", id, was.kind, sum); err != nil {
			return err
		}
	}
	clear(l.services)
	return nil
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
	err = b.tx.Each(ctx, "SELECT max(id) FROM document WHERE source = $1 AND url = $2 AND feed_id = '' AND title = '' AND updated IS NULL AND kind = ''",
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

// servedBy is a Source and the metadata of its document.
type servedBy struct {
	source   event.SourceID
	document event.Document
}

// remember keeps the numbers of the documents of submissions, now that these have committed.
func (b *batch) remember() {
	if len(b.l.services) > 1000 {
		clear(b.l.services)
	}
	for d, id := range b.docs {
		b.l.services[servedBy{b.source.id, d}] = id
	}
}
