package config

import (
	"errors"
	"fmt"
	"mime"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ParseSource reads a SOURCE of the command line, [set=][kind:]URL-or-path, and
// fills in the defaults. What stands before the first "=" is a set only if it
// has the form of a set's name, else the set is "main". What stands before the
// first ":" is a kind only if it is one of the four. A path, relative to the
// working folder, must exist and becomes a file URL. Behind "sip:" may stand
// nothing, or a SIP.RecordURL.
func ParseSource(argument string) (set string, s Source, err error) {
	set, s = "main", defaultSource()
	rest := argument
	if before, after, ok := strings.Cut(rest, "="); ok && setName.MatchString(before) {
		set, rest = before, after
	}
	if before, after, ok := strings.Cut(rest, ":"); ok && slices.Contains(kinds(), before) {
		s.Kind, rest = before, after
	}
	if s.Kind == KindSIP {
		s, err = parseSIP(rest, set)
	} else {
		s.URL, err = sourceURL(rest, ".")
	}
	if err != nil {
		return "", Source{}, fmt.Errorf("source %s: %w", argument, err)
	}
	return set, s, nil
}

func kinds() []string { return []string{AtomPMH, ResourceSync, Feed, KindSIP} }

// parseSIP reads the text behind "sip:". The path of our own service adds nothing: it
// is the URL of a Source whose peer has no name.
func parseSIP(typed, set string) (Source, error) {
	s := defaultSIPSource(set)
	if typed == "" || typed == s.URL {
		return s, nil
	}
	s.SIP.RecordURL = typed
	if err := checkRecordURL(typed); err != nil {
		return s, fmt.Errorf("record_url: %w", err)
	}
	return s, nil
}

var (
	// scheme matches the scheme of a URL, and an unknown kind in front of a URL. A
	// letter and a colon is a drive.
	scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.:-]+://`)
	// hostAndPort matches a URL without its scheme.
	hostAndPort = regexp.MustCompile(`^(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+)(:[0-9]+)?(/|$)`)
)

// sourceURL returns the URL of a Source: what was typed when it is a URL, else the
// file URL of a path relative to folder.
func sourceURL(typed, folder string) (string, error) {
	if typed == "" {
		return "", errors.New("there is no URL and no path")
	}
	front := strings.ToLower(strings.TrimSuffix(scheme.FindString(typed), "://"))
	switch front {
	case "":
		return pathURL(typed, folder)
	case "http", "https":
		return checkWeb(typed)
	case "file":
		u, err := url.Parse(typed)
		if err != nil || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "" {
			return "", fmt.Errorf("%s is no URL of a local file; write file:///folder/file or a path", typed)
		}
		return pathURL(filepath.FromSlash(u.Path), folder)
	}
	if before, after, ok := strings.Cut(typed, ":"); ok && scheme.MatchString(after) {
		return "", fmt.Errorf("there is no kind %q; write %s, or leave it out", before, list(kinds()))
	}
	return "", fmt.Errorf("cannot harvest from %s://; write http://, https:// or a path", front)
}

// checkWeb accepts a URL that we can send requests to, and returns it as it is.
func checkWeb(typed string) (string, error) {
	if front := strings.ToLower(scheme.FindString(typed)); front != "http://" && front != "https://" {
		return "", fmt.Errorf(`%q is no URL of a web server; write a whole one, like "https://library.example.org/sip"`, redact(typed))
	}
	u, err := url.Parse(typed)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s is no URL: %w", redact(typed), errors.Unwrap(err))
	case u.Host == "":
		return "", fmt.Errorf("%s names no host", typed)
	case u.User != nil:
		return "", fmt.Errorf("%s holds a user or password; write the URL without it, and user and password_file in the configuration", redact(typed))
	case u.Fragment != "":
		return "", fmt.Errorf("%s has a fragment, which is never sent; leave out what begins with #", typed)
	}
	return typed, nil
}

