package eventlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// HubTopic is what a WebSub hub was told of one of our documents.
type HubTopic struct {
	Hub, Topic string
	Tag        string       // of the document that it was last told of, "" none
	Told       event.Micros // when, 0 never
	Since      event.Micros // since when pings to it have failed, 0: they do not
	Error      string
}

const selectHubTopics = "SELECT hub, topic, tag, told, since, error, sum FROM hub_topic"

func (h *HubTopic) sum() int64 { return sumOf(h.Hub, h.Topic, h.Tag, h.Told, h.Since, h.Error) }

func (h *HubTopic) scan(rows *sql.Rows) error {
	var sum int64
	err := rows.Scan(&h.Hub, &h.Topic, &h.Tag, &h.Told, &h.Since, &h.Error, &sum)
	if err == nil && sum != h.sum() {
		err = fmt.Errorf("what the hub %s was told of %s: %w: run bridge verify", h.Hub, h.Topic, ErrDamaged)
	}
	return err
}

// HubTopics returns what hubs were told. It leaves out damaged rows: their hubs are told
// once more.
func (l *Log) HubTopics(ctx context.Context) ([]HubTopic, error) {
	return undamaged(ctx, l, selectHubTopics, (*HubTopic).scan)
}

// undamaged returns the rows of a query but for the damaged ones.
func undamaged[T any](ctx context.Context, l *Log, query string, scan func(*T, *sql.Rows) error) (all []T, err error) {
	err = l.Each(ctx, query, nil, func(rows *sql.Rows) error {
		var one T
		err := scan(&one, rows)
		switch {
		case errors.Is(err, ErrDamaged):
			return nil
		case err == nil:
			all = append(all, one)
		}
		return err
	})
	return all, err
}

// DropDamagedPush drops the damaged rows of both tables. The only cost is one more ping,
// or a subscription that is made anew.
func (l *Log) DropDamagedPush(ctx context.Context) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := dropDamagedRows(ctx, tx, selectHubTopics, nil, func(rows *sql.Rows) ([]any, error) {
			var h HubTopic
			err := h.scan(rows)
			return []any{h.Hub, h.Topic}, err
		}, dropHubTopic); err != nil {
			return err
		}
		return dropDamagedRows(ctx, tx, selectSubscriptions, nil, func(rows *sql.Rows) ([]any, error) {
			var s Subscription
			err := s.scan(rows)
			return []any{s.Token}, err
		}, dropSubscription)
	})
}

const (
	dropHubTopic     = "DELETE FROM hub_topic WHERE hub = $1 AND topic = $2"
	dropSubscription = "DELETE FROM subscription WHERE token = $1"
)

// SaveHubTopics keeps what hubs were told, and drops the rows of gone.
func (l *Log) SaveHubTopics(ctx context.Context, told, gone []HubTopic) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		for i := range gone {
			if err := tx.Exec(ctx, dropHubTopic, gone[i].Hub, gone[i].Topic); err != nil {
				return err
			}
		}
		for i := range told {
			h := &told[i]
			if err := tx.Exec(ctx, "INSERT OR REPLACE INTO hub_topic (hub, topic, tag, told, since, error, sum) VALUES ($1, $2, $3, $4, $5, $6, $7)",
				h.Hub, h.Topic, h.Tag, int64(h.Told), int64(h.Since), h.Error, h.sum()); err != nil {
				return err
			}
		}
		return nil
	})
}

// Subscription is a subscription of ours to a Source at a WebSub hub.
type Subscription struct {
	// Token is the last part of its callback, which only the hub is told.
	Token  string
	Source event.SourceID // which may be gone
	Base   string         // our base URL, which the callback begins with
	// Hub is "" in the row that schedules asking the Source for its hubs. Its Topic is
	// the URL that was asked last.
	Hub, Topic string
	// Secret is the key of the signatures of what the hub sends.
	Secret   string
	Unwanted bool         // it is being ended
	Asked    event.Micros // when the hub was last asked
	Until    event.Micros // end of the lease; 0: the hub has not confirmed
	Due      event.Micros // when there is something to do
	Failures int          // in a row
	Error    string
	Pushed   event.Micros // when the last push came that counted
}

const selectSubscriptions = "SELECT token, source, base, hub, topic, secret, unwanted, asked, until, due, failures, error, pushed, sum FROM subscription"

func (s *Subscription) sum() int64 {
	return sumOf(s.Token, s.Source, s.Base, s.Hub, s.Topic, s.Secret, s.Unwanted, s.Asked, s.Until, s.Due, s.Failures, s.Error, s.Pushed)
}

func (s *Subscription) scan(rows *sql.Rows) error {
	var sum int64
	err := rows.Scan(&s.Token, &s.Source, &s.Base, &s.Hub, &s.Topic, &s.Secret, &s.Unwanted, &s.Asked, &s.Until, &s.Due, &s.Failures, &s.Error, &s.Pushed, &sum)
	if err == nil && sum != s.sum() {
		err = fmt.Errorf("a subscription of Source %d: %w: run bridge verify", s.Source, ErrDamaged)
	}
	return err
}

// Subscriptions returns all of them. It leaves out damaged rows: each is replaced by a
// new subscription, and the hub ends the old one with its lease.
func (l *Log) Subscriptions(ctx context.Context) ([]Subscription, error) {
	return undamaged(ctx, l, selectSubscriptions+" ORDER BY source, hub, topic, token", (*Subscription).scan)
}

// SaveSubscription keeps a subscription.
func (l *Log) SaveSubscription(ctx context.Context, s *Subscription) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Exec(ctx, `INSERT OR REPLACE INTO subscription (token, source, base, hub, topic, secret, unwanted, asked, until, due, failures, error, pushed, sum)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`, s.Token, int64(s.Source), s.Base, s.Hub, s.Topic, s.Secret, s.Unwanted,
			int64(s.Asked), int64(s.Until), int64(s.Due), s.Failures, s.Error, int64(s.Pushed), s.sum())
	})
}

// DropSubscription forgets a subscription.
func (l *Log) DropSubscription(ctx context.Context, token string) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Exec(ctx, dropSubscription, token)
	})
}
