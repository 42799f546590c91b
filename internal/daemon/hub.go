package daemon

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/websub"
)

// Hubs are notified when documents of their sets have changed (WebSub 6). The log stores
// the entity tag with which each hub was last notified of each document. So a hub is
// notified once of each change, also after a restart, and not of an event that changes no
// document.

const (
	hubGather = time.Second      // changes within it are sent together
	hubPause  = 5 * time.Second  // between two notifications of one hub
	hubTime   = 30 * time.Second // for one request
	// hubFirst and hubMost are the waits after the first failure and after many.
	hubFirst = 10 * time.Second
	hubMost  = time.Hour
)

// hubNotifier notifies hubs.
type hubNotifier struct {
	mu   sync.Mutex
	hubs map[string]*hubState
	// refused are the topics that a hub refuses while it accepts others, by hub and topic.
	refused  map[[2]string]hubState
	notified map[[2]string]eventlog.HubTopic // by hub and topic
	wake     chan struct{}                   // sent to when documents may have changed
}

// hubState is the state of one hub, or of one of its topics.
type hubState struct {
	busy     bool
	until    time.Time // not notified before
	failures int
}

// failed counts a failure, and sets the time of the next attempt.
func (s *hubState) failed(err error) {
	s.failures++
	pause := submission.BackOff(hubFirst, hubMost, s.failures)
	if refused, ok := errors.AsType[*websub.StatusError](err); ok {
		pause = max(pause, min(refused.RetryAfter, hubMost))
	}
	s.until = time.Now().Add(pause)
}

// refusesTopic reports whether an error means that a hub refuses this topic, and not that
// the hub as a whole fails. takesOthers: the hub accepts other topics; then more errors
// count as refusals.
func refusesTopic(err error, takesOthers bool) bool {
	var refused *websub.StatusError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return false
	}
	return refused.Status/100 == 4 || refused.Status/100 == 5 && takesOthers
}

// hubsOf returns the hubs of a set.
func (b *Bridge) hubsOf(set string) []string {
	if s := b.Config().Set(set); s != nil {
		return s.Hub
	}
	return nil
}

