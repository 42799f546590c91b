package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

func TestGreeting(t *testing.T) {
	r, _ := notary()
	r.MaxBytes = 12345
	conn, err := net.Dial("tcp", serve(t, r))
	if err != nil {
		t.Fatal(err)
	}
	c := on(t, conn)
	if got := c.reply(); got != "220 mx.lib.example ESMTP Service Ready" {
		t.Error(got)
	}
	c.say("502 5.5.1", "MAIL FROM:<a@b.example>")
	got := c.say("250 ", "EHLO client.example")
	want := "250-Hello client.example\n250-PIPELINING\n250-8BITMIME\n250-ENHANCEDSTATUSCODES\n250-CHUNKING\n" +
		"250-SMTPUTF8\n250-BINARYMIME\n250-SIZE 12345\n250 LIMITS RCPTMAX=100"
	if got != want {
		t.Errorf("offers\n%s\nwant\n%s", got, want)
	}
	c.say("502 5.5.1", "STARTTLS")
	c.say("523 5.7.10", "AUTH PLAIN AGEAYg==")
	c.say("252 2.5.0 Cannot VRFY", "VRFY box@lib.example")
	c.say("252 2.5.0 Cannot VRFY", "VRFY nobody@lib.example")
	c.say("502 5.5.1", "EXPN box@lib.example")
	c.say("502 5.5.1", "BDAT 0 LAST")
	c.say("221 2.0.0", "QUIT")
	if rest := c.gone(); rest != "" {
		t.Errorf("after QUIT: %q", rest)
	}
}

// Every reply to RCPT.
func TestRecipients(t *testing.T) {
	var calls []sip.Caller
	l := &memoryRecipient{admit: func(c sip.Caller) error {
		calls = append(calls, c)
		switch c.Token {
		case "forbidden":
			return &sip.Denied{Status: 403, Reason: "the token is not\r\nknown"}
		case "other":
			return &sip.Denied{Status: 401, Reason: "who are you?"}
		case "eager":
			return &sip.Denied{Status: 429, Reason: "too many requests, wait a minute"}
		case "broken":
			return errors.New("database is locked: /var/secret")
		}
		return nil
	}}
	r := &Receiver{Mailbox: at("lib.example", map[string]*memoryRecipient{"box": l, "with space": l})}
	c := call(t, serve(t, r))
	c.say("250 2.0.0", "MAIL FROM:<>")
	for _, step := range []struct{ to, want string }{
		{"box@lib.example", "250 2.0.0 I'll make sure <box@lib.example> gets this"},
		{"box+token@lib.example", "250 2.0.0 I'll make sure <box+token@lib.example> gets this"},
		{"box+to+ken@LIB.Example", "250 2.0.0 I'll make sure <box+to+ken@LIB.Example> gets this"},
		{`"with space"@lib.example`, "250 2.0.0 I'll make sure <with space@lib.example> gets this"},
		{"Box@lib.example", "550 5.1.1 no such mailbox here"},
		{"nobody@lib.example", "550 5.1.1 no such mailbox here"},
		{"box@elsewhere.example", "550 5.1.1 no such mailbox here"},
		{`"box@lib.example"@elsewhere.example`, "550 5.1.1 no such mailbox here"},
		{"box%lib.example@elsewhere.example", "550 5.1.1 no such mailbox here"},
		{"+token@lib.example", "550 5.1.1 no such mailbox here"},
		{"b\u00f6x@lib.example", "550 5.1.1 no such mailbox here"},
		{"box+forbidden@lib.example", "550 5.7.1 the token is not known"},
		{"box+other@lib.example", "550 5.7.1 who are you?"},
		{"box+eager@lib.example", "451 4.7.1 too many requests, wait a minute"},
		{"box+broken@lib.example", "451 4.3.0 Failure at this server, nothing was stored, try again later"},
		{"@lib.example", "501 5.5.2 Was expecting RCPT arg syntax of TO:<address>"},
		{"box", "501 5.5.2 Was expecting RCPT arg syntax of TO:<address>"},
	} {
		if got := c.say("", "RCPT TO:<%s>", step.to); got != step.want {
			t.Errorf("RCPT %s: %q, want %q", step.to, got, step.want)
		}
	}
	if want := "[{token 127.0.0.1   false} {to+ken 127.0.0.1   false}]"; fmt.Sprint(calls[1:3]) != want {
		t.Errorf("Admit was asked about %v, want %v", calls[1:3], want)
	}
	c.say("354 ", "DATA")
	c.content(plain())
	c.expect("250 2.0.0")
	if got := len(l.all()); got != 4 {
		t.Errorf("%d notifications, want one for each of the 4 recipients", got)
	}
}

