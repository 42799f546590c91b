package mail

import (
	"encoding/base64"
	"fmt"
	"mime/quotedprintable"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// inBase64 has short lines, and blanks where some programs put them.
func inBase64(b []byte) string {
	var out strings.Builder
	for s := base64.StdEncoding.EncodeToString(b); s != ""; {
		n := min(60, len(s))
		out.WriteString(s[:n] + " \r\n")
		s = s[n:]
	}
	return out.String()
}

func inQuotedPrintable(b []byte) string {
	var out strings.Builder
	w := quotedprintable.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.String()
}

func inLatin1(s string) string {
	var b []byte
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}

func inUTF16(s string) []byte {
	b := []byte{0xFE, 0xFF}
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u>>8), byte(u))
	}
	return b
}

// inASCII writes what is beyond ASCII as character references.
func inASCII(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "&#%d;", r)
		}
	}
	return b.String()
}

// encodings are mails that all bring accepted().
func encodings(t testing.TB) map[string][]byte {
	m := crlf(string(message(accepted())))
	declared := func(charset string) string {
		_, rest, ok := strings.Cut(m, "?>")
		if !ok {
			t.Fatal("the message has no XML declaration")
		}
		return `<?xml version="1.0" encoding="` + charset + `"?>` + rest
	}
	oneLine := strings.ReplaceAll(m, "\r\n", "")
	note := "Content-Type: text/plain\r\n\r\nYour record was <accepted/>.\r\n"
	xml := "Content-Type: text/xml; charset=utf-8; name=\"disposition.xml\"\r\n" +
		"Content-Disposition: attachment; filename=\"disposition.xml\"\r\n" +
		"Content-Transfer-Encoding: base64\r\n\r\n" + inBase64([]byte(m))
	multi := func(kind, boundary string, parts ...string) string {
		return "Content-Type: multipart/" + kind + "; boundary=\"" + boundary + "\"\r\n\r\npreamble <xml/>\r\n--" + boundary + "\r\n" +
			strings.Join(parts, "\r\n--"+boundary+"\r\n") + "\r\n--" + boundary + "--\r\nepilogue\r\n"
	}
	whole := func(entity string) []byte {
		fields, body, _ := strings.Cut(entity, "\r\n\r\n")
		return letter(fields, body)
	}
	deep := xml
	for i := range depthLimit {
		deep = multi("mixed", fmt.Sprint("level ", i), note, deep)
	}
	return map[string][]byte{
		"8bit":                 letter("Content-Type: text/xml; charset=utf-8\nContent-Transfer-Encoding: 8bit", m),
		"8bit, undeclared":     letter("Content-Type: text/xml; charset=utf-8", m),
		"7bit":                 letter("Content-Type: application/xml\nContent-Transfer-Encoding: 7bit", inASCII(m)),
		"binary by DATA":       letter("Content-Type: text/xml\nContent-Transfer-Encoding: binary", m),
		"one long line":        letter("Content-Type: text/xml", oneLine),
		"quoted-printable":     letter("Content-Type: text/xml\nContent-Transfer-Encoding: Quoted-Printable", inQuotedPrintable([]byte(m))),
		"base64":               letter("content-type: TEXT/XML;\n\tCharset=\"UTF-8\"\ncontent-transfer-encoding: BASE64", inBase64([]byte(m))),
		"latin-1 by parameter": letter("Content-Type: text/xml; charset=iso-8859-1", inLatin1(m)),
		"latin-1 declared":     letter("Content-Type: text/xml", inLatin1(declared("ISO-8859-1"))),
		"latin-1 in base64":    letter("Content-Type: application/xml\nContent-Transfer-Encoding: base64", inBase64([]byte(inLatin1(declared("ISO-8859-1"))))),
		"latin-1 quoted":       letter("Content-Type: text/xml; charset=iso-8859-1\nContent-Transfer-Encoding: quoted-printable", inQuotedPrintable([]byte(inLatin1(m)))),
		"utf-16":               letter("Content-Type: text/xml\nContent-Transfer-Encoding: base64", inBase64(inUTF16(declared("UTF-16")))),
		"comments": letter("Content-Type: text/xml (a \"notification\"); charset=iso-8859-1 (Latin (\\) 1)); name=\"(1\\\"\" ()\nContent-Transfer-Encoding: (so) Base64 (\n said (we))",
			inBase64([]byte(inLatin1(m)))),
		"a comment behind 7bit":                  letter("Content-Type: application/xml\nContent-Transfer-Encoding: 7bit (comment)", inASCII(m)),
		"broken parameter":                       letter("Content-Type: text/xml; action", m),
		"multipart/mixed":                        whole(multi("mixed", "b", note, xml)),
		"multipart/related":                      whole(multi("related; type=\"text/xml\"", "=_b'()+_,-./:=?", xml)),
		"multipart/signed":                       whole(multi("signed", "b", xml, "Content-Type: application/pkcs7-signature\r\nContent-Transfer-Encoding: base64\r\n\r\nMIIB\r\n")),
		"boundary not quoted":                    []byte(strings.NewReplacer(`"----=_Part_1.2"`, "----=_Part_1.2").Replace(string(whole(multi("mixed", "----=_Part_1.2", note, xml))))),
		"a broken parameter behind the boundary": []byte(strings.Replace(string(whole(multi("mixed", "b", note, xml))), `boundary="b"`, `Boundary="b"; charset`, 1)),
		"a broken parameter before the boundary": whole(multi("mixed; charset", "b", note, xml)),
		"a part that has 8bit":                   whole(multi("mixed", "b", note, "Content-Type: text/xml; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"+m)),
		"a part in latin-1":                      whole(multi("mixed", "b", "Content-Type: text/xml; charset=iso-8859-1\r\n\r\n"+inLatin1(m), note)),
		"ten deep":                               whole(deep),
	}
}

