package mail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/emersion/go-smtp"

	"github.com/pmh-bridge/bridge/sip"
)

// session is the conversation on one connection.
type session struct {
	receiver *Receiver
	calls    context.Context // of all calls of Backends: SMTP's commands have none
	conn     *conn

	mails, refusals int
	sender          string

	// Content that comes in chunks is read beside the commands, and what is left
	// of an abandoned mail may still be running when the next one begins.
	mu sync.Mutex
	to []addressee
}

// addressee is a recipient that was not refused.
type addressee struct {
	box     string // with its domain, without the token
	caller  sip.Caller
	backend sip.Backend
}

// Mail begins a mail. The null sender is as good as any: who wants no bounces
// uses it.
func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.mails++; s.mails > mailsPerConnection {
		return s.sendAway("too many mails on one connection, go on with another")
	}
	s.sender = from
	if s.receiver.Full != nil && s.receiver.Full() != nil {
		return reply(452, smtp.EnhancedCode{4, 3, 1}, "too little room on this server's disk, try again later")
	}
	return nil
}

// Rcpt looks for the mailbox and asks whether the client may write to it.
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	at := strings.LastIndexByte(to, '@')
	local, token, _ := strings.Cut(to[:at], "+")
	domain := strings.ToLower(to[at+1:])
	a := addressee{
		box:    local + "@" + domain,
		caller: sip.Caller{Token: token, Address: s.conn.peer},
	}
	var refusal *smtp.SMTPError
	if a.backend = s.receiver.Mailbox(local, domain); a.backend == nil {
		refusal = reply(550, smtp.EnhancedCode{5, 1, 1}, "no such mailbox here")
	} else {
		refusal = s.answer(a, a.backend.Admit(s.calls, a.caller))
	}
	if refusal != nil {
		if s.refusals++; s.refusals > refusalsPerSession {
			return s.sendAway("too many recipients were refused")
		}
		return refusal
	}

	s.conn.recipient()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.to, func(b addressee) bool { return a.box == b.box && a.caller == b.caller }) {
		s.to = append(s.to, a)
	}
	return nil
}

// Data takes the content of a mail. It returns nil, which is the 250, only when
// all of it has come in and every recipient has it.
func (s *session) Data(r io.Reader) error {
	if !s.conn.begin() {
		return reply(421, smtp.EnhancedCode{4, 3, 2}, "Service shutting down, try again later")
	}
	defer s.conn.end()
	if s.mails >= mailsPerConnection {
		s.conn.dismiss("") // after the reply: a mail server in front goes on with another connection, and defers nothing
	}
	s.mu.Lock()
	to := s.to
	s.mu.Unlock()

	content := &source{r: r}
	if s.receiver.Room != nil {
		content.room = s.receiver.Room(s.conn.peer)
		defer content.room.Release()
	}
	reading := s.receiver.Reading
	reading.Places = sip.Places{}
	d, err := readMail(content, reading)
	// What follows the part that counts has to arrive as well: a mail that is cut
	// off stays with the client. When a chunk of BDAT is cut off, the reader just
	// ends, and only the connection knows.
	_, _ = io.Copy(io.Discard, content)
	if errors.Is(content.err, errNoRoom) {
		_, _ = io.Copy(io.Discard, r)
	}
	switch {
	case content.err != nil:
		return s.refused(to, transferError(content.err))
	case !s.conn.whole():
		return s.refused(to, transferError(io.ErrUnexpectedEOF))
	case err != nil:
		return s.refused(to, s.answer(addressee{}, err))
	}
	if answer := s.notify(to, d, reading.Places); answer != nil {
		return s.refused(to, answer)
	}
	return nil
}

// notify hands a disposition to all recipients; SMTP has one reply for all of
// them. So a failure that may pass wins over one that stays, and the client
// repeats the whole mail: those who have the notification know it again, nobody
// loses it because another refused, and a refusal is told in the end.
func (s *session) notify(to []addressee, d *sip.Disposition, places sip.Places) *smtp.SMTPError {
	var worst *smtp.SMTPError
	for _, a := range to {
		answer := s.answer(a, places.Locate(a.backend.Notify(s.calls, a.caller, d)))
		if answer != nil && (worst == nil || answer.Temporary() && !worst.Temporary()) {
			worst = answer
		}
	}
	return worst
}

