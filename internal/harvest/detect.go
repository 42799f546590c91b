package harvest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/pattern"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// sniffed is how many entries of an Atom feed sniffAtom reads.
const sniffed = 100

// detect finds out the kind of a Source by what its URL answers: a ResourceSync
// document, a sitemap, or a page or host that leads to one; an Atom-PMH feed, or
// another feed; an OAI-PMH repository, which some software answers for only when a verb
// is asked. For anything else the error is a *kindError.
func detect(ctx context.Context, src *Source) (kind string, err error) {
	client, err := follow.New(follow.Options{HTTP: src.Client, Start: src.URL, AllowHost: src.AllowHost,
		Accept: "application/atom+xml, application/xml;q=0.9, application/json;q=0.8, */*;q=0.5"})
	if err != nil {
		return "", err
	}
	defer client.Close()
	answer, err := client.Get(ctx, src.URL, follow.Validators{})
	what := ""
	switch {
	case err == nil:
		defer answer.Close()
		if kind, what, err = src.sniff(answer); kind != "" || err != nil {
			return kind, err
		}
	case follow.Status(err) == http.StatusInternalServerError: // perhaps for want of a verb
		if identifies, _, _ := src.identifies(ctx, client); identifies {
			return OAIPMH, nil
		}
		return "", err
	case follow.Status(err) == 0 || fetch.TransientStatus(follow.Status(err)) || strings.HasPrefix(src.URL, "file:"): // a file leads to no repository
		return "", err
	default:
		what = fmt.Sprintf("%s: HTTP status %d", src.URL, follow.Status(err))
	}
	identifies, tried, failed := src.identifies(ctx, client)
	if identifies {
		return OAIPMH, nil
	}
	found, err := src.lists().Discover(ctx)
	var nothing *resourcesync.NoSourceError
	switch {
	case errors.As(err, &nothing):
		return "", &kindError{URL: src.URL, Found: what, Tried: append(tried, nothing.Tried...)}
	case len(found.Sets) > 0 && err != nil: // of one of its sets
		return ResourceSync, nil
	case err == nil && found.Capability == "" && failed != nil:
		return "", fmt.Errorf("%w; until it answers, it is not known whether this is an OAI-PMH repository or a site with the sitemap %s: wait, or write the kind, %s or %s, into the configuration", failed, found.URL, OAIPMH, ResourceSync)
	}
	return ResourceSync, err
}

// identifies reports whether the Source's URL is that of an OAI-PMH repository: the
// request for its Identify is answered in that protocol. If not, tried says what the
// answer was, and failed is the error where it may be another one later.
func (src *Source) identifies(ctx context.Context, client *follow.Client) (is bool, tried []resourcesync.Tried, failed error) {
	base, _, err := oaipmh.ParseURL(src.URL)
	if err != nil {
		return false, nil, nil // a local file
	}
	at := (&oaipmh.Request{Verb: oaipmh.Identify}).URL(base)
	t := resourcesync.Tried{Place: "the request of OAI-PMH", URL: at}
	answer, err := client.Get(ctx, at, follow.Validators{})
	if err == nil {
		defer answer.Close()
		var kind string
		if kind, t.Answer, err = src.sniff(answer); kind == OAIPMH {
			return true, nil, nil
		}
		t.Answer = strings.TrimPrefix(t.Answer, answer.URL+": ")
		if kind != "" {
			t.Answer = "a document of kind " + kind
		}
	}
	status := follow.Status(err)
	if status != 0 {
		t.Answer = fmt.Sprintf("HTTP status %d", status)
	} else if err != nil {
		t.Answer = err.Error()
	}
	if fetch.Transient(err) || fetch.TransientStatus(status) {
		failed = err
	}
	return false, []resourcesync.Tried{t}, failed
}

// SetsOf asks a ResourceSync Source for its sets of resources, and returns the URL that
// each can be harvested by alone: its Capability List or, where there is none, its list
// or dump.
func (h *Harvester) SetsOf(ctx context.Context, src *Source) (urls []string, err error) {
	found, err := src.lists().Discover(ctx)
	if err != nil {
		return nil, src.explainRefusal(err)
	}
	for _, s := range found.Sets {
		if at := cmp.Or(s.CapabilityList, s.ResourceList, s.ChangeList, s.ResourceDump, s.ChangeDump); at != "" {
			urls = append(urls, at)
		}
	}
	return urls, nil
}

