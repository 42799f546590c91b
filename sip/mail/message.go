package mail

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/sip"
)

// Limits of one mail.
const (
	headerBytes = 64 << 10
	depthLimit  = 10 // of multiparts
	partLimit   = 100
)

// readMail returns the notification in a mail. The error is a *sip.Fault or wraps
// sip.ErrTooLarge when the mail is bad. When r fails, the error has no meaning: the caller has
// to look at r first.
func readMail(r io.Reader, o sip.ReadOptions) (*sip.Disposition, error) {
	header := &headerReader{r: r, left: headerBytes}
	m, err := mail.ReadMessage(bufio.NewReader(header))
	if err != nil {
		return nil, fault("this is no mail: %v", err)
	}
	header.done = true
	parts := parts{options: o}
	if err := parts.read(textproto.MIMEHeader(m.Header), m.Body, 0); err != nil {
		return nil, err
	}
	return parts.notification()
}

// headerReader ends a header that is too long.
type headerReader struct {
	r    io.Reader
	left int
	done bool
}

func (h *headerReader) Read(p []byte) (int, error) {
	if h.done {
		return h.r.Read(p)
	}
	if h.left == 0 {
		return 0, fmt.Errorf("its header is longer than %d bytes", headerBytes)
	}
	n, err := h.r.Read(p[:min(len(p), h.left)])
	h.left -= n
	return n, err
}

// parts looks for the one part of a mail that is XML.
type parts struct {
	options sip.ReadOptions
	message *sip.Message
	count   int
	passed  []string // the types of those that are something else
}

// read reads a part, or the mail itself, which is one at the depth 0.
func (p *parts) read(header textproto.MIMEHeader, body io.Reader, depth int) error {
	contentType := uncommented(header.Get("Content-Type"))
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) || media == "" {
		media = "text/plain" // RFC 2045, 5.2
	}
	switch {
	case media == "multipart/report":
		return fault("a report about a mail (multipart/report) is no notification")
	case strings.HasPrefix(media, "multipart/"):
		return p.multipart(multipart.NewReader(body, cmp.Or(params["boundary"], boundaryIn(contentType))), media, depth+1)
	case media == "text/xml" || media == "application/xml":
		return p.xml(contentType, uncommented(header.Get("Content-Transfer-Encoding")), body)
	}
	if !slices.Contains(p.passed, media) {
		p.passed = append(p.passed, media)
	}
	return nil
}

// boundaryIn returns the boundary of a Content-Type with a parameter that cannot be read, as
// a boundary with an equals sign and without quotes. A boundary has no semicolon (RFC 2046,
// 5.1.1).
func boundaryIn(contentType string) string {
	for parameter := range strings.SplitSeq(contentType, ";") {
		name, value, _ := strings.Cut(parameter, "=")
		if strings.EqualFold(strings.TrimSpace(name), "boundary") {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

func (p *parts) multipart(r *multipart.Reader, media string, depth int) error {
	if depth > depthLimit {
		return fault("multiparts are nested more than %d deep", depthLimit)
	}
	for {
		part, err := r.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault("the %s does not end as its boundary says: %v", media, err)
		}
		if p.count++; p.count > partLimit {
			return fault("there are more than %d parts", partLimit)
		}
		if err := p.read(part.Header, part, depth); err != nil {
			return err
		}
	}
}

func (p *parts) xml(contentType, encoding string, body io.Reader) error {
	if p.message != nil {
		return fault("there are two XML parts: expected one notification in a mail")
	}
	content, err := decode(encoding, body)
	if err != nil {
		return err
	}
	o := p.options
	o.URL, o.ContentType = "mail", contentType
	p.message, err = sip.ReadMessage(content, o)
	var bad *sip.Fault
	switch {
	case err == nil, errors.As(err, &bad), errors.Is(err, sip.ErrTooLarge):
		return err
	}
	return fault("the XML part cannot be decoded: %v", err)
}

// notification is what was found, once the mail has been read.
func (p *parts) notification() (*sip.Disposition, error) {
	switch {
	case p.message == nil && len(p.passed) == 0:
		return nil, fault("no part is text/xml or application/xml: the multipart is empty")
	case p.message == nil:
		return nil, fault("no part is text/xml or application/xml: found %s", clip(strings.Join(p.passed, ", ")))
	case p.message.Kind != sip.KindDisposition:
		return nil, fault("found %s, expected an ingest-disposition: by mail there is only the operation notify", p.message.Kind)
	case p.message.Disposition.Outcome == sip.ProvisionallyAccepted:
		f := fault("a notification must not be provisionally accepted; expected accepted or rejected")
		f.Path = "ingest-disposition/provisionally-accepted"
		return nil, p.options.Places.Locate(f)
	}
	return p.message.Disposition, nil
}

// uncommented returns a field's value without its comments, which may be nested,
// and may be anywhere but in a quoted string (RFC 822, 3.4.3; RFC 2045, 5.1).
func uncommented(value string) string {
	var kept strings.Builder
	depth, quoted := 0, false
	for i := 0; i < len(value); i++ {
		from := i
		switch c := value[i]; {
		case c == '\\' && (quoted || depth > 0) && i+1 < len(value):
			i++ // whatever it is, it stands for itself
		case c == '"' && depth == 0:
			quoted = !quoted
		case c == '(' && !quoted:
			depth++
		case c == ')' && depth > 0:
			depth--
			continue
		}
		if depth == 0 {
			kept.WriteString(value[from : i+1])
		}
	}
	return strings.TrimSpace(kept.String())
}

// decode undoes a Content-Transfer-Encoding (RFC 2045, 6).
func decode(encoding string, r io.Reader) (io.Reader, error) {
	switch strings.ToLower(encoding) {
	case "", "7bit", "8bit", "binary":
		return r, nil
	case "quoted-printable":
		return quotedprintable.NewReader(r), nil
	case "base64":
		return base64.NewDecoder(base64.StdEncoding, blankless{r}), nil
	}
	return nil, fault("the Content-Transfer-Encoding %q is unknown: expected 7bit, 8bit, binary, quoted-printable or base64", clip(encoding))
}

// blankless leaves out the blanks that base64 may have anywhere; line ends the
// decoder leaves out itself.
type blankless struct{ r io.Reader }

func (b blankless) Read(p []byte) (int, error) {
	for {
		n, err := b.r.Read(p)
		kept := slices.DeleteFunc(p[:n], func(c byte) bool { return c == ' ' || c == '\t' })
		if len(kept) > 0 || err != nil || n == 0 {
			return len(kept), err
		}
	}
}

func fault(format string, args ...any) *sip.Fault {
	return &sip.Fault{Code: sip.Client, Text: fmt.Sprintf(format, args...)}
}

// clip shortens a text of another party to what fits into a message.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// line makes one line of printable ASCII of a text, at most most bytes long, as
// replies and header fields need it: other characters become "?", white space
// and line ends single spaces.
func line(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, strings.Join(strings.Fields(s), " "))
	if len(s) > most {
		return s[:most-3] + "..."
	}
	return s
}
