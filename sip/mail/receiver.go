// Package mail implements the Simple Ingest Protocol over SMTP: a Receiver accepts
// notifications, and a Sender sends them. A notification is a mail whose only XML part
// is the same SOAP message as over HTTP.
//
// Mail supports only the operation notify, because it has no answer.
package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"

	"github.com/pmh-bridge/bridge/sip"
)

// Limits of one connection and of one mail that cannot be configured.
const (
	mailsPerConnection = 100
	recipientsPerMail  = 100
	refusalsPerSession = 100              // of recipients, before the connection is closed
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
// A mail that was answered with 250 is durable with every recipient's Backend. After any other
// reply the client still has the mail, and the reply shows whether a repeat may help.
type Receiver struct {
	// Domain is the name in its greeting; "" is "localhost".
	Domain string
	// Mailbox returns the Backend that takes the mail of an address, nil when none does. The
	// local part comes as the client wrote it, without its +tag, which is the token; the domain
	// in lower case. It is called from several goroutines.
	Mailbox func(local, domain string) sip.Backend
	// MaxBytes that a mail has to stay below as it travels, with its headers and
	// its transfer encoding; 0 is 8 MiB.
	MaxBytes int64
	// Reading has the limits of the messages, and whether an envelope may be missing. Its URL,
	// ContentType and Places are set anew for each mail.
	Reading sip.ReadOptions
	// Connections at a time, 0 is 64; those above are answered 421.
	Connections int
	// ConnectionsPerAddress at a time, 0 is 32, since a mail server in front opens 20
	// of its own accord; of IPv6, per /64.
	ConnectionsPerAddress int
	// RecipientTimeout is how long a client may take until it has named a recipient that is
	// taken here; 0 is 60 s. When all connections are in use, one is closed for a newcomer from
	// an address that has fewer: rather one that has not done so yet, and one on which a mail
	// arrives only when there is no other. That mail is answered with 451.
	RecipientTimeout time.Duration
	// Reserve returns the Reservation in which the bytes of a mail from an address are
	// counted as they come in; nil does not count them. cut may be called from any goroutine
	// until the mail is received: it is then answered with 451, and its connection ends.
	Reserve func(client netip.Addr, cut func()) Reservation
	// Timeout bounds the wait for each command, the time in which the content of a mail (by
	// BDAT: each chunk) arrives, and the writing of each reply; 0 is 60 s. After it nothing
	// more is read from the connection. A connection ends after half an hour in any case.
	Timeout time.Duration
	// Full returns an error when nothing more can be stored now; mails are then answered with
	// 452. With a nil Full there is always room.
	Full func() error
	// Refused is called with mails that were refused, from several goroutines; it may be
	// nil and must not block.
	Refused func(Refusal)
	// Log gets the errors of Backends; nil logs nothing.
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

// Reservation counts the bytes of one mail while it is received.
type Reservation interface {
	// Add reserves more bytes. It returns an error when too many are reserved already, and the
	// mail is answered with 451.
	Add(n int64) error
	// Received is called when the mail has come in.
	Received()
	// Release ends the reservation of all of them.
	Release()
}

// withDefaults returns a copy in which no zero value means something else.
func (r Receiver) withDefaults() *Receiver {
	r.Domain = cmp.Or(r.Domain, "localhost")
	r.MaxBytes = cmp.Or(r.MaxBytes, 8<<20)
	r.Connections = cmp.Or(r.Connections, 64)
	r.ConnectionsPerAddress = cmp.Or(r.ConnectionsPerAddress, 32)
	r.RecipientTimeout = cmp.Or(r.RecipientTimeout, time.Minute)
	r.Timeout = cmp.Or(r.Timeout, time.Minute)
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	return &r
}

// Serve takes mail from a listener, which it closes, until the context ends or the listener
// fails. Then it closes connections without a mail. Mails that are being received or stored
// have eight seconds to end, and get their reply; after that the Backends' context ends and the
// connections are closed. Serve returns when the last call of a Backend has; nil when the
// context ended.
func (r *Receiver) Serve(ctx context.Context, l net.Listener) error {
	r = r.withDefaults()
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	g := &limitListener{
		Listener: l,
		total:    r.Connections,
		each:     r.ConnectionsPerAddress,
		wait:     r.RecipientTimeout,
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
	g.endAll()
	cut := time.AfterFunc(grace, func() {
		cancel()
		g.cut()
	})
	defer cut.Stop()
	// It waits for the connections, without a limit: the cut above is the limit.
	return errors.Join(failed, server.Shutdown(context.WithoutCancel(ctx)))
}

// server returns the SMTP server: commands, pipelining, dot-stuffing, BDAT.
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

// session is the SMTP session on one connection.
type session struct {
	receiver *Receiver
	calls    context.Context // of all calls of Backends: SMTP's commands have none
	conn     *conn

	refusals int

	// Content that comes in chunks is read beside the commands, and what is left
	// of an abandoned mail may still be running when the next one begins.
	mu     sync.Mutex
	mails  int
	sender string
	to     []addressee
}

// addressee is a recipient that was not refused.
type addressee struct {
	box     string // with its domain, without the token
	caller  sip.Caller
	backend sip.Backend
}

// Mail begins a mail. The null sender is accepted too: senders that want no bounces use it.
func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.count(from) > mailsPerConnection {
		return s.sendAway("too many mails on one connection, go on with another")
	}
	if s.receiver.Full != nil && s.receiver.Full() != nil {
		return reply(452, smtp.EnhancedCode{4, 3, 1}, "too little room on this server's disk, try again later")
	}
	return nil
}

// count notes the sender of a mail that begins, and returns how many there were.
func (s *session) count(sender string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sender = sender
	s.mails++
	return s.mails
}

// Rcpt looks for the mailbox and asks whether the client may write to it.
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	at := strings.LastIndexByte(to, '@')
	local, token, _ := strings.Cut(to[:at], "+")
	domain := strings.ToLower(to[at+1:])
	a := addressee{
		box:    local + "@" + domain,
		caller: sip.Caller{Token: token, Address: s.conn.peer},
	}
	var refusal *smtp.SMTPError
	if a.backend = s.receiver.Mailbox(local, domain); a.backend == nil {
		refusal = reply(550, smtp.EnhancedCode{5, 1, 1}, "no such mailbox here")
	} else {
		refusal = s.answer(a, a.backend.Admit(s.calls, a.caller))
	}
	if refusal != nil {
		if s.refusals++; s.refusals > refusalsPerSession {
			return s.sendAway("too many recipients were refused")
		}
		return refusal
	}

	s.conn.recipient()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.to, func(b addressee) bool { return a.box == b.box && a.caller == b.caller }) {
		s.to = append(s.to, a)
	}
	return nil
}