// kindError: a Source's URL neither answers nor leads to anything that can be
// harvested.
type kindError struct {
	URL string
	// Found says what the URL answers.
	Found string
	// Tried are the addresses where discovery has found nothing.
	Tried []resourcesync.Tried
}

// Error says what was found, what is wanted, and where else discovery has looked.
func (e *kindError) Error() string {
	var b strings.Builder
	b.WriteString(e.Found)
	if strings.HasSuffix(e.Found, "HTTP status 404") {
		b.WriteString(": check the URL")
	}
	b.WriteString("; want an Atom, RSS or JSON feed, a ResourceSync document, a sitemap, a page or host that leads to one, or the base URL of an OAI-PMH repository, whose path is like /oai/request (DSpace), /cgi/oai2 (EPrints) or /index.php/NAME/oai (OJS)")
	between := ". Looked besides at: "
	for _, t := range e.Tried {
		if t.URL == e.URL && t.Place == "the address itself" {
			continue
		}
		fmt.Fprintf(&b, "%s%s %s: %s", between, t.Place, t.URL, t.Answer)
		between = "; "
	}
	return b.String()
}

// lists returns the walk over the Source's lists, if it is a ResourceSync Source.
func (src *Source) lists() *resourcesync.Walk {
	l := &src.Limits
	return &resourcesync.Walk{Client: src.Client, URL: src.URL, Overlap: src.Overlap, MaxDocuments: src.MaxDocuments, AllowHost: src.AllowHost,
		MaxPackage: l.Package,
		Limits:     resourcesync.Limits(l.list())}
}

// sniff returns the kind of a document; "", and what it is, when it may lead to a
// Source without being one.
func (src *Source) sniff(a *follow.Answer) (kind, what string, err error) {
	in := bufio.NewReaderSize(a.Body, 4096)
	head, err := in.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", "", fmt.Errorf("%s: %w", a.URL, err)
	}
	text := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xEF\xBB\xBF")), " \t\r\n")
	switch {
	case bytes.HasPrefix(text, []byte("{")):
		start, err := io.ReadAll(io.LimitReader(in, pageBytes))
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", a.URL, err)
		}
		if bytes.Contains(start, []byte(`"items"`)) {
			return Feed, "", nil
		}
		return "", a.URL + ": JSON, but not a JSON Feed: it has no array items", nil
	case bytes.HasPrefix(head, []byte("\x1f\x8b")): // sitemaps come so
		kind, err := src.sniffRoot(a, resourcesync.Unpack(a.URL, in))
		if err == nil && (kind == AtomPMH || kind == Feed || kind == OAIPMH) {
			return "", a.URL + ": a gzip file, and no Content-Encoding that says so; tell the server's operator", nil
		}
		return ResourceSync, "", nil
	}
	if isPage().Match(text) {
		page, err := io.ReadAll(io.LimitReader(in, pageBytes))
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", a.URL, err)
		}
		return "", a.URL + ": an HTML page" + advice(pageFeeds(page, a.URL)), nil
	}
	if len(text) > 0 && text[0] > ' ' && text[0] < 0x7F && text[0] != '<' {
		if kind := sniffRows(text); kind != "" {
			return kind, "", nil
		}
		return "", a.URL + ": a text file, and neither a list of URLs, one a line, nor a table (CSV) whose first line names a column url", nil
	}
	kind, err = src.sniffRoot(a, in)
	if other, ok := errors.AsType[*otherRootError](err); ok {
		return "", other.Error(), nil
	}
	return kind, "", err
}

// otherRootError: a document is no XML, or XML that cannot be harvested.
type otherRootError struct{ what string }

func (e *otherRootError) Error() string { return e.what }

