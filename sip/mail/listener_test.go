package mail

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// piped is call for pipes.
func piped(t *testing.T, p *testenv.Pipes) *client {
	near, err := p.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	c := on(t, near)
	c.expect("220 ")
	c.say("250 ", "EHLO client.example")
	return c
}

// bubble serves pipes until stop is called, which returns what Serve did.
func bubble(r *Receiver) (p *testenv.Pipes, stop context.CancelFunc, served chan error) {
	p = testenv.NewPipes()
	ctx, cancel := context.WithCancel(context.Background())
	served = make(chan error, 1)
	go func() { served <- r.Serve(ctx, p) }()
	return p, cancel, served
}

func since(t *testing.T, start time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(start); got != want {
		t.Errorf("it took %v, want %v", got, want)
	}
}

func TestSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		victim := &memoryRecipient{}
		r, l := notary()
		r.Mailbox = at("lib.example", map[string]*memoryRecipient{"box": l, "victim": victim})
		p, stop, served := bubble(r)

		start := time.Now()
		c := piped(t, p)
		c.expect("421 4.4.2 Idle timeout, bye bye")
		c.gone()
		since(t, start, time.Minute)

		// A mail has a minute, however it dribbles. What comes after that is not
		// taken for commands.
		start = time.Now()
		c = piped(t, p)
		c.begin("box@lib.example")
		go func(c *client, start time.Time) {
			rest := string(plain()) + "\r\n"
			for rest != "" && time.Since(start) < time.Minute+10*time.Second {
				fmt.Fprint(c.conn, rest[:1])
				rest = rest[1:]
				time.Sleep(10*time.Second - time.Millisecond)
			}
			fmt.Fprintf(c.conn, "\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<victim@lib.example>\r\nDATA\r\n%s\r\n.\r\n", plain())
		}(c, start)
		c.expect("451 4.4.2 the mail did not arrive whole, try again")
		since(t, start, time.Minute)
		if rest := c.gone(); rest != "" {
			t.Errorf("what came too late was answered %q", rest)
		}

		// The same in chunks: a client that got 554 would give the mail up.
		start = time.Now()
		c = piped(t, p)
		c.say("250 2.0.0", "MAIL FROM:<ingest@server.example>")
		c.say("250 2.0.0", "RCPT TO:<box@lib.example>")
		c.write([]byte("BDAT 20\r\nSubject: first\r\n\r\n\r\n"))
		c.expect("250 2.0.0 Continue")
		c.write([]byte("BDAT 1000 LAST\r\nnever whole"))
		c.expect("451 4.4.2 the mail did not arrive whole, try again")
		since(t, start, time.Minute)
		c.gone()

		// Neither when most of it was passed over, because it was too large.
		c = piped(t, p)
		c.begin("box@lib.example")
		go func(c *client) {
			for range 9 << 10 {
				fmt.Fprint(c.conn, strings.Repeat("x", 1022)+"\r\n")
			}
			time.Sleep(time.Minute + time.Millisecond)
			fmt.Fprintf(c.conn, "MAIL FROM:<a@b.example>\r\nRCPT TO:<victim@lib.example>\r\nDATA\r\n%s\r\n.\r\n", plain())
		}(c)
		c.expect("552 5.3.4 Maximum message size exceeded")
		if rest := c.gone(); rest != "" {
			t.Errorf("what came too late was answered %q", rest)
		}

		// D72: who names no recipient has a minute, whatever he does.
		start = time.Now()
		c = piped(t, p)
		for time.Since(start) < time.Minute-time.Second {
			c.say("250 2.0.0", "NOOP")
			time.Sleep(time.Second)
		}
		c.expect("421 4.4.2")
		since(t, start, time.Minute)

		// Who has named one, and does something now and then, has half an hour.
		start = time.Now()
		c = piped(t, p)
		c.say("250 2.0.0", "MAIL FROM:<ingest@server.example>")
		c.say("250 2.0.0", "RCPT TO:<box@lib.example>")
		for time.Since(start) < 30*time.Minute-time.Second {
			c.say("250 2.0.0", "NOOP")
			time.Sleep(time.Second)
		}
		c.say("250 2.0.0", "NOOP")
		c.expect("421 4.4.2")
		since(t, start, 30*time.Minute)

		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if len(l.all())+len(victim.all()) != 0 {
			t.Errorf("taken: %d that came too slowly, %d smuggled", len(l.all()), len(victim.all()))
		}
	})
}

