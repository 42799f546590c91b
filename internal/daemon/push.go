package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/websub"
)

// A Source with push = true is asked for its hubs (WebSub 4), and each hub for a
// subscription (5.1). A push from a hub starts a harvest, and its content is not read; the
// schedule continues as without it. All work has a due time in its row of the log, so a
// restart loses nothing.

const (
	leaseWanted  = 10 * 24 * time.Hour
	discoverEach = 24 * time.Hour   // between two requests for the hubs of a Source
	confirmTime  = 5 * time.Minute  // a hub that has not confirmed within it is asked again
	confirmLast  = time.Hour        // how long after the request a confirmation is accepted
	pushFirst    = time.Minute      // after the first failure
	pushMost     = 24 * time.Hour   // after many failures
	pushPause    = 10 * time.Second // between two harvests that pushes start
	pushLook     = time.Minute      // between two checks for changes, such as a pause
	pushTime     = time.Minute      // for the requests to one Source or hub
	pushWorkers  = 8
	kindFirst    = time.Second // until the kind of a Source is known
	kindMost     = 5 * time.Minute
	noHub        = "it names no hub"
	denied       = "the hub has denied the subscription"
	denials      = 12 // a denial counts as so many failures
	leastRenewal = 2 * time.Second
	endTries     = 3        // attempts to end a subscription; after that the lease ends it
	pushBytes    = 64 << 20 // of the body of one push
)

// pushState is the state of subscriptions and pushes while Serve runs.
type pushState struct {
	change sync.Mutex // held while a row is changed, in the log and then in rows
	mu     sync.Mutex
	rows   map[string]*eventlog.Subscription // by token; a row is replaced, never changed
	pushed map[event.SourceID]*pushedSource
	wake   chan struct{}
}

// pushedSource is the effect of pushes on the schedule of a Source.
type pushedSource struct {
	waiting bool      // a push has come since the last harvest began
	began   time.Time // when the last harvest that a push has started began
	tried   bool      // a push has started one attempt since the Source began to fail
}

// subscribe requests and renews the subscriptions until ctx ends.
func (b *Bridge) subscribe(ctx context.Context) {
	for ctx.Err() == nil {
		wait := pushLook
		if b.loadPushes(ctx) {
			wait = min(b.subscribeRound(ctx), wait)
		}
		sleepOrWake(ctx, max(wait, 10*time.Millisecond), b.push.wake)
	}
}

// loadPushes reads the subscriptions from the log, unless that was done, and reports
// whether they are loaded. It starts a harvest of the Sources whose pushes the last process
// received and did not harvest.
func (b *Bridge) loadPushes(ctx context.Context) bool {
	b.push.mu.Lock()
	defer b.push.mu.Unlock()
	if b.push.rows != nil {
		return true
	}
	err := b.Log.DropDamagedPush(ctx)
	var all []eventlog.Subscription
	if err == nil {
		all, err = b.Log.Subscriptions(ctx)
	}
	if err != nil {
		if ctx.Err() == nil {
			b.opt.Logger.Error("subscriptions at hubs cannot be read: Sources are harvested on their schedule", "error", err)
		}
		return false
	}
	b.push.rows, b.push.pushed = map[string]*eventlog.Subscription{}, map[event.SourceID]*pushedSource{}
	for i := range all {
		row := &all[i]
		b.push.rows[row.Token] = row
		s, err := b.Log.Schedule(ctx, row.Source)
		if err != nil {
			continue // the harvest reports the error
		}
		var last harvest.Report
		if row.Pushed > 0 && !row.Unwanted && json.Unmarshal(s.Report, &last) == nil && row.Pushed > event.MicrosOf(last.Started) {
			b.push.pushed[row.Source] = &pushedSource{waiting: true}
		}
	}
	return true
}

