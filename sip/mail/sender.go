package mail

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/smtp"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sender delivers notifications. Its methods may be called from any goroutine.
//
// It encrypts where the server offers STARTTLS, and at port 465 from the first byte on (RFC
// 8314, 3.3). It does not check the server's certificate: an attacker in between could remove
// the offer just as well. For more security, send through a Relay on the same machine that
// checks certificates.
type Sender struct {
	// From is the address of envelope and header, as box@domain; required.
	From string
	// Hello is the name in EHLO; "" is the domain of From.
	Hello string
	// Relay is the host:port of a server that takes all mail; "" is none.
	Relay string
	// Dial makes the connections; nil is that of a net.Dialer. Refuse unwanted addresses here:
	// the names come from messages of other parties.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// LookupMX finds the servers of a domain, whose name ends in a dot; nil is that of
	// net.DefaultResolver. For a domain that has none, its error is a *net.DNSError with
	// IsNotFound.
	LookupMX func(ctx context.Context, domain string) ([]*net.MX, error)
	// Port of recipients' servers where none is named; 0 is 25.
	Port int
	// Timeout of the delivery to one server, which begins anew without encryption when that
	// fails, and of the lookup; 0 is two minutes. Once a server has the whole mail it has ten
	// minutes more to answer (RFC 5321, 4.5.3.2.6): a mail that is given up then may arrive all
	// the same, and again each time that it is sent.
	Timeout time.Duration
	// Now is the clock for the header; nil is time.Now.
	Now func() time.Time
}

// serverLimit is how many servers of one domain are tried.
const serverLimit = 10

// permanent is a failure that is the same in each repeat.
type permanent struct{ error }

func (p *permanent) Unwrap() error { return p.error }

// Permanent reports whether no repeat of what failed will help: the server refused
// the mail for good (5xx, but not 530, nor because of its sender, nor since our Relay relays
// nothing for us), or there can be no such address. Everything else may be tried again.
func Permanent(err error) bool {
	var p *permanent
	return errors.As(err, &p)
}

// answered is a temporary refusal of this mail by a server.
type answered struct{ error }

func (a *answered) Unwrap() error { return a.error }

// Answered reports, of an error of Send, whether a server has answered about this mail or its
// recipient, so that other mail may well go through to the same domain; a Permanent error
// counts as an answer. Otherwise no server was found or reached, or it ended the session (reply
// 421), or takes no mail in a session like ours (reply 530), or none from our sender, or the
// Relay denies to relay (5.7, or in words).
func Answered(err error) bool {
	var a *answered
	return errors.As(err, &a) || Permanent(err)
}