func TestShutdown(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, _ := notary()
			p, stop, served := bubble(r)
			before, between := piped(t, p), piped(t, p)
			between.say("250 2.0.0", "MAIL FROM:<a@b.example>")
			stop()
			for _, c := range []*client{before, between} {
				c.expect("421 4.3.2 Service shutting down, try again later")
				c.gone()
			}
			start := time.Now()
			if err := <-served; err != nil {
				t.Error(err)
			}
			since(t, start, 0)
		})
	})
	// A mail whose content is coming, or is being stored, is finished.
	t.Run("under way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, l := notary()
			l.notify = func(ctx context.Context, _ sip.Caller) error {
				time.Sleep(3 * time.Second)
				return ctx.Err()
			}
			p, stop, served := bubble(r)
			c := piped(t, p)
			c.begin("box@lib.example")
			c.write([]byte("Subject: first\r\n"))
			synctest.Wait()
			start := time.Now()
			stop()
			synctest.Wait()
			time.Sleep(4 * time.Second)
			c.content(plain())
			c.expect("250 2.0.0 OK: queued")
			c.expect("421 4.3.2")
			c.gone()
			if err := <-served; err != nil {
				t.Error(err)
			}
			since(t, start, 7*time.Second)
			if len(l.all()) != 1 {
				t.Errorf("%d notifications, want 1", len(l.all()))
			}
		})
	})
	t.Run("too slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, l := notary()
			l.notify = func(ctx context.Context, _ sip.Caller) error {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			p, stop, served := bubble(r)
			storing, coming := piped(t, p), piped(t, p)
			storing.begin("box@lib.example")
			storing.content(plain())
			coming.begin("box@lib.example")
			coming.write([]byte("Subject: never ends\r\n"))
			synctest.Wait()
			start := time.Now()
			stop()
			for _, c := range []*client{storing, coming} {
				if rest, _ := io.ReadAll(c.text.R); strings.Contains(string(rest), "250") {
					t.Errorf("a mail that was not stored was answered %q", rest)
				}
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
			since(t, start, grace)
			if len(l.all()) != 0 {
				t.Error("a mail was taken")
			}
		})
	})
	t.Run("a listener that fails", func(t *testing.T) {
		r, _ := notary()
		broken := errors.New("no more sockets")
		if err := r.Serve(t.Context(), brokenListener{testenv.NewPipes(), broken}); !errors.Is(err, broken) {
			t.Errorf("Serve returned %v", err)
		}
	})
}

type brokenListener struct {
	net.Listener
	err error
}

func (b brokenListener) Accept() (net.Conn, error) { return nil, b.err }

func TestConnectionLimits(t *testing.T) {
	r, l := notary()
	r.Connections, r.ConnectionsPerAddress = 3, 2
	address := serve(t, r)
	from := func(ip string) *client {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		conn, err := dialer.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return on(t, conn)
	}
	refused := func(c *client) {
		t.Helper()
		c.expect("421 4.7.0 Too many connections, try again later")
		c.gone()
	}
	first := from("127.0.0.1")
	first.expect("220 ")
	from("127.0.0.1").expect("220 ")
	refused(from("127.0.0.1"))
	other := from("127.0.0.2")
	other.expect("220 ")
	refused(from("127.0.0.1"))
	// Who leaves makes room.
	first.say("221 ", "QUIT")
	first.gone()
	again := from("127.0.0.1")
	again.expect("220 ")
	again.say("250 ", "EHLO client.example")
	if got := again.mail(plain()); got != "250 2.0.0 OK: queued" {
		t.Error(got)
	}
	check(t, l)
}

func TestNetwork(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		if got := network(netip.MustParseAddr(c.a)) == network(netip.MustParseAddr(c.b)); got != c.same {
			t.Errorf("%s and %s are one: %v", c.a, c.b, got)
		}
	}
}

// The last mail that a connection may bring has its reply, and then the connection
// ends without a word: a mail server that had 421 for the next one would let that
// wait. Who brings nothing at all is told.
func TestManyMails(t *testing.T) {
	r, l := notary()
	address := serve(t, r)
	c := call(t, address)
	for range mailsPerConnection {
		if got := c.mail(plain()); got != "250 2.0.0 OK: queued" {
			t.Fatal(got)
		}
	}
	if rest := c.gone(); rest != "" {
		t.Errorf("after the last mail: %q", rest)
	}
	if got := len(l.all()); got != mailsPerConnection {
		t.Errorf("%d notifications, want %d", got, mailsPerConnection)
	}
	c = call(t, address)
	for range mailsPerConnection {
		c.say("250 2.0.0", "MAIL FROM:<a@b.example>")
		c.say("250 2.0.0", "RSET")
	}
	c.say("421 4.7.0 too many mails on one connection", "MAIL FROM:<a@b.example>")
	c.gone()
}

