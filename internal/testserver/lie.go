package testserver

// Lie is a way in which real OAI-PMH repositories are wrong. Repository.Lie switches one on
// for everything; those about a record can also be switched on for one record, by
// Item.Lies.
type Lie string

// Lies about lists and their tokens.
const (
	// TokenTwice: the response to a token has the same token, and the same page is repeated
	// without end.
	TokenTwice Lie = "token-twice"
	// TokenLoop: the last page has the token of the second one.
	TokenLoop Lie = "token-loop"
	// EndlessTokens: the last page is followed by pages of invented records, each with a
	// new token, without end.
	EndlessTokens Lie = "endless-tokens"
	// StalePages: the last page is repeated with a new token, without end.
	StalePages Lie = "stale-pages"
	// LastPageRepeats: the last page is repeated once, then the list ends.
	LastPageRepeats Lie = "last-page-repeats"
	// EmptyLastPage: every list ends with a page without records.
	EmptyLastPage Lie = "empty-last-page"
	// NoLastToken: the last page of several has no resumptionToken; it must have an empty
	// one (3.5).
	NoLastToken Lie = "no-last-token"
	// TokenAlways: a list of one page has an empty resumptionToken too.
	TokenAlways Lie = "token-always"
	// TokenOnce: a token that was used once is a badResumptionToken.
	TokenOnce Lie = "token-once"
	// OffsetTokens: tokens count the records of the present list, so that after a change to
	// an early record a later one is skipped. Without it stateless tokens have the place
	// after the last record of the page.
	OffsetTokens Lie = "offset-tokens"
	// OddTokens: tokens contain &, +, %, =, a quotation mark, and blanks inside.
	OddTokens Lie = "odd-tokens"
	// TokenNotExclusive: a token without metadataPrefix is a badArgument.
	TokenNotExclusive Lie = "token-not-exclusive"
	// SizeZero: completeListSize is 0.
	SizeZero Lie = "size-zero"
	// SizeWrong: completeListSize is the size of a page, and cursor is 0.
	SizeWrong Lie = "size-wrong"
	// DoubledHeaders: each list has every record twice: first as it was a day before, then
	// as it is.
	DoubledHeaders Lie = "doubled-headers"
	// EmptyList: a list that nothing matches is a list without records, where the error
	// noRecordsMatch should be.
	EmptyList Lie = "empty-list"
)

// Lies about datestamps.
const (
	// SecondsRefused: Identify states seconds, and from and until with seconds are a
	// badArgument.
	SecondsRefused Lie = "seconds-refused"
	// LateFromRefused: a from later than the response is a badArgument.
	LateFromRefused Lie = "late-from-refused"
	// FromIgnored: a list has everything, whatever from and until are.
	FromIgnored Lie = "from-ignored"
	// FromExclusive: a list excludes the moment of from.
	FromExclusive Lie = "from-exclusive"
	// FinerStamps: datestamps have seconds, though Identify states days.
	FinerStamps Lie = "finer-stamps"
	// FractionStamps: datestamps have fractions of seconds.
	FractionStamps Lie = "fraction-stamps"
	// CoarserStamps: datestamps are days, though Identify states seconds.
	CoarserStamps Lie = "coarser-stamps"
	// OffsetStamps: datestamps are written with +02:00; the moments are right.
	OffsetStamps Lie = "offset-stamps"
	// NaiveStamps: datestamps are written without a zone.
	NaiveStamps Lie = "naive-stamps"
	// FutureStamps: written datestamps are 30 days ahead; those by which lists select are
	// not.
	FutureStamps Lie = "future-stamps"
	// NoStamps: datestamps are empty.
	NoStamps Lie = "no-stamps"
	// SlowClock: responseDate is an hour before the datestamps.
	SlowClock Lie = "slow-clock"
	// DayResponse: responseDate is a day.
	DayResponse Lie = "day-response"
)

