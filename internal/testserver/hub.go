package testserver

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Hub is a WebSub hub on loopback (W3C WebSub, sections 5 to 7): it verifies the requests
// of subscribers, fetches a topic when it is notified, and distributes it with a signature.
// Its methods may be called from any goroutine.
type Hub struct {
	*httptest.Server
	listener *GatedListener
	group    sync.WaitGroup

	mu      sync.Mutex
	lease   time.Duration
	deny    string
	silent  bool
	subs    map[string]HubSubscription // by callback
	pings   []string
	asked   []url.Values
	answers []int
}

// HubSubscription is a subscription that a Hub has verified.
type HubSubscription struct {
	Callback, Topic, Secret string
	Until                   time.Time
}

// NewHub starts a Hub, which serves until the test ends.
func NewHub(t testing.TB) *Hub {
	h := &Hub{lease: time.Hour, subs: map[string]HubSubscription{}}
	h.Server = httptest.NewUnstartedServer(h)
	h.listener = &GatedListener{Listener: h.Listener}
	h.Listener = h.listener
	h.Start()
	t.Cleanup(func() {
		h.Close()
		h.group.Wait()
	})
	return h
}

// Set changes the granted lease; the reason for which subscriptions are denied, "" grants
// them; and whether requests are accepted and never verified.
func (h *Hub) Set(lease time.Duration, deny string, silent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease, h.deny, h.silent = lease, deny, silent
}

// Shut stops the hub until Up.
func (h *Hub) Shut() {
	h.listener.Shut()
	h.CloseClientConnections()
}

// Up starts the hub again after Shut.
func (h *Hub) Up() { h.listener.Open() }

// Pings returns the topics of which the hub was notified, in order.
func (h *Hub) Pings() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.pings...)
}

// Asked returns the requests of subscribers, in order.
func (h *Hub) Asked() []url.Values {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]url.Values(nil), h.asked...)
}

// Subscriptions returns those whose lease has not ended.
func (h *Hub) Subscriptions() (all []HubSubscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.subs {
		if s.Until.After(time.Now()) {
			all = append(all, s)
		}
	}
	return all
}

// Answers returns the status codes of subscribers' responses to pushes.
func (h *Hub) Answers() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]int(nil), h.answers...)
}

// ServeHTTP implements http.Handler.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil || r.Method != http.MethodPost {
		http.Error(w, "a hub takes forms", http.StatusBadRequest)
		return
	}
	form := r.PostForm
	h.mu.Lock()
	defer h.mu.Unlock()
	switch mode := form.Get("hub.mode"); mode {
	case "publish":
		topic := form.Get("hub.url")
		h.pings = append(h.pings, topic)
		h.group.Go(func() { h.distribute(topic) })
	case "subscribe", "unsubscribe":
		h.asked = append(h.asked, form)
		if h.silent {
			break
		}
		deny, lease := h.deny, h.lease
		h.group.Go(func() { h.verify(form, deny, lease) })
	default:
		http.Error(w, "unknown hub.mode", http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// verify asks a subscriber to confirm its request, or denies the request.
func (h *Hub) verify(form url.Values, deny string, lease time.Duration) {
	callback := form.Get("hub.callback")
	u, err := url.Parse(callback)
	if err != nil {
		return
	}
	q := u.Query()
	q.Set("hub.mode", form.Get("hub.mode"))
	q.Set("hub.topic", form.Get("hub.topic"))
	if deny != "" {
		q.Set("hub.mode", "denied")
		q.Set("hub.reason", deny)
	}
	challenge := rand.Text()
	q.Set("hub.challenge", challenge)
	if form.Get("hub.mode") == "subscribe" {
		q.Set("hub.lease_seconds", strconv.Itoa(int(lease/time.Second)))
	}
	u.RawQuery = q.Encode()
	resp, err := http.Get(u.String()) //nolint:noctx // on loopback, and it ends with the test
	if err != nil {
		return
	}
	defer resp.Body.Close()
	echo, _ := io.ReadAll(resp.Body)
	if deny != "" || resp.StatusCode/100 != 2 || string(echo) != challenge {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, callback)
	if form.Get("hub.mode") == "subscribe" {
		h.subs[callback] = HubSubscription{callback, form.Get("hub.topic"), form.Get("hub.secret"), time.Now().Add(lease)}
	}
}

// distribute fetches a topic and pushes it to its subscribers.
func (h *Hub) distribute(topic string) {
	resp, err := http.Get(topic) //nolint:noctx // on loopback, and it ends with the test
	if err != nil {
		return
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		return
	}
	for _, s := range h.Subscriptions() {
		if s.Topic != topic {
			continue
		}
		status := Push(s.Callback, s.Secret, body, h.URL, topic)
		h.mu.Lock()
		h.answers = append(h.answers, status)
		if status == http.StatusGone {
			delete(h.subs, s.Callback)
		}
		h.mu.Unlock()
	}
}

// Push sends a push as a hub does, signed with a secret, "" means unsigned. It returns the
// status of the response, 0 for none.
func Push(callback, secret string, body []byte, hub, topic string) int {
	req, err := http.NewRequest(http.MethodPost, callback, bytes.NewReader(body)) //nolint:noctx // on loopback, and it ends with the test
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/xml")
	req.Header.Set("Link", "<"+hub+`>; rel="hub", <`+topic+`>; rel="self"`)
	if secret != "" {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(body)
		req.Header.Set("X-Hub-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}