func TestManyRecipients(t *testing.T) {
	r, l := notary()
	address := serve(t, r)
	c := call(t, address)
	c.say("250 2.0.0", "MAIL FROM:<a@b.example>")
	go func() {
		w := bufio.NewWriter(c.conn)
		for i := range 10_000 {
			fmt.Fprintf(w, "RCPT TO:<box+%d@lib.example>\r\n", i)
		}
		w.Flush()
	}()
	for i := range 10_000 {
		if i < recipientsPerMail {
			c.expect("250 2.0.0")
		} else {
			c.expect("452 4.5.3 Maximum limit of 100 recipients reached")
		}
	}
	c.say("354 ", "DATA")
	c.content(plain())
	c.expect("250 2.0.0")
	if got := len(l.all()); got != recipientsPerMail {
		t.Errorf("%d notifications, want %d", got, recipientsPerMail)
	}

	// Who asks for one box after the other does not find out about many.
	c = call(t, address)
	c.say("250 2.0.0", "MAIL FROM:<a@b.example>")
	for i := range refusalsPerSession {
		c.say("550 5.1.1", "RCPT TO:<guess%d@lib.example>", i)
	}
	c.say("421 4.7.0 too many recipients were refused", "RCPT TO:<box@lib.example.org>")
	c.gone()
}

// Mails that are made to cost. Each is refused in its place, and the server goes on.
func TestHostileMails(t *testing.T) {
	testenv.Heavy(t)
	part := "Content-Type: text/xml\r\n\r\n" + string(message(accepted()))
	nested := func(depth int) []byte {
		var b strings.Builder
		for i := range depth {
			fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n", i, i)
		}
		b.WriteString(part)
		for i := range depth {
			fmt.Fprintf(&b, "\r\n--b%d--\r\n", depth-1-i)
		}
		return []byte(b.String())
	}
	start, _, _ := strings.Cut(string(message(accepted())), "<sip:")
	bomb := letter("Content-Type: text/xml\nContent-Transfer-Encoding: base64",
		inBase64([]byte(start+strings.Repeat(strings.Repeat(" ", 1000)+"\n", 5<<10))))
	entities := `<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">` + strings.Repeat(`<!ENTITY b "&a;&a;&a;&a;">`, 1000) + "]><a>&b;</a>"

	for name, c := range map[string]struct {
		mail []byte
		want string
	}{
		"1,000 deep":        {nested(1000), "554 5.6.0 multiparts are nested more than 10 deep"},
		"a million headers": {[]byte(strings.Repeat("a:\r\n", 1_000_000) + part), "554 5.6.0 this is no mail: its header is longer than 65536 bytes"},
		"a million headers of a part": {letter("Content-Type: multipart/mixed; boundary=b", "--b\r\n"+strings.Repeat("a:\r\n", 1_000_000)+part+"\r\n--b--\r\n"),
			"554 5.6.0 the multipart/mixed does not end as its boundary says: "},
		"a huge field":       {[]byte("X-A: " + strings.Repeat(strings.Repeat("x", 900)+"\r\n ", 2000) + "\r\n" + part), "554 5.6.0 this is no mail: its header is longer than 65536 bytes"},
		"a huge boundary":    {letter("Content-Type: multipart/mixed; boundary="+strings.Repeat("b", 30_000), "--b\r\n\r\n--b--"), "554 5.6.0 "},
		"101 parts":          {letter("Content-Type: multipart/mixed; boundary=b", strings.Repeat("--b\r\n\r\n\r\n", 101)+"--b\r\n"+part+"\r\n--b--\r\n"), "554 5.6.0 there are more than 100 parts"},
		"a million parts":    {letter("Content-Type: multipart/mixed; boundary=b", strings.Repeat("--b\r\n\r\n", 1_000_000)+"--b--\r\n"), "554 5.6.0 "},
		"blanks in base64":   {letter("Content-Type: text/xml\nContent-Transfer-Encoding: base64", strings.Repeat(strings.Repeat(" ", 900)+"\r\n", 5<<10)), "554 5.6.0 "},
		"more than 4 MiB":    {bomb, "552 5.3.4 "},
		"entities":           {letter("Content-Type: text/xml", entities), "554 5.6.0 "},
		"a million elements": {letter("Content-Type: text/xml", strings.Repeat("<a>\r\n", 1_000_000)), "554 5.6.0 "},
		"NUL":                {letter("Content-Type: text/xml", strings.Replace(string(message(accepted())), "145", "1\x0045", 1)), "554 5.6.0 "},
		"NUL in the header":  {[]byte("X-A: \x00\r\nContent-Type: text/\x00xml\r\n\r\n"), "554 5.6.0 "},
		"NUL alone":          {[]byte(strings.Repeat("\x00", 60_000)), "554 5.6.0 "},
	} {
		t.Run(name, func(t *testing.T) {
			r, l := notary()
			client := call(t, serve(t, r))
			if got := client.mail(c.mail); !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			if got := client.mail(plain()); got != "250 2.0.0 OK: queued" {
				t.Errorf("the next mail: %s", got)
			}
			check(t, l)
		})
	}
	t.Run("a line without an end", func(t *testing.T) {
		r, l := notary()
		client := call(t, serve(t, r))
		client.begin("box@lib.example")
		client.write([]byte(strings.Repeat("x", lineBytes)))
		client.expect("554 5.6.0 a line is longer than 65536 bytes: send it in base64")
		client.expect("500 5.4.0 Too long line, closing connection")
		client.gone()
		if len(l.all()) != 0 {
			t.Error("a mail was taken")
		}
	})
}

