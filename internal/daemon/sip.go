package daemon

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/ingest"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// targetRank is the rank of the first target among a set's Sources: after all that records
// are harvested from.
const targetRank = 1 << 20

// servicePath is the path of the services, below the base URL.
const servicePath = "/sip/"

// sipState is the state of the Simple Ingest Protocol in a Bridge.
type sipState struct {
	services   []*service
	submitters []*delivery.Submitter
	// former are the servers of the SIP Sources that the log has and that are not
	// configured any more: they conclude what was received. formerHandlers are those of the
	// sets that had targets or such a Source, and have no service any more: only who has the
	// token of a submission can call them.
	former         []*ingest.Server
	formerHandlers atomic.Pointer[map[string]*sip.Handler]
	// reload has a channel for each of submitters, in the same order. It is sent to when
	// submissions were put back into the queue of that submitter.
	reload []chan struct{}
	// importPending is sent to when a record of a target was accepted.
	importPending map[event.SourceID]chan struct{}
	expiry        delivery.Expiry
	notifier      *delivery.Notifier
	mails         []mailServer
	// readSlots bounds the messages that are read at once to the number of cores.
	readSlots chan struct{}
	// Messages that any client can cause are logged once a minute.
	mailRefusals, recipientRefusals limit.LogThrottle
	// base is the URL at which others reach us; set when the server has its address.
	base string
}

// service is the SIP service at /sip/{set}.
type service struct {
	set     string
	source  *Source // nil for a set that has only targets
	config  *config.SIP
	server  *ingest.Server
	handler *sip.Handler
	// wake is sent to when observations wait for their content.
	wake chan struct{}
}

// openSIP creates the services and submitters of the configured sets. It is called after
// all their Sources exist: a target may import its records into another set.
func (b *Bridge) openSIP(ctx context.Context) error {
	b.sip.readSlots = make(chan struct{}, runtime.GOMAXPROCS(0))
	b.sip.importPending = map[event.SourceID]chan struct{}{}
	b.sip.notifier = &delivery.Notifier{Store: b.SIP, HTTP: b.notifyClient, Mail: b.mailer(), Now: b.opt.Now, Log: b.opt.Logger}
	for i := range b.Config().Sets {
		s := &b.Config().Sets[i]
		var own *Source
		var c *config.SIP
		for j := range s.Sources {
			if s.Sources[j].SIP != nil {
				own, c = b.sourceOf(s.Name, s.Sources[j].URL), s.Sources[j].SIP
			}
		}
		if own == nil && len(s.Submit) == 0 {
			continue
		}
		if err := b.openService(ctx, s, own, c); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	return b.openFormer(ctx)
}

// openFormer finds the targets and SIP Sources that are not configured any more.
func (b *Bridge) openFormer(ctx context.Context) (err error) {
	f := &b.sip.expiry
	f.Store, f.Now, f.Log = b.SIP, b.opt.Now, b.opt.Logger
	f.Targets, b.sip.former, err = b.openFormerHandlers(ctx)
	return err
}

// openFormerHandlers makes the formerHandlers, by the names that the sets have now, and returns
// the targets and the servers of the SIP Sources that are not configured any more.
func (b *Bridge) openFormerHandlers(ctx context.Context) (ended []event.SourceID, former []*ingest.Server, err error) {
	handlers := map[string]*sip.Handler{}
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, nil, err
	}
	sources, targets, err := b.Log.SourceNamesOfSets(ctx) // at once: there may be thousands of sets
	if err != nil {
		return nil, nil, err
	}
	for i := range sets {
		v := b.service(sets[i].Name)
		var last *ingest.Server
		for _, t := range targets[sets[i].Name] {
			if isSent(&t) && b.sip.importPending[t.ID] == nil {
				ended = append(ended, t.ID)
				last = b.formerServer(&sets[i], t.ID, servicePath+sets[i].Name)
			}
		}
		own := sources[sets[i].Name]
		if len(b.Config().Sets) == 0 { // then it is not known what is configured
			own = nil
		}
		for _, s := range own {
			if s.Kind == config.KindSIP && (v == nil || v.server.Source != s.ID) {
				last = b.formerServer(&sets[i], s.ID, s.URL)
				former = append(former, last)
			}
		}
		if v == nil && last != nil {
			h := b.sipHandler(last)
			h.Location = b.sip.base + servicePath + sets[i].Name
			handlers[sets[i].Name] = h
		}
	}
	b.sip.formerHandlers.Store(&handlers)
	return ended, former, nil
}