// hubbedSets returns the sets that have a hub.
func (b *Bridge) hubbedSets() (names []string) {
	for _, s := range b.Config().Sets {
		if len(s.Hub) > 0 && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names
}

// notifyHubs notifies hubs of changed documents until ctx ends.
func (b *Bridge) notifyHubs(ctx context.Context, p *publish.Publisher, base string) {
	all, err := b.Log.HubTopics(ctx)
	if err != nil && ctx.Err() == nil {
		b.opt.Logger.Error("the state of hubs cannot be read; they are notified again", "error", err)
	}
	t := &b.hubs
	t.mu.Lock()
	t.hubs, t.refused, t.notified = map[string]*hubState{}, map[[2]string]hubState{}, map[[2]string]eventlog.HubTopic{}
	for _, h := range all {
		t.notified[[2]string{h.Hub, h.Topic}] = h
	}
	t.mu.Unlock()
	var group sync.WaitGroup
	defer group.Wait()
	for ctx.Err() == nil {
		changed := b.Log.Changed()
		wait := b.tellRound(ctx, p, base, &group)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
			sleepOrWake(ctx, hubGather, nil)
		case <-t.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tellRound starts to notify each hub of what is due, and returns how long to wait for the
// next round.
func (b *Bridge) tellRound(ctx context.Context, p *publish.Publisher, base string, group *sync.WaitGroup) time.Duration {
	wait := forever
	due := map[string][]eventlog.HubTopic{}
	wanted := map[[2]string]bool{}
	known := true
	for _, set := range b.hubbedSets() {
		topics, err := b.topicsOf(ctx, p, base, set)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, publish.ErrNotFound) {
				b.opt.Logger.Error("the documents that hubs are told of cannot be found", "set", set, "error", err)
			}
			known, wait = false, min(wait, time.Minute)
			continue
		}
		for _, hub := range b.hubsOf(set) {
			for _, topic := range topics {
				key := [2]string{hub, topic.Path}
				wanted[key] = true
				b.hubs.mu.Lock()
				was, refused := b.hubs.notified[key], time.Until(b.hubs.refused[key].until)
				b.hubs.mu.Unlock()
				switch {
				case was.Tag == topic.Tag && was.Error == "": // else a change was taken back that the hub may know
				case refused > 0:
					wait = min(wait, refused)
				case topic.Stale:
					wait = min(wait, time.Second)
				default:
					was.Hub, was.Topic, was.Tag = hub, topic.Path, topic.Tag
					due[hub] = append(due[hub], was)
				}
			}
		}
	}
	if known {
		b.dropTold(ctx, wanted)
	}
	for _, hub := range slices.Sorted(maps.Keys(due)) {
		wait = min(wait, b.tellHub(ctx, hub, due[hub], group))
	}
	return wait
}

// topicsOf returns the documents of a set of which hubs are notified, by their URLs.
func (b *Bridge) topicsOf(ctx context.Context, p *publish.Publisher, base, set string) ([]publish.Topic, error) {
	topics, err := p.Topics(ctx, set)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(topics, func(t publish.Topic) bool { return strings.HasSuffix(t.Path, "/feed.atom") }) {
		for _, path := range server.Pages(set)[1:] { // these change with each event, as the first does
			topics = append(topics, publish.Topic{Path: path, Tag: topics[0].Tag, Stale: topics[0].Stale})
		}
	}
	for i := range topics {
		topics[i].Path = base + topics[i].Path
	}
	return topics, nil
}

// dropTold removes from the log the hubs and topics that are not wanted any more.
func (b *Bridge) dropTold(ctx context.Context, wanted map[[2]string]bool) {
	var gone []eventlog.HubTopic
	b.hubs.mu.Lock()
	for key, h := range b.hubs.notified {
		if !wanted[key] {
			gone = append(gone, h)
			delete(b.hubs.notified, key)
			delete(b.hubs.refused, key)
		}
	}
	b.hubs.mu.Unlock()
	if len(gone) > 0 {
		if err := b.Log.SaveHubTopics(ctx, nil, gone); err != nil && ctx.Err() == nil {
			b.opt.Logger.Error("what hubs were told cannot be removed", "error", err)
		}
	}
}

// tellHub starts to notify a hub of documents, unless that is under way or the hub must
// wait after a failure, and returns how long to wait for the next attempt.
func (b *Bridge) tellHub(ctx context.Context, hub string, due []eventlog.HubTopic, group *sync.WaitGroup) time.Duration {
	t := &b.hubs
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.hubs[hub]
	if state == nil {
		state = &hubState{}
		t.hubs[hub] = state
	}
	if state.busy {
		return forever // the end of that wakes us
	}
	if wait := time.Until(state.until); wait > 0 {
		return wait
	}
	state.busy = true
	// Documents that failed come last, so that they do not delay the others.
	slices.SortStableFunc(due, func(a, b eventlog.HubTopic) int { return cmp.Compare(a.Since, b.Since) })
	bad := map[string]bool{} // documents that it refuses while it accepts others
	for _, h := range due {
		bad[h.Topic] = t.refused[[2]string{hub, h.Topic}].failures > 0
	}
	group.Go(func() {
		var told []eventlog.HubTopic
		var refused map[string]error
		err := defect.Guard(func() (err error) {
			told, refused, err = b.notifyHub(ctx, hub, due, bad)
			return err
		})
		defect.Log(b.opt.Logger, err)
		t.mu.Lock()
		state.busy = false
		if err == nil {
			state.failures, state.until = 0, time.Now().Add(hubPause)
		} else {
			state.failed(err)
		}
		for _, h := range told {
			key := [2]string{h.Hub, h.Topic}
			t.notified[key] = h
			if topic, no := t.refused[key], refused[h.Topic]; no != nil {
				topic.failed(no)
				t.refused[key] = topic
			} else {
				delete(t.refused, key)
			}
		}
		t.mu.Unlock()
		wake(t.wake)
	})
	return forever
}

// notifyHub notifies a hub of documents, one after the other, up to the first failure that is
// not of that document alone. bad are those that the hub has refused before. It returns the
// rows to store, and why documents were refused, by their topics.
func (b *Bridge) notifyHub(ctx context.Context, hub string, due []eventlog.HubTopic, bad map[string]bool) (told []eventlog.HubTopic, refused map[string]error, failed error) {
	guard := b.generation.Load().guard.With(b.typed(hub))
	defer guard.Close()
	client := guard.Client("")
	now := event.MicrosOf(b.now())
	refused = map[string]error{}
	takes := false
	for _, h := range due {
		ctx, cancel := context.WithTimeout(ctx, hubTime)
		failed = websub.Publish(ctx, client, hub, h.Topic)
		cancel()
		if errors.Is(failed, context.Canceled) {
			break // the bridge stops
		}
		b.metrics.Pinged(failed == nil)
		if failed == nil {
			h.Told, h.Since, h.Error = now, 0, ""
			told, takes = append(told, h), true
			continue
		}
		told = append(told, b.failedTopic(&h, now, failed))
		if !refusesTopic(failed, takes || bad[h.Topic]) {
			break
		}
		refused[h.Topic], failed = failed, nil
	}
	if len(told) > 0 {
		if err := b.Log.SaveHubTopics(context.WithoutCancel(ctx), told, nil); err != nil {
			b.opt.Logger.Error("what a hub was told cannot be stored; it is told again after a restart", "hub", Redact(hub), "error", err)
		}
	}
	return told, refused, failed
}

// failedTopic returns the row to store for a document of which a hub could not be notified.
func (b *Bridge) failedTopic(h *eventlog.HubTopic, now event.Micros, failed error) eventlog.HubTopic {
	b.hubs.mu.Lock()
	was := b.hubs.notified[[2]string{h.Hub, h.Topic}]
	b.hubs.mu.Unlock()
	was.Hub, was.Topic, was.Error = h.Hub, h.Topic, submission.Clip(Redact(failed.Error()))
	if was.Since == 0 || was.Since > now { // the clock was ahead
		was.Since = now
		b.opt.Logger.Warn("a hub cannot be told of changes; it is tried again ever less often, at least once an hour", "hub", Redact(h.Hub), "topic", h.Topic, "error", was.Error)
	}
	return was
}
