package alert

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
)

// id returns the name of a receiver in Alerter.File. It does not reveal a webhook, which
// may be a secret.
func id(r *config.Alert) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{r.Webhook.Reveal(), r.Mail}, r.Command...), "\x00")))
	return hex.EncodeToString(sum[:16])
}

// name returns the name of a receiver in messages.
func name(r *config.Alert) string {
	switch {
	case len(r.Command) > 0:
		return "the command " + r.Command[0]
	case r.Mail != "":
		return r.Mail
	}
	return "the webhook"
}

// Message is what is sent to a receiver.
type Message struct {
	// Bridge is the base URL of the bridge.
	Bridge string `json:"bridge"`
	// At is the time of the message, in UTC.
	At time.Time `json:"at"`
	// On are the alerts that have begun, Off those that have ended.
	On  []Alert `json:"on"`
	Off []Alert `json:"off"`
	// MoreOn and MoreOff count by their conditions those that Short has left out.
	MoreOn  map[string]int `json:"more_on,omitempty"`
	MoreOff map[string]int `json:"more_off,omitempty"`
}

// named is how many alerts of a condition a short message has. Where thousands of Sources fail at
// the same time, all would be megabytes, which mail servers and web services refuse.
const named = 50

// Short returns the message with the first alerts of each condition, and the number of the others.
func (m *Message) Short() *Message {
	out := *m
	out.On, out.MoreOn = short(m.On)
	out.Off, out.MoreOff = short(m.Off)
	return &out
}

func short(all []Alert) (some []Alert, more map[string]int) {
	some, more = []Alert{}, map[string]int{}
	seen := map[string]int{}
	for i := range all {
		kind := all[i].Condition
		if seen[kind]++; seen[kind] <= named {
			some = append(some, all[i])
		} else {
			more[kind]++
		}
	}
	return some, more
}

// Subject returns a line for people.
func (m *Message) Subject() string {
	var parts []string
	if n := len(m.On); n > 0 {
		parts = append(parts, fmt.Sprintf("%d new: %s", n, kinds(m.On)))
	}
	if n := len(m.Off); n > 0 {
		parts = append(parts, fmt.Sprintf("%d over: %s", n, kinds(m.Off)))
	}
	return "bridge: " + strings.Join(parts, "; ")
}