// formerServer returns the server of a Source or target that is not configured any more.
// Only who has the token of a submission can call it.
func (b *Bridge) formerServer(set *event.Set, source event.SourceID, url string) *ingest.Server {
	return &ingest.Server{Set: set.Name, Feed: set.IdentifierFeed(), Epoch: set.Feed, Source: source, URL: url, Content: set.Content, Store: b.SIP,
		Access: ingest.Access{Kind: ingest.AccessToken}, Notified: b.sip.notifier.Wake, Now: b.opt.Now, Log: b.opt.Logger}
}

// sipHandler returns a handler that serves a server.
func (b *Bridge) sipHandler(d *ingest.Server) *sip.Handler {
	return &sip.Handler{Backend: d, Offers: d.Offers(), MaxBytes: b.Config().Limits.SIPMessage, Limits: b.sipLimits(), Slots: b.sip.readSlots, Log: b.opt.Logger}
}

// isSent reports whether a Source is an ingest server to which records are submitted.
func isSent(s *eventlog.Source) bool {
	return s.Kind == eventlog.Target && !strings.HasPrefix(s.URL, servicePath)
}

func (b *Bridge) openService(ctx context.Context, s *config.Set, own *Source, c *config.SIP) error {
	stored, err := b.Log.Set(ctx, s.Name)
	if err != nil {
		return err
	}
	v := &service{set: s.Name, source: own, config: c, wake: make(chan struct{}, 1)}
	v.server = &ingest.Server{
		Set: s.Name, Feed: stored.IdentifierFeed(), Epoch: stored.Feed, Content: stored.Content, Store: b.SIP, Keep: b.keepRecords,
		Endpoint: func() string { return b.sip.base + servicePath + s.Name }, Recipient: b.mayNotify,
		Targets: len(s.Submit) > 0, ImportPending: func(target event.SourceID) { wake(b.sip.importPending[target]) },
		Notified: b.sip.notifier.Wake, Pending: func() { wake(v.wake) }, Now: b.opt.Now, Log: b.opt.Logger,
		Quota: &limit.Quota{
			PerClient: limit.Amount{Messages: int64(b.Config().Limits.OpenAddressMessages), Bytes: b.Config().Limits.OpenAddressSize},
			All:       limit.Amount{Messages: int64(b.Config().Limits.OpenSetMessages), Bytes: b.Config().Limits.OpenSetSize},
		},
	}
	if own != nil {
		v.server.Source, v.server.URL = own.ID, own.URL
		err = b.configureServer(v.server, c)
	} else {
		v.server.URL = servicePath + s.Name
		v.server.Source, err = b.unownedSource(ctx, s.Name, v.server.URL)
	}
	if err != nil {
		return err
	}
	for i := range s.Submit {
		if err := b.openTarget(ctx, s, i); err != nil {
			return err
		}
	}
	v.handler = b.sipHandler(v.server)
	v.handler.Plain = c != nil && c.PlainPost
	b.sip.services = append(b.sip.services, v)
	return nil
}

// unownedSource returns the Source for notifications that belong to no submission, in a set
// that has targets and no SIP Source. Its kind is Target, so that it has no rank among the
// Sources of records, unless the set had a SIP Source before.
func (b *Bridge) unownedSource(ctx context.Context, set, url string) (event.SourceID, error) {
	all, err := b.Log.SourceNames(ctx, set)
	if err != nil {
		return 0, err
	}
	for i := range all {
		if all[i].Kind == config.KindSIP {
			return all[i].ID, nil
		}
	}
	return b.Log.EnsureSource(ctx, set, eventlog.Target, url, targetRank-1)
}

// configureServer sets up a Server as its Source is configured.
func (b *Bridge) configureServer(d *ingest.Server, c *config.SIP) error {
	d.Mode, d.RecordURL, d.Deadline = ingest.Mode(c.Mode), c.RecordURL, c.Deadline
	d.Formats = formatsOf(c.Formats)
	if b.Config().Mail.From == "" && (d.Mode == ingest.Review || d.Mode == ingest.Gateway) {
		d.Recipient = b.mayNotifyByWeb
	}
	a := c.Access
	d.Access = ingest.Access{Kind: a.Kind, Token: a.Token.Reveal(), User: a.User, Password: a.Password.Reveal(), Addresses: a.Addresses}
	if c.Upstream != "" {
		client := b.sipClient(b.newGuard(b.typed(c.Upstream)), c.Upstream)
		client.User, client.Password = c.User, c.Password.Reveal()
		d.Upstream, d.Named = client, b.recipientOf(d.Set, c.Recipient)
	}
	if len(c.Schemas) == 0 {
		return nil
	}
	lint, err := Validator()
	if err != nil {
		return err
	}
	d.Validate = ingest.NewXMLLint(lint, c.Schemas)
	return nil
}

