package harvest

import (
	"fmt"
	"net/url"
	"sync"
)

// patience is how many requests in a row may fail before a host is left alone
// for the rest of the harvest: each has been tried several times, and thousands
// of records that wait for a host that is down would take hours.
const patience = 8

// hosts counts the requests that failed in a row, by host. Its zero value is
// ready.
type hosts struct {
	mu     sync.Mutex
	failed map[string]int
}

// ask tells whether the host of a URL is still to be asked.
func (h *hosts) ask(href string) error {
	host := hostOf(href)
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.failed[host]; n >= patience {
		return fmt.Errorf("%s was not asked for: the last %d requests to %s failed; the next harvest tries again", href, n, host)
	}
	return nil
}

// answered takes note of how a request ended.
func (h *hosts) answered(href string, ok bool) {
	host := hostOf(href)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil {
		h.failed = map[string]int{}
	}
	if ok {
		delete(h.failed, host)
	} else {
		h.failed[host]++
	}
}

func hostOf(href string) string {
	u, err := url.Parse(href)
	if err != nil {
		return ""
	}
	return u.Host
}