// subscribeRound does what is due, and returns how long to wait for the next round.
func (b *Bridge) subscribeRound(ctx context.Context) time.Duration {
	wanted, err := b.pushSources(ctx)
	if err != nil {
		return pushLook
	}
	b.push.mu.Lock()
	now := event.MicrosOf(b.now())
	asking := map[event.SourceID]bool{}
	var due []*eventlog.Subscription
	next := pushLook
	for _, row := range b.push.rows {
		src := wanted[row.Source]
		if row.Hub == "" && src != nil {
			asking[row.Source] = true
		}
		if src == nil && !row.Unwanted {
			row = new(*row)
			row.Unwanted, row.Due, row.Failures = true, now, 0
		}
		// A row is also due when the clock went back, or when our address or the Source's
		// has changed.
		if row.Due <= now || row.Asked > now || row.Hub == "" && src != nil && (row.Base != b.base || row.Topic != src.URL) {
			due = append(due, row)
		} else {
			next = min(next, row.Due.Time().Sub(now.Time()))
		}
	}
	b.push.mu.Unlock()
	for id, src := range wanted {
		if !asking[id] {
			due = append(due, &eventlog.Subscription{Token: rand.Text(), Source: id, Base: b.base, Topic: src.URL, Due: now})
		}
	}
	if len(due) == 0 {
		return next
	}
	slots := make(chan struct{}, pushWorkers)
	var group sync.WaitGroup
	for _, row := range due {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			b.doDue(ctx, *row, wanted[row.Source])
		})
	}
	group.Wait()
	return 0 // the due times have changed
}

// doDue does what is due of a row. A panic while it handles the response of a Source or hub
// counts as a failure.
func (b *Bridge) doDue(ctx context.Context, row eventlog.Subscription, src *Source) {
	ctx, cancel := context.WithTimeout(ctx, pushTime)
	defer cancel()
	if err := defect.Guard(func() error {
		switch {
		case row.Unwanted:
			b.endSubscription(ctx, row)
		case row.Hub == "":
			if row.Topic != src.URL {
				row.Failures = 0
			}
			row.Asked, row.Base, row.Topic = event.MicrosOf(b.now()), b.base, src.URL // also if it fails
			b.findHubs(ctx, row, src)
		default:
			b.askHub(ctx, row, src)
		}
		return nil
	}); err != nil {
		defect.Log(b.opt.Logger, err)
		b.push.change.Lock()
		defer b.push.change.Unlock()
		row.Failures++
		b.failRow(ctx, row, err)
	}
}

// pushSources returns the Sources that need subscriptions: all with push but those that are
// paused without an end.
func (b *Bridge) pushSources(ctx context.Context) (map[event.SourceID]*Source, error) {
	pauses, err := b.Log.Pauses(ctx)
	if err != nil {
		return nil, err
	}
	out := map[event.SourceID]*Source{}
	for _, s := range b.Sources() {
		if p, paused := pauses[s.ID]; s.settings.source.Push && (!paused || p.Until != 0) {
			out[s.ID] = s
		}
	}
	return out, nil
}

// saveRow stores a row in the log, and then in memory. It logs an error; the work is tried
// again. The caller holds b.push.change, and has read the row under it.
func (b *Bridge) saveRow(ctx context.Context, row eventlog.Subscription) bool {
	err := b.Log.SaveSubscription(context.WithoutCancel(ctx), &row)
	if err != nil {
		b.opt.Logger.Error("a subscription cannot be stored", "hub", row.Hub, "error", err)
		row.Due = event.MicrosOf(b.now().Add(pushFirst))
	}
	b.push.mu.Lock()
	defer b.push.mu.Unlock()
	b.push.rows[row.Token] = &row
	return err == nil
}

func (b *Bridge) dropRow(ctx context.Context, token string) bool {
	err := b.Log.DropSubscription(context.WithoutCancel(ctx), token)
	b.push.mu.Lock()
	defer b.push.mu.Unlock()
	if err != nil {
		b.opt.Logger.Error("a subscription cannot be removed", "error", err)
		if row := b.push.rows[token]; row != nil {
			again := *row
			again.Unwanted, again.Due = true, event.MicrosOf(b.now().Add(pushFirst))
			b.push.rows[token] = &again
		}
		return false
	}
	delete(b.push.rows, token)
	return true
}

// rowOf returns the row of a token, nil when there is none.
func (b *Bridge) rowOf(token string) *eventlog.Subscription {
	b.push.mu.Lock()
	defer b.push.mu.Unlock()
	return b.push.rows[token]
}

// failureText returns the text of a failure. A hub may repeat what it was sent, so the
// token and the secret of the row are removed.
func failureText(row *eventlog.Subscription, failed error) string {
	text := failed.Error()
	for _, secret := range []string{row.Token, row.Secret} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return submission.Clip(Redact(text))
}