// kinds lists the kinds of alerts, each once.
func kinds(all []Alert) string {
	seen := map[string]bool{}
	for i := range all {
		seen[all[i].Condition] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
}

// Text returns the message for people, as short as Short.
func (m *Message) Text() string {
	m = m.Short()
	var b strings.Builder
	for _, part := range []struct {
		title string
		all   []Alert
		more  map[string]int
	}{{"Begun", m.On, m.MoreOn}, {"Over", m.Off, m.MoreOff}} {
		for i := range part.all {
			a := &part.all[i]
			fmt.Fprintf(&b, "%s: %s, since %s\n  %s\n\n", part.title, a.Condition, a.Since.Format(time.RFC3339), strings.Join(strings.Fields(a.Text), " ")) // an error may have lines of a Source's
		}
		for _, kind := range slices.Sorted(maps.Keys(part.more)) {
			fmt.Fprintf(&b, "%s: %s, %d more: bridge status shows what there is now\n\n", part.title, kind, part.more[kind])
		}
	}
	fmt.Fprintf(&b, "%s, %s\n", m.Bridge, m.At.Format(time.RFC3339))
	return b.String()
}

// Alerter sends alerts to receivers. Its Round must not run twice at a time.
type Alerter struct {
	// Receivers returns the configured receivers; they change when the configuration is
	// read again.
	Receivers func() []config.Alert
	// File stores what each receiver was sent, so that a restart repeats nothing.
	File string
	// Bridge returns the base URL.
	Bridge func() string
	// State returns the state that conditions are about.
	State func(ctx context.Context) State
	// Send delivers a message to a receiver.
	Send func(ctx context.Context, to *config.Alert, m *Message) error
	// Ended is called after each round of Run, with its error.
	Ended  func(err error)
	Logger *slog.Logger

	told    map[string]map[string]Alert // by receiver and key; nil: not read yet
	noticed map[string]bool             // the keys of alerts about the log that held in a round
	unsaved bool                        // told has changes that File lacks
}

// every is the time between two rounds.
const every = time.Minute

// Run sends alerts until ctx ends.
func (a *Alerter) Run(ctx context.Context) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := a.Round(ctx); ctx.Err() == nil {
			if err != nil {
				a.Logger.Error("an alert could not be sent; it is tried again in a minute", "error", err)
			}
			a.Ended(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Round sends to each receiver what has begun and ended since its last message. What could
// not be sent is sent in the next round, if it still holds. A message is repeated only if
// the process is killed between the receiver's response and the write of File.
func (a *Alerter) Round(ctx context.Context) error {
	if a.told == nil {
		told, err := readTold(a.File)
		if err != nil {
			return err
		}
		a.told, a.noticed = told, map[string]bool{}
	}
	receivers := together(a.Receivers())
	if len(receivers)+len(a.told) == 0 {
		return nil
	}
	s := a.State(ctx)
	var errs []error
	ids := map[string]bool{}
	for i := range receivers {
		r := &receivers[i]
		id := id(r)
		ids[id] = true
		now := holding(r, &s, a.told[id], a.noticed)
		m := Message{Bridge: a.Bridge(), At: s.Now.UTC().Truncate(time.Second), On: beside(now, a.told[id]), Off: beside(a.told[id], now)}
		if len(m.On)+len(m.Off) == 0 {
			continue
		}
		if err := a.Send(ctx, r, &m); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name(r), err))
			continue
		}
		a.told[id], a.unsaved = now, true
	}
	for id := range a.told {
		if !ids[id] {
			delete(a.told, id)
			a.unsaved = true
		}
	}
	if a.unsaved {
		err := writeTold(a.File, a.told)
		a.unsaved = err != nil // on a full disk it is tried again in the next round
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// together returns each receiver once, with all its conditions. If a receiver that is
// configured twice were handled as two, each would report the alerts of the other as ended,
// again and again.
func together(all []config.Alert) (out []config.Alert) {
	at := map[string]int{}
	for i := range all {
		n, ok := at[id(&all[i])]
		if !ok {
			at[id(&all[i])] = len(out)
			out = append(out, all[i])
			continue
		}
		out[n].On = slices.Concat(out[n].On, all[i].On)
	}
	return out
}

// holding returns the alerts that hold for a receiver, by key. One that was sent already
// stays as it was sent. noticed has the keys of those about the log that this process has found.
func holding(r *config.Alert, s *State, told map[string]Alert, noticed map[string]bool) map[string]Alert {
	now := map[string]Alert{}
	levels := map[string]int{}
	for _, c := range slices.Compact(slices.SortedFunc(slices.Values(r.On), byThreshold)) {
		level := levels[c.Kind]
		levels[c.Kind]++
		if _, on := told[(&Alert{Condition: c.Kind, Level: level}).key()]; on && c.Kind == config.OnDisk {
			c.Share *= 1.1 // so that an alert near its threshold does not begin and end all the time
		}
		for _, a := range find(&c, s) {
			a.Level = level
			if c.Kind == config.OnLog {
				noticed[a.key()] = true
			}
			if _, ok := now[a.key()]; !ok {
				now[a.key()] = a
			}
		}
	}
	for key, a := range told {
		_, ok := now[key]
		unknown := s.Status == nil
		switch a.Condition {
		case config.OnDisk:
			unknown = s.Free < 0
		case config.OnLog:
			unknown = unknown || !noticed[key] && slices.ContainsFunc(s.Unnoticed, func(begin string) bool { return strings.HasPrefix(a.Text, begin) })
		}
		if ok || unknown {
			now[key] = a
		}
	}
	return now
}

// byThreshold compares conditions: by kind, those that are met first before the others.
func byThreshold(a, b config.Condition) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.For, b.For), cmp.Compare(a.Count, b.Count), cmp.Compare(b.Share, a.Share))
}

// beside returns the alerts of one map that are not in the other, sorted by key.
func beside(all, others map[string]Alert) []Alert {
	out := []Alert{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if _, ok := others[key]; !ok {
			out = append(out, all[key])
		}
	}
	return out
}

func readTold(file string) (map[string]map[string]Alert, error) {
	told := map[string]map[string]Alert{}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return told, nil
	}
	if err != nil {
		return nil, err
	}
	var list map[string][]Alert
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: %w: remove it, and the alerts that are on are sent again", file, err)
	}
	for id, all := range list {
		told[id] = map[string]Alert{}
		for _, a := range all {
			told[id][a.key()] = a
		}
	}
	return told, nil
}

// writeTold replaces the file.
func writeTold(file string, told map[string]map[string]Alert) error {
	list := map[string][]Alert{}
	for id, all := range told {
		list[id] = beside(all, nil)
	}
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".alerts-*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(data, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
