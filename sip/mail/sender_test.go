package mail

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

func outgoing(to Recipient) *Mail {
	return &Mail{ID: "7.1@bridge.example", To: to, Subject: "Disposition of 145", Message: message(accepted())}
}

// delivered is what sink.py tells of a mail.
type delivered struct {
	Hello, From, Type, Charset string
	Encrypted, ASCII           bool
	To, Options, Defects       []string
	Header                     [][2]string
	Longest                    int
	Content                    []byte
}

// sink starts aiosmtpd and returns its address and what it tells.
func sink(t *testing.T, args ...string) (address string, told *json.Decoder) {
	t.Helper()
	python := testenv.Module(t, "aiosmtpd", "python3-aiosmtpd")
	cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/sink.py"}, args...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait() //nolint:errcheck // what it was there for, it has told
	})
	told = json.NewDecoder(stdout)
	var port int
	if err := told.Decode(&port); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port), told
}

// certificate returns the files of a certificate that nobody has signed, for a
// host that is none.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"nobody.invalid"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", pkcs8)
}

// An independent server gets exactly what was sent.
func TestAiosmtpdReceives(t *testing.T) {
	cert, key := certificate(t)
	for name, args := range map[string][]string{"plain": nil, "encrypted": {cert, key}} {
		t.Run(name, func(t *testing.T) {
			address, told := sink(t, args...)
			s := &Sender{From: "notify@bridge.example", Now: func() time.Time {
				return time.Date(2004, 10, 18, 12, 13, 0, 0, time.FixedZone("", 7200))
			}}
			m := outgoing(Recipient{Host: address, Address: "box+token@lib.example"})
			m.Subject = "Disposition of K\u00f6ln\r\nBcc: somebody@else.example"
			if err := s.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			var got delivered
			if err := told.Decode(&got); err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(got.Options, fmt.Sprintf("SIZE=%d", size(t, s, m))) || slices.Contains(got.Options, "SMTPUTF8") {
				t.Errorf("the options of MAIL are %q", got.Options)
			}
			got.Options = nil
			want := delivered{
				Hello: "bridge.example", From: "notify@bridge.example", To: []string{"box+token@lib.example"},
				Encrypted: args != nil, ASCII: true, Longest: got.Longest, Defects: []string{},
				Type: "text/xml", Charset: "utf-8", Content: m.Message,
				Header: [][2]string{
					{"Date", "Mon, 18 Oct 2004 10:13:00 +0000"},
					{"From", "notify@bridge.example"},
					{"To", "box+token@lib.example"},
					{"Subject", "Disposition of K\u00f6ln Bcc: somebody@else.example"},
					{"Message-ID", "<7.1@bridge.example>"},
					{"Auto-Submitted", "auto-generated"},
					{"MIME-Version", "1.0"},
					{"Content-Type", `text/xml; charset="utf-8"`},
					{"Content-Transfer-Encoding", "base64"},
				},
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("arrived as\n%+v\nwant\n%+v", got, want)
			}
			if got.Longest > 998 {
				t.Errorf("a line has %d bytes", got.Longest)
			}
		})
	}
}

func size(t *testing.T, s *Sender, m *Mail) int {
	t.Helper()
	b, err := s.compose(m)
	if err != nil {
		t.Fatal(err)
	}
	return len(b)
}

