package daemon

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/alert"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip/mail"
)

const (
	// alertTime bounds the time to alert one receiver, mailTime that of a mail. Mail servers that
	// delay strangers, or scan what they get, take minutes. One that has the mail when time is
	// over gets it again, in each round.
	alertTime, mailTime = time.Minute, 5 * time.Minute
	// alertOutput is how many bytes of a command's output are read.
	alertOutput = 64 << 10
	// noticeTime is how long after a start what is kept in memory alone, see troubles, may not
	// have been noticed again.
	noticeTime = 5 * time.Minute
)

// What the warnings begin with that are kept in memory alone.
const (
	alertsCannot    = "alerts cannot be sent"
	contentsCannot  = "contents cannot be moved to their bucket"
	filesCannot     = "snapshots and dumps cannot be shared through their bucket"
	templateTrouble = "template "
)

func troubles() []string { return []string{alertsCannot, contentsCannot, filesCannot, templateTrouble} }

// alerter returns the Alerter, which sends alerts to the configured receivers.
func (b *Bridge) alerter() *alert.Alerter {
	mailer, began := b.mailer(), b.now()
	return &alert.Alerter{
		Receivers: func() []config.Alert { return b.Config().Alerts }, File: filepath.Join(b.Config().Data, "alerts.json"), Logger: b.opt.Logger,
		Bridge: func() string { return b.base }, State: func(ctx context.Context) alert.State { return b.alertState(ctx, began) }, Ended: b.alertsEnded(),
		Send: func(ctx context.Context, to *config.Alert, m *alert.Message) error {
			allowed := alertTime
			if to.Mail != "" {
				allowed = mailTime
			}
			ctx, cancel := context.WithTimeout(ctx, allowed)
			defer cancel()
			switch {
			case to.Mail != "":
				_, domain, _ := strings.Cut(b.Config().Mail.From, "@")
				return mailer.Send(ctx, &mail.Mail{ID: "alert-" + rand.Text() + "@" + domain, To: mail.Recipient{Address: to.Mail},
					Subject: m.Subject(), ContentType: "text/plain; charset=utf-8", Message: []byte(m.Text())})
			case len(to.Command) > 0:
				return runAlert(ctx, to.Command, m)
			}
			return b.postAlert(ctx, to.Webhook.Reveal(), m.Short())
		},
	}
}

// alertsEnded returns a function that keeps the error of a round, if the one before failed too,
// for the other receivers and the console.
func (b *Bridge) alertsEnded() func(err error) {
	failures := 0
	return func(err error) {
		if err == nil {
			failures = 0
			b.alertTrouble.Store(nil)
			return
		}
		if failures++; failures > 1 {
			b.alertTrouble.Store(new(alertsCannot + ": " + Redact(strings.ReplaceAll(err.Error(), "\n", "; "))))
		}
	}
}

// alertState returns the state that alerts are about, of a process that began at a time.
func (b *Bridge) alertState(ctx context.Context, began time.Time) alert.State {
	s := alert.State{Free: b.diskSpace.Free(), Now: b.now()}
	if age := s.Now.Sub(began); age >= 0 && age < noticeTime {
		s.Unnoticed = troubles()
	}
	var err error
	if s.Status, err = b.Status(ctx); err != nil {
		s.Status, s.Unreadable = nil, err.Error()
	}
	return s
}

// runAlert runs a command with a message.
func runAlert(ctx context.Context, command []string, m *alert.Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the operator's command
	out := limit.Output{Most: alertOutput}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(append(body, '\n')), &out, &out, time.Second
	// A process that the command left in the background may keep its output open: the
	// message was delivered all the same.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%w: %s", err, cmp.Or(submission.Clip(strings.ToValidUTF8(strings.TrimSpace(out.String()), "\uFFFD")), "it wrote nothing"))
	}
	return nil
}

// postAlert posts a message to a URL. The URL may be a secret, so errors do not name it.
func (b *Bridge) postAlert(ctx context.Context, url string, m *alert.Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return errors.New("its URL is not one")
	}
	req.Header.Set("Content-Type", "application/json")
	guard := b.generation.Load().guard.With(b.typed(url))
	defer guard.Close()
	client := guard.Client("")
	// Most redirects would be followed without the message, so the response would prove
	// nothing.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("posting to %s: %w", req.URL.Host, errors.Unwrap(err))
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s", req.URL.Host, resp.Status)
	}
	return nil
}
