package mail

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// FuzzMail: whatever comes as a mail, it is a notification or its fault is told.
// A notification is what its message is alone.
func FuzzMail(f *testing.F) {
	for _, mail := range encodings(f) {
		f.Add(mail)
	}
	f.Add(plain())
	f.Add([]byte("Content-Type: multipart/mixed; boundary=\"\"\r\n\r\n--\r\n"))
	f.Fuzz(func(t *testing.T, mail []byte) {
		d, err := readMail(bytes.NewReader(mail), sip.ReadOptions{})
		if err != nil {
			var fault *sip.Fault
			if d != nil || !errors.As(err, &fault) && !errors.Is(err, sip.ErrTooLarge) {
				t.Fatalf("%v, %v", d, err)
			}
			return
		}
		again, err := sip.ReadMessage(bytes.NewReader(message(d)), sip.ReadOptions{})
		if err != nil || !reflect.DeepEqual(again.Disposition, d) {
			t.Fatalf("read as %+v, and again as %+v, %v", d, again, err)
		}
	})
}

// FuzzRoundTrip: the mail that a Sender makes of a message is read as the message
// is alone, also when that is refused.
func FuzzRoundTrip(f *testing.F) {
	f.Add(message(accepted()))
	f.Add(message(&sip.Disposition{Outcome: sip.ProvisionallyAccepted}))
	f.Add([]byte("<a>\x00</a>"))
	s := &Sender{From: "notify@bridge.example"}
	f.Fuzz(func(t *testing.T, xml []byte) {
		mail, err := s.compose(&Mail{ID: "1@b", To: Recipient{Address: "box@lib.example"}, Message: xml})
		if err != nil {
			t.Fatal(err)
		}
		d, err := readMail(bytes.NewReader(mail), sip.ReadOptions{})
		alone, aloneErr := sip.ReadMessage(bytes.NewReader(xml), sip.ReadOptions{URL: "mail", ContentType: "text/xml; charset=utf-8"})
		switch {
		case aloneErr != nil:
			if !reflect.DeepEqual(err, aloneErr) {
				t.Fatalf("%v, alone %v", err, aloneErr)
			}
		case alone.Kind != sip.KindDisposition || alone.Disposition.Outcome == sip.ProvisionallyAccepted:
			if err == nil {
				t.Fatalf("%s is a notification", xml)
			}
		case err != nil || !reflect.DeepEqual(d, alone.Disposition):
			t.Fatalf("%+v, %v, alone %+v", d, err, alone)
		}
	})
}

// hostileMails are mails of about n bytes that ask much of their reader.
func hostileMails(n int) map[string][]byte {
	fill := func(each string) string { return strings.Repeat(each, max(1, n/len(each))) }
	const multipart = "Content-Type: multipart/mixed; boundary=b\r\n\r\n"
	mails := map[string][]byte{
		"header fields":        []byte(fill("A: b\r\n") + "\r\n"),
		"one header field":     []byte("A: " + fill("b") + "\r\n\r\n"),
		"folded header fields": []byte("A: b\r\n" + fill(" c\r\n") + "\r\n"),
		"comments":             []byte("Content-Type: " + fill("(") + "\r\n\r\n"),
		"parameters":           []byte("Content-Type: text/xml; " + fill("a*0=b;") + "\r\n\r\n"),
		"parts":                []byte(multipart + fill("--b\r\n\r\nx\r\n")),
		"parts without an end": []byte(multipart + fill("--b\r\n")),
		"boundaries nearly":    []byte(multipart + "--b\r\n\r\n" + fill("\r\n--c")),
		"nested multiparts":    []byte(multipart + fill("--b\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n")),
		"base64":               []byte("Content-Type: text/xml\r\nContent-Transfer-Encoding: base64\r\n\r\n" + fill("PGE+\r\n")),
		"blanks in base64":     []byte("Content-Type: text/xml\r\nContent-Transfer-Encoding: base64\r\n\r\n" + fill(" \r\n")),
		"quoted-printable":     []byte("Content-Type: text/xml\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n" + fill("=3C=\r\n")),
	}
	for name, element := range testenv.Hostile(n) {
		mails["in XML: "+name] = []byte("Content-Type: text/xml\r\n\r\n" + element)
	}
	return mails
}

// D77: whatever comes as a mail, reading it costs time and memory in proportion to
// its length.
func TestCost(t *testing.T) {
	for name, mail := range hostileMails(512 << 10) {
		t.Run(name, func(t *testing.T) {
			testenv.Affordable(t, len(mail), func() { _, _ = readMail(bytes.NewReader(mail), sip.ReadOptions{}) })
		})
	}
}

// FuzzCost: the same of any mail.
func FuzzCost(f *testing.F) {
	for _, mail := range hostileMails(16 << 10) {
		f.Add(mail)
	}
	f.Fuzz(func(t *testing.T, mail []byte) {
		testenv.Affordable(t, len(mail), func() { _, _ = readMail(bytes.NewReader(mail), sip.ReadOptions{}) })
	})
}
