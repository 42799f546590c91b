package event

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// NameRepresentations gives each representation of a record the last part of
// its URL. A representation that the record already had (same Href) keeps its
// name; a new one is named after its media type when that is free in the
// record, else with eight hex digits of its Href in front, and a number where
// those are taken too.
func NameRepresentations(reps, before []Representation) {
	if len(reps) == 1 && len(before) == 0 { // nearly every record
		reps[0].Name = Extension(reps[0].Type)
		return
	}
	had := make(map[string]string, len(before))
	for i := range before {
		if b := &before[i]; had[b.Href] == "" {
			had[b.Href] = b.Name
		}
	}
	taken := make(map[string]int, len(reps)) // and how many names began as it does
	for i := range reps {
		r := &reps[i]
		if r.Name = had[r.Href]; r.Name != "" {
			taken[r.Name] = 1
			delete(had, r.Href)
		}
	}
	for i := range reps {
		r := &reps[i]
		if r.Name != "" {
			continue
		}
		name := Extension(r.Type)
		if taken[name] > 0 {
			sum := sha256.Sum256([]byte(r.Href))
			stem, ext := hex.EncodeToString(sum[:4]), "."+name
			for name = stem + ext; taken[name] > 0; name = stem + "-" + strconv.Itoa(taken[stem+ext]) + ext {
				taken[stem+ext]++
			}
		}
		r.Name = name
		taken[name]++
	}
}

// Extension returns the file name extension for a media type, without a dot.
// It is never empty and consists of lower-case letters and digits.
func Extension(mediaType string) string {
	t, _, _ := strings.Cut(strings.ToLower(mediaType), ";")
	t = strings.TrimSpace(t)
	switch t {
	case "":
		return "bin"
	case "text/xml", "application/xml":
		return "xml"
	case "text/plain":
		return "txt"
	case "text/html":
		return "html"
	case "application/xhtml+xml":
		return "xhtml"
	case "application/ld+json":
		return "jsonld"
	case "text/turtle":
		return "ttl"
	case "application/n-triples":
		return "nt"
	case "application/octet-stream":
		return "bin"
	case "image/jpeg":
		return "jpg"
	case "application/gzip", "application/x-gzip":
		return "gz"
	}
	_, sub, ok := strings.Cut(t, "/")
	if !ok {
		return "bin"
	}
	stem, suffix, structured := strings.Cut(sub, "+")
	if ext := strings.TrimPrefix(stem, "x-"); isPlain(ext) {
		return ext
	}
	if structured && isPlain(suffix) {
		return suffix
	}
	return "bin"
}

func isPlain(s string) bool {
	if s == "" || len(s) > 10 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