// Whatever stands in a mail, it is seven bits wide, has short lines, and no
// fields but ours.
func TestCompose(t *testing.T) {
	s := &Sender{From: "notify@bridge.example"}
	for _, subject := range []string{"", "a", "a\r\n\r\nb", "\x00\x01\x7f", strings.Repeat("x", 5000), strings.Repeat("\u2603", 5000), "=?utf-8?q?a?=", "\xff\xfe"} {
		m := outgoing(Recipient{Address: "box@lib.example"})
		m.Subject = subject
		m.Message = []byte(strings.Repeat("\u00e9\r\n.\r\n\x00", 5000))
		b, err := s.compose(m)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(b), "\r\n") {
			if len(line) > 998 || !isASCII(line) || strings.ContainsAny(line, "\r\n\x00") {
				t.Fatalf("%.20q: a line is %q", subject, line)
			}
		}
		got, err := mail.ReadMessage(strings.NewReader(string(b)))
		if err != nil || len(got.Header) != 9 {
			t.Errorf("%.20q: %d fields, %v", subject, len(got.Header), err)
		}
	}
	m := outgoing(Recipient{Address: "box@lib.example"})
	for what, c := range map[string]struct {
		from, to, id string
		permanent    bool
	}{
		"from": {"nobody", m.To.Address, m.ID, false},
		"to":   {s.From, "a@b\r\nRCPT TO:<c@d>", m.ID, true},
		"id":   {s.From, m.To.Address, "a>\r\nBcc: c@d", true},
	} {
		err := (&Sender{From: c.from}).Send(t.Context(), &Mail{To: Recipient{Address: c.to}, ID: c.id})
		if err == nil || Permanent(err) != c.permanent || strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// An address of ours that no server would take is not the recipient's fault.
	err := (&Sender{From: "bridge@[127.0.0.1]"}).Send(t.Context(), m)
	if err == nil || Permanent(err) || !strings.HasPrefix(err.Error(), `no mail can be sent from "bridge@[127.0.0.1]": write an address like`) || strings.Contains(err.Error(), "smtp://") {
		t.Errorf("from an address literal: %v", err)
	}
}