// Send delivers a mail and returns nil only when a server has answered 2yz to its end. After an
// error a server may have it all the same, since the reply can get lost: the Message-ID stays
// the same when it is sent again.
//
// The Relay takes it, else the recipient's own Host, else the servers of its domain in the
// order of their preference, else the domain itself (RFC 5321, 5.1). The next one is tried when
// one fails temporarily, which includes a server that refuses the whole session.
func (s *Sender) Send(ctx context.Context, m *Mail) error {
	content, err := s.compose(m)
	if err != nil {
		return err
	}
	servers, err := s.servers(ctx, m.To)
	if err != nil {
		return fmt.Errorf("mail to %s: %w", m.To.Address, err)
	}
	var failed error
	for _, server := range servers {
		err := s.deliver(ctx, server, m.To.Address, content)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("mail to %s by %s: %w", m.To.Address, server, err)
		if failed == nil {
			failed = err
		} else {
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		if Permanent(err) || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", failed, context.Cause(ctx))
	}
	return failed
}

// servers returns host:port of those that may take a recipient's mail, in order.
func (s *Sender) servers(ctx context.Context, to Recipient) ([]string, error) {
	port := strconv.Itoa(cmp.Or(s.Port, 25))
	if s.Relay != "" {
		return []string{s.Relay}, nil
	}
	if to.Host != "" {
		if _, _, err := net.SplitHostPort(to.Host); err == nil {
			return []string{to.Host}, nil
		}
		return []string{net.JoinHostPort(to.Host, port)}, nil
	}

	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	_, domain, _ := strings.Cut(to.Address, "@")
	lookup := s.LookupMX
	if lookup == nil {
		lookup = net.DefaultResolver.LookupMX
	}
	found, err := lookup(ctx, domain+".") // without the dot, a search domain of this machine could answer for it
	var missing *net.DNSError
	switch {
	case len(found) == 1 && found[0].Host == ".":
		return nil, &permanent{fmt.Errorf("the domain %s takes no mail (RFC 7505)", domain)}
	case len(found) > 0: // an error is about others, whose names are malformed
	case err == nil || errors.As(err, &missing) && missing.IsNotFound:
		return []string{net.JoinHostPort(domain, port)}, nil
	default:
		return nil, fmt.Errorf("looking up its servers: %w", err)
	}
	found = slices.Clone(found)
	slices.SortStableFunc(found, func(a, b *net.MX) int { return cmp.Compare(a.Pref, b.Pref) })
	var servers []string
	for _, mx := range found[:min(len(found), serverLimit)] {
		servers = append(servers, net.JoinHostPort(strings.TrimSuffix(mx.Host, "."), port))
	}
	return servers, nil
}

func (s *Sender) timeout() time.Duration { return cmp.Or(s.Timeout, 2*time.Minute) }

// deliver sends a mail to one server. If encryption fails, it sends the mail without it. When
// that fails too, the error is of that kind, and names both.
func (s *Sender) deliver(ctx context.Context, server, to string, content []byte) error {
	err := s.converse(ctx, server, to, content, true)
	var unsafe *encryptionError
	if errors.As(err, &unsafe) {
		if err = s.converse(ctx, server, to, content, false); err != nil {
			err = fmt.Errorf("%s; without encryption: %w", unsafe.Error(), err)
		}
	}
	return err
}

// endWait is how long the answer to the end of a mail is waited for, and quitWait that to
// QUIT.
const endWait, quitWait = 10 * time.Minute, 5 * time.Second

// converse sends a mail on one connection, until ctx ends. The server has to take the whole
// mail within the Timeout.
func (s *Sender) converse(ctx context.Context, server, to string, content []byte, encrypt bool) error {
	within, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	dial := s.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	c, err := dial(within, "tcp", server)
	if err != nil {
		return err
	}
	defer c.Close()
	// The end of a context interrupts reads and writes.
	interrupt := func() { _ = c.SetDeadline(time.Unix(1, 0)) }
	defer context.AfterFunc(ctx, interrupt)()
	inTime := context.AfterFunc(within, interrupt)
	defer inTime()

	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return err
	}
	stream := c
	if port == "465" {
		stream, encrypt = tls.Client(c, tlsConfig(host)), false // it is already
	}
	var reply *replied
	limited := &terse{Conn: stream, left: terseLimit}
	client, err := s.greet(limited, host, encrypt)
	if err != nil {
		if errors.As(err, &reply) { // it wants no session, and waits for the QUIT (RFC 5321, 3.1)
			defer time.AfterFunc(quitWait, interrupt).Stop()
			text := textproto.NewConn(limited)
			if client != nil {
				text = client.Text
			}
			_ = command(text, "QUIT")
		}
		return err
	}
	var end *time.Timer
	err = s.transact(client, to, content, func() {
		if inTime() {
			end = time.AfterFunc(endWait, interrupt)
		}
	})
	if end != nil {
		end.Stop()
	}
	if err != nil && !errors.As(err, &reply) {
		return err
	}
	// The server has decided about the mail, whatever it answers to this, if it does. Without it
	// the connection must not be closed (RFC 5321, 4.1.1.10).
	defer time.AfterFunc(quitWait, interrupt).Stop()
	_ = client.Quit()
	return err
}

func tlsConfig(host string) *tls.Config {
	return &tls.Config{ServerName: host, InsecureSkipVerify: true}
}

