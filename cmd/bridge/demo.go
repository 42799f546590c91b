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

// demoListen is where the demo is served; when it is taken, any other port is.
const demoListen = "127.0.0.1:8080"

func demoCommand() *cobra.Command {
	cmd := command("demo")
	listen, every := "", 10*time.Second
	cmd.Flags().StringVar(&listen, "listen", "", "`address` to serve on (default "+demoListen+", or any port when that is taken)")
	cmd.Flags().DurationVar(&every, "every", every, "`time` between two changes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		folder, err := os.MkdirTemp("", "bridge-demo-")
		if err != nil {
			return err
		}
		d := &demo{out: cmd.OutOrStdout(), every: every, provider: fixtures.Catalogue(time.Now)}
		err = d.run(cmd.Context(), listen, folder, daemon.Options{Command: "bridge demo", Logger: warnings(cmd.ErrOrStderr())})
		return errors.Join(err, os.RemoveAll(folder))
	}
	return cmd
}

// demo is the main job on the fixtures: a provider on loopback, harvested and
// republished while it changes.
type demo struct {
	out      io.Writer
	every    time.Duration
	provider *fixtures.Provider
	house    *daemon.House
	seq      event.Seq // the last one that was told
}

func (d *demo) run(ctx context.Context, listen, folder string, o daemon.Options) error {
	upstream, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: d.provider, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(upstream) }()
	feed := "http://" + upstream.Addr().String() + fixtures.Subscription
	fmt.Fprintf(d.out, "A research data catalogue that does not exist is served as an Atom-PMH feed at\n  %s\n", feed)
	err = d.bridge(ctx, listen, folder, feed, o)
	err = errors.Join(err, server.Close())
	if stopped := <-served; !errors.Is(stopped, http.ErrServerClosed) {
		err = errors.Join(err, stopped)
	}
	return err
}

func (d *demo) bridge(ctx context.Context, listen, folder, feed string, o daemon.Options) error {
	listener, err := demoListener(ctx, listen)
	if err != nil {
		return err
	}
	c, err := config.FromArguments(config.Flags{Data: folder, Listen: listener.Addr().String()}, []string{"catalogue=atompmh:" + feed})
	if err != nil {
		return errors.Join(usage(err), listener.Close())
	}
	c.Sets[0].Title = "Research data catalogue"
	c.Sets[0].Sources[0].Overlap = 0 // its clock is ours
	d.house, err = openHouse(ctx, c, o)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	published := make(chan error, 1)
	go func() { published <- d.house.Publish(ctx, listener); cancel() }()
	err = d.play(ctx)
	cancel()
	return errors.Join(err, <-published, d.house.Close())
}

func demoListener(ctx context.Context, listen string) (net.Listener, error) {
	var lc net.ListenConfig
	if listen != "" {
		return lc.Listen(ctx, "tcp", listen)
	}
	l, err := lc.Listen(ctx, "tcp", demoListen)
	if err != nil {
		return lc.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	return l, nil
}

// play harvests, tells what there is to see, and then lets the catalogue change
// until ctx ends.
func (d *demo) play(ctx context.Context) error {
	fmt.Fprintf(d.out, "Harvesting it ...\n")
	if err := d.begin(ctx); err != nil {
		return unlessEnded(ctx, err)
	}
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := d.change(ctx); err != nil {
				return unlessEnded(ctx, err)
			}
		}
	}
}

// unlessEnded drops an error that comes of the end that was asked for.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (d *demo) begin(ctx context.Context) error {
	src := d.house.Sources[0]
	report, err := d.house.Harvest(ctx, src, harvest.Options{})
	if err != nil {
		return err
	}
	if err := printReport(d.out, src, &report, false); err != nil {
		return err
	}
	base := d.house.Config.BaseURL
	fmt.Fprintf(d.out, `
Republished as ResourceSync, with the origin of each record as its via:
  %[1]s/                                             a page to look at
  %[1]s/.well-known/resourcesync                     Source Description
  %[1]s/sets/catalogue/capabilitylist.xml            Capability List
  %[1]s/sets/catalogue/resourcelist.xml              Resource List
  %[1]s/sets/catalogue/changelist-index.xml          Change List Index
  %[1]s/sets/catalogue/changelist.xml                the changes, in one list
  %[1]s/robots.txt                                   for crawlers

Try:
  curl %[1]s/sets/catalogue/changelist.xml

Every %[2]s a record changes at the Source, is harvested, and appears at the end of
that list. Stop with Ctrl-C; nothing is kept.

`, base, short(d.every))
	d.seq, err = d.house.Log.LastSeq(ctx)
	return err
}

// change lets a record change, harvests it, and tells what was logged.
func (d *demo) change(ctx context.Context) error {
	d.provider.Evolve()
	if _, err := d.house.Harvest(ctx, d.house.Sources[0], harvest.Options{}); err != nil {
		return err
	}
	for ev, err := range d.house.Log.Events(ctx, "", event.Range{After: d.seq, Upto: math.MaxInt64}) {
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