// A mail goes from our Sender to our Receiver.
func TestBothEnds(t *testing.T) {
	r, l := notary()
	s := &Sender{From: "notify@bridge.example"}
	m := outgoing(Recipient{Host: serve(t, r), Address: "box+token@lib.example"})
	for range 2 { // a repeat is delivered as well
		if err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	got := l.all()
	if len(got) != 2 || got[1].caller.Token != "token" || !reflect.DeepEqual(got[1].disposition, accepted()) {
		t.Errorf("arrived as %+v", got)
	}

	l.notify = func(context.Context, sip.Caller) error { return errors.New("disk full") }
	if err := s.Send(t.Context(), m); err == nil || Permanent(err) {
		t.Errorf("storing failed: %v", err)
	}
	m.To.Address = "nobody@lib.example"
	if err := s.Send(t.Context(), m); !Permanent(err) {
		t.Errorf("an unknown box: %v", err)
	}
}

// scripted is a server that says what it is told to.
type scripted struct {
	// answers by verb; "" is the greeting, "." the end of a mail. Others get 250.
	// "hang" is no answer, "end" closes the connection.
	answers map[string]string

	mu    sync.Mutex
	heard []string
}

func (s *scripted) start(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				s.serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func (s *scripted) serve(c net.Conn) {
	lines := bufio.NewScanner(c)
	inMail := false
	for verb, line := "", ""; ; {
		if !inMail || line == "." {
			s.mu.Lock()
			s.heard = append(s.heard, line)
			s.mu.Unlock()
			answer, ok := s.answers[verb]
			switch {
			case answer == "end":
				return
			case answer == "hang":
				io.Copy(io.Discard, c) //nolint:errcheck // until the client leaves
				return
			case !ok && verb == "":
				answer = "220 mx.example"
			case !ok && verb == "DATA":
				answer = "354 go on"
			case !ok:
				answer = "250 fine"
			}
			if _, err := io.WriteString(c, answer+"\r\n"); err != nil {
				return
			}
			if verb == "STARTTLS" && strings.HasPrefix(answer, "220") {
				return // what comes now is no text
			}
			inMail = verb == "DATA" && strings.HasPrefix(answer, "354")
		}
		if !lines.Scan() {
			return
		}
		line = lines.Text()
		if verb = line; !inMail {
			verb, _, _ = strings.Cut(line, " ")
		}
	}
}

// verbs are those that the server has heard, of all connections.
func (s *scripted) verbs() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var verbs strings.Builder
	for _, line := range s.heard {
		if verb, _, _ := strings.Cut(line, " "); verb != "" { // "" is a connection
			verbs.WriteString(" " + verb)
		}
	}
	return verbs.String()
}

func TestServersThatFail(t *testing.T) {
	const all = " EHLO MAIL RCPT DATA . QUIT"
	for name, c := range map[string]struct {
		answers   map[string]string
		verbs     string
		want      string // of the error; "" is success
		permanent bool
	}{
		"none":                 {nil, all, "", false},
		"no EHLO":              {map[string]string{"EHLO": "502 what?"}, " EHLO HELO MAIL RCPT DATA . QUIT", "", false},
		"QUIT fails":           {map[string]string{"QUIT": "500 no"}, all, "", false},
		"forwarded":            {map[string]string{"RCPT": "251 will forward"}, all, "", false},
		"other words for yes":  {map[string]string{"MAIL": "200 ok", "RCPT": "260 ok", ".": "200 2.0.0 taken"}, all, "", false},
		"taken to forward it":  {map[string]string{".": "251 2.0.0 taken"}, all, "", false},
		"busy":                 {map[string]string{"": "421 busy"}, " QUIT", "greeting: answered 421 busy", false},
		"no service":           {map[string]string{"": "554-no\r\n554 service"}, " QUIT", "greeting: answered 554 no service", false},
		"not you":              {map[string]string{"EHLO": "550 no", "HELO": "550 no, no"}, " EHLO HELO QUIT", "EHLO: answered 550 no, no", false},
		"sender refused":       {map[string]string{"MAIL": "553 5.1.8 no\x1b[1m"}, " EHLO MAIL QUIT", "MAIL: answered 553 5.1.8 no?[1m", false},
		"sender refused late":  {map[string]string{"RCPT": "550 5.1.8 <notify@bridge.example>: no such domain"}, " EHLO MAIL RCPT QUIT", "RCPT: answered 550 5.1.8 ", false},
		"too long":             {map[string]string{"MAIL": "552 5.3.4 too long"}, " EHLO MAIL QUIT", "MAIL: answered 552 5.3.4 too long", true},
		"box unknown":          {map[string]string{"RCPT": "550 5.1.1 who?"}, " EHLO MAIL RCPT QUIT", "RCPT: answered 550 5.1.1 who?", true},
		"greylisted":           {map[string]string{"RCPT": "451 4.7.1 later"}, " EHLO MAIL RCPT QUIT", "RCPT: answered 451 4.7.1 later", false},
		"DATA refused":         {map[string]string{"DATA": "554 no"}, " EHLO MAIL RCPT DATA QUIT", "DATA: answered 554 no", true},
		"mail refused":         {map[string]string{".": "554 5.6.0 bad"}, " EHLO MAIL RCPT DATA . QUIT", "the mail: answered 554 5.6.0 bad", true},
		"not stored":           {map[string]string{".": "451 4.3.0 full"}, " EHLO MAIL RCPT DATA . QUIT", "the mail: answered 451 4.3.0 full", false},
		"an answer that is no": {map[string]string{".": "354 go on"}, " EHLO MAIL RCPT DATA .", "the mail: answered 354 go on", false},
		"garbage":              {map[string]string{".": "hello"}, " EHLO MAIL RCPT DATA .", "the mail: ", false},
		"ends at the end":      {map[string]string{".": "end"}, " EHLO MAIL RCPT DATA .", "the mail: EOF", false},
		"ends at once":         {map[string]string{"": "end"}, "", "greeting: EOF", false},
		"talks without end":    {map[string]string{"": strings.Repeat("220-hello\r\n", 100_000)}, "", "the server has sent more than 262144 bytes", false},
		"a TLS that is none": {map[string]string{"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "454 not now"},
			" EHLO STARTTLS QUIT EHLO MAIL RCPT DATA . QUIT", "", false},
		"a TLS that fails": {map[string]string{"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "220 go\r\nnot TLS"},
			" EHLO STARTTLS EHLO MAIL RCPT DATA . QUIT", "", false},
		"a TLS that is none, and demanded": {map[string]string{"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "454 4.7.0 not now", "MAIL": "530 5.7.0 Must issue a STARTTLS command first"},
			" EHLO STARTTLS QUIT EHLO MAIL", "STARTTLS: answered 454 4.7.0 not now; without encryption: MAIL: answered 530 5.7.0 Must issue a STARTTLS command first", false},
		"a TLS that fails, and is demanded": {map[string]string{"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "220 go\r\nnot TLS", "MAIL": "530 5.7.0 STARTTLS first"},
			" EHLO STARTTLS EHLO MAIL", "; without encryption: MAIL: answered 530 5.7.0 STARTTLS first", false},
		"a TLS that is none, and box unknown": {map[string]string{"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "454 not now", "RCPT": "550 5.1.1 who?"},
			" EHLO STARTTLS QUIT EHLO MAIL RCPT", "STARTTLS: answered 454 not now; without encryption: RCPT: answered 550 5.1.1 who?", true},
		"a login is demanded":    {map[string]string{"MAIL": "530 5.7.0 Authentication required"}, " EHLO MAIL QUIT", "MAIL: answered 530 5.7.0 Authentication required", false},
		"UTF-8 is not asked for": {map[string]string{"EHLO": "250-mx\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE"}, all, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			server := &scripted{answers: c.answers}
			s := &Sender{From: "notify@bridge.example", Timeout: time.Minute}
			host := server.start(t)
			err := s.Send(t.Context(), outgoing(Recipient{Host: host, Address: "box@lib.example"}))
			switch {
			case (err == nil) != (c.want == "") || Permanent(err) != c.permanent:
				t.Errorf("%v, permanent: %v", err, Permanent(err))
			case err != nil && (!strings.HasPrefix(err.Error(), "mail to box@lib.example by "+host+": ") || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			case err != nil && strings.ContainsAny(err.Error(), "\r\n\x1b"):
				t.Errorf("%q is not one line", err)
			}
			if got := server.verbs(); !strings.HasPrefix(got, c.verbs) {
				t.Errorf("the server heard %q, want %q", got, c.verbs)
			}
			server.mu.Lock()
			defer server.mu.Unlock()
			for _, line := range server.heard {
				if strings.HasPrefix(line, "MAIL") && (strings.Contains(line, "UTF8") || strings.Contains(line, "8BIT")) {
					t.Errorf("heard %q", line)
				}
			}
		})
	}
}

// Port 465 is that of TLS from the first byte on (RFC 8314, 3.3): a server there says nothing
// before the handshake.
func TestPortOfTLS(t *testing.T) {
	cert, key := certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answers     map[string]string
		verbs, want string // of the error; "" is success
	}{
		"taken":            {nil, " EHLO MAIL RCPT DATA . QUIT", ""},
		"STARTTLS offered": {map[string]string{"EHLO": "250-mx\r\n250 STARTTLS"}, " EHLO MAIL RCPT DATA . QUIT", ""},
		"busy":             {map[string]string{"": "421 busy"}, " QUIT", "greeting: answered 421 busy"},
		"box unknown":      {map[string]string{"RCPT": "550 5.1.1 who?"}, " EHLO MAIL RCPT QUIT", "RCPT: answered 550 5.1.1 who?"},
	} {
		for which, s := range map[string]*Sender{"recipient": {}, "relay": {Relay: "relay.example:465"}} {
			t.Run(name+", "+which, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := &scripted{answers: c.answers}
					var served sync.WaitGroup
					s.From, s.Timeout = "notify@bridge.example", time.Minute
					s.Dial = func(context.Context, string, string) (net.Conn, error) {
						near, far := net.Pipe()
						served.Go(func() {
							defer far.Close()
							server.serve(tls.Server(far, &tls.Config{Certificates: []tls.Certificate{pair}}))
						})
						return near, nil
					}
					err := s.Send(t.Context(), outgoing(Recipient{Host: "mx.example:465", Address: "box@lib.example"}))
					if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
						t.Errorf("%v, want %q", err, c.want)
					}
					served.Wait()
					if got := server.verbs(); got != c.verbs {
						t.Errorf("the server heard %q, want %q", got, c.verbs)
					}
				})
			})
		}
	}
}

// A server that says no more is given up after its time, and soon once it has the mail.
func TestServersThatAreSilent(t *testing.T) {
	for name, c := range map[string]struct {
		at, verbs, want string // "" is success
		took            time.Duration
	}{
		"at once":       {"", "", "greeting: ", time.Minute},
		"in the middle": {"DATA", " EHLO MAIL RCPT DATA", "DATA: ", time.Minute},
		"at the end":    {".", " EHLO MAIL RCPT DATA .", "the mail: ", endWait},
		"after the end": {"QUIT", " EHLO MAIL RCPT DATA . QUIT", "", quitWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &scripted{answers: map[string]string{c.at: "hang"}}
				var served sync.WaitGroup
				s := &Sender{From: "notify@bridge.example", Timeout: time.Minute, Dial: func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					served.Go(func() {
						defer far.Close()
						server.serve(far)
					})
					return near, nil
				}}
				start := time.Now()
				err := s.Send(t.Context(), outgoing(Recipient{Host: "mx.example:25", Address: "box@lib.example"}))
				since(t, start, c.took)
				switch {
				case c.want == "" && err == nil:
				case err == nil || Permanent(err) || !strings.HasPrefix(err.Error(), "mail to box@lib.example by mx.example:25: "+c.want):
					t.Errorf("%v, want %q", err, c.want)
				}
				served.Wait()
				if got := server.verbs(); got != c.verbs {
					t.Errorf("the server heard %q, want %q", got, c.verbs)
				}
			})
		})
	}
}