// encryptionError: the server offers STARTTLS, and it fails.
type encryptionError struct{ error }

func (e *encryptionError) Unwrap() error { return e.error }

// greet sends EHLO and encrypts the connection when that is offered. No failure here is about
// the mail, so none is permanent. With an error there is a client once the server has greeted.
func (s *Sender) greet(c net.Conn, host string, encrypt bool) (*smtp.Client, error) {
	client, err := smtp.NewClient(c, host)
	if err != nil {
		return nil, said("greeting", err)
	}
	hello := s.Hello
	if hello == "" {
		_, hello, _ = strings.Cut(s.From, "@")
	}
	if err := client.Hello(hello); err != nil {
		return client, said("EHLO", err)
	}
	if offered, _ := client.Extension("STARTTLS"); offered && encrypt {
		if err := client.StartTLS(tlsConfig(host)); err != nil {
			return client, &encryptionError{said("STARTTLS", err)}
		}
	}
	return client, nil
}

// transact sends one mail, and calls sent before it waits for the answer to its end. See
// refusal for which replies are permanent.
func (s *Sender) transact(client *smtp.Client, to string, content []byte, sent func()) error {
	// Not the Client's own Mail: that asks for SMTPUTF8 wherever it is offered,
	// and the mail could then go no further than to servers that have it.
	size := ""
	if ok, _ := client.Extension("SIZE"); ok {
		size = " SIZE=" + strconv.Itoa(len(content))
	}
	if err := command(client.Text, "MAIL FROM:<%s>%s", s.From, size); err != nil {
		return refusal("MAIL", err)
	}
	if err := command(client.Text, "RCPT TO:<%s>", to); err != nil {
		if s.Relay != "" && deniesRelay(err) {
			return said("RCPT", err)
		}
		return refusal("RCPT", err)
	}
	w, err := client.Data()
	if err != nil {
		return refusal("DATA", err)
	}
	if _, err := w.Write(content); err != nil {
		return said("the mail", err)
	}
	sent()
	// The Client expects exactly 250.
	var reply *textproto.Error
	if err := w.Close(); err != nil && (!errors.As(err, &reply) || reply.Code/100 != 2) {
		return refusal("the mail", err)
	}
	return nil
}

// command sends a command, and expects a reply of 2yz: it is positive, whatever follows the 2
// (RFC 5321, 4.2.1 and 4.3.2).
func command(text *textproto.Conn, format string, args ...any) error {
	id, err := text.Cmd(format, args...)
	if err != nil {
		return err
	}
	text.StartResponse(id)
	defer text.EndResponse(id)
	_, _, err = text.ReadResponse(2)
	return err
}

// said names the step that failed, and makes one line of the server's reply.
func said(step string, err error) error {
	var reply *textproto.Error
	if errors.As(err, &reply) {
		return &replied{fmt.Errorf("%s: answered %d %s", step, reply.Code, line(reply.Msg, 300))}
	}
	return fmt.Errorf("%s: %w", step, err)
}

// replied is an error that a server has replied.
type replied struct{ error }

// refusal returns the error of a step whose replies are about the mail, a permanent one for
// 5xx; but 421 is about the connection (RFC 5321, 3.8), and so is 530: it is not encrypted
// (RFC 3207, 4), or not authenticated (RFC 4954, 6). A refusal of the sender is about us.
func refusal(step string, err error) error {
	var reply *textproto.Error
	switch {
	case !errors.As(err, &reply) || reply.Code == 421 || reply.Code == 530 || refusesSender(step, reply):
		return said(step, err)
	case reply.Code/100 == 5:
		return &permanent{said(step, err)}
	}
	return &answered{said(step, err)}
}

// refusesSender reports whether a 5xx is about the sender: the reply to MAIL is, but for 552,
// which is about the length of the mail. Some servers wait with it until a recipient is named,
// and say it with a code (RFC 3463, 3.2).
func refusesSender(step string, reply *textproto.Error) bool {
	return reply.Code/100 == 5 && (step == "MAIL" && reply.Code != 552 || strings.HasPrefix(reply.Msg, "5.1.7 ") || strings.HasPrefix(reply.Msg, "5.1.8 "))
}