// Every reply to content that no Backend ever sees.
func TestBadContent(t *testing.T) {
	m := string(message(accepted()))
	part := "Content-Type: text/xml\r\n\r\n" + m
	multi := func(kind string, parts ...string) []byte {
		return letter("Content-Type: multipart/"+kind+"; boundary=b", "--b\r\n"+strings.Join(parts, "\r\n--b\r\n")+"\r\n--b--\r\n")
	}
	xml := func(s string) []byte { return letter("Content-Type: text/xml", s) }
	inside := func(from, to string) []byte {
		if !strings.Contains(m, from) {
			t.Fatalf("no %q in %s", from, m)
		}
		return xml(strings.Replace(m, from, to, 1))
	}
	document := func(m *sip.Message) []byte { return xml(string(sip.AppendMessage(nil, m))) }
	deep := part
	for i := range depthLimit + 1 {
		b := fmt.Sprint("b", i)
		deep = "Content-Type: multipart/mixed; boundary=" + b + "\r\n\r\n--" + b + "\r\n" + deep + "\r\n--" + b + "--\r\n"
	}
	fields, body, _ := strings.Cut(deep, "\r\n\r\n")

	for name, c := range map[string]struct {
		mail []byte
		want string
	}{
		"text":                  {letter("Content-Type: text/plain", "hello"), "554 5.6.0 no part is text/xml or application/xml: found text/plain"},
		"no type":               {letter("X-A: b", m), "554 5.6.0 no part is text/xml or application/xml: found text/plain"},
		"a type that is none":   {letter("Content-Type: xml", m), "554 5.6.0 no part is text/xml or application/xml: found xml"},
		"SOAP 1.2":              {letter("Content-Type: application/soap+xml", m), "554 5.6.0 no part is text/xml or application/xml: found application/soap+xml"},
		"none in a multipart":   {multi("alternative", "\r\na", "Content-Type: text/html\r\n\r\nb", "\r\nc"), "554 5.6.0 no part is text/xml or application/xml: found text/plain, text/html"},
		"a forwarded mail":      {multi("mixed", "Content-Type: message/rfc822\r\n\r\n"+string(plain())), "554 5.6.0 no part is text/xml or application/xml: found message/rfc822"},
		"two":                   {multi("mixed", part, part), "554 5.6.0 there are two XML parts: expected one notification in a mail"},
		"a bounce":              {multi("report; report-type=delivery-status", "\r\nsorry", part), "554 5.6.0 a report about a mail (multipart/report) is no notification"},
		"no end of a multipart": {letter("Content-Type: multipart/mixed; boundary=b", "--b\r\n"+part), "554 5.6.0 the XML part cannot be decoded: mail:1:1: reading the document: unexpected EOF"},
		"nothing but a start":   {letter("Content-Type: multipart/mixed; boundary=b", "--b\r\n"), "554 5.6.0 the multipart/mixed does not end as its boundary says: "},
		"no boundary":           {letter("Content-Type: multipart/mixed", "--b\r\n"+part+"\r\n--b--\r\n"), "554 5.6.0 the multipart/mixed does not end as its boundary says: multipart: boundary is empty"},
		"eleven deep":           {letter(fields, body), "554 5.6.0 multiparts are nested more than 10 deep"},
		"unknown encoding":      {letter("Content-Type: text/xml\nContent-Transfer-Encoding: x-uuencode", m), `554 5.6.0 the Content-Transfer-Encoding "x-uuencode" is unknown: expected 7bit, 8bit, binary, quoted-printable or base64`},
		"no base64":             {letter("Content-Type: text/xml\nContent-Transfer-Encoding: base64", "PD94*A=="), "554 5.6.0 the XML part cannot be decoded: mail:1:1: reading the document: illegal base64 data at input byte 4"},
		"no mail":               {[]byte("<?xml version='1.0'?>\r\n"), "554 5.6.0 this is no mail: "},
		"empty":                 {nil, "554 5.6.0 no part is text/xml or application/xml: found text/plain"},

		"malformed":         {inside("</sip:source>", ""), "554 5.6.0 ingest-disposition/"},
		"DOCTYPE":           {xml("<!DOCTYPE a SYSTEM 'http://x.example/'><a/>"), "554 5.6.0 "},
		"cut off":           {xml(m[:len(m)-5]), "554 5.6.0 "},
		"no envelope":       {xml(`<ingest-disposition xmlns="` + sip.Namespace + `"><rejected/></ingest-disposition>`), "554 5.6.0 ingest-disposition: line 1, column "},
		"SOAP 1.2 envelope": {inside("http://schemas.xmlsoap.org/soap/envelope/", "http://www.w3.org/2003/05/soap-envelope"), "554 5.6.0 "},
		"get-properties":    {document(&sip.Message{Kind: sip.KindGetProperties}), "554 5.6.0 found get-properties, expected an ingest-disposition: by mail there is only the operation notify"},
		"a fault":           {document(&sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: sip.Server, Text: "x"}}), "554 5.6.0 found Fault, expected an ingest-disposition: by mail there is only the operation notify"},
		"an ingest-request": {document(&sip.Message{Kind: sip.KindRequest, Request: &sip.Request{Record: sip.Record{XML: []byte("<a/>")}}}), "554 5.6.0 found ingest-request, expected an ingest-disposition: by mail there is only the operation notify"},
		"provisional": {document(&sip.Message{Kind: sip.KindDisposition, Disposition: &sip.Disposition{Outcome: sip.ProvisionallyAccepted}}),
			"554 5.6.0 ingest-disposition/provisionally-accepted: line 2, column 149: a notification must not be provisionally accepted; expected accepted or rejected"},
		"wrong order": {inside("<sip:sequence>", "<sip:name/><sip:sequence>"), "554 5.6.0 ingest-disposition/source/name: line 2, column "},
	} {
		t.Run(name, func(t *testing.T) {
			r, l := notary()
			client := call(t, serve(t, r))
			got := client.mail(c.mail)
			exact := !strings.HasSuffix(c.want, " ") && !strings.HasSuffix(c.want, "/")
			if !strings.HasPrefix(got, c.want) || exact && len(got) > 512 || strings.ContainsAny(got, "\r\n") {
				t.Errorf("DATA: %q, want %q", got, c.want)
			}
			if again := client.bdat(append(c.mail, "\r\n"...), 200); again != got {
				t.Errorf("BDAT: %q, but DATA: %q", again, got)
			}
			if got := client.mail(plain()); got != "250 2.0.0 OK: queued" {
				t.Errorf("the next mail: %s", got)
			}
			if len(l.all()) != 1 {
				t.Errorf("%d notifications, want that of the next mail", len(l.all()))
			}
		})
	}
}