// failRow stores why the last of row.Failures attempts has failed, and when the next one is
// due. As for saveRow, the caller holds b.push.change.
func (b *Bridge) failRow(ctx context.Context, row eventlog.Subscription, failed error) {
	wait := submission.BackOff(pushFirst, pushMost, row.Failures)
	if refused, ok := errors.AsType[*websub.StatusError](failed); ok {
		wait = max(wait, min(refused.RetryAfter, pushMost))
	}
	text := failureText(&row, failed)
	if text != row.Error {
		b.opt.Logger.Warn("push does not work for a Source, which is harvested on its schedule", "source", b.sourceName(row.Source), "hub", row.Hub, "error", text)
	}
	row.Error, row.Due = text, event.MicrosOf(b.now().Add(jittered(wait)))
	b.saveRow(ctx, row)
}

// jittered returns a wait that is up to a tenth longer, at random.
func jittered(wait time.Duration) time.Duration { return wait + mrand.N(wait/10+1) }

func (b *Bridge) sourceName(id event.SourceID) string {
	if s := b.sourceByID(id); s != nil {
		return Redact(s.URL)
	}
	return fmt.Sprintf("Source %d, which is not configured", id)
}

// findHubs asks a Source for its hubs, and creates the rows of its subscriptions.
func (b *Bridge) findHubs(ctx context.Context, row eventlog.Subscription, src *Source) {
	asked := src.Source
	kind, err := b.Log.SourceKind(ctx, src.ID) // it may have been detected since serve began
	asked.Kind = cmp.Or(asked.Kind, kind)
	if err == nil && asked.Kind == "" { // its first harvest detects the kind
		b.push.change.Lock()
		defer b.push.change.Unlock()
		row.Failures++
		row.Error, row.Due = "not harvested yet", event.MicrosOf(b.now().Add(submission.BackOff(kindFirst, kindMost, row.Failures)))
		b.saveRow(ctx, row)
		return
	}
	var topics []websub.Links
	if err == nil {
		topics, err = asked.Topics(ctx)
	}
	b.push.change.Lock()
	defer b.push.change.Unlock()
	switch {
	case errors.Is(ctx.Err(), context.Canceled): // the bridge stops
		return
	case err != nil:
		row.Failures++
		b.failRow(ctx, row, fmt.Errorf("its hubs cannot be found: %w", err))
		return
	case len(topics) == 0:
		if row.Error != noHub {
			b.opt.Logger.Info("a Source with push = true names no hub: it is harvested on its schedule", "set", src.Set, "source", src.URL)
		}
		row.Due, row.Error, row.Failures = event.MicrosOf(b.now().Add(jittered(discoverEach))), noHub, 0
	default:
		row.Due, row.Error, row.Failures = event.MicrosOf(b.now().Add(jittered(discoverEach))), "", 0
	}
	have := map[[2]string]bool{}
	now := event.MicrosOf(b.now())
	b.push.mu.Lock()
	var changed []eventlog.Subscription
	for _, r := range b.push.rows {
		if r.Source != row.Source || r.Hub == "" || r.Unwanted {
			continue
		}
		named := slices.ContainsFunc(topics, func(l websub.Links) bool { return l.Self == r.Topic && slices.Contains(l.Hubs, r.Hub) })
		if key := [2]string{r.Hub, r.Topic}; named && r.Base == b.base && !have[key] {
			have[key] = true
			continue
		}
		ended := *r
		ended.Unwanted, ended.Due, ended.Failures = true, now, 0
		changed = append(changed, ended)
	}
	b.push.mu.Unlock()
	for _, l := range topics {
		for _, hub := range l.Hubs {
			if key := [2]string{hub, l.Self}; !have[key] {
				have[key] = true
				changed = append(changed, eventlog.Subscription{Token: rand.Text() + rand.Text(), Source: row.Source, Base: b.base, Hub: hub, Topic: l.Self, Secret: rand.Text() + rand.Text(), Due: now})
			}
		}
	}
	for _, r := range changed {
		b.saveRow(ctx, r)
	}
	b.saveRow(ctx, row)
}