// deniesRelay reports whether a relay refuses a recipient because of who is asking: it does not
// relay for us (RFC 3463, 3.8), which is mended there, or in the configuration. Servers that send
// no such code say it in words, as Exim does ("relay not permitted"), or have it at the end, as
// qmail ("(#5.7.1)").
func deniesRelay(err error) bool {
	var reply *textproto.Error
	if !errors.As(err, &reply) || reply.Code/100 != 5 {
		return false
	}
	if strings.HasPrefix(reply.Msg, "5.") {
		return strings.HasPrefix(reply.Msg, "5.7.")
	}
	return strings.Contains(reply.Msg, "(#5.7.") || strings.Contains(strings.ToLower(reply.Msg), "relay")
}

// terse is a connection that limits how much is read from a server: replies have no limit of
// their own. A TLS handshake fits in as well. It is not closed: smtp.NewClient would close it
// after a greeting that refuses the session, before the QUIT.
type terse struct {
	net.Conn
	left int
}

const terseLimit = 256 << 10

func (t *terse) Close() error { return nil }

func (t *terse) Read(p []byte) (int, error) {
	if t.left <= 0 {
		return 0, fmt.Errorf("the server has sent more than %d bytes: %w", terseLimit, io.ErrNoProgress)
	}
	n, err := t.Conn.Read(p[:min(len(p), t.left)])
	t.left -= n
	return n, err
}

// Mail is a notification to be sent.
type Mail struct {
	// ID is the Message-ID without its brackets, as local@domain; the same each
	// time that the notification is sent.
	ID string
	To Recipient
	// Subject is for people; "" is "Ingest disposition". A long one is cut off.
	Subject string
	// ContentType of Message; "" is "text/xml; charset=utf-8".
	ContentType string
	// Message is the whole SOAP message, in UTF-8.
	Message []byte
}

// compose writes a mail. It is 7-bit, and no line is longer than 998 bytes, whatever the
// message holds. Only an error of m is permanent: a wrong From can be corrected in the
// configuration.
func (s *Sender) compose(m *Mail) ([]byte, error) {
	if _, err := checkAddress(s.From); err != nil {
		return nil, fmt.Errorf("no mail can be sent from %q: write an address like %q, in ASCII, the domain a name", clip(s.From), "box@example.org")
	}
	if _, err := checkAddress(m.To.Address); err != nil {
		return nil, &permanent{fmt.Errorf("recipient of mail: %w", err)}
	}
	if _, err := checkAddress(m.ID); err != nil {
		return nil, &permanent{fmt.Errorf("Message-ID of mail: %w", err)}
	}
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	subject := "Ingest disposition"
	if m.Subject != "" {
		subject = mime.QEncoding.Encode("utf-8", clip(strings.Join(strings.Fields(m.Subject), " ")))
	}

	b := make([]byte, 0, 1024+len(m.Message)*3/2)
	for _, field := range [][2]string{
		{"Date", now().UTC().Format(time.RFC1123Z)},
		{"From", "<" + s.From + ">"},
		{"To", "<" + m.To.Address + ">"},
		{"Subject", subject},
		{"Message-ID", "<" + m.ID + ">"},
		{"Auto-Submitted", "auto-generated"}, // so that no absence message answers it
		{"MIME-Version", "1.0"},
		{"Content-Type", cmp.Or(m.ContentType, "text/xml; charset=utf-8")},
		{"Content-Transfer-Encoding", "base64"},
	} {
		b = append(b, field[0]+": "+field[1]+"\r\n"...)
	}
	b = append(b, "\r\n"...)
	const perLine = 57 // becomes 76
	for rest := m.Message; len(rest) > 0; {
		n := min(perLine, len(rest))
		b = append(base64.StdEncoding.AppendEncode(b, rest[:n]), "\r\n"...)
		rest = rest[n:]
	}
	return b, nil
}