// What the Backend says is what the client hears, except what it must not hear.
func TestBackendErrors(t *testing.T) {
	fault := &sip.Fault{Code: sip.Client, Text: "no such\r\nsubmission \u2192 \x00", Path: "ingest-disposition/source", Line: 3, Column: 14}
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "250 2.0.0 OK: queued"},
		{fault, "554 5.6.0 ingest-disposition/source: line 3, column 14: no such submission ? ?"},
		{&sip.Fault{Code: sip.Client, Text: "too long", Path: "ingest-disposition/accepted/assigned-identifier"},
			"554 5.6.0 ingest-disposition/accepted/assigned-identifier: line 2, column "},
		{fmt.Errorf("wrapped: %w", fault), "554 5.6.0 ingest-disposition/source: line 3, column 14: no such submission ? ?"},
		{&sip.Fault{Code: sip.Client, Text: strings.Repeat("x", 5000)}, "554 5.6.0 " + strings.Repeat("x", 477) + "..."},
		{&sip.Fault{Code: sip.Server, Text: "disk full"}, "451 4.3.0 disk full"},
		{&sip.Denied{Status: 403, Reason: "not you"}, "550 5.7.1 not you"},
		{&sip.Denied{Status: 429, Reason: "not now"}, "451 4.7.1 not now"},
		{errors.New("/var/lib/log: no space left"), "451 4.3.0 Failure at this server, nothing was stored, try again later"},
	} {
		var journal bytes.Buffer
		r, l := notary()
		l.notify = func(context.Context, sip.Caller) error { return c.err }
		r.Log = slog.New(slog.NewTextHandler(&journal, nil))
		refused := make(chan Refusal, 1)
		r.Refused = func(r Refusal) { refused <- r }
		client := call(t, serve(t, r))
		client.begin("box+secret@lib.example")
		client.content(plain())
		if got := client.reply(); got != c.want && (!strings.HasSuffix(c.want, "column ") || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
		if c.err == nil {
			if len(refused) > 0 {
				t.Errorf("told of %+v", <-refused)
			}
		} else if got := <-refused; got.To[0] != "box@lib.example" || !strings.HasPrefix(c.want, fmt.Sprint(got.Reply)) || got.Reason == "" || !got.Client.IsLoopback() {
			t.Errorf("%v: told of %+v", c.err, got)
		}
		// The mail is still the client's: it comes again and is taken.
		l.notify = nil
		if got := client.mail(plain()); got != "250 2.0.0 OK: queued" {
			t.Errorf("after %v: %s", c.err, got)
		}
		said := journal.String()
		if strings.Contains(said, "secret") {
			t.Errorf("the log has the token: %s", said)
		}
		if told := strings.Contains(said, "no space left"); told != strings.HasPrefix(c.want, "451 4.3.0 Failure") {
			t.Errorf("%v: the log tells of a failure: %v\n%s", c.err, told, said)
		}
	}
}

