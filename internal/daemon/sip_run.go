package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// sipService returns the service at /sip/{set}, nil when the set has none.
func (b *Bridge) sipService(set string) server.SIPService {
	if v := b.service(set); v != nil {
		return v.handler.Serve
	}
	return nil
}

// formerSIPService returns what takes the notifications that ingest servers owe to a set that
// does not use SIP any more, nil when it owes none.
func (b *Bridge) formerSIPService(set string) server.SIPService {
	var handlers map[string]*sip.Handler
	if all := b.sip.formerHandlers.Load(); all != nil {
		handlers = *all
	}
	h := handlers[set]
	for _, f := range *b.formerNames.Load() { // of a set that is not published, too
		if h == nil && f.Name == set {
			h = handlers[f.Now]
		}
	}
	if h == nil {
		return nil
	}
	return h.Serve
}

// service returns the SIP service of a set, nil when it has none.
func (b *Bridge) service(set string) *service {
	for _, v := range b.sip.services {
		if v.set == set {
			return v
		}
	}
	return nil
}

// reachedAt sets the URL at which the services are reached, before the first request.
func (b *Bridge) reachedAt(base string) {
	b.sip.base = base
	for _, v := range b.sip.services {
		v.handler.Location = base + servicePath + v.set
	}
	if all := b.sip.formerHandlers.Load(); all != nil {
		for set, h := range *all {
			h.Location = base + servicePath + set
		}
	}
}

// runExchange serves, submits and notifies until ctx ends. stop is called when one of these
// cannot continue; a panic restarts its task where possible (restartOnPanic).
func (b *Bridge) runExchange(ctx context.Context, stop context.CancelCauseFunc, mails []mailServer) {
	var group sync.WaitGroup
	// These tasks cannot be restarted: a panic ends Serve, as an error does.
	once := func(what string, run func() error) {
		if err := defect.Guard(run); err != nil && ctx.Err() == nil {
			stop(&haltedError{what, err})
		}
	}
	for _, v := range b.sip.services {
		group.Go(func() { once("the SIP service of set "+v.set, func() error { v.server.Run(ctx); return nil }) })
		if v.source != nil {
			group.Go(func() {
				b.restartOnPanic(ctx, "asking for pending records of set "+v.set, func(ctx context.Context) { b.settlePending(ctx, v) })
			})
		}
	}
	for _, d := range b.sip.former {
		group.Go(func() { once("the former SIP service of set "+d.Set, func() error { d.Run(ctx); return nil }) })
	}
	for _, o := range b.sip.submitters {
		group.Go(func() { b.restartOnPanic(ctx, "the submission of set "+o.Set+" to "+Redact(o.URL), o.Run) })
	}
	if len(b.sip.expiry.Targets) > 0 {
		group.Go(func() { b.restartOnPanic(ctx, "the end of submissions to former targets", b.sip.expiry.Run) })
	}
	if len(b.sip.services)+len(b.sip.former) > 0 {
		group.Go(func() { once("the delivery of notifications", func() error { b.sip.notifier.Run(ctx); return nil }) })
	}
	group.Go(func() { b.restartOnPanic(ctx, "the taking of decisions", b.serveDecisions) }) // a set needs no service any more for a record to be withdrawn
	for _, m := range mails {
		group.Go(func() {
			once("the mail server on "+m.listener.Addr().String(), func() error { return m.receiver.Serve(ctx, m.listener) })
		})
	}
	group.Wait()
}

// haltedError means that a service which bridge is configured to run cannot continue.
type haltedError struct {
	what string
	err  error
}

func (e *haltedError) Error() string { return e.what + " has stopped: " + e.err.Error() }
func (e *haltedError) Unwrap() error { return e.err }

// mailServer takes notifications by mail at one address, for one set or several.
type mailServer struct {
	listener net.Listener
	receiver *mail.Receiver
}

// ListenMail listens at every smtp_listen of the configuration. Serve does so too; a
// command calls it before, to print that it serves only when that is certain.
func (b *Bridge) ListenMail(ctx context.Context) (err error) {
	if b.sip.mails == nil {
		b.sip.mails, err = b.openMail(ctx)
	}
	return err
}

// mailRefused logs a refused mail.
func (b *Bridge) mailRefused(r mail.Refusal) {
	b.sip.mailRefusals.Note(func(n int) {
		b.opt.Logger.Info("mails were refused", "mails", n, "last", r.Client, "sender", r.Sender, "to", r.To, "reply", r.Reply, "reason", r.Reason)
	})
}

// openMail listens at every address of the configuration.
func (b *Bridge) openMail(ctx context.Context) ([]mailServer, error) {
	boxes := map[string]map[string]sip.Backend{} // by address, then by mailbox
	var order []string
	for _, v := range b.sip.services {
		if v.config == nil || v.config.SMTPListen == "" {
			continue
		}
		at := v.config.SMTPListen
		if boxes[at] == nil {
			boxes[at] = map[string]sip.Backend{}
			order = append(order, at)
		}
		boxes[at][strings.ToLower(v.config.Mailbox)] = v.server
	}
	var servers []mailServer
	for _, at := range order {
		l, err := Listen(ctx, at, " for mail", "write another smtp_listen")
		if err != nil {
			for _, m := range servers {
				err = errors.Join(err, m.listener.Close())
			}
			return nil, err
		}
		own := boxes[at]
		domain := ""
		for box := range own {
			if _, d, _ := strings.Cut(box, "@"); domain == "" || d < domain {
				domain = d
			}
		}
		b.opt.Logger.Info("mail is accepted", "address", l.Addr().String(), "configured", at) // with port 0 the address is known only now
		servers = append(servers, mailServer{l, &mail.Receiver{Domain: domain, Log: b.opt.Logger, Reading: sip.ReadOptions{Limits: b.sipLimits()},
			MaxBytes: 2 * b.Config().Limits.SIPMessage, // base64 makes it a third longer
			Reserve:  func(client netip.Addr, cut func()) mail.Reservation { return b.requestBudget.Hold(client, cut) },
			Full:     b.diskSpace.Low, Refused: b.mailRefused,
			Mailbox: func(local, domain string) sip.Backend {
				b, ok := own[strings.ToLower(local)+"@"+domain]
				if !ok {
					return nil
				}
				return b
			}}})
	}
	return servers, nil
}