// A TLS that hangs, as behind some firewalls, leaves the time in which the mail goes without it.
func TestTLSThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{answers: map[string]string{"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "hang"}}
		var served sync.WaitGroup
		s := &Sender{From: "notify@bridge.example", Timeout: time.Minute, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			near, far := net.Pipe()
			served.Go(func() {
				defer far.Close()
				server.serve(far)
			})
			return near, nil
		}}
		start := time.Now()
		if err := s.Send(t.Context(), outgoing(Recipient{Host: "mx.example:25", Address: "box@lib.example"})); err != nil {
			t.Error(err)
		}
		since(t, start, time.Minute)
		served.Wait()
		if got, want := server.verbs(), " EHLO STARTTLS EHLO MAIL RCPT DATA . QUIT"; got != want {
			t.Errorf("the server heard %q, want %q", got, want)
		}
	})
}

// A server may take longer to store a mail than for anything before (RFC 5321, 4.5.3.2.6). A
// mail that is given up meanwhile has arrived, and arrives again with each repeat.
func TestServersThatStoreSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{}
		var served sync.WaitGroup
		s := &Sender{From: "notify@bridge.example", Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			served.Go(func() {
				defer far.Close()
				server.serve(&slowAtEnd{Conn: far})
			})
			return near, nil
		}}
		err := s.Send(t.Context(), outgoing(Recipient{Host: "mx.example:25", Address: "box@lib.example"}))
		served.Wait()
		if got := server.verbs(); err != nil || got != " EHLO MAIL RCPT DATA . QUIT" {
			t.Errorf("%v; the server heard %q", err, got)
		}
	})
}