// One reply for several recipients: who failed for now decides, then who refused.
func TestSeveralRecipients(t *testing.T) {
	for _, c := range []struct {
		errs []error
		want string
	}{
		{[]error{nil, nil}, "250 2.0.0"},
		{[]error{&sip.Fault{Code: sip.Client, Text: "no"}, nil}, "554 5.6.0"},
		{[]error{nil, &sip.Fault{Code: sip.Client, Text: "no"}}, "554 5.6.0"},
		{[]error{&sip.Fault{Code: sip.Client, Text: "no"}, errors.New("locked"), nil}, "451 4.3.0"},
		{[]error{errors.New("locked"), &sip.Fault{Code: sip.Client, Text: "no"}, nil}, "451 4.3.0"},
	} {
		boxes := map[string]*memoryRecipient{}
		var to []string
		for i, err := range c.errs {
			name := fmt.Sprint("box", i)
			boxes[name] = &memoryRecipient{notify: func(context.Context, sip.Caller) error { return err }}
			to = append(to, name+"@lib.example", name+"@LIB.example") // the second is the same
		}
		client := call(t, serve(t, &Receiver{Mailbox: at("lib.example", boxes)}))
		client.begin(to...)
		client.content(plain())
		client.expect(c.want)
		for i, err := range c.errs {
			want := 1
			if err != nil {
				want = 0
			}
			if got := len(boxes[fmt.Sprint("box", i)].all()); got != want {
				t.Errorf("%v: recipient %d has it %d times, want %d", c.errs, i, got, want)
			}
		}
	}
}

func TestTooLarge(t *testing.T) {
	testenv.Heavy(t)
	r, l := notary()
	r.MaxBytes = 4096
	c := call(t, serve(t, r))
	c.say("552 5.3.4 Max message size exceeded", "MAIL FROM:<a@b.example> SIZE=4097")
	c.say("250 2.0.0", "MAIL FROM:<a@b.example> SIZE=4096")
	c.say("250 2.0.0", "RSET")
	padded := func(n int) []byte {
		mail := plain()
		for len(mail) < n {
			mail = append(mail, '\n')
		}
		return mail
	}
	if got := c.mail(padded(4097)); got != "552 5.3.4 Maximum message size exceeded" {
		t.Error(got)
	}
	if got := c.bdat(padded(4097), 5000); got != "552 5.3.4 Max message size exceeded" {
		t.Error(got)
	}
	if len(l.all()) != 0 {
		t.Error("a mail that is too large was taken")
	}
	if got := c.mail(padded(4090)); got != "250 2.0.0 OK: queued" {
		t.Error(got)
	}

	// The mail is not too large, what it holds is.
	r, l = notary()
	d := accepted()
	d.AssignedIdentifier = strings.Repeat("\u00e9", 3<<20)
	mail := letter("Content-Type: text/xml\nContent-Transfer-Encoding: base64", inBase64(message(d)))
	r.MaxBytes = int64(len(mail)) * 2
	c = call(t, serve(t, r))
	if got := c.mail(mail); !strings.HasPrefix(got, "552 5.3.4 ") {
		t.Error(got)
	}
	if len(l.all()) != 0 {
		t.Error("a message that is too large was taken")
	}
}

