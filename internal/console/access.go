package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/server"
)

const (
	// cookieName is the name of the cookie of a session. Without a Path the cookie is for
	// the folder of the console, whatever path a proxy has added.
	cookieName = "bridge_console"
	// sessionTime is how long a session lasts.
	sessionTime = 7 * 24 * time.Hour
)

// admit reports whether a request is allowed; if it is not, admit has written the response.
// path is below the console.
func (c *Console) admit(w http.ResponseWriter, r *http.Request, path string) bool {
	if err := c.cross.Check(r); err != nil {
		c.refuse(w, r, &problem{http.StatusForbidden, "Another web site has sent this form, so nothing was done. Open the console itself and try again there."})
		return false
	}
	if c.opt.Token == "" {
		if why := notLocal(r); why != "" {
			c.refuse(w, r, &problem{http.StatusForbidden, why})
			return false
		}
		return true
	}
	wait := c.tokenWait(r)
	switch {
	case path == "/sign-in" && r.Method == http.MethodPost:
		c.signIn(w, r)
		return false
	case wait > 0:
		w.Header().Set("Retry-After", retryAfter(wait))
		c.refuse(w, r, &problem{http.StatusTooManyRequests, tooMany(wait)})
		return false
	case c.signedIn(r):
		return true
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		c.refuse(w, r, &problem{http.StatusUnauthorized, "You are not signed in any more, so nothing was done. Sign in and try again."})
		return false
	}
	c.askForToken(w, r, "")
	return false
}

// admitProgram is admit for a request to the API: the response to a refused request is
// JSON. An action must state that its body is JSON, which no form of a web page can.
func (c *Console) admitProgram(w http.ResponseWriter, r *http.Request) bool {
	p := server.Problem{Status: http.StatusForbidden}
	wait := c.tokenWait(r)
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); {
	case c.cross.Check(r) != nil:
		p.Detail = "Another web site has sent this request, so nothing was done."
	case c.opt.Token == "" && notLocal(r) != "":
		p.Detail = notLocal(r)
	case wait > 0:
		p.Status, p.Detail = http.StatusTooManyRequests, tooMany(wait)
		w.Header().Set("Retry-After", retryAfter(wait))
	case c.opt.Token != "" && !c.signedIn(r):
		p.Status, p.Detail = http.StatusUnauthorized, "Send the token, which is in the file that console_token_file names, as Authorization: Bearer TOKEN."
		w.Header().Set("WWW-Authenticate", `Bearer realm="bridge console"`)
	case r.Method == http.MethodPost && kind != "application/json":
		p.Status, p.Detail = http.StatusUnsupportedMediaType, "Send a JSON object, {} at least, with Content-Type: application/json."
	default:
		return true
	}
	p.Write(w)
	return false
}

// notLocal returns why a console without a token refuses a request: it came from another
// machine through a proxy, or it names a host that only a page of another site could have
// made lead to this machine. "" means that it is local.
func notLocal(r *http.Request) string {
	if r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "" {
		return "A web server passes this request on, and this console has no token: anybody could use it. Configure console_token_file."
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if a, err := netip.ParseAddr(host); err == nil && a.IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return ""
	}
	return "This console has no token, and so is only for this machine: open it as http://localhost with its port, or configure console_token_file."
}

// bearer returns the token that a request has in its header.
func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// tokenWait returns how long the client of a request with a token, whether that is right or
// wrong, must wait before it is looked at.
func (c *Console) tokenWait(r *http.Request) time.Duration {
	if _, ok := bearer(r); !ok || c.opt.Token == "" {
		return 0
	}
	return c.logins.Wait(limit.ClientOf(r.RemoteAddr), c.opt.Now())
}

// tooMany describes why a client must wait.
func tooMany(wait time.Duration) string {
	return "Too many wrong tokens came from your address. Wait " + about(wait) + ", then try again."
}

// retryAfter returns a wait in whole seconds, rounded up.
func retryAfter(wait time.Duration) string { return strconv.Itoa(int(wait/time.Second) + 1) }