// Lies about records.
const (
	// EmptyIdentifier: the identifier of a deleted record is empty.
	EmptyIdentifier Lie = "empty-identifier"
	// HiddenDeletion: ListRecords and GetRecord do not show a deletion, which
	// ListIdentifiers shows.
	HiddenDeletion Lie = "hidden-deletion"
	// DeletedWithMetadata: a deletion has metadata.
	DeletedWithMetadata Lie = "deleted-with-metadata"
	// HeaderOnly: a record has neither metadata nor status.
	HeaderOnly Lie = "header-only"
	// HeaderForFormat: GetRecord returns only the header where the item does not have the
	// format, as EPrints does; cannotDisseminateFormat is right (4.1).
	HeaderForFormat Lie = "header-for-format"
	// NoElement: metadata has no child.
	NoElement Lie = "no-element"
	// TwoElements: metadata has two children.
	TwoElements Lie = "two-elements"
	// OnlyText: metadata has text and no child.
	OnlyText Lie = "only-text"
	// RootNamespaces: the namespaces of metadata are declared only on the root of the
	// response.
	RootNamespaces Lie = "root-namespaces"
	// WrongSchemaLocation: xsi:schemaLocation names another namespace.
	WrongSchemaLocation Lie = "wrong-schema-location"
	// ForbiddenCharacter: the text of metadata has a raw U+001F.
	ForbiddenCharacter Lie = "forbidden-character"
	// ForbiddenReference: the text of metadata has "&#x1F;".
	ForbiddenReference Lie = "forbidden-reference"
	// Latin1Bytes: the text of metadata has a byte of ISO 8859-1; the page declares UTF-8.
	Latin1Bytes Lie = "latin1-bytes"
	// HTMLEntity: the text of metadata has "&eacute;", which nothing declares.
	HTMLEntity Lie = "html-entity"
	// BareAmpersand: the text of metadata has "&" followed by a blank.
	BareAmpersand Lie = "bare-ampersand"
	// OpenTag: an element of the metadata does not end.
	OpenTag Lie = "open-tag"
	// UndeclaredPrefix: an element of the metadata has a prefix that nothing declares.
	UndeclaredPrefix Lie = "undeclared-prefix"
	// SpaceAround: identifier and datestamp are surrounded by white space and line ends.
	SpaceAround Lie = "space-around"
)

// Lies about responses and the repository.
const (
	// WrongCharset: every response declares ISO-8859-1 and is in UTF-8.
	WrongCharset Lie = "wrong-charset"
	// LeadingSpace: an empty line precedes the XML declaration.
	LeadingSpace Lie = "leading-space"
	// TrailingGarbage: a message of the program follows the root.
	TrailingGarbage Lie = "trailing-garbage"
	// GzipAlways: every response is compressed, requested or not.
	GzipAlways Lie = "gzip-always"
	// HTMLType: responses have the media type text/html.
	HTMLType Lie = "html-type"
	// Redirected: requests are redirected to /moved and the requested path.
	Redirected Lie = "redirected"
	// OtherBaseURL: Identify and request state another base URL.
	OtherBaseURL Lie = "other-base-url"
	// NoIdentify: Identify answers 500.
	NoIdentify Lie = "no-identify"
	// NoListIdentifiers: ListIdentifiers is a badVerb.
	NoListIdentifiers Lie = "no-list-identifiers"
)

// Lies returns every lie, in the order above.
func Lies() []Lie {
	return []Lie{
		TokenTwice, TokenLoop, EndlessTokens, StalePages, LastPageRepeats, EmptyLastPage, NoLastToken, TokenAlways, TokenOnce, OffsetTokens, OddTokens,
		TokenNotExclusive, SizeZero, SizeWrong, DoubledHeaders, EmptyList,
		SecondsRefused, LateFromRefused, FromIgnored, FromExclusive, FinerStamps, FractionStamps, CoarserStamps, OffsetStamps, NaiveStamps, FutureStamps,
		NoStamps, SlowClock, DayResponse,
		EmptyIdentifier, HiddenDeletion, DeletedWithMetadata, HeaderOnly, HeaderForFormat, NoElement, TwoElements, OnlyText, RootNamespaces, WrongSchemaLocation,
		ForbiddenCharacter, ForbiddenReference, Latin1Bytes, HTMLEntity, BareAmpersand, OpenTag, UndeclaredPrefix, SpaceAround,
		WrongCharset, LeadingSpace, TrailingGarbage, GzipAlways, HTMLType, Redirected, OtherBaseURL, NoIdentify, NoListIdentifiers,
	}
}

// Failure replaces responses by failures.
type Failure struct {
	// Verb is the verb that fails; "" means each verb.
	Verb string
	// Page is the page of a list that fails, from 1; 0 means every response.
	Page int
	// Times is how often it fails; 0 means always.
	Times int
	How   How
}

// How is the way in which a response fails.
type How string

// The ways in which a response fails.
const (
	TokenRefused How = "token-refused" // badResumptionToken
	NotFound     How = "not-found"     // 404
	ServerError  How = "server-error"  // 500
	HTMLPage     How = "html-page"     // a page of HTML with the status 200
	Unavailable  How = "unavailable"   // 503 with Retry-After: Repository.RetryAfter
	TooMany      How = "too-many"      // 429 with Retry-After: Repository.RetryAfter
	CutPage      How = "cut-page"      // the first half of the response, as if it were complete
	NoEndTag     How = "no-end-tag"    // the response without its last end tag
	Broken       How = "broken"        // the first half of the response, then the connection is cut
	EmptyBody    How = "empty-body"    // the status 200 and nothing
)