// A mail that ends inside one of SMTP's ends of data, as some servers see them,
// brings no second mail with it.
func TestSmuggling(t *testing.T) {
	for _, end := range []string{"\n.\n", "\n.\r\n", "\r\n.\n", "\r.\r", "\r.\r\n", "\r\n.\r", "\n.\r", "\r\r\n.\r\r\n", "\r\n\x00.\r\n", "\x00\r\n..\r\n"} {
		victim, box := &memoryRecipient{}, &memoryRecipient{}
		address := serve(t, &Receiver{Mailbox: at("lib.example", map[string]*memoryRecipient{"box": box, "victim": victim})})
		c := call(t, address)
		first := letter("Content-Type: multipart/mixed; boundary=b",
			"--b\r\nContent-Type: text/xml\r\n\r\n"+string(message(accepted()))+"\r\n--b--\r\n")
		c.begin("box@lib.example")
		c.write(append(first, end+"MAIL FROM:<evil@x.example>\r\nRCPT TO:<victim@lib.example>\r\nDATA\r\n"+string(plain())+"\r\n.\r\n"...))
		c.expect("250 2.0.0 OK: queued")
		c.say("221 2.0.0", "QUIT") // and not the reply to a command that was smuggled in
		if len(victim.all()) != 0 || len(box.all()) != 1 {
			t.Errorf("%q: %d smuggled, %d sent", end, len(victim.all()), len(box.all()))
		}
	}
}

// 250 comes after Notify has returned, not before.
func TestNotBeforeTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := notary()
		commit := make(chan struct{})
		l.notify = func(context.Context, sip.Caller) error {
			<-commit
			return nil
		}
		p, stop, served := bubble(r)
		c := piped(t, p)
		c.begin("box@lib.example")
		c.content(plain())
		said := make(chan string, 1)
		go func() {
			line, err := c.text.ReadLine()
			said <- fmt.Sprint(line, err)
		}()
		synctest.Wait() // nobody has anything to do but to commit
		if len(said) > 0 {
			t.Error("a reply before the commit")
		}
		close(commit)
		if got := <-said; got != "250 2.0.0 OK: queued<nil>" {
			t.Error(got)
		}
		c.conn.Close()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// The connection breaks after the end of the mail and before the reply: it is
// stored, the client does not know, and comes again.
func TestLostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := notary()
		commit := make(chan struct{})
		l.notify = func(context.Context, sip.Caller) error {
			<-commit
			return nil
		}
		p, stop, served := bubble(r)
		c := piped(t, p)
		c.begin("box@lib.example")
		c.content(plain())
		synctest.Wait() // it is being stored
		c.conn.Close()
		close(commit)
		synctest.Wait() // and now it is
		c = piped(t, p)
		if got := c.mail(plain()); got != "250 2.0.0 OK: queued" {
			t.Error(got)
		}
		if got := len(l.all()); got != 2 {
			t.Errorf("Notify was called %d times, want 2", got)
		}
		c.conn.Close()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// However much of a mail has come when the connection ends, nothing is taken.
