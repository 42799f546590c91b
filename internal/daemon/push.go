package daemon

import (
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/status"
	"strings"
)

// hubStatus returns how the hubs of a set fare, of what they were told of it.
func (b *Bridge) hubStatus(set string, told []eventlog.HubTopic) (all []status.Hub) {
	for _, hub := range b.hubsOf(set) {
		h := status.Hub{URL: hub}
		for i := range told {
			if t := &told[i]; t.Hub == hub {
				if last := timeOf(t.Told); last.After(h.Told.Time) {
					h.Told = last
				}
				if t.Error != "" {
					h.FailingSince, h.Error = timeOf(t.Since), t.Error
				}
			}
		}
		all = append(all, h)
	}
	return all
}

// bySet sorts what hubs were told by the set that the topic is of.
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
