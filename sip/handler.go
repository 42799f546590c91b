package sip

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Backend performs the operations of a service. Its methods are called from several goroutines
// at once. A *Fault is sent as it is, a *Denied as its status and reason; any other error is
// answered with a fault of code Server, and only Handler.Log gets its text. So is a result that
// is nil or lacks what its type demands.
//
// A type that serves one side of the protocol only may embed a nil Backend for the
// methods of the other: they are not called unless Handler.Offers has them, or
// Handler.Serve is given a token.
type Backend interface {
	// GetProperties is the operation get-properties of an ingest server.
	GetProperties(context.Context, Caller) (*Properties, error)
	// Ingest is the operation ingest of an ingest server. It returns once the
	// outcome is durable, with the request's Source in the disposition. A record
	// that is not wanted is no error: its disposition is Rejected. The request is
	// the callee's to keep.
	Ingest(context.Context, Caller, *Request) (*Disposition, error)
	// Notify is the operation notify of a notification recipient; the disposition
	// is an ultimate one: Accepted or Rejected. It returns nil only when that is
	// durable.
	Notify(context.Context, Caller, *Disposition) error
	// Admit returns nil when the caller may call anything at all, else a *Denied.
	// It is asked before the message is read.
	Admit(context.Context, Caller) error
}

// Caller is who calls an operation, as far as the transport shows.
type Caller struct {
	// Token is what follows the service's own path in the URL of the call, or the
	// tag of the mailbox; "" when nothing does.
	Token string
	// Address is the peer's; the zero Addr when it is not known.
	Address netip.Addr
	// User and Password are of HTTP's basic authentication; HasLogin: they
	// were given.
	User, Password string
	HasLogin       bool
}

const (
	// comeBack is the Retry-After, in seconds, for a caller that calls too often.
	comeBack = "60"

	typeXML  = "text/xml; charset=utf-8"
	typeText = "text/plain; charset=utf-8"
)

// Handler serves a Backend over HTTP (SOAP 1.1, 6): POST of messages, and GET of its
// description at ?wsdl and ?xsd. Register it for the path of the service. The message
// determines the operation; SOAPAction counts only where the Body is empty
// (ReadOptions.Action).
//
// A *Fault is answered with status 500, a *Denied with its own status. Answers
// without a message, such as 405 and 415, are plain text that states what is
// wanted. A notification that was taken is answered with 202 and an empty body.
type Handler struct {
	Backend Backend
	// Offers are the operations of the service. The others are refused with a fault of code
	// Client. A notification with a token goes to the Backend in any case: its sender has got
	// the token for this service.
	Offers Operations
	// Location is the URL of the service, for its WSDL, with nothing behind its
	// path.
	Location string
	// MaxBytes is how long a message may be; 0 is 4 MiB.
	MaxBytes int64
	// Plain takes documents without an envelope as well. Such a one is answered
	// with a document without an envelope, and instead of a fault with plain text
	// and status 400, or 500 for one of code Server.
	Plain bool
	// Limits cap the message otherwise; their Document is not used.
	Limits Limits
	// Slots has the capacity of as many messages as may be read at once; Handlers may share
	// one. nil is no limit. A message waits for a slot only once it has arrived whole, so that
	// no slow connection takes one.
	Slots chan struct{}
	// Log gets the errors of calls that failed here; nil logs nothing.
	Log *slog.Logger
}

// ServeHTTP serves a call whose URL has nothing behind the service's path. It does not look at
// the path: that is left to the router.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.Serve(w, r, "") }

// Serve serves a call. The token is what followed the service's path in the URL,
// unescaped.
//
// It checks the method first, then the caller, the headers, the length, and last the message,
// so that it reads nothing of a caller that may not call. After the answer it reads the rest of
// a refused message, up to a little more than a message may have.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, token string) {
	x := &exchange{Handler: h, w: w, r: r, caller: callerOf(r, token)}
	x.answer()
	if !x.bodyDone {
		x.readRest()
	}
}

