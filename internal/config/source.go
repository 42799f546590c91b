package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// ParseSource reads a SOURCE of the command line, [set=][kind:]URL-or-path, and fills in
// the defaults. The text before the first "=" is a set only if it has the form of a set's
// name, else the set is "main". The text before the first ":" is a kind only if it is a
// known one. A path, relative to the working folder, must exist and becomes a file URL;
// that of a folder ends with a slash. After "sip:" comes nothing, or a SIP.RecordURL; after
// "set:" the name of another set.
func ParseSource(argument string) (set string, s Source, err error) {
	set, s = "main", defaults[Source]()
	rest := argument
	if before, after, ok := strings.Cut(rest, "="); ok && setName().MatchString(before) {
		set, rest = before, after
	}
	if before, after, ok := strings.Cut(rest, ":"); ok && slices.Contains(kinds(), before) {
		s.Kind, rest = before, after
	}
	switch s.Kind {
	case KindSIP:
		s, err = parseSIP(rest, set)
	case KindSet:
		s, err = parseMember(rest)
	default:
		err = s.locate(rest, ".", false)
	}
	if err != nil {
		return "", Source{}, fmt.Errorf("source %s: %w", Shown(argument), err)
	}
	return set, s, nil
}

// Shown returns a SOURCE as a message may have it: without what may be a secret in its URL, also in
// one that is none, as it has a space.
func Shown(argument string) string {
	before, after, ok := strings.Cut(argument, "://")
	if !ok {
		return argument
	}
	const front = "http://"
	return before + "://" + strings.TrimPrefix(redact(front+after), front)
}

func kinds() []string {
	return []string{AtomPMH, ResourceSync, OAIPMH, Feed, Folder, CSV, Sitemap, KindSet, KindSIP}
}

// parseMember reads the name of a set, or its URL.
func parseMember(typed string) (Source, error) {
	name := strings.TrimPrefix(typed, memberURL)
	if !setName().MatchString(name) {
		return Source{}, fmt.Errorf("%q is not a name of a set; write it like %q", name, memberURL+"main")
	}
	return Source{Kind: KindSet, URL: memberURL + name, Sets: OneSet, Every: memberEvery}, nil
}

// parseSIP reads the text after "sip:". The path of our own service is the default: it is
// the URL of a Source whose peer has no name.
func parseSIP(typed, set string) (Source, error) {
	s := defaultSIPSource(set)
	if typed == "" || typed == s.URL {
		return s, nil
	}
	s.SIP.RecordURL = typed
	if _, err := checkRecordURL(typed); err != nil {
		return s, fmt.Errorf("record_url: %w", err)
	}
	return s, nil
}

// hostAndPort matches a URL without its scheme.
var hostAndPort = pattern.Of(`^(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+)(:[0-9]+)?(/|$)`)

// locate sets the URL of a Source to the typed one, and its kind if it is a folder. What is
// absent may be there later, if absent is true.
func (s *Source) locate(typed, folder string, absent bool) (err error) {
	if s.URL, err = sourceURL(typed, folder, known{isFolder: s.Kind == Folder, absent: absent}); err != nil {
		return err
	}
	isFolder := strings.HasPrefix(s.URL, "file:") && strings.HasSuffix(s.URL, "/")
	switch {
	case s.Kind == Folder && !isFolder:
		return fmt.Errorf("%s is no folder of this machine, as a Source of kind %q is; write the path of a folder, or leave the kind out", typed, Folder)
	case isFolder && s.Kind == "":
		if entry := entryDocument(s.URL); entry != "" {
			return fmt.Errorf("%s has %s, which may be a Source itself: write the path of that; or, if the files in the folder are the records, write the kind %q", typed, entry, Folder)
		}
		s.Kind = Folder
	case isFolder && s.Kind != Folder:
		return fmt.Errorf("%s is a folder; write the path of the document in it that a Source of kind %q begins with, or the kind %q, whose records are the files", typed, s.Kind, Folder)
	}
	return nil
}

// absent says why the file or folder of a Source cannot be found; nil if it can be, or if the
// Source is elsewhere.
func (s *Source) absent() error {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "file" {
		return nil //nolint:nilerr // it is not about a file
	}
	_, err = os.Stat(filepath.FromSlash(u.Path))
	return err
}