// askHub requests a subscription, or a longer lease. The row is stored before the request:
// a hub may call back before it answers.
func (b *Bridge) askHub(ctx context.Context, row eventlog.Subscription, src *Source) {
	row, ok := b.beginToAsk(ctx, row)
	if !ok {
		return
	}
	err := b.ask(ctx, websub.Subscribe, &row, src)
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	b.push.change.Lock()
	defer b.push.change.Unlock()
	if latest := b.rowOf(row.Token); latest != nil && latest.Due == row.Due { // it was not confirmed although the hub accepted the request
		b.failRow(ctx, *latest, err)
	}
}

// beginToAsk stores that a hub is about to be asked for a subscription; ok is false when
// that is not due any more, or cannot be stored.
func (b *Bridge) beginToAsk(ctx context.Context, row eventlog.Subscription) (begun eventlog.Subscription, ok bool) {
	b.push.change.Lock()
	defer b.push.change.Unlock()
	latest, now := b.rowOf(row.Token), b.now()
	if latest == nil || latest.Due != row.Due || latest.Unwanted {
		return row, false
	}
	row = *latest
	if row.Failures > 0 && row.Error == "" { // the hub accepted the last request
		row.Error = "the hub has not confirmed the subscription: it must reach " + row.Base + "/websub/"
	}
	row.Failures++ // until it confirms
	row.Asked, row.Due = event.MicrosOf(now), event.MicrosOf(now.Add(jittered(submission.BackOff(confirmTime, pushMost, row.Failures))))
	return row, b.saveRow(ctx, row)
}

// endSubscription asks a hub to end a subscription. If the hub does not, the lease ends it.
func (b *Bridge) endSubscription(ctx context.Context, row eventlog.Subscription) {
	b.push.change.Lock()
	now, asks := b.now(), false
	switch latest := b.rowOf(row.Token); {
	case latest == nil: // it has ended in the meantime
	case row.Hub == "" || row.Asked == 0 || row.Failures >= endTries:
		b.dropRow(ctx, row.Token)
	default:
		row.Failures++
		row.Asked, row.Due = event.MicrosOf(now), event.MicrosOf(now.Add(jittered(confirmTime)))
		asks = b.saveRow(ctx, row)
	}
	b.push.change.Unlock()
	if !asks {
		return
	}
	if err := b.ask(ctx, websub.Unsubscribe, &row, b.sourceByID(row.Source)); err != nil && ctx.Err() == nil {
		b.opt.Logger.Warn("a hub does not end a subscription; its lease will", "hub", Redact(row.Hub), "error", failureText(&row, err))
	}
}

// ask sends a request to a hub. It reaches public hubs, and those at the Source's own host,
// for which ca_file applies; it sends the Source's login to no hub.
func (b *Bridge) ask(ctx context.Context, mode string, row *eventlog.Subscription, src *Source) error {
	reach := fetch.Reach{Allowed: b.Config().AllowHosts, SafePorts: true}
	switch {
	case src != nil:
		var err error
		reach.Origin = cmp.Or(src.settings.source.Origin, src.URL)
		if reach.Roots, err = authorities(src.settings.source.CA); err != nil {
			return err
		}
	default: // the operator typed a former Source's URL too
		reach.Typed = b.formerURL(ctx, row.Source)
	}
	guard := b.generation.Load().guard.With(reach)
	defer guard.Close()
	return websub.Ask(ctx, guard.Client(""), row.Hub, &websub.Request{Mode: mode, Topic: row.Topic, Callback: row.Base + "/websub/" + row.Token, Secret: row.Secret, Lease: leaseWanted})
}

// formerURL returns the URL of a Source that is not configured any more.
func (b *Bridge) formerURL(ctx context.Context, id event.SourceID) []string {
	sets, _ := b.Log.Sets(ctx) // on an error only public hubs are reached
	for i := range sets {
		all, _ := b.Log.Sources(ctx, sets[i].Name)
		for j := range all {
			if all[j].ID == id {
				return []string{all[j].URL}
			}
		}
	}
	return nil
}

// serveCallback handles requests of a hub to the callback of a subscription.
func (b *Bridge) serveCallback(w http.ResponseWriter, r *http.Request, token string) {
	b.push.mu.Lock()
	row, known := b.push.rows[token], b.push.rows != nil
	b.push.mu.Unlock()
	w.Header().Set("Cache-Control", "no-store")
	if !known { // to answer that there is none would end the subscription at the hub
		w.Header().Set("Retry-After", "60")
		http.Error(w, "Send it again later.", http.StatusServiceUnavailable)
		return
	}
	if row != nil && row.Hub == "" {
		row = nil
	}
	switch r.Method {
	case http.MethodGet:
		b.confirm(w, r, token)
	case http.MethodPost:
		result := b.receive(w, r, row)
		b.metrics.Pushed(result)
	default:
		w.Header().Set("Allow", "GET, POST")
		http.Error(w, "This is for a hub.", http.StatusMethodNotAllowed)
	}
}