// slowAtEnd takes nine minutes for what it says after the 354.
type slowAtEnd struct {
	net.Conn
	slow bool
}

func (s *slowAtEnd) Write(p []byte) (int, error) {
	if s.slow {
		s.slow = false
		time.Sleep(9 * time.Minute)
	}
	s.slow = strings.HasPrefix(string(p), "354")
	return s.Conn.Write(p)
}

func TestCancelled(t *testing.T) {
	server := &scripted{answers: map[string]string{"RCPT": "hang"}}
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &Sender{From: "notify@bridge.example", Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return &watched{c, "RCPT", func() { cancel(errors.New("the daemon ends")) }}, err
	}}
	err := s.Send(ctx, outgoing(Recipient{Host: server.start(t), Address: "box@lib.example"}))
	if err == nil || !strings.HasSuffix(err.Error(), "the daemon ends") || Permanent(err) {
		t.Errorf("%v", err)
	}
}

// watched calls when something is written.
type watched struct {
	net.Conn
	word string
	call func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	if strings.Contains(string(p), w.word) {
		w.call()
	}
	return n, err
}

// Which servers are asked, in which order, and when it ends.
func TestRouting(t *testing.T) {
	good := (&scripted{}).start(t)
	later := (&scripted{answers: map[string]string{"RCPT": "451 later"}}).start(t)
	never := (&scripted{answers: map[string]string{"RCPT": "550 never"}}).start(t)
	rude := (&scripted{answers: map[string]string{"": "554 go away"}}).start(t)
	mx := func(hosts ...string) []*net.MX {
		var found []*net.MX
		for i, host := range hosts {
			found = slices.Insert(found, 0, &net.MX{Host: host + ".", Pref: uint16(10 * i)})
		}
		return found
	}
	notFound := &net.DNSError{Err: "no such host", IsNotFound: true}
	twelve := strings.Fields(strings.Repeat("down ", 12))

	for name, c := range map[string]struct {
		relay     string
		host      string
		found     []*net.MX
		err       error
		asked     string
		want      string
		permanent bool
	}{
		"in order":              {found: mx("good", "later"), asked: "good:25"},
		"the next":              {found: mx("later", "down", "rude", "good", "never"), asked: "later:25 down:25 rude:25 good:25"},
		"no":                    {found: mx("never", "good"), asked: "never:25", want: "answered 550 never", permanent: true},
		"no after later":        {found: mx("later", "never", "good"), asked: "later:25 never:25", want: "answered 550 never", permanent: true},
		"all later":             {found: mx("later", "rude"), asked: "later:25 rude:25", want: "answered 451 later; mail to box@good by rude:25: greeting: answered 554"},
		"ten of twelve":         {found: mx(twelve...), asked: strings.TrimSpace(strings.Repeat("down:25 ", 10)), want: "refused"},
		"none found":            {err: notFound, asked: "good:25"},
		"nothing":               {asked: "good:25"},
		"no mail at all":        {found: []*net.MX{{Host: "."}}, want: "takes no mail", permanent: true},
		"some names malformed":  {found: mx("good"), err: errors.New("malformed name"), asked: "good:25"},
		"the lookup fails":      {err: &net.DNSError{Err: "server misbehaving", IsTemporary: true}, want: "looking up its servers"},
		"the host":              {host: "good", found: mx("never"), asked: "good:25"},
		"the host and its port": {host: "good:2525", found: mx("never"), asked: "good:2525"},
		"the host of IPv6":      {host: "::1", asked: "[::1]:25", want: "refused"},
		"the host fails":        {host: "later", found: mx("good"), asked: "later:25", want: "451"},
		"the relay":             {relay: "good:587", host: "never", found: mx("never"), asked: "good:587"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			s := &Sender{
				From:  "notify@bridge.example",
				Relay: c.relay,
				Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
					asked = append(asked, address)
					name, _, _ := net.SplitHostPort(address)
					there := map[string]string{"good": good, "later": later, "never": never, "rude": rude}[name]
					if there == "" {
						return nil, errors.New("refused")
					}
					return new(net.Dialer).DialContext(ctx, network, there)
				},
				LookupMX: func(_ context.Context, domain string) ([]*net.MX, error) {
					if domain != "good." || c.host != "" || c.relay != "" {
						t.Errorf("%q was looked up", domain)
					}
					return c.found, c.err
				},
			}
			err := s.Send(t.Context(), outgoing(Recipient{Host: c.host, Address: "box@good"}))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || Permanent(err) != c.permanent {
				t.Errorf("%v, permanent: %v", err, Permanent(err))
			}
			if got := strings.Join(asked, " "); got != c.asked {
				t.Errorf("asked %s, want %s", got, c.asked)
			}
		})
	}
}