// exchange is one call over HTTP and its answer.
type exchange struct {
	*Handler
	w        http.ResponseWriter
	r        *http.Request
	caller   Caller
	plain    bool // the message has no envelope
	bodyDone bool // no more of the message is to be read
}

// callerOf returns the caller as far as HTTP names it.
func callerOf(r *http.Request, token string) Caller {
	c := Caller{Token: token}
	c.User, c.Password, c.HasLogin = r.BasicAuth()
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		c.Address = from.Addr().Unmap().WithZone("")
	}
	return c
}

// answer looks at the method and the caller, and answers the call.
func (x *exchange) answer() {
	if allow := x.allowed(); allow != "" {
		x.w.Header().Set("Allow", allow)
		x.sendText(http.StatusMethodNotAllowed, "POST a SOAP 1.1 message, or GET the description at ?wsdl and ?xsd")
		return
	}
	if err := x.Backend.Admit(x.r.Context(), x.caller); err != nil {
		x.fail(err)
		return
	}
	if x.r.Method == http.MethodPost {
		x.post()
	} else {
		x.describe()
	}
}

// allowed returns "" when the method is one for the URL, else those that are.
func (x *exchange) allowed() string {
	reading := x.r.Method == http.MethodGet || x.r.Method == http.MethodHead
	switch {
	case x.r.Method == http.MethodPost, reading && x.r.URL.RawQuery != "":
		return ""
	case x.r.URL.RawQuery != "":
		return "GET, HEAD, POST"
	}
	return "POST"
}

// post reads a message and answers it.
func (x *exchange) post() {
	if x.unsupported() {
		return
	}
	body, ok := x.readBody()
	if !ok {
		return
	}
	places := Places{}
	m, err := x.readMessage(body, places)
	if err == nil {
		m, err = x.dispatch(m)
		err = places.Locate(err)
	}
	switch {
	case err != nil:
		x.fail(err)
	case m == nil:
		x.send(http.StatusAccepted, "", nil)
	case x.plain:
		x.send(http.StatusOK, typeXML, AppendDocument(nil, m))
	default:
		x.send(http.StatusOK, typeXML, AppendMessage(nil, m))
	}
}

// unsupported reports whether the headers announce what is not read here, and then
// has answered.
func (x *exchange) unsupported() bool {
	given := x.r.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(given)
	switch {
	case media == "application/soap+xml":
		x.sendText(http.StatusUnsupportedMediaType, "this service accepts SOAP 1.1: POST it as text/xml; SOAP 1.2 is not supported")
	case err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter), media != "text/xml" && media != "application/xml":
		x.sendText(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type is %q: POST the message as text/xml; charset=utf-8", strictxml.Clip(given)))
	case !identity(x.r.Header):
		x.w.Header().Set("Accept-Encoding", "identity") // RFC 9110 12.5.3
		x.sendText(http.StatusUnsupportedMediaType, "the message is compressed: POST it without Content-Encoding")
	default:
		return false
	}
	return true
}

func identity(h http.Header) bool {
	for encoding := range strings.SplitSeq(strings.Join(h.Values("Content-Encoding"), ","), ",") {
		if encoding = strings.TrimSpace(encoding); encoding != "" && !strings.EqualFold(encoding, "identity") {
			return false
		}
	}
	return true
}

// readBody returns the whole body. If ok is false, it has answered.
func (x *exchange) readBody() (body []byte, ok bool) {
	most := x.limit()
	var (
		tooLarge *http.MaxBytesError
		n        int
		err      error
	)
	if x.r.ContentLength <= most {
		body, n, err = readPieces(http.MaxBytesReader(x.w, x.r.Body, most), x.r.ContentLength)
	}
	x.bodyDone = x.r.ContentLength <= most && !errors.As(err, &tooLarge)
	switch {
	case !x.bodyDone:
		if tooLarge != nil {
			most = tooLarge.Limit // perhaps of a server around us
		}
		x.sendText(http.StatusRequestEntityTooLarge, fmt.Sprintf("the message is longer than %d bytes", most))
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.w.Header().Set("Connection", "close")
		x.sendText(http.StatusRequestTimeout, fmt.Sprintf("the message came too slowly: %d bytes have arrived", n))
	case err != nil:
		x.plain = x.isPlain(body)
		x.fail(&Fault{Code: Client, Text: fmt.Sprintf("the message broke off after %d bytes: %v", n, err)})
	default:
		return body, true
	}
	return nil, false
}