// sniffRoot returns the kind of a document of XML.
func (src *Source) sniffRoot(a *follow.Answer, in io.Reader) (kind string, err error) {
	var root bytes.Buffer
	limits := src.Limits.list()
	s := strictxml.New(io.TeeReader(in, &root), strictxml.Options{URL: a.URL, ContentType: a.Header.Get("Content-Type"), Lenient: true, Limits: limits})
	if err := s.Next(); err != nil {
		return "", &otherRootError{err.Error()}
	}
	switch name := strings.ToLower(s.Local); {
	case name == "urlset", name == "sitemapindex", resourcesync.IsConsidered(s.Space, s.Local, s.Attrs):
		return ResourceSync, nil
	case s.Space == oaipmh.Namespace, name == "oai-pmh":
		return OAIPMH, nil
	case s.Space == atompmh.Namespace && s.Local == "feed":
		return sniffAtom(a, io.MultiReader(&root, in))
	case name == "feed", name == "rss", name == "rdf":
		return Feed, nil
	}
	return "", &otherRootError{a.URL + ": " + s.What()}
}

// advice returns which feeds a page names.
func advice(feeds []string) string {
	if len(feeds) == 0 {
		return ""
	}
	return " that names the feeds " + strings.Join(feeds, ", ") + ": take one of them as the Source's URL"
}

// sniffAtom distinguishes an Atom-PMH feed from an ordinary one. The former has entries
// with alternates and without content, or deletions (S10); or it is archived or
// complete (RFC 5005) and has entries with alternates. A feed whose entries have
// their content inside, or behind content@src, is an ordinary one that may be
// archived. One without any entry may become either, and is taken for Atom-PMH.
func sniffAtom(a *follow.Answer, body io.Reader) (kind string, err error) {
	r := atompmh.NewReader(body, atompmh.ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type")})
	entries := 0
	for range sniffed {
		e, err := r.Next()
		f := r.Feed()
		switch {
		case errors.As(err, new(*atompmh.EntryError)):
			entries++
			continue
		case errors.Is(err, io.EOF) && entries == 0:
			return AtomPMH, nil
		case errors.Is(err, io.EOF), errors.As(err, new(*atompmh.DocumentError)): // broken, which a legacy feed may be
			return Feed, nil
		case err != nil:
			return "", err
		case e.Tombstone || e.Content == nil || e.Kind == atompmh.Deletion,
			f.Archive || f.Complete || f.PrevArchive != "" || f.Current != "":
			return AtomPMH, nil
		}
		entries++
	}
	return Feed, nil
}

var (
	isPage     = pattern.Of(`(?is)^(?:<\?xml.*?\?>|<!--.*?-->|\s)*<(?:!doctype\s+html|html)\b`)
	pageLink   = pattern.Of(`(?is)<link\s[^<>]*>`)
	pageAttr   = pattern.Of(`(?is)\s(rel|type|href)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))`)
	pageIsFeed = pattern.Of(`(?i)^application/(?:rss|atom|rdf|feed)\+(?:xml|json)$|^application/json$`)
)

// page returns an error that says which feeds an HTML page names.
func (g *feedReader) page(doc []byte) error {
	feeds := pageFeeds(doc, g.url)
	if len(feeds) == 0 {
		return g.documentError(1, 1, "an HTML page, not a feed, and it names no feed: look at the address")
	}
	return g.documentError(1, 1, "an HTML page, not a feed; it names %s: take that as the Source's URL", strings.Join(feeds, ", "))
}

// pageBytes is how much of a page is read.
const pageBytes = 1 << 20

// pageFeeds returns the first feeds that an HTML page names.
func pageFeeds(doc []byte, at string) (feeds []string) {
	base, _ := url.Parse(at) // without one relative links stay so
	for _, tag := range pageLink().FindAll(doc[:min(len(doc), pageBytes)], 100) {
		attrs := map[string]string{}
		for _, a := range pageAttr().FindAllStringSubmatch(string(tag), -1) {
			attrs[strings.ToLower(a[1])] = html.UnescapeString(a[2] + a[3] + a[4])
		}
		if !strings.Contains(strings.ToLower(attrs["rel"]), "alternate") || !pageIsFeed().MatchString(strings.TrimSpace(attrs["type"])) {
			continue
		}
		if href, err := strictxml.Resolve(base, attrs["href"]); err == nil && len(feeds) < 5 {
			feeds = append(feeds, strictxml.Clip(href))
		}
	}
	return feeds
}
