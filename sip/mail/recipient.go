package mail

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Recipient is where a notification is mailed to.
type Recipient struct {
	// Host is host or host:port of the server that takes it; "" means that the
	// domain's own servers are looked up.
	Host string
	// Address is box@domain, in ASCII, the domain in lower case.
	Address string
}

// ParseRecipient reads the URL of a notification recipient in one of the forms
// smtp://host[:port]/box@domain, smtp:box@domain and mailto:box@domain (RFC 6068,
// one address). Percent-encoding is decoded; "+" is a "+". Header fields
// (?subject=...) are refused, and so are quoted local parts, address literals
// and anything beyond ASCII: a domain has to be in its xn-- form. The error is a
// permanent one.
func ParseRecipient(recipient string) (Recipient, error) {
	to, err := parseRecipient(recipient)
	if err != nil {
		return Recipient{}, &permanent{fmt.Errorf("notification recipient %q: %w", clip(recipient), err)}
	}
	return to, nil
}

func parseRecipient(recipient string) (Recipient, error) {
	if strings.ContainsAny(recipient, "?#") {
		return Recipient{}, errors.New("header fields (?) and fragments (#) are not taken: leave them out, or write the character as %3F or %23")
	}
	u, err := url.Parse(recipient)
	if err != nil {
		// Without the URL, which the caller adds.
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err
		}
		return Recipient{}, err
	}
	var to Recipient
	escaped := u.Opaque
	switch {
	case u.Scheme != "smtp" && u.Scheme != "mailto":
		return Recipient{}, fmt.Errorf("found the scheme %q, expected smtp or mailto", u.Scheme)
	case u.Opaque != "":
	case u.Scheme == "smtp" && u.Host != "" && u.User == nil:
		if to.Host, err = server(u); err != nil {
			return Recipient{}, err
		}
		escaped = strings.TrimPrefix(u.EscapedPath(), "/")
	default:
		return Recipient{}, errors.New("expected smtp://host/box@domain, smtp:box@domain or mailto:box@domain")
	}
	address, err := url.PathUnescape(escaped)
	if err != nil {
		return Recipient{}, err
	}
	to.Address, err = checkAddress(address)
	return to, err
}

// server returns host or host:port of a URL, fit for dialing.
func server(u *url.URL) (string, error) {
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); (err != nil || ip.Zone() != "") && !isHostname(host) {
		return "", fmt.Errorf("%q is no host name and no address", host)
	}
	if u.Port() == "" {
		return host, nil
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
		return "", fmt.Errorf("%q is no port: expected 1 to 65535", u.Port())
	}
	return net.JoinHostPort(host, u.Port()), nil
}

// checkAddress checks that an address can stand in the commands of SMTP without any quoting and
// any extension, and returns it with its domain in lower case. The lengths are those of RFC
// 5321, 4.5.3.1.
func checkAddress(address string) (string, error) {
	box, domain, ok := strings.Cut(address, "@")
	switch {
	case !ok:
		return "", fmt.Errorf("%q is no mail address: expected box@domain", clip(address))
	case !isDotAtom(box) || len(box) > 64:
		return "", fmt.Errorf("the local part %q is not taken: expected at most 64 letters, digits and !#$%%&'*+-/=?^_`{|}~, with single dots between them", clip(box))
	case !isASCII(domain):
		return "", fmt.Errorf("the domain %q is not ASCII: write it in its xn-- form", clip(domain))
	case isAddress(domain):
		return "", fmt.Errorf("the domain %q is an address: name the server as in smtp://host/box@domain", clip(domain))
	case !isHostname(domain) || len(address) > 254:
		return "", fmt.Errorf("%q is no domain of a mail address", clip(domain))
	}
	return box + "@" + strings.ToLower(domain), nil
}

// isDotAtom reports whether s is a dot-string of RFC 5321, 4.1.2.
func isDotAtom(s string) bool {
	for atom := range strings.SplitSeq(s, ".") {
		if atom == "" {
			return false
		}
		for i := range len(atom) {
			if !isAlphanumeric(atom[i]) && strings.IndexByte("!#$%&'*+-/=?^_`{|}~", atom[i]) < 0 {
				return false
			}
		}
	}
	return true
}

// isHostname reports whether s is a host name of RFC 1123, 2.1.
func isHostname(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if !isAlphanumeric(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return len(s) <= 253
}

func isAddress(domain string) bool {
	_, err := netip.ParseAddr(domain)
	return err == nil || strings.HasPrefix(domain, "[")
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