// Validator returns the path of the program that checks records against their schemas. If
// there is none it returns an error; then no service with schemas can be opened.
func Validator() (string, error) {
	lint, err := exec.LookPath("xmllint")
	if err != nil {
		return "", errors.New("schemas are given, and xmllint, which checks records against them, is not installed: install it (Debian: libxml2-utils), or leave schemas out")
	}
	return lint, nil
}

func (b *Bridge) openTarget(ctx context.Context, s *config.Set, i int) error {
	t := &s.Submit[i]
	id, err := b.Log.EnsureSource(ctx, s.Name, eventlog.Target, t.URL, targetRank+i)
	if err != nil {
		return err
	}
	stored, err := b.Log.Set(ctx, s.Name)
	if err != nil {
		return err
	}
	client := b.sipClient(b.newGuard(b.typed(t.URL)), t.URL)
	client.User, client.Password = t.User, t.Password.Reveal()
	o := &delivery.Submitter{
		Set: s.Name, Source: id, URL: t.URL, Store: b.SIP, Contents: b.Contents, Server: client,
		Formats: formatsOf(t.Formats), Sequence: cmp.Or(t.Sequence, stored.IdentifierName()), Recipient: b.recipientOf(s.Name, t.Recipient),
		Deadline: t.Deadline, Every: t.Every, Workers: t.Workers, SkipProperties: t.Properties == config.SkipProperties,
		Now: b.opt.Now, Log: b.opt.Logger, Failed: b.endIfStopped,
	}
	if t.SubmitterName != "" {
		o.Submitter = &sip.Submitter{Name: t.SubmitterName, EmailAddress: t.SubmitterEmail}
	}
	if t.ImportAcceptedTo != "" {
		sources := b.Sources()
		i := slices.IndexFunc(sources, func(s *Source) bool { return s.Set == t.ImportAcceptedTo && s.Kind == config.KindSIP })
		if i < 0 {
			return fmt.Errorf("import_accepted_to names set %q, which has no SIP Source", t.ImportAcceptedTo)
		}
		o.ImportTo, o.ImportURL = sources[i].ID, sources[i].URL
	}
	reload, owing := make(chan struct{}, 1), make(chan struct{}, 1)
	o.Reload, o.ImportPending = reload, owing
	b.sip.submitters, b.sip.reload = append(b.sip.submitters, o), append(b.sip.reload, reload)
	b.sip.importPending[id] = owing
	return nil
}

// wake wakes the goroutine that reads from c. It does nothing when c is nil or a wake-up is
// already pending.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// recipientOf returns a function that makes the notification recipient for a token: the
// configured one, or our own service by default. It returns nil if notifications are not
// wanted.
func (b *Bridge) recipientOf(set, configured string) func(token string) string {
	switch {
	case configured == config.NoRecipient:
		return nil
	case configured == "":
		return func(token string) string { return b.sip.base + servicePath + set + "/" + token }
	case strings.HasPrefix(configured, "http:"):
		return func(token string) string { return configured + servicePath + set + "/" + token }
	}
	at := strings.LastIndexByte(configured, '@')
	return func(token string) string { return configured[:at] + "+" + token + configured[at:] }
}

func formatsOf(configured map[string]string) map[xml.Name]string {
	out := make(map[xml.Name]string, len(configured))
	for root, schema := range configured {
		name := xml.Name{Local: root}
		if space, local, ok := strings.Cut(strings.TrimPrefix(root, "{"), "}"); ok {
			name = xml.Name{Space: space, Local: local}
		}
		out[name] = schema
	}
	return out
}

// sipClient returns the client for requests to an ingest server or a recipient, under an
// address guard.
func (b *Bridge) sipClient(g *fetch.Guard, url string) *sip.HTTPClient {
	return &sip.HTTPClient{HTTP: g.Client(""), URL: url, MaxBytes: b.Config().Limits.SIPMessage}
}

// typed returns the reach for a host that the operator typed: a URL, or host:port.
func (b *Bridge) typed(host string) fetch.Reach {
	return fetch.Reach{Typed: []string{host}, Allowed: b.Config().AllowHosts, Only: true}
}

