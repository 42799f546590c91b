// Package mail is the Simple Ingest Protocol over SMTP: notifications come in
// through a Receiver and go out through a Sender. A notification is a mail whose
// one XML part is the same SOAP message that HTTP would carry.
//
// Of the protocol's operations only notify can be had by mail: it is the one that
// has no answer.
package mail

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/emersion/go-smtp"

	"github.com/pmh-bridge/bridge/sip"
)

// Limits of one connection and of one mail that nobody needs to change.
const (
	mailsPerConnection = 100
	recipientsPerMail  = 100
	refusalsPerSession = 100              // of recipients, before the client is sent away
	connectionLife     = 30 * time.Minute // whatever the client does meanwhile
	// A line may have 998 bytes (RFC 5322, 2.1.1). Programs that put a whole
	// message on one line are understood all the same.
	lineBytes = 64 << 10
	grace     = 8 * time.Second
)

// Receiver takes notifications by mail, for any number of mailboxes. It relays
// nothing, sends no bounces, and offers neither STARTTLS nor AUTH: it belongs on
// a private network or behind a mail server.
//
// A mail that was answered with 250 is durable with every recipient's Backend.
// Anything else leaves it with the client, which reads from the reply whether a
// repeat may help.
type Receiver struct {
	// Domain is what it greets with; "" is "localhost".
	Domain string
	// Mailbox returns who takes the mail of an address, nil when nobody does.
	// The local part comes as the client wrote it, without its +tag, which is the
	// token; the domain in lower case. It is called from several goroutines.
	Mailbox func(local, domain string) sip.Backend
	// MaxBytes that a mail has to stay below as it travels, with its headers and
	// its transfer encoding; 0 is 8 MiB.
	MaxBytes int64
	// Reading says how the messages are read: what they may ask for, and whether
	// an envelope may be missing. URL and ContentType are each mail's own.
	Reading sip.ReadOptions
	// Connections at a time, 0 is 64; those above are answered 421.
	Connections int
	// ConnectionsPerAddress at a time, 0 is 32, since a mail server in front opens 20
	// of its own accord; of IPv6, per /64.
	ConnectionsPerAddress int
	// Patience is how long a client may take until it has named a recipient that is
	// taken here; 0 is 60 s. When all connections are taken, who has not done so yet
	// gives way to a newcomer from an address that has fewer.
	Patience time.Duration
	// Room returns what is asked for room for the bytes of a mail, of an address, as
	// they come in; nil is room for all.
	Room func(client netip.Addr) Room
	// Timeout bounds the wait for each command, the time in which the content of
	// a mail (by BDAT: each chunk) arrives, and the writing of each reply; 0 is
	// 60 s. Who is late is not listened to any more. A connection ends after half
	// an hour in any case.
	Timeout time.Duration
	// Full returns why nothing more can be stored now, or nil; mails are then answered
	// with 452. A nil Full is never.
	Full func() error
	// Refused is told of mails that were refused, from several goroutines; it may be
	// nil and must not block.
	Refused func(Refusal)
	// Log is told of failures to store; nil is silence.
	Log *slog.Logger
}

// Refusal is a mail that was refused, after its content had been sent.
type Refusal struct {
	Client netip.Addr
	Sender string   // as the client has named it
	To     []string // mailboxes without their tokens
	Reply  int
	Reason string
}

// Room is what a mail under way takes up.
type Room interface {
	// Add takes room for more bytes; the error is that there is none, and has the
	// mail answered with 451.
	Add(n int64) error
	// Release gives all of it back.
	Release()
}

// withDefaults returns a copy in which no zero value means something else.
func (r Receiver) withDefaults() *Receiver {
	r.Domain = cmp.Or(r.Domain, "localhost")
	r.MaxBytes = cmp.Or(r.MaxBytes, 8<<20)
	r.Connections = cmp.Or(r.Connections, 64)
	r.ConnectionsPerAddress = cmp.Or(r.ConnectionsPerAddress, 32)
	r.Patience = cmp.Or(r.Patience, time.Minute)
	r.Timeout = cmp.Or(r.Timeout, time.Minute)
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	return &r
}

// Serve takes mail from a listener, which it closes, until the context ends or
// the listener fails. Clients that wait are then sent away. Mails that are being
// received or stored have eight seconds to end, and get their reply; after that
// the Backends' context ends and the connections are cut. Serve returns when the
// last call of a Backend has; nil when the context ended.
func (r *Receiver) Serve(ctx context.Context, l net.Listener) error {
	r = r.withDefaults()
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	g := &gate{
		Listener: l,
		total:    r.Connections,
		each:     r.ConnectionsPerAddress,
		patience: r.Patience,
		life:     connectionLife,
		conns:    map[*conn]bool{},
	}
	server := r.server(calls)

	served := make(chan error, 1)
	go func() { served <- server.Serve(g) }()
	var failed error
	select {
	case failed = <-served:
	case <-ctx.Done():
		failed = g.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			failed = errors.Join(failed, err)
		}
	}
	g.dismiss()
	cut := time.AfterFunc(grace, func() {
		cancel()
		g.cut()
	})
	defer cut.Stop()
	// It waits for the connections, without a limit: the cut above is the limit.
	return errors.Join(failed, server.Shutdown(context.WithoutCancel(ctx)))
}

// server speaks SMTP: commands, pipelining, dot-stuffing, BDAT.
func (r *Receiver) server(calls context.Context) *smtp.Server {
	server := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &session{receiver: r, calls: calls, conn: c.Conn().(*conn)}, nil
	}))
	server.Domain = r.Domain
	server.MaxMessageBytes = r.MaxBytes
	server.MaxRecipients = recipientsPerMail
	server.MaxLineLength = lineBytes
	server.ReadTimeout = r.Timeout
	server.WriteTimeout = r.Timeout
	server.EnableSMTPUTF8 = true
	server.EnableBINARYMIME = true
	server.ErrorLog = slog.NewLogLogger(r.Log.Handler(), slog.LevelWarn)
	return server
}
