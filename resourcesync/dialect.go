package resourcesync

import "strings"

// Dialect is the version of the specification that a document is written in, as
// far as its markup shows.
type Dialect string

// The dialects that a Reader tells apart.
const (
	// Dialect11 is version 1.1 (ANSI/NISO Z39.99-2017). Documents that look the same in
	// 1.0 count as 1.1.
	Dialect11 Dialect = "1.1"
	// Dialect10 is version 1.0 (2014): a list of changes with entries, none of which
	// has a datetime. There the place in the list says which of two changes is the
	// later one; lastmod does not. As the last entry may have one, a Reader says so only once it has read to the end.
	Dialect10 Dialect = "1.0"
	// Dialect091 is a draft of 2013 up to 0.9.1 with today's namespace: the attribute
	// modified on an rs:md, the capability "resourcesync" for a Source
	// Description, or the relation "resourcesync" for up. A document of 0.9.1
	// without any of them looks like one of a later version.
	Dialect091 Dialect = "0.9.1"
	// DialectBeta is the draft that D-Lib Magazine showed in 2013, in BetaNamespace.
	// The newest change stands first.
	DialectBeta Dialect = "2013 beta"
	// DialectSitemap is a sitemap or an index of sitemaps without anything of
	// ResourceSync.
	DialectSitemap Dialect = "sitemap"
)

// namespace is that of the dialect's own elements; "" when it has none.
func (d Dialect) namespace() string {
	switch d {
	case DialectBeta:
		return BetaNamespace
	case DialectSitemap:
		return ""
	}
	return Namespace
}

// sitemapBefore is what search engines had before they agreed on one namespace.
const sitemapBefore = "http://www.google.com/schemas/sitemap/0."

// meant returns the namespace that was meant by one that is nearly right: the
// final slash too many or missing, other letter case, https, without www., or an
// early one of sitemaps. For any other it returns space itself.
func meant(space string) string {
	switch space {
	case SitemapNamespace, Namespace, BetaNamespace, CarriedNamespace:
		return space
	}
	name := strings.ToLower(strings.Trim(space, " \t\r\n"))
	if rest, ok := strings.CutPrefix(name, "https://"); ok {
		name = "http://" + rest
	}
	if rest, ok := strings.CutPrefix(name, "http://"); ok && !strings.HasPrefix(rest, "www.") {
		name = "http://www." + rest
	}
	if strings.HasPrefix(name, sitemapBefore) {
		return SitemapNamespace
	}
	switch strings.TrimRight(name, "/#") {
	case SitemapNamespace, "http://www.sitemaps.org/schemas/sitemap/0.84":
		return SitemapNamespace
	case strings.TrimSuffix(Namespace, "/"):
		return Namespace
	case strings.TrimSuffix(BetaNamespace, "/"):
		return BetaNamespace
	}
	return space
}
