package server

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// notModified evaluates If-None-Match and, without that, If-Modified-Since (RFC
// 9110 13.1.2, 13.1.3). etag is strong and quoted; modified may be zero. With
// exact an If-Modified-Since counts only when it is modified itself.
func notModified(h http.Header, etag string, modified time.Time, exact bool) bool {
	if tags, ok := h["If-None-Match"]; ok {
		return matches(strings.Join(tags, ","), etag)
	}
	since := h.Get("If-Modified-Since")
	if since == "" || modified.IsZero() {
		return false
	}
	t, err := http.ParseTime(since)
	if err != nil {
		return false
	}
	return t.Equal(modified) || !exact && t.After(modified)
}

// matches finds etag in a list of entity tags, by weak comparison (RFC 9110
// 8.8.3.2). The list ends where it is broken.
func matches(list, etag string) bool {
	for {
		list = strings.TrimLeft(list, " \t,")
		if strings.HasPrefix(list, "*") {
			return true
		}
		list = strings.TrimPrefix(list, "W/")
		if !strings.HasPrefix(list, `"`) {
			return false
		}
		end := strings.IndexByte(list[1:], '"')
		if end < 0 {
			return false
		}
		if list[:end+2] == etag {
			return true
		}
		list = list[end+2:]
	}
}

// acceptsGzip tells whether a client asks for gzip (RFC 9110 12.5.3): names it,
// likes it no less than identity, or refuses identity and takes anything else.
// An asterisk alone is not asking.
func acceptsGzip(h http.Header) bool {
	values, ok := h["Accept-Encoding"]
	if !ok {
		return false
	}
	gzip, identity, other := -1.0, -1.0, -1.0 // -1: not named
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			coding, params, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip", "x-gzip":
				gzip = max(gzip, weight(params))
			case "identity":
				identity = max(identity, weight(params))
			case "*":
				other = max(other, weight(params))
			}
		}
	}
	if gzip >= 0 {
		return gzip > 0 && gzip >= identity
	}
	return other > 0 && identity == 0
}

// weight reads the parameters of a coding: 1 without a q, 0 for a q that cannot
// be read.
func weight(params string) float64 {
	name, value, ok := strings.Cut(params, "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(name), "q") {
		return 1
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return 0
	}
	return q
}