// What a server says of one mail is told apart from servers that say nothing of
// it.
func TestAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string]string
		want    bool
	}{
		"sender not now":    {map[string]string{"MAIL": "450 later"}, true},
		"greylisted":        {map[string]string{"RCPT": "451 4.7.1 later"}, true},
		"box unknown":       {map[string]string{"RCPT": "550 5.1.1 who?"}, true},
		"no room":           {map[string]string{"DATA": "452 full"}, true},
		"not stored":        {map[string]string{".": "451 4.3.0 full"}, true},
		"busy":              {map[string]string{"": "421 busy"}, false},
		"no service":        {map[string]string{"": "554 no service"}, false},
		"not you":           {map[string]string{"EHLO": "550 no", "HELO": "550 no"}, false},
		"going down":        {map[string]string{"RCPT": "421 closing"}, false},
		"going down at end": {map[string]string{".": "421 closing"}, false},
		"not encrypted":     {map[string]string{"MAIL": "530 5.7.0 STARTTLS first"}, false},
		"sender refused":    {map[string]string{"MAIL": "553 5.1.8 no"}, false},
		"ends":              {map[string]string{"RCPT": "end"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			host := (&scripted{answers: c.answers}).start(t)
			s := &Sender{From: "notify@bridge.example"}
			err := s.Send(t.Context(), outgoing(Recipient{Host: host, Address: "box@lib.example"}))
			if err == nil || Answered(err) != c.want {
				t.Errorf("answered: %v, want %v: %v", Answered(err), c.want, err)
			}
		})
	}
}