func TestCutAtEveryByte(t *testing.T) {
	testenv.Heavy(t)
	r, l := notary()
	r.Connections, r.ConnectionsPerAddress = 8, 8
	address := serve(t, r)
	mail := []byte("Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/xml\r\n\r\n" +
		string(message(&sip.Disposition{Outcome: sip.Rejected})) + "\r\n--b--\r\nepilogue\r\n")
	single := []byte("Content-Type: text/xml\r\n\r\n" + string(message(&sip.Disposition{Outcome: sip.Rejected})) + "\r\n\r\n")
	for _, whole := range [][]byte{mail, single} {
		data := append(stuffed(whole), "\r\n.\r\n"...)
		last := append(fmt.Appendf(nil, "BDAT %d LAST\r\n", len(whole)), whole...)
		half := fmt.Appendf(nil, "BDAT %d\r\n%sBDAT %d LAST\r\n%s", len(whole)/2, whole[:len(whole)/2], len(whole)-len(whole)/2, whole[len(whole)/2:])
		for _, sent := range [][]byte{data, last, half} {
			for n := range sent {
				c := call(t, address)
				c.say("250 2.0.0", "MAIL FROM:<a@b.example>")
				c.say("250 2.0.0", "RCPT TO:<box@lib.example>")
				if &sent[0] == &data[0] {
					c.say("354 ", "DATA")
				}
				c.write(sent[:n])
				c.conn.(*net.TCPConn).CloseWrite()
				if said := c.gone(); strings.Contains(said, "OK: queued") {
					t.Fatalf("%d of %d bytes: %s", n, len(sent), said)
				}
				c.conn.Close()
			}
			if got := l.all(); len(got) != 0 {
				t.Fatalf("%d mails that were cut off were taken", len(got))
			}
		}
	}
	// The same with all their bytes.
	c := call(t, address)
	for _, whole := range [][]byte{mail, single} {
		if got := c.mail(whole) + c.bdat(whole, len(whole)) + c.bdat(whole, len(whole)/2+1); strings.Count(got, "250 2.0.0 OK: queued") != 3 {
			t.Error(got)
		}
	}
}

// A client that says all at once, and nothing more, gets its replies.
func TestPipelining(t *testing.T) {
	r, l := notary()
	conn, err := net.Dial("tcp", serve(t, r))
	if err != nil {
		t.Fatal(err)
	}
	c := on(t, conn)
	mail := plain()
	c.write([]byte("EHLO a.example\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<box@lib.example>\r\n" +
		fmt.Sprintf("BDAT %d LAST\r\n%s", len(mail), mail)))
	conn.(*net.TCPConn).CloseWrite()
	if said := c.gone(); !strings.Contains(said, "250 2.0.0 OK: queued\r\n") {
		t.Error(said)
	}
	check(t, l)
}