// check compares what a recipient took with the one disposition that was sent.
func check(t *testing.T, l *memoryRecipient) {
	t.Helper()
	got := l.all()
	if len(got) != 1 {
		t.Fatalf("%d notifications arrived, want 1", len(got))
	}
	if !reflect.DeepEqual(got[0].disposition, accepted()) {
		t.Errorf("arrived as %s", message(got[0].disposition))
	}
}

func TestEncodings(t *testing.T) {
	for name, mail := range encodings(t) {
		t.Run(name, func(t *testing.T) {
			r, l := notary()
			c := call(t, serve(t, r))
			if got := c.mail(mail); got != "250 2.0.0 OK: queued" {
				t.Fatalf("DATA: %s", got)
			}
			check(t, l)
			for _, chunk := range []int{1 << 20, 100} {
				l.taken = nil
				if got := c.bdat(mail, chunk); got != "250 2.0.0 OK: queued" {
					t.Fatalf("BDAT in chunks of %d: %s", chunk, got)
				}
				check(t, l)
			}
		})
	}
}

// Content that only BDAT can carry: a bare line feed, and a line without an end.
func TestBinary(t *testing.T) {
	r, l := notary()
	c := call(t, serve(t, r))
	d := accepted()
	d.AssignedIdentifier = strings.Repeat("x", 3*lineBytes)
	mail := letter("Content-Type: text/xml\nContent-Transfer-Encoding: binary", string(message(d)))
	if got := c.bdat(mail, 1<<20); got != "250 2.0.0 OK: queued" {
		t.Fatal(got)
	}
	if got := l.all(); len(got) != 1 || !reflect.DeepEqual(got[0].disposition, d) {
		t.Errorf("%d notifications, or another one", len(got))
	}
	if got := c.mail(mail); !strings.HasPrefix(got, "554 5.6.0 a line is longer than 65536 bytes") {
		t.Errorf("the same by DATA: %s", got)
	}
}

// swaks delivers a mail the way that scripts do.
func swaks(t *testing.T, address string, args ...string) string {
	t.Helper()
	program := testenv.Need(t, "swaks", "swaks")
	out, err := exec.CommandContext(t.Context(), program, append([]string{"--server", address, "--helo", "client.example",
		"--from", "ingest@server.example", "--to", "Box+Token+1@LIB.example", "--timeout", "30s"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v\n%s", err, out)
	}
	return string(out)
}

func TestSwaksDelivers(t *testing.T) {
	mails := encodings(t)
	delete(mails, "one long line") // it breaks off lines by itself
	dir := t.TempDir()
	path := filepath.Join(dir, "mail")
	deliver := func(t *testing.T, args ...string) {
		l := &memoryRecipient{}
		address := serve(t, &Receiver{Mailbox: at("lib.example", map[string]*memoryRecipient{"Box": l})})
		if out := swaks(t, address, args...); !strings.Contains(out, "250 2.0.0 OK: queued") {
			t.Fatal(out)
		}
		check(t, l)
		if c := l.all()[0].caller; c.Token != "Token+1" || c.Address.String() != "127.0.0.1" {
			t.Errorf("the caller is %+v", c)
		}
	}
	for name, mail := range mails {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, mail, 0o600); err != nil {
				t.Fatal(err)
			}
			deliver(t, "--data", "@"+path)
		})
	}
	// The mail that swaks writes by itself.
	t.Run("attached", func(t *testing.T) {
		if err := os.WriteFile(path, message(accepted()), 0o600); err != nil {
			t.Fatal(err)
		}
		deliver(t, "--body", "see below", "--attach-type", "text/xml", "--attach-name", "d.xml", "--attach", "@"+path)
	})
	t.Run("refused", func(t *testing.T) {
		r, _ := notary()
		out := swaks(t, serve(t, r), "--to", "box@lib.example", "--body", "no notification")
		if !strings.Contains(out, "554 5.6.0 no part is text/xml or application/xml: found text/plain") {
			t.Error(out)
		}
	})
}

// A mail is the same message as its XML part alone, whatever surrounds it.
func TestMailIsItsXML(t *testing.T) {
	alone, err := sip.ReadMessage(strings.NewReader(string(message(accepted()))), sip.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, mail := range encodings(t) {
		d, err := readMail(strings.NewReader(string(mail)), sip.ReadOptions{})
		if err != nil || !reflect.DeepEqual(d, alone.Disposition) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}