// confirm handles a verification of intent (WebSub 5.3): it confirms what we have asked
// for, and nothing else.
func (b *Bridge) confirm(w http.ResponseWriter, r *http.Request, token string) {
	v, err := websub.ReadVerification(r.URL.Query())
	b.push.change.Lock()
	defer b.push.change.Unlock()
	at := b.rowOf(token)
	if at == nil || at.Hub == "" || err != nil || v.Topic != at.Topic {
		http.Error(w, "This was not asked for.", http.StatusNotFound)
		return
	}
	row, now := *at, b.now()
	asked := row.Asked != 0 && row.Asked.Time().Add(confirmLast).After(now)
	switch {
	case v.Mode == websub.Denied && row.Unwanted:
		b.dropRow(r.Context(), row.Token)
	case v.Mode == websub.Denied && row.Failures == denials && strings.HasPrefix(row.Error, denied): // it has denied that already since the last request
	case v.Mode == websub.Denied:
		row.Until, row.Failures = 0, denials // the hub is asked again in a day
		b.failRow(r.Context(), row, fmt.Errorf(denied+": %s", strings.ToValidUTF8(v.Reason, "")))
	case v.Mode == websub.Subscribe && asked && !row.Unwanted:
		lease := cmp.Or(v.Lease, leaseWanted)
		row.Until = event.MicrosOf(now.Add(lease))
		row.Due = event.MicrosOf(now.Add(max(lease*4/5+mrand.N(lease/10+1), leastRenewal)))
		row.Failures, row.Error = 0, ""
		if !b.saveRow(r.Context(), row) {
			http.Error(w, "Ask again.", http.StatusServiceUnavailable)
			return
		}
		wake(b.push.wake)
	case v.Mode == websub.Unsubscribe && asked && row.Unwanted:
		if !b.dropRow(r.Context(), row.Token) {
			http.Error(w, "Ask again.", http.StatusServiceUnavailable)
			return
		}
	default:
		http.Error(w, "This was not asked for.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, v.Challenge)
}

// receive handles a push, and returns its outcome. A push without the right signature gets
// the same response as others, and changes nothing (WebSub 7.1).
func (b *Bridge) receive(w http.ResponseWriter, r *http.Request, row *eventlog.Subscription) string {
	if row == nil || row.Unwanted {
		http.Error(w, "There is no subscription here.", http.StatusGone) // this status ends it at the hub (WebSub 7)
		return "gone"
	}
	if r.ContentLength > pushBytes {
		http.Error(w, "This is too large.", http.StatusRequestEntityTooLarge)
		return "too_large"
	}
	signed, err := websub.CheckSignature(http.MaxBytesReader(w, r.Body, pushBytes), r.Header.Get("X-Hub-Signature"), row.Secret)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, "This is too large.", http.StatusRequestEntityTooLarge)
		return "too_large"
	case err != nil:
		http.Error(w, "The request could not be read.", http.StatusBadRequest)
		return "unread"
	}
	result := "forged"
	if signed {
		if result = "accepted"; !b.startPushed(r.Context(), row.Token) {
			http.Error(w, "Send it again.", http.StatusServiceUnavailable)
			return "failed"
		}
	}
	w.WriteHeader(http.StatusAccepted)
	return result
}

// startPushed starts a harvest of the Source of a subscription; it returns false if that
// could not be stored. However many pushes come, one harvest runs and one waits.
func (b *Bridge) startPushed(ctx context.Context, token string) bool {
	b.push.change.Lock()
	defer b.push.change.Unlock()
	b.push.mu.Lock()
	row := b.push.rows[token]
	if row == nil {
		b.push.mu.Unlock()
		return true
	}
	p := b.push.pushed[row.Source]
	if p == nil {
		p = &pushedSource{}
		b.push.pushed[row.Source] = p
	}
	if p.waiting {
		b.push.mu.Unlock()
		return true
	}
	p.waiting = true
	next := *row
	next.Pushed = event.MicrosOf(b.now())
	b.push.mu.Unlock()
	if !b.saveRow(ctx, next) {
		b.push.mu.Lock()
		p.waiting = false
		b.push.mu.Unlock()
		return false
	}
	if src := b.sourceByID(row.Source); src != nil {
		wake(src.wake)
	}
	return true
}

