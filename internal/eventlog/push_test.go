package eventlog_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// Damaged rows of what hubs were told, of subscriptions, and of the history of a Source are not
// read as if nothing had happened: verify finds them, and they can be dropped without the others.
func TestDamagedRowsAreDropped(t *testing.T) {
	t.Parallel()
	ctx, folder := t.Context(), damageable(t)
	l := mustOpen(t, folder, eventlog.Options{})
	defer l.Close()
	sources, err := l.Sources(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	src := sources[0].ID
	topic := eventlog.HubTopic{Hub: "https://hub.example/", Topic: "https://bridge.example/other", Told: 7}
	sub := eventlog.Subscription{Token: "other", Source: src, Base: "https://bridge.example", Hub: "https://hub.example/", Topic: "https://source.example/other", Secret: "s"}
	second := event.Harvest{Number: 2, Started: 2e15, Ended: 2e15 + 1, Result: event.ResultOK, Created: 1}
	must(t, errors.Join(l.SaveHubTopics(ctx, []eventlog.HubTopic{topic}, nil), l.SaveSubscription(ctx, &sub), l.SaveHarvest(ctx, src, event.Schedule{Harvests: 2}, &second)))
	for _, text := range []string{
		"UPDATE hub_topic SET told = told + 1 WHERE tag <> ''", "UPDATE subscription SET secret = 'x' WHERE token = 'token'",
		"UPDATE harvest SET created = created + 1 WHERE n = 1", "UPDATE harvest_day SET created = created + 1 WHERE day < 20000",
	} {
		must(t, l.Exec(ctx, text))
	}
	findings := func() (n int) {
		t.Helper()
		must(t, l.Verify(ctx, func(eventlog.Finding) { n++ }))
		return n
	}
	if n := findings(); n < 4 {
		t.Errorf("verify finds %d faults", n)
	}
	if _, err := l.Harvests(ctx, src, 0, 0); err == nil || !strings.Contains(err.Error(), "run bridge verify") {
		t.Errorf("a damaged harvest is read: %v", err)
	}
	if _, err := l.HarvestDays(ctx, 0); err == nil || !strings.Contains(err.Error(), "run bridge verify") {
		t.Errorf("a damaged day is read: %v", err)
	}
	must(t, l.DropDamagedPush(ctx))
	for _, s := range []event.SourceID{1, 2, 3} {
		must(t, l.ResetSchedule(ctx, s))
	}
	if n := findings(); n > 0 {
		t.Errorf("verify still finds %d faults", n)
	}
	if all, err := l.HubTopics(ctx); err != nil || len(all) != 1 || all[0] != topic {
		t.Errorf("topics %+v, %v", all, err)
	}
	if all, err := l.Subscriptions(ctx); err != nil || len(all) != 1 || all[0] != sub {
		t.Errorf("subscriptions %+v, %v", all, err)
	}
	if all, err := l.Harvests(ctx, src, 0, 0); err != nil || len(all) != 1 || all[0].Number != 2 {
		t.Errorf("harvests %+v, %v", all, err)
	}
	must(t, errors.Join(l.DropSubscription(ctx, "other"), l.SaveHubTopics(ctx, nil, []eventlog.HubTopic{topic})))
	topics, err1 := l.HubTopics(ctx)
	subs, err2 := l.Subscriptions(ctx)
	if errors.Join(err1, err2) != nil || len(topics)+len(subs) > 0 {
		t.Errorf("left are %+v, %+v, %v, %v", topics, subs, err1, err2)
	}
}
