package config

import (
	"crypto/sha256"
	"encoding/base32"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// A set whose Source has sets = "each" is a template. A ResourceSync Source has a
// Capability List for each of its sets of resources (clause 9); each becomes a set of ours,
// with the settings of the template and that Capability List as its Source. The Source is
// asked for its sets.

// maxTemplateName bounds the length of a template's name: a derived name is longer.
const maxTemplateName = 40

// IsTemplate reports whether the set stands for all sets of its Source.
func (s *Set) IsTemplate() bool {
	return slices.ContainsFunc(s.Sources, func(src Source) bool { return src.Sets == EachSet })
}

// Derive returns our set for one set of resources of a template's Source.
func (s *Set) Derive(name, capabilityList string) Set {
	d := *s
	d.Name, d.Template = name, s.Name
	if s.Title != "" {
		d.Title = s.Title + ": " + strings.TrimPrefix(name, s.Name+"-")
	}
	source := s.Sources[0]
	source.Origin = source.URL
	source.Name, source.URL, source.Sets = "", capabilityList, OneSet
	d.Sources = []Source{source}
	return d
}

// DerivedNames returns the names that a set of resources may get, the best first. Each is
// the template's name and a part that distinguishes the Capability List: the last folder of
// its path, for instance, or the end of a hash.
func (s *Set) DerivedNames(capabilityList string) []string {
	hash := shortHash(capabilityList)
	if word := distinctive(capabilityList); word != "" {
		word = strings.Trim(word[:min(len(word), 63-len(s.Name)-len(hash)-2)], "-")
		return []string{s.Name + "-" + word, s.Name + "-" + word + "-" + hash}
	}
	return []string{s.Name + "-" + hash}
}

// distinctive returns the part that distinguishes a Capability List among those of its
// Source, in the characters of set names: the last folder of its path or, if its file has
// an unusual name, that file.
func distinctive(capabilityList string) string {
	u, err := url.Parse(capabilityList)
	if err != nil {
		return ""
	}
	parts := strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' })
	if n := len(parts); n > 1 && strings.HasPrefix(strings.ToLower(parts[n-1]), "capabilit") {
		parts = parts[:n-1]
	}
	if len(parts) == 0 {
		return ""
	}
	last := strings.TrimSuffix(strings.ToLower(parts[len(parts)-1]), ".xml")
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, last), "-")
}

// SetNameOf makes the name of a set from words: letters in lower case without accents,
// digits, and dashes. A name that would lose a letter, or is too long, gets the end of a
// hash. A valid set name stays unchanged.
func SetNameOf(words ...string) string {
	called := strings.Join(words, "-")
	if len(words) == 1 && setName().MatchString(called) {
		return called
	}
	var b strings.Builder
	lost := false
	for _, r := range norm.NFKD.String(strings.ToLower(called)) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case unicode.Is(unicode.Mn, r): // the accent of the previous letter
		default:
			lost = lost || unicode.IsLetter(r) || unicode.IsDigit(r)
			if b.Len() > 0 && !strings.HasSuffix(b.String(), "-") {
				b.WriteByte('-')
			}
		}
	}
	name := strings.TrimRight(b.String(), "-")
	if name != "" && !lost && len(name) <= 63 {
		return name
	}
	return strings.TrimLeft(strings.TrimRight(name[:min(len(name), 54)], "-")+"-"+shortHash(called), "-")
}

// shortHash returns a short hash of a text in the characters of set names.
func shortHash(text string) string {
	digest := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(digest[:]))[:8]
}