// entryDocument returns the path, relative to a folder, of a document at which a harvest
// could start; "" if there is none. The files of such a folder are probably not records.
func entryDocument(folder string) string {
	u, err := url.Parse(folder)
	if err != nil {
		return ""
	}
	for _, name := range []string{".well-known/resourcesync", "capabilitylist.xml", "resourcelist.xml", "changelist.xml", "sitemap.xml",
		"feed.atom", "feed.xml", "feed.rss", "feed.json", "atom.xml", "rss.xml", "index.atom", "index.rss"} {
		if info, err := os.Stat(filepath.Join(filepath.FromSlash(u.Path), filepath.FromSlash(name))); err == nil && info.Mode().IsRegular() {
			return name
		}
	}
	return ""
}

// known is what is known of a path that is a Source.
type known struct {
	isFolder bool // it has the kind of one
	absent   bool // it need not be there, as it may be on a disk that is mounted later
}

// sourceURL returns the URL of a Source: the typed URL, or the file URL of a path relative
// to folder. The path must exist, except as k says, or for a folder with the kind of one.
func sourceURL(typed, folder string, k known) (string, error) {
	if typed == "" {
		return "", errors.New("there is no URL and no path")
	}
	front := strings.ToLower(strings.TrimSuffix(scheme().FindString(typed), "://"))
	switch front {
	case "":
		return pathURL(typed, folder, k)
	case "http", "https":
		return checkWeb(typed)
	case "file":
		u, err := url.Parse(typed)
		if err != nil || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "" {
			return "", fmt.Errorf("%s is not a URL of a local file; write file:///folder/file or a path", typed)
		}
		return pathURL(filepath.FromSlash(u.Path), folder, k)
	}
	if before, after, ok := strings.Cut(typed, ":"); ok && scheme().MatchString(after) {
		return "", fmt.Errorf("there is no kind %q; write %s, or leave it out", before, list(kinds()))
	}
	return "", fmt.Errorf("cannot harvest from %s://; write http://, https:// or a path", front)
}

func pathURL(typed, folder string, k known) (string, error) {
	path := typed
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(absolute)
	slash := ""
	switch {
	case errors.Is(err, os.ErrNotExist) && k.isFolder, err == nil && info.IsDir():
		slash = "/"
	case err != nil && hostAndPort().MatchString(typed) && (!k.absent || strings.ContainsAny(typed, "/:")):
		return "", fmt.Errorf("there is no file %s; for a server write http://%[1]s or https://%[1]s", typed)
	case err != nil && k.absent:
		if strings.HasSuffix(typed, "/") {
			slash = "/"
		}
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("there is no file %s%s", absolute, guessMeaning(typed))
	case err != nil:
		return "", err
	}
	return (&url.URL{Scheme: "file", Path: strings.TrimSuffix(filepath.ToSlash(absolute), "/") + slash}).String(), nil
}

var (
	// word matches a kind, or what was meant as one. A single letter and a colon is a
	// drive.
	word = pattern.Of(`^([A-Za-z][A-Za-z]+):`)
	// setLike matches what would be a set's name in lower case.
	setLike = pattern.Of(`^([A-Za-z0-9][A-Za-z0-9-]{0,62})=`)
)

// guessMeaning returns what a path may have been meant as, other than a file; "" means
// nothing.
func guessMeaning(typed string) string {
	if m := setLike().FindStringSubmatch(typed); m != nil && m[1] != strings.ToLower(m[1]) {
		return fmt.Sprintf("; the name of a set is written in lower case: %s=", strings.ToLower(m[1]))
	}
	if before, after, ok := strings.Cut(typed, "="); ok && strings.Contains(after, "://") && !strings.Contains(before, "/") {
		return fmt.Sprintf("; %q is no name of a set, which has letters a to z, digits and -", before)
	}
	if m := word().FindStringSubmatch(typed); m != nil {
		return fmt.Sprintf(", and no kind %q: the kinds are %s", m[1], list(kinds()))
	}
	if slices.Contains(kinds(), typed) {
		return fmt.Sprintf("; a kind is written with a colon: %s:", typed)
	}
	return ""
}
