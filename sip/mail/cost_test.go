package mail

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

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
