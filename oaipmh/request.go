package oaipmh

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// ParseURL takes a request apart that somebody has copied out of a browser. base is what
// is left without the arguments of the protocol: the base URL, with other parameters that
// it has. r is the selection: metadataPrefix, set, from and until. The verb, the
// identifier and a resumptionToken are dropped.
func ParseURL(raw string) (base string, r Request, err error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil {
		return "", r, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", r, fmt.Errorf("%s: want the base URL of a repository, with http or https", u.Redacted())
	}
	u.Fragment, u.RawFragment = "", ""
	var kept []string
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if value, err = url.QueryUnescape(value); err != nil {
			return "", r, fmt.Errorf("%s: %w", u.Redacted(), err)
		}
		switch name {
		case "":
		case "verb", "identifier", "resumptionToken":
		case "metadataPrefix":
			r.Prefix = value
		case "set":
			r.Set = value
		case "from", "until":
			at, day, ok := parseDatestamp([]byte(value))
			if !ok {
				return "", r, fmt.Errorf("%s: %s is %q; want a date such as 2020-01-31 or 2020-01-31T00:00:00Z", u.Redacted(), name, value)
			}
			if !day {
				r.Granularity = Second
			}
			switch {
			case name == "from":
				r.From = at
			case day:
				r.Until = at.Add(24*time.Hour - time.Second) // all of the day
			default:
				r.Until = at
			}
		default:
			kept = append(kept, pair)
		}
	}
	if !r.From.IsZero() && !r.Until.IsZero() && r.Until.Before(r.From) {
		return "", r, fmt.Errorf("%s: until is earlier than from, so that no record is selected; exchange them, or leave one out", u.Redacted())
	}
	u.RawQuery, u.ForceQuery = strings.Join(kept, "&"), false
	return u.String(), r, nil
}

// URL returns the address of the request at a base URL. A Token goes alone with the verb
// (3.5).
func (r *Request) URL(base string) string {
	b := []byte(base)
	switch at := strings.IndexByte(base, '?'); {
	case at < 0:
		b = append(b, '?')
	case at < len(base)-1 && !strings.HasSuffix(base, "&"):
		b = append(b, '&')
	}
	b = append(append(b, "verb="...), url.QueryEscape(string(r.Verb))...)
	add := func(name, value string) {
		if value != "" {
			b = append(append(append(append(b, '&'), name...), '='), escape(value)...)
		}
	}
	if r.Token != "" {
		add("resumptionToken", r.Token)
		return string(b)
	}
	add("identifier", r.Identifier)
	add("metadataPrefix", r.Prefix)
	add("set", r.Set)
	if !r.From.IsZero() {
		add("from", r.Granularity.Format(r.From))
	}
	if !r.Until.IsZero() {
		add("until", r.Granularity.Format(r.Until))
	}
	return string(b)
}

// escape escapes a value byte for byte (3.1.1.3). A blank is %20, which every server
// understands, and the colon of times and identifiers stays.
func escape(value string) string {
	// No Replacer: harvests make an address for each record.
	return strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(value), "+", "%20"), "%3A", ":")
}