// redact removes everything from a URL that may be a secret.
func redact(typed string) string {
	front := scheme.FindString(typed)
	rest := typed[len(front):]
	rest = rest[strings.LastIndex(rest, "@")+1:]
	if before, _, ok := strings.Cut(rest, "?"); ok {
		rest = before + "?***"
	}
	return front + rest
}

func pathURL(typed, folder string) (string, error) {
	path := typed
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(absolute)
	switch {
	case err != nil && hostAndPort.MatchString(path):
		return "", fmt.Errorf("there is no file %s; for a server write http://%s or https://%s", path, path, path)
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("there is no file %s%s", absolute, guessMeaning(typed))
	case err != nil:
		return "", err
	case info.IsDir():
		return "", fmt.Errorf("%s is a folder; write the path of the subscription document in it", absolute)
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(absolute)}).String(), nil
}

var (
	// word is a kind, or was meant to be one. A letter and a colon is a drive.
	word = regexp.MustCompile(`^([A-Za-z][A-Za-z]+):`)
	// setLike is what would be a set's name in lower case.
	setLike = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9-]{0,62})=`)
)

// guessMeaning returns what a path may have been meant as, other than a file; "" is
// nothing.
func guessMeaning(typed string) string {
	if m := setLike.FindStringSubmatch(typed); m != nil && m[1] != strings.ToLower(m[1]) {
		return fmt.Sprintf("; the name of a set is written in lower case: %s=", strings.ToLower(m[1]))
	}
	if m := word.FindStringSubmatch(typed); m != nil {
		return fmt.Sprintf(", and no kind %q: the kinds are %s", m[1], list(kinds()))
	}
	if slices.Contains(kinds(), typed) {
		return fmt.Sprintf("; a kind is written with a colon: %s:", typed)
	}
	return ""
}

// checkBaseURL returns base without its trailing slash.
func checkBaseURL(base string) (string, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", fmt.Errorf(`%q is not absolute; write a whole URL, like "https://www.example.org"`, redact(base))
	case u.User != nil:
		return "", fmt.Errorf("%s holds a user or password; leave it out", redact(base))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%s has a query or a fragment; leave out what begins with ? or #", redact(base))
	}
	return strings.TrimRight(base, "/"), nil
}

func checkPublicURL(public, source string) (string, error) {
	if source != "" && !strings.HasPrefix(source, "file:") {
		return "", errors.New("is only for a Source that is a local file; leave it out")
	}
	u, err := url.Parse(public)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is no public address; write the URL of the folder, like %q", redact(public), "https://www.example.org/feeds/")
	}
	// Relative references resolve against a folder only when it ends in a slash.
	return strings.TrimRight(public, "/") + "/", nil
}

func checkMediaType(s string) (string, error) {
	if mediaType, _, err := mime.ParseMediaType(s); err != nil || !strings.Contains(mediaType, "/") || strings.Contains(mediaType, "*") {
		return "", fmt.Errorf("%q is no media type; write it like %q", s, "application/rdf+xml")
	}
	return s, nil
}

// checkPrefix accepts what the URLs of records may begin with.
func checkPrefix(s string) (string, error) {
	if !scheme.MatchString(s) {
		return "", fmt.Errorf("%q is not how a URL begins; write it like %q", s, "https://data.example.org/maps/")
	}
	return s, nil
}

// hostName is a name without port, scheme or path.
var hostName = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?$`)

// checkHost accepts a host, or host:port, and returns it in lower case, an
// address without brackets unless there is a port.
func checkHost(s string) (string, error) {
	host := strings.ToLower(s)
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		host = strings.Trim(host, "[]")
		name, port = host, "1"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || net.ParseIP(name) == nil && !hostName.MatchString(name) {
		return "", fmt.Errorf(`%q is no host; write a host name or an IP address, like "files.example.org" or "10.0.0.7:8080", without scheme or path`, s)
	}
	return host, nil
}