// Data takes the content of a mail. It returns nil, which is the 250, only when
// all of it has come in and every recipient has it.
func (s *session) Data(r io.Reader) error {
	if !s.conn.begin() {
		return reply(421, smtp.EnhancedCode{4, 3, 2}, "Service shutting down, try again later")
	}
	defer s.conn.end()
	s.mu.Lock()
	sender, to, last := s.sender, s.to, s.mails >= mailsPerConnection
	s.mu.Unlock()
	if last {
		s.conn.endSoon("") // after the reply: a mail server in front goes on with another connection, and defers nothing
	}

	content := &source{r: r}
	if s.receiver.Reserve != nil {
		content.reserved = s.receiver.Reserve(s.conn.peer, s.conn.cut)
		defer content.reserved.Release()
	}
	reading := s.receiver.Reading
	reading.Places = sip.Places{}
	d, err := readMail(content, reading)
	// The bytes after the XML part have to arrive as well: a client has to repeat a mail that
	// is cut off. When a chunk of BDAT is cut off, the reader just ends, and only the
	// connection shows it.
	_, _ = io.Copy(io.Discard, content)
	if errors.Is(content.err, errTooManyBytes) {
		_, _ = io.Copy(io.Discard, r)
	}
	if content.reserved != nil {
		content.reserved.Received()
	}
	switch {
	case content.err != nil:
		return s.refused(sender, to, transferError(content.err))
	case !s.conn.whole():
		return s.refused(sender, to, transferError(io.ErrUnexpectedEOF))
	case err != nil:
		return s.refused(sender, to, s.answer(addressee{}, err))
	}
	if answer := s.notify(to, d, reading.Places); answer != nil {
		return s.refused(sender, to, answer)
	}
	return nil
}