// pushDue returns how long to wait until a push starts a harvest of a Source, and false
// when none does. While the Source fails, pushes start one attempt, not before its
// Retry-After; then its schedule counts.
func (b *Bridge) pushDue(id event.SourceID, s *event.Schedule) (time.Duration, bool) {
	b.push.mu.Lock()
	defer b.push.mu.Unlock()
	p := b.push.pushed[id]
	if p == nil {
		return 0, false
	}
	if s.Failures == 0 {
		p.tried = false
	}
	if !p.waiting || p.tried {
		return 0, false
	}
	now := b.now()
	due := p.began.Add(pushPause)
	var last harvest.Report
	if s.Failures > 0 && json.Unmarshal(s.Report, &last) == nil && last.RetryAfter.After(due) {
		due = last.RetryAfter
	}
	return max(due.Sub(now), 0), true
}

// pushBegun stores that a harvest begins: it includes what was pushed before, even if
// pushes are not wanted any more.
func (b *Bridge) pushBegun(ctx context.Context, id event.SourceID) {
	b.push.mu.Lock()
	p := b.push.pushed[id]
	b.push.mu.Unlock()
	if p == nil {
		return
	}
	s, _ := b.Log.Schedule(ctx, id) // saveSchedule reads it again
	b.push.mu.Lock()
	defer b.push.mu.Unlock()
	if p.waiting {
		p.waiting, p.began, p.tried = false, b.now(), p.tried || s.Failures > 0
	}
}

// pushAgain restores the push of a Source whose harvest was interrupted.
func (b *Bridge) pushAgain(id event.SourceID) {
	b.push.mu.Lock()
	defer b.push.mu.Unlock()
	if p := b.push.pushed[id]; p != nil && !p.began.IsZero() {
		p.waiting = true
	}
}

// pushStatus returns the subscriptions to Sources.
func (b *Bridge) pushStatus(ctx context.Context) (map[event.SourceID][]status.Push, error) {
	all, err := b.Log.Subscriptions(ctx)
	out := map[event.SourceID][]status.Push{}
	for i := range all {
		row := &all[i]
		p := status.Push{Hub: row.Hub, Topic: row.Topic, Until: timeOf(row.Until), Last: timeOf(row.Pushed), Error: row.Error, State: status.PushAsked}
		switch {
		case row.Unwanted:
			p.State = status.PushEnding
		case row.Hub == "" && row.Error == "":
			continue // its subscriptions have all of that
		case row.Hub == "":
			p.State, p.Topic = status.PushNone, ""
		case row.Until > event.MicrosOf(b.now()):
			p.State = status.PushSubscribed
		case row.Error != "":
			p.State = status.PushFailing
		}
		out[row.Source] = append(out[row.Source], p)
	}
	return out, err
}

// hubStatus returns the state of the hubs of a set. told has what they were notified of.
func hubStatus(hubs []string, told []eventlog.HubTopic) (all []status.Hub) {
	for _, hub := range hubs {
		h := status.Hub{URL: hub}
		for i := range told {
			if t := &told[i]; t.Hub == hub {
				if last := timeOf(t.Told); last.After(h.Told.Time) {
					h.Told = last
				}
				if since := timeOf(t.Since); t.Error != "" && (h.Error == "" || since.Before(h.FailingSince.Time)) {
					h.FailingSince, h.Error = since, t.Error
				}
			}
		}
		all = append(all, h)
	}
	return all
}

// bySet groups the notifications of hubs by the set of their topic.
func bySet(told []eventlog.HubTopic) map[string][]eventlog.HubTopic {
	out := map[string][]eventlog.HubTopic{}
	for _, h := range told {
		if at := strings.LastIndex(h.Topic, "/sets/"); at >= 0 {
			set, _, _ := strings.Cut(h.Topic[at+len("/sets/"):], "/")
			out[set] = append(out[set], h)
		}
	}
	return out
}

func timeOf(m event.Micros) status.Time {
	if m == 0 {
		return status.Time{}
	}
	return status.Time{Time: m.Time()}
}