// from calls from an address of the loopback network.
func from(t *testing.T, source, address string) *client {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return on(t, conn)
}

// D72: silent connections from a few addresses do not stop the mail of another one,
// nor a mail that is under way.
func TestSilentClientsGiveWay(t *testing.T) {
	r, l := notary()
	r.Connections, r.ConnectionsPerAddress = 5, 2
	address := serve(t, r)
	working := from(t, "127.0.0.1", address)
	working.expect("220 ")
	working.say("250 ", "EHLO client.example")
	working.begin("box@lib.example")
	var silent []*client
	for _, source := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.3"} {
		c := from(t, source, address)
		c.expect("220 ")
		silent = append(silent, c)
	}
	// It is full. Who has as many connections as anybody gets no other one.
	more := from(t, "127.0.0.2", address)
	more.expect("421 4.7.0 Too many connections")
	// Another one is let in, in place of who has been silent for longest.
	other := from(t, "127.0.0.4", address)
	other.expect("220 ")
	other.say("250 ", "EHLO client.example")
	other.begin("box@lib.example")
	other.content(plain())
	other.expect("250 ")
	if rest := silent[0].gone(); !strings.HasPrefix(rest, "421 4.7.0 Others are waiting") {
		t.Errorf("who was silent for longest hears %q", rest)
	}
	working.content(plain())
	working.expect("250 ")
	if got := len(l.all()); got != 2 {
		t.Errorf("%d notifications were taken", got)
	}
}

// Neither do mails that never end: the oldest of the address with the most connections is cut
// off, and stays with its sender.
func TestSlowMailsGiveWay(t *testing.T) {
	for _, kind := range []string{"DATA", "BDAT"} {
		t.Run(kind, func(t *testing.T) {
			r, l := notary()
			r.Connections, r.ConnectionsPerAddress = 3, 2
			receiving := make(chan bool, 4)
			r.Reserve = func(netip.Addr, func()) Reservation {
				receiving <- true
				return &room{left: 1 << 20}
			}
			address := serve(t, r)
			begun := func(source string) *client {
				c := from(t, source, address)
				c.expect("220 ")
				c.say("250 ", "EHLO client.example")
				if kind == "DATA" {
					c.begin("box@lib.example")
				} else {
					c.say("250 2.0.0", "MAIL FROM:<ingest@server.example>")
					c.say("250 2.0.0", "RCPT TO:<box@lib.example>")
					c.write([]byte("BDAT 20\r\nSubject: first\r\n\r\n\r\n"))
					c.expect("250 2.0.0 Continue")
				}
				<-receiving
				return c
			}
			slow := begun("127.0.0.1")
			begun("127.0.0.1")
			begun("127.0.0.2")
			other := from(t, "127.0.0.3", address)
			other.expect("220 ")
			other.say("250 ", "EHLO client.example")
			if got := other.mail(plain()); got != "250 2.0.0 OK: queued" {
				t.Errorf("a mail of another one: %q", got)
			}
			if rest := slow.gone(); kind == "DATA" && !strings.HasPrefix(rest, "451 4.4.2 ") || strings.Contains(rest, "250") {
				t.Errorf("whose mail was cut off hears %q", rest)
			}
			check(t, l)
		})
	}
}

// room is a budget of bytes.
type room struct {
	mu         sync.Mutex
	left, held int64
}

func (r *room) Add(n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left < n {
		return errors.New("full")
	}
	r.left -= n
	r.held += n
	return nil
}

func (r *room) Received() {}

func (r *room) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += r.held
	r.held = 0
}

// D35: a mail for which there is no room is left with its sender, and takes up none
// when it has gone.
func TestMailsThatDoNotFit(t *testing.T) {
	r, l := notary()
	budget := &room{left: int64(len(plain())) + 100}
	r.Reserve = func(netip.Addr, func()) Reservation { return budget }
	address := serve(t, r)
	for range 3 {
		c := call(t, address)
		if got := c.mail(append(plain(), strings.Repeat("<!-- -->\r\n", 1000)...)); !strings.HasPrefix(got, "451 4.3.1 ") {
			t.Errorf("a mail that is too much: %q", got)
		}
		if got := c.mail(plain()); !strings.HasPrefix(got, "250 ") {
			t.Errorf("one that fits: %q", got)
		}
	}
	if got := len(l.all()); got != 3 || budget.held != 0 {
		t.Errorf("%d were taken, %d bytes are held", got, budget.held)
	}
}