// notify passes a disposition to the Backends of all recipients. SMTP has one reply for all of
// them, so a temporary failure counts before a permanent one, and the client repeats the whole
// mail. Backends that have the notification recognize the repeat, none loses it because another
// one refused, and a permanent refusal is answered in the end.
func (s *session) notify(to []addressee, d *sip.Disposition, places sip.Places) *smtp.SMTPError {
	var worst *smtp.SMTPError
	for _, a := range to {
		answer := s.answer(a, places.Locate(a.backend.Notify(s.calls, a.caller, d)))
		if answer != nil && (worst == nil || answer.Temporary() && !worst.Temporary()) {
			worst = answer
		}
	}
	return worst
}

// Reset forgets the mail that was begun.
func (s *session) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = nil
}

// Logout ends the session, and drops its mail.
func (s *session) Logout() error { return nil }

// sendAway ends the connection after the reply.
func (s *session) sendAway(why string) *smtp.SMTPError {
	s.conn.endSoon("")
	return reply(421, smtp.EnhancedCode{4, 7, 0}, why)
}

// refused calls Refused with a mail that was not accepted.
func (s *session) refused(sender string, to []addressee, answer *smtp.SMTPError) *smtp.SMTPError {
	if s.receiver.Refused == nil {
		return answer
	}
	boxes := make([]string, len(to))
	for i, a := range to {
		boxes[i] = a.box
	}
	s.receiver.Refused(Refusal{Client: s.conn.peer, Sender: sender, To: boxes, Reply: answer.Code, Reason: answer.Message})
	return answer
}

// answer returns the SMTP reply to an error of a Backend or of a message. It logs internal
// errors, and does not send their text.
func (s *session) answer(a addressee, err error) *smtp.SMTPError {
	var fault *sip.Fault
	var denied *sip.Denied
	switch {
	case err == nil:
		return nil
	case errors.As(err, &denied) && denied.Status == http.StatusTooManyRequests:
		return reply(451, smtp.EnhancedCode{4, 7, 1}, denied.Reason)
	case errors.As(err, &denied):
		return reply(550, smtp.EnhancedCode{5, 7, 1}, denied.Reason)
	case errors.As(err, &fault) && fault.Code == sip.Server:
		return reply(451, smtp.EnhancedCode{4, 3, 0}, faultText(fault))
	case errors.As(err, &fault):
		return reply(554, smtp.EnhancedCode{5, 6, 0}, faultText(fault))
	case errors.Is(err, sip.ErrTooLarge):
		return reply(552, smtp.EnhancedCode{5, 3, 4}, err.Error())
	}
	s.receiver.Log.LogAttrs(s.calls, slog.LevelError, "notification by mail failed",
		slog.String("to", a.box), slog.Any("peer", s.conn.peer), slog.Any("error", err))
	return reply(451, smtp.EnhancedCode{4, 3, 0}, "Failure at this server, nothing was stored, try again later")
}

// transferError is for a mail that did not arrive whole.
func transferError(err error) *smtp.SMTPError {
	var known *smtp.SMTPError // 552
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, errTooManyBytes):
		return reply(451, smtp.EnhancedCode{4, 3, 1}, "too much is being received at a time, try again later")
	case errors.Is(err, smtp.ErrTooLongLine):
		return reply(554, smtp.EnhancedCode{5, 6, 0}, fmt.Sprintf("a line is longer than %d bytes: send it in base64", lineBytes))
	}
	return reply(451, smtp.EnhancedCode{4, 4, 2}, "the mail did not arrive whole, try again")
}

// faultText is a fault in one line, its place first.
func faultText(f *sip.Fault) string {
	var place string
	if f.Path != "" {
		place = f.Path + ": "
	}
	if f.Line > 0 {
		place = fmt.Sprintf("%sline %d, column %d: ", place, f.Line, f.Column)
	}
	return place + f.Text
}

func reply(code int, enhanced smtp.EnhancedCode, text string) *smtp.SMTPError {
	// A line of a reply has at most 512 bytes (RFC 5321, 4.5.3.1.5).
	return &smtp.SMTPError{Code: code, EnhancedCode: enhanced, Message: line(text, 480)}
}

// source keeps the error that ended the content of a mail early, so that no reader above it
// takes a broken connection for bad content.
type source struct {
	r        io.Reader
	reserved Reservation // nil when the bytes are not counted
	err      error
}

// errTooManyBytes: too much is being received at a time.
var errTooManyBytes = errors.New("there is no room for the mail now")

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	if n > 0 && s.reserved != nil && s.reserved.Add(int64(n)) != nil {
		s.err = errTooManyBytes
		return 0, s.err
	}
	return n, err
}
