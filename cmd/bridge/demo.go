package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// demoListen is the address of the demo; when its port is in use, any other port is taken.
const demoListen = "127.0.0.1:8080"

func demoCommand() *cobra.Command {
	cmd := command("demo")
	listen, every := "", 10*time.Second
	cmd.Flags().StringVar(&listen, "listen", "", "`address` to serve on (default "+demoListen+", or any port when that is taken)")
	cmd.Flags().DurationVar(&every, "every", every, "`time` between two changes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if every <= 0 {
			return usage(errors.New("--every must be more than 0s"))
		}
		if listen != "" {
			if _, err := config.FromArguments(config.Flags{Listen: listen, BaseURL: "http://127.0.0.1"}, nil); err != nil {
				return usage(err)
			}
		}
		folder, err := os.MkdirTemp("", "bridge-demo-")
		if err != nil {
			return err
		}
		d := &demo{out: cmd.OutOrStdout(), every: every,
			catalogue: fixtures.Catalogue(time.Now), maps: fixtures.Maps(time.Now), news: fixtures.News(), museum: fixtures.Museum(time.Now)}
		err = d.run(cmd.Context(), listen, folder, daemon.Options{Command: "bridge demo", Logger: warnings(cmd.ErrOrStderr())})
		return errors.Join(err, os.RemoveAll(folder))
	}
	return cmd
}

// demo runs a whole bridge on the fixtures: it harvests Sources of four kinds on loopback
// and republishes them while they change.
type demo struct {
	out       io.Writer
	every     time.Duration
	catalogue *fixtures.Provider
	maps      *fixtures.Source
	news      *fixtures.Blog
	museum    *fixtures.Inventory
	opened    *daemon.Bridge
	seq       event.Seq // the last event that was printed
}

func (d *demo) run(ctx context.Context, listen, folder string, o daemon.Options) error {
	var up upstreams
	catalogue := up.serve(ctx, d.catalogue, fixtures.Subscription)
	maps := up.serve(ctx, d.maps, fixtures.SourceDescription)
	news := up.serve(ctx, d.news, fixtures.NewsFeed)
	museum := up.serve(ctx, d.museum, fixtures.MuseumOAI)
	if up.err != nil {
		return errors.Join(up.err, up.close())
	}
	fmt.Fprintf(d.out, `This machine serves four example Sources:
  %-48s a research data catalogue, as an Atom-PMH feed
  %-48s a map collection, as a ResourceSync Source
  %-48s the news of a library, as an RSS feed
  %-48s the archive of a small museum, over OAI-PMH
`, catalogue, maps, news, museum)
	sources := []string{"catalogue=" + catalogue, "all=" + catalogue, "all=" + maps, "all=" + news, "all=" + museum}
	return errors.Join(d.runBridge(ctx, listen, folder, sources, o), up.close())
}

// upstreams are the servers of the demo's Sources.
type upstreams struct {
	servers []*http.Server
	ended   []chan error
	err     error // the first error
}

// serve serves a Source on any port of loopback and returns the URL of a path.
func (u *upstreams) serve(ctx context.Context, h http.Handler, path string) string {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		u.err = errors.Join(u.err, err)
		return ""
	}
	server, ended := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}, make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	u.servers, u.ended = append(u.servers, server), append(u.ended, ended)
	return "http://" + l.Addr().String() + path
}

