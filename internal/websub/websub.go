// Package websub is W3C WebSub (Recommendation of 23 January 2018) for publishers and
// subscribers:
//
//   - [Discover] finds the hubs of a topic (section 4).
//   - [Publish] notifies a hub that a topic has changed. Section 6 leaves the form to hub and
//     publisher: here it is the ping that hubs share, hub.mode=publish.
//   - [Ask] subscribes or unsubscribes at a hub (5.1), and [ReadVerification] parses the
//     request that the hub then sends to the subscriber (5.2, 5.3).
//   - [CheckSignature] reports whether a push came from the hub (7.1).
//
// It has no state: callers define topics and store subscriptions.
package websub

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // WebSub 7.1 has it, and as an HMAC it holds
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The modes of requests and verifications.
const (
	Subscribe   = "subscribe"
	Unsubscribe = "unsubscribe"
	Denied      = "denied"
)

// Request asks a hub for a subscription, or for its end (5.1).
type Request struct {
	Mode     string // Subscribe or Unsubscribe
	Topic    string
	Callback string
	Secret   string        // less than 200 bytes (5.1)
	Lease    time.Duration // that is requested
}

// StatusError is the response of a hub that refuses a request.
type StatusError struct {
	Hub        string
	Status     int
	Reason     string        // the beginning of the body, which may contain our own secrets
	RetryAfter time.Duration // 0 means not stated
}

// Error describes the response of the hub.
func (e *StatusError) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("the hub %s answers %d: %s", e.Hub, e.Status, e.Reason), ": ")
}

// Ask sends a request to a hub. A nil error means that the hub has accepted it, and will
// verify it at the callback, or has already.
func Ask(ctx context.Context, client *http.Client, hub string, r *Request) error {
	form := url.Values{"hub.mode": {r.Mode}, "hub.topic": {r.Topic}, "hub.callback": {r.Callback}}
	if r.Mode == Subscribe {
		form.Set("hub.secret", r.Secret)
		form.Set("hub.lease_seconds", strconv.Itoa(int(r.Lease/time.Second)))
	}
	return post(ctx, client, hub, form)
}

// Publish notifies a hub that a topic has changed. Hubs read the topic's URL in hub.url,
// and some in hub.topic.
func Publish(ctx context.Context, client *http.Client, hub, topic string) error {
	return post(ctx, client, hub, url.Values{"hub.mode": {"publish"}, "hub.url": {topic}, "hub.topic": {topic}})
}

// reasonBytes is how much of the body of a refusal is read.
const reasonBytes = 4 << 10

func post(ctx context.Context, client *http.Client, hub string, form url.Values) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hub, strings.NewReader(form.Encode()))
	if err != nil {
		return fmt.Errorf("the hub %q has no URL that can be asked", hub)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	own := *client
	// A redirect that keeps the method keeps the form (5.1 names 307 and 308). The form has
	// a secret, so the redirect must not leave https. Other redirects send another request.
	own.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		last := via[len(via)-1]
		if next.Method != http.MethodPost || len(via) > 3 || last.URL.Scheme == "https" && next.URL.Scheme != "https" {
			return http.ErrUseLastResponse
		}
		if client.CheckRedirect != nil {
			return client.CheckRedirect(next, via)
		}
		return nil
	}
	resp, err := own.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, reasonBytes))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	refused := &StatusError{Hub: hub, Status: resp.StatusCode, Reason: strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "")), " ")}
	if to := resp.Header.Get("Location"); resp.StatusCode/100 == 3 && to != "" {
		refused.Reason = "ask " + strconv.Quote(to) + " instead, which is not done"
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		refused.RetryAfter = time.Duration(min(seconds, 7*24*3600)) * time.Second
	}
	return refused
}

// Verification is a request of a hub to a callback (5.2, 5.3).
type Verification struct {
	Mode      string // Subscribe, Unsubscribe or Denied
	Topic     string
	Challenge string        // to be echoed
	Lease     time.Duration // 0 means not stated
	Reason    string        // of a denial, "" none
}

// challengeBytes bounds a challenge.
const challengeBytes = 4 << 10

// ErrVerification means that a request to a callback is not from a hub.
var ErrVerification = errors.New("websub: this is no verification")

// ReadVerification parses the query of a request to a callback.
func ReadVerification(query url.Values) (*Verification, error) {
	v := &Verification{Mode: query.Get("hub.mode"), Topic: query.Get("hub.topic"), Challenge: query.Get("hub.challenge"), Reason: query.Get("hub.reason")}
	switch v.Mode {
	case Denied:
		return v, nil
	case Subscribe, Unsubscribe:
	default:
		return nil, ErrVerification
	}
	if v.Challenge == "" || len(v.Challenge) > challengeBytes || v.Topic == "" {
		return nil, ErrVerification
	}
	// In an unsubscription the lease may be present, and is ignored.
	if lease := query.Get("hub.lease_seconds"); lease != "" && v.Mode == Subscribe {
		seconds, err := strconv.ParseInt(lease, 10, 64)
		if err != nil || seconds < 1 {
			return nil, ErrVerification
		}
		v.Lease = time.Duration(min(seconds, maxLease)) * time.Second
	}
	return v, nil
}

// maxLease is the longest lease in seconds that is accepted: a year.
const maxLease = 366 * 24 * 3600

// CheckSignature reads a body to its end, without storing it, and reports whether header,
// its X-Hub-Signature, was made with secret (7.1). The error is one of reading.
func CheckSignature(body io.Reader, header, secret string) (bool, error) {
	method, text, _ := strings.Cut(header, "=")
	want, err := hex.DecodeString(strings.TrimSpace(text))
	made := map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New}[strings.ToLower(strings.TrimSpace(method))]
	known := made != nil && err == nil && len(want) > 0
	if made == nil {
		made = sha256.New // so that the time taken reveals nothing
	}
	mac := hmac.New(made, []byte(secret))
	if _, err := io.Copy(mac, body); err != nil {
		return false, err
	}
	return hmac.Equal(mac.Sum(nil), want) && known, nil
}