func (x *exchange) limit() int64 {
	if x.MaxBytes == 0 {
		return maxMessage
	}
	return x.MaxBytes
}

// readPieces returns all that r has; stated is how much that is, or -1. It takes memory as
// the bytes come, in pieces, and joins them when they are all there: of a message that never
// ends nothing is copied. With an error it returns the first piece, and how many bytes there
// were.
func readPieces(r io.Reader, stated int64) (whole []byte, n int, err error) {
	const largest = 256 << 10
	size := 4 << 10
	if 0 <= stated && stated < int64(size) {
		size = int(stated) + 1 // room to see that it ends
	}
	var pieces [][]byte
	for ; err == nil; size = min(2*size, largest) {
		p := make([]byte, 0, size)
		for len(p) < size && err == nil {
			var k int
			k, err = r.Read(p[len(p):size])
			p = p[:len(p)+k]
		}
		pieces = append(pieces, p)
		n += len(p)
	}
	if err != io.EOF {
		return pieces[0], n, err
	}
	if len(pieces) == 1 {
		return pieces[0], n, nil
	}
	return bytes.Join(pieces, nil), n, nil
}

// readMessage waits for a slot, and reads the message of a body.
func (x *exchange) readMessage(body []byte, places Places) (*Message, error) {
	ctx := x.r.Context()
	if x.Slots != nil {
		select {
		case x.Slots <- struct{}{}:
			defer func() { <-x.Slots }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	x.plain = x.isPlain(body)
	o := ReadOptions{Context: ctx, ContentType: x.r.Header.Get("Content-Type"), Limits: x.Limits, Plain: x.plain, Action: x.r.Header.Get("SOAPAction"), Places: places}
	o.Limits.Document = x.limit()
	return readBytes(body, o, func(r *reader) (*Message, error) { return r.message(o.Plain) })
}

// isPlain reports whether the message is taken for one without an envelope: where such
// are allowed, and the root is no Envelope in whatever namespace. What has no root
// that can be read, such as nothing at all, has no envelope.
func (x *exchange) isPlain(body []byte) bool {
	if !x.Plain {
		return false
	}
	s := strictxml.New(bytes.NewReader(body), strictxml.Options{ContentType: x.r.Header.Get("Content-Type")})
	return s.Next() != nil || s.Local != "Envelope"
}

// dispatch calls the operation that the message is for. The answer to a
// notification is nil.
func (x *exchange) dispatch(m *Message) (*Message, error) {
	ctx := x.r.Context()
	switch {
	case m.Kind == KindGetProperties && x.Offers.Ingest:
		p, err := x.Backend.GetProperties(ctx, x.caller)
		return &Message{Kind: KindProperties, Properties: p}, cmp.Or(err, p.unwritable())
	case m.Kind == KindRequest && x.Offers.Ingest:
		d, err := x.Backend.Ingest(ctx, x.caller, m.Request)
		return &Message{Kind: KindDisposition, Disposition: d}, cmp.Or(err, d.unwritable())
	case m.Kind == KindDisposition && (x.Offers.Notify || x.caller.Token != ""):
		if m.Disposition.Outcome == ProvisionallyAccepted {
			return nil, &Fault{Code: Client, Path: "ingest-disposition/provisionally-accepted",
				Text: "a notification must not be provisionally accepted; expected accepted or rejected"}
		}
		return nil, x.Backend.Notify(ctx, x.caller, m.Disposition)
	}
	return nil, x.notOffered(m.Kind)
}

// notOffered is the fault that answers a document for which there is no
// operation here.
func (x *exchange) notOffered(k Kind) error {
	f := &Fault{Code: Client, Path: k.String(), Text: fmt.Sprintf("<%s> is an answer, not a request", k)}
	for _, op := range (Operations{Ingest: true, Notify: true}).list() {
		if op.input == k.String() {
			f.Text = "the operation " + op.name + " is not offered here"
		}
	}
	var offered []string
	for _, op := range x.Offers.list() {
		offered = append(offered, op.name)
	}
	f.Text += "; offered: " + strings.Join(offered, ", ")
	return f
}

// fail answers an error.
func (x *exchange) fail(err error) {
	var (
		denied *Denied
		fault  *Fault
	)
	switch {
	case errors.As(err, &denied):
		x.deny(denied)
		return
	case errors.As(err, &fault):
	default:
		// That a caller has closed the connection is no failure of this service, and is not
		// logged. The fault is sent all the same: the service itself may have ended the call,
		// and the caller would take silence for success.
		if x.Log != nil && (x.r.Context().Err() == nil || !errors.Is(err, context.Canceled)) {
			x.Log.Error("a SIP call failed", "service", x.Location, "caller", x.caller.Address, "err", err)
		}
		fault = &Fault{Code: Server, Text: "the service could not process the message; try again later"}
	}
	x.fault(fault)
}

func (x *exchange) fault(f *Fault) {
	switch {
	case !x.plain:
		x.send(http.StatusInternalServerError, typeXML, AppendMessage(nil, &Message{Kind: KindFault, Fault: f}))
	case f.Code == Server:
		x.sendText(http.StatusInternalServerError, f.Text)
	case f.Line > 0:
		x.sendText(http.StatusBadRequest, fmt.Sprintf("%s: %s", strictxml.Place(f.Path, f.Line, f.Column), f.Text))
	case f.Path != "":
		x.sendText(http.StatusBadRequest, f.Path+": "+f.Text)
	default:
		x.sendText(http.StatusBadRequest, f.Text)
	}
}

func (x *exchange) deny(d *Denied) {
	status := http.StatusForbidden
	switch d.Status {
	case http.StatusUnauthorized:
		status = d.Status
		x.w.Header().Set("WWW-Authenticate", `Basic realm="SIP", charset="UTF-8"`)
	case http.StatusTooManyRequests:
		status = d.Status
		x.w.Header().Set("Retry-After", comeBack)
		x.bodyDone = true
	}
	x.sendText(status, d.Reason)
}

// sendText answers in plain text.
func (x *exchange) sendText(status int, text string) {
	x.send(status, typeText, []byte(text+"\n"))
}

func (x *exchange) send(status int, contentType string, body []byte) {
	head := x.w.Header()
	if contentType != "" {
		head.Set("Content-Type", contentType)
	}
	head.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = x.w.Write(body) // a caller that does not get the answer has to repeat the call
	}
}

// describe answers ?wsdl and ?xsd. With a token the service is described at the URL with the
// token: without it the caller might be denied.
func (x *exchange) describe() {
	location := x.Location
	if x.caller.Token != "" {
		location += "/" + url.PathEscape(x.caller.Token)
	}
	switch strings.ToLower(strings.TrimSuffix(x.r.URL.RawQuery, "=")) {
	case "wsdl":
		x.send(http.StatusOK, typeXML, WSDL(x.Offers, location))
	case "xsd":
		x.send(http.StatusOK, typeXML, Schema())
	default:
		x.sendText(http.StatusNotFound, "nothing is described here but ?wsdl and ?xsd")
	}
}

// spare is how many bytes more than a message may have are read after the answer.
const spare = 1 << 20

// readRest reads on, after an answer that did not wait for the message: many
// clients look for the answer only when they have sent everything, and would find
// the connection broken. It reads nothing from a client that calls too often, waits for
// the status 100 before it sends, or announces more than would be read. The server
// limits how long the reading may take, as it does while a message is read.
func (x *exchange) readRest() {
	most := x.limit() + spare
	if x.r.ContentLength == 0 || x.r.ContentLength > most || x.r.Header.Get("Expect") != "" {
		return
	}
	// If the answer cannot be sent now, to read on is of no use.
	if http.NewResponseController(x.w).Flush() == nil {
		_, _ = io.CopyN(io.Discard, x.r.Body, most)
	}
}