// mailer returns the sender of mail; nil if no sender address is configured or can be
// derived.
func (b *Bridge) mailer() delivery.Mailer {
	m := b.Config().Mail
	if m.From == "" {
		return nil
	}
	return &mail.Sender{From: m.From, Hello: m.HELO, Relay: m.Relay, Now: b.opt.Now,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			g := b.generation.Load() // a reload may have changed allow_hosts
			reach := fetch.Reach{Allowed: g.config.AllowHosts, SafePorts: true}
			if address == m.Relay {
				reach = b.typed(m.Relay)
			}
			return g.guard.With(reach).DialContext(ctx, network, address)
		}}
}

// notifyClient returns the client that notifies a recipient. Responses are short.
func (b *Bridge) notifyClient(recipient string) *sip.HTTPClient {
	c := b.sipClient(b.publicOnly.Load(), recipient)
	c.MaxBytes = 64 << 10
	return c
}

func (b *Bridge) sipLimits() sip.Limits {
	l := b.Config().Limits
	return sip.Limits{Document: l.SIPMessage, Depth: l.Depth, Attributes: l.Attributes, Text: int(l.Text)}
}

// mayNotify returns the reason why a notification-recipient that a client names may not be
// used, nil if it may. A name that cannot be looked up now is accepted, since it may exist
// when it is needed; the guard checks it again then.
func (b *Bridge) mayNotify(ctx context.Context, recipient string) error {
	u, err := url.Parse(recipient)
	if err != nil {
		return fmt.Errorf("%q is no URL", recipient)
	}
	switch u.Scheme {
	case "http", "https":
		if u.Host == "" || u.User != nil || u.Fragment != "" {
			return fmt.Errorf("%q is no URL of a service: write http://host/path", fetch.Plain(u))
		}
	case "smtp", "mailto":
		to, err := mail.ParseRecipient(recipient)
		if err != nil || to.Host == "" {
			return err // without a host, the guard checks the mail servers of its domain later
		}
	default:
		return fmt.Errorf("%q is neither http nor smtp", recipient)
	}
	switch err := b.publicOnly.Load().Allowed(ctx, u); {
	case errors.Is(err, fetch.ErrPort):
		return fmt.Errorf("its port is not one that notifications go to: want 80, 443, 25, 465, 587 or one above 1024 that is no other service's")
	case errors.Is(err, fetch.ErrAddress):
		// The client does not learn which address a name has in our network.
		b.sip.recipientRefusals.Note(func(n int) {
			b.opt.Logger.Info("notification-recipients were refused", "recipients", n, "last", err)
		})
		return errors.New("its host is not one that everybody can reach")
	}
	return nil
}

// mayNotifyByWeb is mayNotify for a bridge that cannot send mail, and a service that may
// have to send notifications later.
func (b *Bridge) mayNotifyByWeb(ctx context.Context, recipient string) error {
	if _, err := mail.ParseRecipient(recipient); err == nil {
		return errors.New("this service cannot send mail: name an http or https recipient")
	}
	return b.mayNotify(ctx, recipient)
}

// SIPSet is a set that serves or uses the Simple Ingest Protocol.
type SIPSet struct {
	Set  string
	Mode string // of its service; "" is a notification recipient
	// Token reports whether callers need a token at the end of the URL.
	Token bool
	// Mailbox takes notifications by mail at SMTPListen; "" means none.
	Mailbox, SMTPListen string
	Targets             []string // URLs of the ingest servers that its records go to, as Redact returns them
}

// SIPSets returns all sets that serve or use the Simple Ingest Protocol.
func (b *Bridge) SIPSets() []SIPSet {
	var out []SIPSet
	for _, v := range b.sip.services {
		s := SIPSet{Set: v.set, Mode: string(v.server.Mode)}
		if v.config != nil {
			s.Mailbox, s.SMTPListen, s.Token = v.config.Mailbox, v.config.SMTPListen, v.config.Access.Kind == config.AccessToken
		}
		for _, o := range b.sip.submitters {
			if o.Set == v.set {
				s.Targets = append(s.Targets, Redact(o.URL))
			}
		}
		out = append(out, s)
	}
	return out
}

// settlePending requests pending contents, when there are new ones and as they come due.
func (b *Bridge) settlePending(ctx context.Context, v *service) {
	log := b.opt.Logger.With("set", v.set)
	tick := time.NewTicker(pendingEvery)
	defer tick.Stop()
	for {
		if _, err := b.harvest.Settle(ctx, &v.source.Source); err != nil && ctx.Err() == nil {
			log.Error("asking for pending records failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-v.wake:
		}
	}
}