// Reset forgets the mail that was begun.
func (s *session) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = nil
}

// Logout ends the session; its mail goes with it.
func (s *session) Logout() error { return nil }

// sendAway ends the connection after the reply.
func (s *session) sendAway(why string) *smtp.SMTPError {
	s.conn.dismiss("")
	return reply(421, smtp.EnhancedCode{4, 7, 0}, why)
}

// refused tells of a mail that the client keeps.
func (s *session) refused(to []addressee, answer *smtp.SMTPError) *smtp.SMTPError {
	if s.receiver.Refused == nil {
		return answer
	}
	boxes := make([]string, len(to))
	for i, a := range to {
		boxes[i] = a.box
	}
	s.receiver.Refused(Refusal{Client: s.conn.peer, Sender: s.sender, To: boxes, Reply: answer.Code, Reason: answer.Message})
	return answer
}

// answer says what a Backend's error, or that of a message, is in SMTP. What only
// we may know goes to the log.
func (s *session) answer(a addressee, err error) *smtp.SMTPError {
	var fault *sip.Fault
	var denied *sip.Denied
	switch {
	case err == nil:
		return nil
	case errors.As(err, &denied) && denied.Status == http.StatusTooManyRequests:
		return reply(451, smtp.EnhancedCode{4, 7, 1}, denied.Reason)
	case errors.As(err, &denied):
		return reply(550, smtp.EnhancedCode{5, 7, 1}, denied.Reason)
	case errors.As(err, &fault) && fault.Code == sip.Server:
		return reply(451, smtp.EnhancedCode{4, 3, 0}, faultText(fault))
	case errors.As(err, &fault):
		return reply(554, smtp.EnhancedCode{5, 6, 0}, faultText(fault))
	case errors.Is(err, sip.ErrTooLarge):
		return reply(552, smtp.EnhancedCode{5, 3, 4}, err.Error())
	}
	s.receiver.Log.LogAttrs(s.calls, slog.LevelError, "notification by mail failed",
		slog.String("to", a.box), slog.Any("peer", s.conn.peer), slog.Any("error", err))
	return reply(451, smtp.EnhancedCode{4, 3, 0}, "Failure on our side, nothing was stored, try again later")
}

// transferError is for a mail that did not arrive whole.
func transferError(err error) *smtp.SMTPError {
	var known *smtp.SMTPError // 552
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, errNoRoom):
		return reply(451, smtp.EnhancedCode{4, 3, 1}, "too much is being received at a time, try again later")
	case errors.Is(err, smtp.ErrTooLongLine):
		return reply(554, smtp.EnhancedCode{5, 6, 0}, fmt.Sprintf("a line is longer than %d bytes: send it in base64", lineBytes))
	}
	return reply(451, smtp.EnhancedCode{4, 4, 2}, "the mail did not arrive whole, try again")
}

// faultText is a fault in one line, its place first.
func faultText(f *sip.Fault) string {
	var place string
	if f.Path != "" {
		place = f.Path + ": "
	}
	if f.Line > 0 {
		place = fmt.Sprintf("%sline %d, column %d: ", place, f.Line, f.Column)
	}
	return place + f.Text
}

func reply(code int, enhanced smtp.EnhancedCode, text string) *smtp.SMTPError {
	// A line of a reply has at most 512 bytes (RFC 5321, 4.5.3.1.5).
	return &smtp.SMTPError{Code: code, EnhancedCode: enhanced, Message: line(text, 480)}
}

// source remembers why the content of a mail ended early, so that nothing that
// reads through it takes a broken connection for bad content.
type source struct {
	r    io.Reader
	room Room // nil: there is enough
	err  error
}

// errNoRoom: too much is being received at a time.
var errNoRoom = errors.New("there is no room for the mail now")

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	if n > 0 && s.room != nil && s.room.Add(int64(n)) != nil {
		s.err = errNoRoom
		return 0, s.err
	}
	return n, err
}
