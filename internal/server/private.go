package server

import "regexp"

// Parts of a URL that not everybody who reads it need know.
var (
	userPart  = regexp.MustCompile(`(?i)\b(https?://)[^/?#\s"'<>]*@`)
	queryPart = regexp.MustCompile(`(?i)\b(https?://[^?#\s"'<>]*)\?(?:[^#\s"'<>]*[^#\s"'<>.,:;)])?`)
	// tokenPart is what follows the path of a SIP service.
	tokenPart = regexp.MustCompile(`(?i)(/sip/[^/?#\s"'<>]*/)[^?#\s"'<>]*[^?#\s"'<>.,:;)]`)
	// tagPart is the token in a mailbox; shorter tags are what people choose.
	tagPart    = regexp.MustCompile(`\+[A-Za-z0-9_-]{16,}@`)
	folderPart = regexp.MustCompile(`(?i)\bfile:[^\s"'<>]*/`)
	// mailbox is all of a mail address or a user part but its domain.
	mailbox = regexp.MustCompile(`[^\s"'<>()\[\],;/@]+@`)
)

// Redact returns a text without the secrets of the URLs in it: user and
// password go, the whole query and the token of a SIP service become ***, and so
// does the token of a mailbox. Scheme, host and path stay, so that people know
// which one is meant. It is the rule for all that people read: pages, logs,
// errors, and what commands print. To apply it again changes nothing.
func Redact(text string) string {
	text = userPart.ReplaceAllString(text, "$1")
	text = queryPart.ReplaceAllString(text, "$1?***")
	text = tokenPart.ReplaceAllString(text, "${1}***")
	return tagPart.ReplaceAllString(text, "+***@")
}

// public is Redact for pages, which strangers read: they need not know our
// folders either.
func public(text string) string {
	return folderPart.ReplaceAllString(Redact(text), "file:.../")
}