// close stops all of them and waits until they have stopped.
func (u *upstreams) close() error {
	var errs []error
	for i, s := range u.servers {
		errs = append(errs, s.Close())
		if err := <-u.ended[i]; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *demo) runBridge(ctx context.Context, listen, folder string, sources []string, o daemon.Options) error {
	listener, err := demoListener(ctx, listen)
	if err != nil {
		return err
	}
	c, err := config.FromArguments(config.Flags{Data: folder, Listen: listener.Addr().String()}, sources)
	if err != nil {
		return errors.Join(usage(err), listener.Close())
	}
	c.ConsoleListen = "127.0.0.1:0"
	c.Sets[0].Title, c.Sets[1].Title = "Research data catalogue", "Catalogue, maps, news and museum"
	for _, set := range c.Sets {
		for i := range set.Sources {
			set.Sources[i].Overlap = 0 // the Sources' clock is ours
		}
	}
	d.opened, err = openBridge(ctx, c, o)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := openConsole(ctx, d.opened, c.BaseURL, d.out, o.Logger); err != nil {
		return errors.Join(err, listener.Close(), d.opened.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	published := make(chan error, 1)
	go func() { published <- d.opened.Publish(ctx, listener); cancel() }()
	err = d.play(ctx)
	cancel()
	return errors.Join(err, <-published, d.opened.Close())
}

func demoListener(ctx context.Context, listen string) (net.Listener, error) {
	if listen != "" {
		l, err := daemon.Listen(ctx, listen, "", "choose another with --listen")
		if err != nil {
			return nil, err
		}
		if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
			return nil, errors.Join(usage(fmt.Errorf("--listen: %s can be reached from other machines, and the demo is for this one alone; write an address on loopback, like 127.0.0.1:8081", listen)), l.Close())
		}
		return l, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", demoListen)
	if err != nil {
		return lc.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	return l, nil
}

// play harvests, prints what there is to see, and then changes the Sources until ctx ends.
func (d *demo) play(ctx context.Context) error {
	fmt.Fprintf(d.out, "Harvesting all four into one set, and the first also into a set of its own ...\n")
	if err := d.begin(ctx); err != nil {
		return unlessEnded(ctx, err)
	}
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := d.change(ctx, n); err != nil {
				return unlessEnded(ctx, err)
			}
		}
	}
}

// unlessEnded drops an error when ctx has ended, since the end was requested.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (d *demo) begin(ctx context.Context) error {
	for _, src := range d.opened.Sources() {
		report, err := d.opened.Harvest(ctx, src, harvest.Options{})
		if err != nil {
			return err
		}
		if err := printReport(d.out, src, &report, false); err != nil {
			return err
		}
	}
	base := d.opened.Config().BaseURL
	fmt.Fprintf(d.out, `
Republished, with the origin of each record as its via:
  %[1]s/                                    a page to look at
  %[1]s/.well-known/resourcesync            ResourceSync: start here
  %[1]s/sets/catalogue/resourcelist.xml     what there is
  %[1]s/sets/catalogue/changelist.xml       what has changed
  %[1]s/sets/catalogue/feed.atom            the changes as an Atom-PMH feed
  %[1]s/sets/catalogue/complete.atom        what there is, as a complete feed
  %[1]s/sets/catalogue/recent.rss           for feed readers
  %[1]s/sets/all/feed.atom                  the four Sources as one feed; and so on
  %[1]s/sets/all/oai?verb=Identify          and as one OAI-PMH repository

Try:
  curl %[1]s/sets/catalogue/changelist.xml

Every %[2]s a record of the catalogue changes, is harvested, and appears at the end
of that list; of the other Sources a map, the news or the museum. Stop with Ctrl-C;
nothing is kept.

`, base, short(d.every))
	var err error
	d.seq, err = d.opened.Log.LastSeq(ctx)
	return err
}

// change changes a record of the catalogue, and one of another Source, harvests them, and
// prints what was logged.
func (d *demo) change(ctx context.Context, n int) error {
	d.catalogue.Evolve()
	switch n % 3 {
	case 0:
		fixtures.EvolveMaps(d.maps, n/3)
	case 1:
		d.news.Evolve()
	default:
		d.museum.Evolve()
	}
	for _, src := range d.opened.Sources() {
		if _, err := d.opened.Harvest(ctx, src, harvest.Options{}); err != nil {
			return err
		}
	}
	for ev, err := range d.opened.Log.Events(ctx, "", event.Range{After: d.seq, Upto: math.MaxInt64}) {
		if err != nil {
			return err
		}
		if err := printEvent(d.out, ev, false); err != nil {
			return err
		}
		d.seq = ev.Seq
	}
	return nil
}