// signedIn reports whether a request has the token, or the cookie of a session. A client that
// must wait (tokenWait) is not asked for either.
func (c *Console) signedIn(r *http.Request) bool {
	if token, ok := bearer(r); ok {
		if c.isToken(token) {
			return true
		}
		c.logins.Failed(limit.ClientOf(r.RemoteAddr), c.opt.Now())
		return false
	}
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return false
	}
	until, _, _ := strings.Cut(cookie.Value, ".")
	seconds, err := strconv.ParseInt(until, 10, 64)
	return err == nil && c.opt.Now().Unix() < seconds && subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(c.session(seconds))) == 1
}

// isToken compares in constant time, whatever the lengths.
func (c *Console) isToken(token string) bool {
	given, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(c.opt.Token))
	return subtle.ConstantTimeCompare(given[:], want[:]) == 1
}

// session returns the value of a cookie that is valid until a time. It is derived from the
// token, so that another token ends all sessions, and does not reveal the token.
func (c *Console) session(until int64) string {
	text := strconv.FormatInt(until, 10)
	mac := hmac.New(sha256.New, []byte(c.opt.Token))
	mac.Write([]byte("bridge console until " + text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// signInForm is the data of the page with the form.
type signInForm struct {
	To    string // the page after it, below the console
	Error string
}

func (c *Console) askForToken(w http.ResponseWriter, r *http.Request, problem string) {
	to := strings.TrimPrefix(r.URL.Path, Path+"/")
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	if strings.HasPrefix(to, "sign-in") {
		to = r.PostFormValue("to")
	}
	status := http.StatusUnauthorized
	w.Header().Set("WWW-Authenticate", `Bearer realm="bridge console"`)
	c.write(w, r, status, "sign-in", &page{Title: "Sign in", Bare: true, Body: signInForm{to, problem}})
}

// signInPage redirects those who are signed in already to the overview.
func (c *Console) signInPage(w http.ResponseWriter, _ *http.Request) error {
	redirect(w, "./")
	return nil
}

// signIn handles the form with the token.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	client := limit.ClientOf(r.RemoteAddr)
	if wait := c.logins.Wait(client, c.opt.Now()); wait > 0 {
		w.Header().Set("Retry-After", retryAfter(wait))
		c.askForToken(w, r, tooMany(wait))
		return
	}
	if !c.isToken(strings.TrimSpace(r.PostFormValue("token"))) {
		c.logins.Failed(client, c.opt.Now())
		c.askForToken(w, r, "This is not the token. It is in the file that console_token_file names in the configuration.")
		return
	}
	until := c.opt.Now().Add(sessionTime)
	// A web server in front may speak https: the browser says so.
	secure := c.opt.Secure || strings.HasPrefix(r.Header.Get("Origin"), "https:")
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: c.session(until.Unix()), Expires: until, HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode})
	c.log.Info("somebody has signed in to the console", "client", r.RemoteAddr)
	redirect(w, below(r.PostFormValue("to")))
}

// signOut ends the session of a browser.
func (c *Console) signOut(w http.ResponseWriter, _ *http.Request) error {
	http.SetCookie(w, &http.Cookie{Name: cookieName, MaxAge: -1, HttpOnly: true, Secure: c.opt.Secure, SameSite: http.SameSiteStrictMode})
	redirect(w, "./")
	return nil
}

// below returns a URL below the console unchanged, and "./" for any other.
func below(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" || to == "" || strings.HasPrefix(u.Path, "/") || strings.Contains(to, "..") || strings.ContainsAny(to, "\\\r\n\t") {
		return "./"
	}
	return "./" + u.String()
}

// notes stores the messages that the next page shows about an action. A URL has only the
// number of a message, so that a link cannot show a text of its own.
type notes struct {
	mu  sync.Mutex
	all map[string]note
}

type note struct {
	Text   string
	Failed bool
	at     time.Time
}

const (
	notesKept = 1000
	noteTime  = 10 * time.Minute
)

// add keeps a note and returns its number.
func (n *notes) add(text string, failed bool, now time.Time) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil || len(n.all) >= notesKept {
		n.all = map[string]note{}
	}
	number := rand.Text()
	n.all[number] = note{text, failed, now}
	return number
}

// get returns a note; nil when there is none.
func (n *notes) get(number string, now time.Time) *note {
	n.mu.Lock()
	defer n.mu.Unlock()
	found, ok := n.all[number]
	if !ok || now.Sub(found.at) > noteTime {
		return nil
	}
	return &found
}