func TestThousandDuplicates(t *testing.T) {
	const clients, mails = 20, 50
	r, l := notary()
	r.ConnectionsPerAddress = clients
	address := serve(t, r)
	var wg sync.WaitGroup
	for range clients {
		c := call(t, address)
		wg.Go(func() {
			// Not c: what fails in a goroutine must not end it.
			for range mails {
				fmt.Fprintf(c.conn, "MAIL FROM:<a@b.example>\r\nRCPT TO:<box@lib.example>\r\nDATA\r\n%s\r\n.\r\n", stuffed(plain()))
				for _, want := range []int{250, 250, 354, 250} {
					if _, _, err := c.text.ReadResponse(want); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if got := len(l.all()); got != clients*mails {
		t.Errorf("Notify was called %d times, want %d", got, clients*mails)
	}
}

func TestPanic(t *testing.T) {
	var journal bytes.Buffer
	t.Run("", func(t *testing.T) { // the server has ended after it
		r, l := notary()
		r.Log = slog.New(slog.NewTextHandler(&journal, nil))
		l.notify = func(_ context.Context, c sip.Caller) error {
			if c.Token == "bug" {
				panic("a bug")
			}
			return nil
		}
		address := serve(t, r)
		c := call(t, address)
		c.begin("box+bug@lib.example")
		c.content(plain())
		c.expect("421 4.0.0 Internal server error")
		c.gone()
		if got := call(t, address).mail(plain()); got != "250 2.0.0 OK: queued" {
			t.Error(got)
		}
	})
	if !strings.Contains(journal.String(), "a bug") {
		t.Errorf("the log says %q", journal.String())
	}
}

// D69: while the disk is nearly full no mail is begun, and it comes again later.
func TestNoMailOnAFullDisk(t *testing.T) {
	r, l := notary()
	var full atomic.Bool
	full.Store(true)
	r.Full = func() error {
		if full.Load() {
			return errors.New("full")
		}
		return nil
	}
	client := call(t, serve(t, r))
	client.say("452 4.3.1 too little room on this server's disk, try again later", "MAIL FROM:<a@b.example>")
	full.Store(false)
	if got := client.mail(plain()); got != "250 2.0.0 OK: queued" || len(l.all()) != 1 {
		t.Errorf("then %s", got)
	}
}

// unbounded is a Reservation that has room for all.
type unbounded struct{}

func (unbounded) Add(int64) error { return nil }
func (unbounded) Received()       {}
func (unbounded) Release()        {}

// A mail in chunks that its client abandons may end while the next one is under way. Its
// refusal names its own sender.
func TestAbandonedMail(t *testing.T) {
	begun, goes, refused := make(chan struct{}), make(chan struct{}), make(chan Refusal, 1)
	r, _ := notary()
	r.Reserve = func(netip.Addr, func()) Reservation {
		close(begun)
		<-goes
		return unbounded{}
	}
	r.Refused = func(why Refusal) { refused <- why }
	c := call(t, serve(t, r))
	c.say("250 2.0.0", "MAIL FROM:<first@server.example>")
	c.say("250 2.0.0", "RCPT TO:<box@lib.example>")
	c.say("250 2.0.0", "BDAT 0")
	<-begun
	c.say("250 2.0.0", "RSET")
	c.say("250 2.0.0", "MAIL FROM:<second@server.example>")
	close(goes)
	if why := <-refused; why.Sender != "first@server.example" || why.Reply != 451 {
		t.Errorf("refused: %+v", why)
	}
	c.say("221 ", "QUIT")
}

// late is a Reservation whose mail ends only when it is told to.
type late struct {
	unbounded
	ends chan struct{}
}

func (l late) Release() { <-l.ends }

// A mail that is abandoned may end while the next one comes in: that one is not refused for good
// when it does not arrive whole.
func TestMailAfterAbandonedMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := late{ends: make(chan struct{})}
		var reserved atomic.Int32
		r, _ := notary()
		r.Reserve = func(netip.Addr, func()) Reservation {
			if reserved.Add(1) == 1 {
				return first
			}
			return unbounded{}
		}
		p, stop, served := bubble(r)
		c := piped(t, p)
		for n := range 2 {
			c.say("250 2.0.0", "MAIL FROM:<ingest@server.example>")
			c.say("250 2.0.0", "RCPT TO:<box@lib.example>")
			c.write([]byte("BDAT 20\r\nSubject: first\r\n\r\n\r\n"))
			c.expect("250 2.0.0 Continue")
			synctest.Wait()
			if n == 0 {
				c.say("250 2.0.0", "RSET")
			}
		}
		close(first.ends)
		synctest.Wait()
		c.write([]byte("BDAT 1000 LAST\r\nnever whole"))
		c.expect("451 4.4.2 the mail did not arrive whole, try again")
		c.gone()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// arriving is a Reservation that tells when the mail has come in.
type arriving struct{ received chan struct{} }

func (a arriving) Add(int64) error { return nil }
func (a arriving) Received()       { close(a.received) }
func (a arriving) Release()        {}

// A mail that takes too much of what others need is cut off while it arrives, and left with
// its sender; one that has come in is not.
func TestMailIsCutOff(t *testing.T) {
	r, l := notary()
	mail, cut := arriving{make(chan struct{})}, make(chan func(), 1)
	r.Reserve = func(_ netip.Addr, c func()) Reservation {
		cut <- c
		return mail
	}
	l.notify = func(context.Context, sip.Caller) error {
		<-mail.received
		return nil
	}
	address := serve(t, r)
	c := call(t, address)
	c.begin("box@lib.example")
	c.write([]byte("Subject: never ends\r\n"))
	start := time.Now()
	(<-cut)()
	c.expect("451 4.4.2 the mail did not arrive whole, try again")
	if took := time.Since(start); took > 30*time.Second { // it would end by itself after a minute
		t.Errorf("it took %v", took)
	}
	<-mail.received
	mail.received = make(chan struct{})
	c = call(t, address)
	if got := c.mail(plain()); !strings.HasPrefix(got, "250 ") {
		t.Error(got)
	}
	if len(l.all()) != 1 {
		t.Errorf("%d were taken", len(l.all()))
	}
}
