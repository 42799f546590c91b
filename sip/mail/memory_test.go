package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/sip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryRecipient is a notification recipient that keeps what it gets in memory.
type memoryRecipient struct {
	// admit and notify decide when they are there; what notify refuses is not kept.
	admit  func(sip.Caller) error
	notify func(context.Context, sip.Caller) error

	mu    sync.Mutex
	taken []taken
}

type taken struct {
	caller      sip.Caller
	disposition *sip.Disposition
}

func (l *memoryRecipient) Admit(_ context.Context, c sip.Caller) error {
	if l.admit == nil {
		return nil
	}
	return l.admit(c)
}

func (l *memoryRecipient) Notify(ctx context.Context, c sip.Caller, d *sip.Disposition) error {
	if l.notify != nil {
		if err := l.notify(ctx, c); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = append(l.taken, taken{c, d})
	return nil
}

func (l *memoryRecipient) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return nil, errors.New("get-properties was called by mail")
}

func (l *memoryRecipient) Ingest(context.Context, sip.Caller, *sip.Request) (*sip.Disposition, error) {
	return nil, errors.New("ingest was called by mail")
}

func (l *memoryRecipient) all() []taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]taken(nil), l.taken...)
}

// at gives every box of a domain to its own recipient.
func at(domain string, boxes map[string]*memoryRecipient) func(local, domain string) sip.Backend {
	return func(l, d string) sip.Backend {
		if b := boxes[l]; b != nil && d == domain {
			return b
		}
		return nil
	}
}

// serve runs a Receiver on loopback until the test ends.
func serve(t testing.TB, r *Receiver) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	return l.Addr().String()
}

// notary is a Receiver with one box, "box@lib.example", whose recipient it returns.
func notary() (*Receiver, *memoryRecipient) {
	l := &memoryRecipient{}
	return &Receiver{Domain: "mx.lib.example", Mailbox: at("lib.example", map[string]*memoryRecipient{"box": l})}, l
}

// client speaks SMTP by hand.
type client struct {
	t    testing.TB
	conn net.Conn
	text *textproto.Conn
}

// call connects and introduces itself.
func call(t testing.TB, address string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := on(t, conn)
	c.expect("220 ")
	c.say("250 ", "EHLO client.example")
	return c
}

func on(t testing.TB, conn net.Conn) *client {
	t.Cleanup(func() { conn.Close() })
	return &client{t, conn, textproto.NewConn(conn)}
}

// reply returns a whole reply, its lines joined by a line feed.
func (c *client) reply() string {
	c.t.Helper()
	var lines []string
	for {
		line, err := c.text.ReadLine()
		if err != nil {
			c.t.Fatalf("after %q: %v", lines, err)
		}
		lines = append(lines, line)
		if len(line) < 4 || line[3] == ' ' {
			return strings.Join(lines, "\n")
		}
	}
}

// expect reads a reply whose last line begins with want.
func (c *client) expect(want string) string {
	c.t.Helper()
	got := c.reply()
	if last := got[strings.LastIndexByte(got, '\n')+1:]; !strings.HasPrefix(last, want) {
		c.t.Fatalf("reply %q, want %q", got, want)
	}
	return got
}

// say sends a command.
func (c *client) say(want, format string, args ...any) string {
	c.t.Helper()
	c.write([]byte(fmt.Sprintf(format, args...) + "\r\n"))
	return c.expect(want)
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// begin gets as far as the content of a mail.
func (c *client) begin(to ...string) {
	c.t.Helper()
	c.say("250 2.0.0", "MAIL FROM:<ingest@server.example>")
	for _, a := range to {
		c.say("250 2.0.0", "RCPT TO:<%s>", a)
	}
	c.say("354 ", "DATA")
}

// content sends a mail, and its end unless it is cut off.
func (c *client) content(mail []byte) {
	c.t.Helper()
	c.write(append(stuffed(mail), "\r\n.\r\n"...))
}

// mail sends one to the box and returns the reply.
func (c *client) mail(mail []byte) string {
	c.t.Helper()
	c.begin("box@lib.example")
	c.content(mail)
	return c.reply()
}

// bdat sends one to the box in chunks and returns the last reply.
func (c *client) bdat(mail []byte, chunk int) string {
	c.t.Helper()
	c.say("250 2.0.0", "MAIL FROM:<ingest@server.example> BODY=BINARYMIME")
	c.say("250 2.0.0", "RCPT TO:<box@lib.example>")
	for len(mail) > chunk {
		c.write([]byte(fmt.Sprintf("BDAT %d\r\n%s", chunk, mail[:chunk])))
		c.expect("250 2.0.0")
		mail = mail[chunk:]
	}
	c.write([]byte(fmt.Sprintf("BDAT %d LAST\r\n%s", len(mail), mail)))
	return c.reply()
}

// gone waits until the server has closed the connection, and returns what it
// still said.
func (c *client) gone() string {
	c.t.Helper()
	rest, err := io.ReadAll(c.text.R)
	if err != nil {
		c.t.Fatalf("the connection did not end but failed: %v", err)
	}
	return string(rest)
}

func stuffed(mail []byte) []byte {
	return bytes.ReplaceAll(append([]byte(nil), mail...), []byte("\r\n."), []byte("\r\n.."))
}

func text(s string) *string { return &s }

// accepted is a disposition with everything that encodings can break.
func accepted() *sip.Disposition {
	return &sip.Disposition{
		Source: &sip.Source{
			Submitter:  &sip.Submitter{Name: "Universität Köln", EmailAddress: "a.b=c@uni.example"},
			Sequence:   text("Campus\tBuildings = 3D <&>"),
			Identifier: text("145 "),
		},
		Outcome:            sip.Accepted,
		AssignedIdentifier: "urn:lib:é/1",
	}
}

func message(d *sip.Disposition) []byte {
	return sip.AppendMessage(nil, &sip.Message{Kind: sip.KindDisposition, Disposition: d})
}

// letter is a mail with the usual header and some more fields.
func letter(fields, body string) []byte {
	return []byte("From: <ingest@server.example>\r\nTo: <box@lib.example>\r\nSubject: =?utf-8?q?disposition?=\r\n" +
		"Date: Mon, 18 Oct 2004 10:13:00 +0000\r\nMIME-Version: 1.0\r\n" + crlf(fields) + "\r\n\r\n" + body)
}

func crlf(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n")
}

// plain is the simplest notification.
func plain() []byte {
	return letter("Content-Type: text/xml; charset=utf-8", crlf(string(message(accepted()))))
}
