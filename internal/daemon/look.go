package daemon

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// LookAt looks at the Source with a URL in a set of a configuration, as a harvest would; see
// harvest.LookAt. It needs no data folder, and stores nothing.
func LookAt(ctx context.Context, c *config.Config, set, url string, o Options) (*harvest.Look, error) {
	b := &Bridge{opt: o}
	g := newGeneration(c)
	options := b.fetchOptions(c)
	options.Names, options.Asked = fetch.NewNames(nil, nil), nil
	g.guard = fetch.New(options)
	defer g.guard.Close()
	for i := range c.Sets {
		s := &c.Sets[i]
		for j := range s.Sources {
			if s.Name != set || s.Sources[j].URL != url {
				continue
			}
			in := eventlog.SetConfig{Sources: make([]eventlog.SourceConfig, len(s.Sources))}
			mode, err := event.ParseContent(s.Content)
			if err != nil {
				return nil, err
			}
			in.Content = mode
			src, err := b.source(g, s, j, &in)
			if err != nil {
				return nil, err
			}
			defer src.closeClients()
			look := harvest.LookAt(ctx, &src.Source)
			redactLook(look)
			return look, nil
		}
	}
	return nil, fmt.Errorf("set %q has no Source %s", set, Redact(url))
}

// redactLook is Redact for the texts of a look.
func redactLook(l *harvest.Look) {
	for _, text := range []*string{&l.Moved, &l.Error} {
		*text = Redact(*text)
	}
	for i := range l.Notes {
		l.Notes[i] = Redact(l.Notes[i])
	}
	for i := range l.Read {
		l.Read[i].URL = Redact(l.Read[i].URL)
	}
	for i := range l.Problems {
		l.Problems[i].First = Redact(l.Problems[i].First)
	}
	for i := range l.Requests {
		l.Requests[i].URL = Redact(l.Requests[i].URL)
	}
}
