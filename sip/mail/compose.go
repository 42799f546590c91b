package mail

import (
	"encoding/base64"
	"fmt"
	"mime"
	"strings"
	"time"
)

// Mail is a notification on its way out.
type Mail struct {
	// ID is the Message-ID without its brackets, as local@domain; the same each
	// time that the notification is sent.
	ID string
	To Recipient
	// Subject is for people; "" is "Ingest disposition". A long one is cut off.
	Subject string
	// Message is the whole SOAP message, in UTF-8.
	Message []byte
}

// compose writes a mail. It is 7-bit, and no line is longer than 998 bytes,
// whatever the message holds. Only what comes out of a Mail can be permanently
// wrong: From is ours to correct.
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
		{"Auto-Submitted", "auto-generated"}, // so that nobody's absence is reported
		{"MIME-Version", "1.0"},
		{"Content-Type", "text/xml; charset=utf-8"},
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