// A relay that does not relay for us is set up wrong, or the configuration names another one:
// that is mended, and says nothing about the mail. At a recipient's own server the same answer
// is about the mail.
func TestRelayThatRefuses(t *testing.T) {
	for answer, permanent := range map[string]bool{
		"554 5.7.1 <box@lib.example>: Relay access denied":                      false,
		"550 5.7.54 SMTP; Unable to relay recipient":                            false,
		"550 5.1.1 <box@lib.example>: unknown in virtual mailbox table":         true,
		"550 relay not permitted":                                               false, // Exim
		"550-Sender verify failed\r\n550 Relaying denied":                       false,
		"553 sorry, that domain isn't in my list of allowed rcpthosts (#5.7.1)": false, // qmail
		"553 sorry, no mailbox here by that name (#5.1.1)":                      true,
		"550 5.1.1 <box@lib.example>: relay.example does not know it":           true,
		"550 5.7":  true,
		"550 who?": true,
	} {
		host := (&scripted{answers: map[string]string{"RCPT": answer}}).start(t)
		for s, want := range map[*Sender]bool{{From: "notify@bridge.example", Relay: host}: permanent, {From: "notify@bridge.example"}: true} {
			err := s.Send(t.Context(), outgoing(Recipient{Host: host, Address: "box@lib.example"}))
			if err == nil || Permanent(err) != want || Answered(err) != want {
				t.Errorf("relay %q: permanent: %v, answered: %v, want %v: %v", s.Relay, Permanent(err), Answered(err), want, err)
			}
		}
	}
}

// Of several servers it is enough that one has answered.
func TestAnsweredByOneOfSeveral(t *testing.T) {
	nobody, later := testenv.Nobody(t), (&scripted{answers: map[string]string{"RCPT": "450 later"}}).start(t)
	at := map[string]string{"one.example:25": nobody, "two.example:25": nobody, "three.example:25": later}
	s := &Sender{From: "notify@bridge.example", Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at[address])
	}}
	for servers, want := range map[[2]string]bool{{"one", "two"}: false, {"one", "three"}: true, {"three", "one"}: true} {
		s.LookupMX = func(context.Context, string) ([]*net.MX, error) {
			return []*net.MX{{Host: servers[0] + ".example", Pref: 1}, {Host: servers[1] + ".example", Pref: 2}}, nil
		}
		if err := s.Send(t.Context(), outgoing(Recipient{Address: "box@lib.example"})); err == nil || Answered(err) != want {
			t.Errorf("%s: answered: %v, want %v: %v", servers, Answered(err), want, err)
		}
	}
	s.LookupMX = func(context.Context, string) ([]*net.MX, error) { return nil, errors.New("the resolver is away") }
	if err := s.Send(t.Context(), outgoing(Recipient{Address: "box@lib.example"})); err == nil || Answered(err) {
		t.Errorf("answered: %v: %v", Answered(err), err)
	}
}
