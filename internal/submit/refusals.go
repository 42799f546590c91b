package submit

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/sip"
)

// refusals has an operator told of callers who are not let in: of the first at
// once, then of how many there were in each minute that has any. Anybody may call
// as often as he likes, so there is never more than a line a minute.
type refusals struct {
	mu      sync.Mutex
	open    bool // a minute has begun
	calls   int  // in it, that nobody was told of
	address netip.Addr
	why     string
}

const refusalsEvery = time.Minute

// note takes in a caller who was not let in.
func (r *refusals) note(log *slog.Logger, address netip.Addr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.address, r.why = address, why
	if !r.open {
		r.tell(log)
	}
}

// tell logs what there is, and again in a minute, until there is nothing. The
// caller holds mu.
func (r *refusals) tell(log *slog.Logger) {
	if r.open = r.calls > 0; !r.open {
		return
	}
	log.Info("callers were not let in", "calls", r.calls, "last", r.address, "why", r.why)
	r.calls = 0
	time.AfterFunc(refusalsEvery, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tell(log)
	})
}

// lacking says for our own log what a caller lacks who was not let in.
func (a *Access) lacking(c *sip.Caller) string {
	switch {
	case a.Kind == AccessBasic && !c.HasLogin:
		return "no user name and password"
	case a.Kind == AccessBasic:
		return "a wrong user name or password"
	case a.Kind == AccessToken && c.Token == "":
		return "no token"
	case a.Kind == AccessToken:
		return "a wrong token"
	case a.Kind == AccessAddresses:
		return "the address is none of access_addresses"
	}
	return "no access"
}
