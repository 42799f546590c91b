package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/pattern"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/status"
)

// segmentsShown is how many Change Lists the page of a set names; the index has
// all of them.
const segmentsShown = 100

// setsShown is how many sets the first page has, and each of those after it: anybody may ask for
// them, and each is in memory until its client has read it.
const setsShown = 200

// sourcesBelow is how many Sources of a set the page of all sets names, and sourcesShown how many
// the set's own page has: those that need attention are the first ones there.
const sourcesBelow, sourcesShown = 10, 200

//go:embed pages.html style.css
var files embed.FS

// pages has the templates and the style of the pages for people.
type pages struct {
	all    *template.Template
	style  template.CSS
	policy string // Content-Security-Policy: our own style and nothing else
}

func newPages() pages {
	style, err := files.ReadFile("style.css")
	if err != nil {
		panic(err) // it is compiled in
	}
	sum := sha256.Sum256(style)
	return pages{
		all:   template.Must(template.New("pages").Funcs(template.FuncMap{"number": Number, "counted": Counted, "when": when}).ParseFS(files, "pages.html")),
		style: template.CSS(style),
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}
}

// page is what a template gets.
type page struct {
	Style template.CSS
	Title string
	Feeds []feedView
	Sets  []setView // of the page of all sets: a part of them; of a set's page: that one
	// All is how many sets there are, First and Last are the numbers of the first and the last one
	// of the part; Before and After, from which one other parts begin, -1 for none.
	All, First, Last, Before, After int
	// NoStatus: the status of harvests and submissions could not be read.
	NoStatus bool
	// Operator: the page may show what fails, and where Sources are.
	Operator bool
	// Static: the page is a file of another server, see Options.
	Static bool
}

// feedView is a feed that a page leads feed readers to.
type feedView struct{ Href, Type, Title string }

// setView is a set as a page shows it.
type setView struct {
	event.Set
	Mode      string
	Documents []documentView
	Segments  []documentView // newest first, the last segmentsShown
	Older     int            // how many segments are not shown
	Recent    []documentView
	Ways      []Way
	// Licence and Contact are texts; a link leads to LicenceURL and ContactURL unless these
	// are "".
	Licence, LicenceURL string
	Contact, ContactURL string
	setStatusView
}

// setStatusView is the status of a set's Sources and submissions.
type setStatusView struct {
	Sources     []sourceView
	MoreSources int64 // how many are not among these
	Submissions submissionsView
}

// Attention names the part of the set's page that has something an operator
// should see; "" is none.
func (v setStatusView) Attention() string {
	for _, s := range v.Sources {
		if len(s.Attention) > 0 {
			return "sources"
		}
	}
	if len(v.Submissions.Attention) > 0 {
		return "submissions"
	}
	return ""
}

// documentView is a link to a document.
type documentView struct {
	Href  string // relative to the set's page
	Name  string
	About string
	// Of a segment's Change List: its borders, the second nil while it is open,
	// and the number of its entries.
	From    time.Time
	Until   *time.Time
	Entries int64
}

// indexPage is the page of all sets.
func (s *Server) indexPage(c echo.Context) error {
	ctx := c.Request().Context()
	sets, err := s.opt.Log.Sets(ctx)
	if err != nil {
		return err
	}
	p := page{Title: "bridge", Operator: s.operator(c.Request()), All: len(sets), Before: -1, After: -1}
	if !s.opt.Static {
		sets, p.First, p.Before, p.After = Part(sets, c.QueryParam("from"), setsShown)
		p.First, p.Last = p.First+1, p.First+len(sets)
	}
	views := s.status(ctx, &p, sourcesBelow, sets...)
	for _, set := range sets {
		if feeds := s.feedViews(&set); len(feeds) > 0 {
			recent := feeds[0]
			recent.Title = titleOf(&set) + ": " + recent.Title
			p.Feeds = append(p.Feeds, recent)
		}
		set.Newest = event.MicrosOf(Newest(ctx, s.opt.Log, &set))
		p.Sets = append(p.Sets, setView{Set: set, Mode: set.Content.String(), setStatusView: views[set.Name]})
	}
	return s.write(c, "home", &p)
}

// Newest returns when the last event of a set was observed; the zero time if it has none. A set
// that was made, or made anew by an epoch, and has no event since, says that time instead; so
// does this where the event cannot be read.
func Newest(ctx context.Context, log publish.Log, set *event.Set) time.Time {
	if set.Events == 0 {
		return time.Time{}
	}
	if set.Newest <= set.Created && set.Last > 0 {
		for last, err := range log.Events(ctx, set.Name, event.Range{After: set.Last - 1, Upto: set.Last}) {
			if err == nil {
				return last.Observed.Time()
			}
		}
	}
	return set.Newest.Time()
}

// Part returns the rows of a long table that one page has, at most so many. from, an argument of
// its query, says how many rows are before it: begin. before and after are that of the pages
// before and after it, -1 for none.
func Part[T any](rows []T, from string, most int) (part []T, begin, before, after int) {
	begin, err := strconv.Atoi(from)
	if err != nil || begin < 0 || begin >= len(rows) {
		begin = 0
	}
	end := min(begin+most, len(rows))
	before, after = -1, -1
	if begin > 0 {
		before = max(0, begin-most)
	}
	if end < len(rows) {
		after = end
	}
	return rows[begin:end], begin, before, after
}

// setPage is the page of one set: its numbers, its documents, its Sources, its
// submissions.
func (s *Server) setPage(c echo.Context) error {
	ctx := c.Request().Context()
	set, segments, err := s.opt.Documents.Segments(ctx, c.Param("set"))
	if err != nil {
		return notFound(err)
	}
	p := page{Title: titleOf(&set), Operator: s.operator(c.Request()), Feeds: s.feedViews(&set)}
	set.Newest = event.MicrosOf(Newest(ctx, s.opt.Log, &set))
	v := setView{Set: set, Mode: set.Content.String(), setStatusView: s.status(ctx, &p, sourcesShown, set)[set.Name]}
	if s.sipService(set.Name) != nil {
		v.Submissions.Service = s.base + "/sip/" + set.Name
	}
	v.Documents = documentViews(set, segments)
	if s.opt.Repository != nil {
		v.Documents = append(v.Documents, repositoryView())
	}
	lists := publish.ChangeListSegments(set, segments)
	v.Older = max(len(lists)-segmentsShown, 0)
	for _, it := range slices.Backward(publish.PlanChangeLists(set, lists[v.Older:])) {
		v.Segments = append(v.Segments, changeListView(&it))
	}
	for _, f := range recentForms() {
		if !set.NoFeeds {
			v.Recent = append(v.Recent, documentView{Href: f.Name, Name: f.Title})
		}
	}
	for _, w := range Ways(s.base, set.Name) {
		if lacks := w.Running && s.opt.Static || w.Feeds && set.NoFeeds || w.Repository && s.opt.Repository == nil; !lacks {
			v.Ways = append(v.Ways, w)
		}
	}
	s.describe(&v)
	p.Sets = []setView{v}
	return s.write(c, "set", &p)
}

// describe adds the licence and the contact of a set.
func (s *Server) describe(v *setView) {
	if s.opt.About == nil {
		return
	}
	v.Licence, v.Contact = s.opt.About(v.Name)
	if isWeb(v.Licence) {
		v.LicenceURL = v.Licence
	}
	switch mail := strings.TrimPrefix(v.Contact, "mailto:"); {
	case isWeb(v.Contact):
		v.ContactURL = v.Contact
	case strings.Contains(mail, "@"):
		v.Contact, v.ContactURL = mail, "mailto:"+mail
	}
}

// redirectToSlash leads to the set's page, whose links are relative to it.
func (s *Server) redirectToSlash(c echo.Context) error {
	set, err := s.opt.Log.Set(c.Request().Context(), c.Param("set"))
	if err != nil {
		return notFound(err)
	}
	http.Redirect(c.Response().Writer, c.Request(), (&url.URL{Path: s.mount + "/sets/" + set.Name + "/"}).EscapedPath(), http.StatusMovedPermanently)
	return nil
}

// feedViews are the feeds of a set, the one for people first; none where they are
// switched off.
func (s *Server) feedViews(set *event.Set) []feedView {
	if set.NoFeeds {
		return nil
	}
	var views []feedView
	for _, f := range recentForms() {
		views = append(views, feedView{s.setURL(set.Name) + f.Name, f.ContentType, f.Title})
	}
	return append(views, feedView{s.setURL(set.Name) + "feed.atom", "application/atom+xml", "All changes (Atom-PMH)"})
}

// newDocumentView shows a document of a set, still without its name.
func newDocumentView(it *publish.Item) documentView {
	return documentView{Href: strings.TrimPrefix(it.Path, "/sets/"+it.Set.Name+"/"), From: it.From.Time(), Entries: int64(it.Entries)}
}

// changeListView shows the Change List of a segment.
func changeListView(it *publish.Item) documentView {
	v := newDocumentView(it)
	v.Name = "Change List " + strconv.Itoa(it.N)
	if it.Closed {
		v.Until = optionalTime(it.Until.Time())
	}
	return v
}

// DocumentLink is a document of a set, for people.
type DocumentLink struct{ URL, Name, About string }

// DocumentLinks lists the documents of a set that all others are linked from, with their
// URLs below a base URL.
func DocumentLinks(base string, set event.Set, segments []event.Segment) (links []DocumentLink) {
	for _, d := range append(documentViews(set, segments), repositoryView()) {
		links = append(links, DocumentLink{base + "/sets/" + set.Name + "/" + d.Href, d.Name, d.About})
	}
	return links
}

// repositoryView is the OAI-PMH repository of a set.
func repositoryView() documentView {
	return documentView{Href: "oai?verb=Identify", Name: "Repository", About: "all records, and all changes by their dates (OAI-PMH)"}
}

// documentViews lists the documents of a set. The Source Description of one set
// alone is linked from nowhere; the parts of a Resource List and of an archive are linked
// from their index, archive documents from the feed.
func documentViews(set event.Set, segments []event.Segment) (documents []documentView) {
	for _, it := range publish.PlanHead(set, segments) {
		v := newDocumentView(&it)
		switch it.Kind {
		case publish.CapabilityList:
			v.Name, v.About = "Capability List", "lists the documents of this set; start here"
		case publish.ResourceList:
			v.Name, v.About = "Resource List", "all records as they are now"
		case publish.ChangeListIndex:
			v.Name, v.About = "Change List Index", "lists all Change Lists since the set was created"
			if !it.From.Time().Equal(set.Created.Time()) {
				v.About = "lists the newest Change Lists"
			}
		case publish.ResourceListArchive:
			v.Name, v.About = "Resource List Archive", "lists Resource Lists of the past"
		case publish.ChangeListArchive, publish.ChangeListArchiveIndex:
			v.Name, v.About = "Change List Archive", "lists the Change Lists before those in the index"
		case publish.ChangeListWindow:
			v.Name, v.About = "Change List", "recent changes, for programs that read one list only"
		case publish.Subscription:
			v.Name, v.About = "Feed", "all changes since the set was created, in archive documents (Atom-PMH)"
		case publish.Complete:
			v.Name, v.About = "Complete feed", "all records as they are now (Atom-PMH)"
		default:
			continue
		}
		documents = append(documents, v)
	}
	return documents
}

// status returns the status of harvests and submissions of sets by their names, with the details
// that the reader of the page may see, and at most so many Sources of each. When it cannot be read,
// the page is shown without.
func (s *Server) status(ctx context.Context, p *page, most int, of ...event.Set) map[string]setStatusView {
	if s.opt.Status == nil {
		return nil
	}
	age, times := s.opt.Limits.StatusAge, time.Duration(0)
	if age == 0 {
		age, times = statusAge, statusTimes
	}
	sets, err := s.statuses.get(ctx, s.opt.Now, age, times, s.opt.Status)
	if err != nil {
		p.NoStatus = true
		if ctx.Err() == nil {
			s.log.Error("a page shows no Sources and no submissions: their status cannot be read", "error", err)
		}
		return nil
	}
	shown := make(map[string]bool, len(of))
	for i := range of {
		shown[of[i].Name] = true
	}
	views := make(map[string]setStatusView, len(of))
	for _, set := range sets {
		if !shown[set.Name] { // there may be thousands
			continue
		}
		var v setStatusView
		if p.Operator {
			v.Submissions = viewSubmissions(&set)
		}
		for i := range set.Sources {
			if p.Operator {
				v.Sources = append(v.Sources, operatorSourceView(&set.Sources[i]))
			} else if i < most {
				v.Sources = append(v.Sources, publicSourceView(&set.Sources[i]))
			}
		}
		if len(v.Sources) > most {
			slices.SortStableFunc(v.Sources, func(a, b sourceView) int {
				return min(len(b.Attention), 1) - min(len(a.Attention), 1)
			})
			v.Sources = slices.Clone(v.Sources[:most])
		}
		v.MoreSources = int64(len(set.Sources) - len(v.Sources))
		views[set.Name] = v
	}
	return views
}

const (
	// statusAge is how long pages show the same status, or statusTimes as long as it took to read:
	// of thousands of sets that is seconds, and anybody may ask for pages.
	statusAge   = 3 * time.Second
	statusTimes = 10
)

// statusCache keeps the status of all sets for a while: to read it costs more than the
// rest of a page, and every client may request pages.
type statusCache struct {
	mu   sync.Mutex // held while it is read, so that all requests that wait share it
	at   time.Time
	took time.Duration
	sets []status.Set
}

// get returns a status that is younger than an age, or than so many times as long as it took.
func (k *statusCache) get(ctx context.Context, now func() time.Time, most, times time.Duration, read func(context.Context) ([]status.Set, error)) ([]status.Set, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if age := now().Sub(k.at); !k.at.IsZero() && age >= 0 && age < max(most, times*k.took) {
		return k.sets, nil
	}
	began := time.Now()
	sets, err := read(ctx)
	if err == nil {
		k.sets, k.at, k.took = sets, now(), time.Since(began)
	}
	return sets, err
}

func (s *Server) write(c echo.Context, name string, p *page) error {
	p.Style, p.Static = s.pages.style, s.opt.Static
	var b bytes.Buffer
	if err := s.pages.all.ExecuteTemplate(&b, name, p); err != nil {
		return err
	}
	w := c.Response().Writer
	h := w.Header()
	h.Set("Content-Security-Policy", s.pages.policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	h.Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	_, _ = io.Copy(w, &b) // responseWriter keeps the error
	return nil
}

// Number writes 1234567 as 1,234,567.
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Counted is a number with what it counts.
func Counted(n int64, one, many string) string {
	if n == 1 {
		many = one
	}
	return Number(n) + " " + many
}

// when writes a time in UTC, to the second.
func when(t time.Time) template.HTML {
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339) + `">` + t.Format("2006-01-02 15:04:05") + ` UTC</time>`)
}

// sourceView is a Source as a page shows it.
type sourceView struct {
	Kind string // "" while it is not known
	// Harvested: it is harvested. A SIP Source is not, it sends.
	Harvested bool
	// Forms are the older forms of its protocol in which the Source was read.
	Forms []string
	URL   string // redacted
	Link  bool   // URL is whole and leads to the web
	Mark  *time.Time
	// Timeless: it was harvested to its end, and states no times.
	Timeless bool
	Next     *time.Time
	Last     *lastView
	// What waits.
	Pending, Held, Quarantined int64
	// Attention are sentences about what an operator should look at.
	Attention []string
}

// lastView is a harvest as a page shows it.
type lastView struct {
	Ended                                                  time.Time
	Documents, Entries, Events, Problems, Fetched, Skipped int64
	NotModified                                            bool
}

func operatorSourceView(s *status.Source) sourceView {
	v := sourceView{
		Kind: s.Kind, Harvested: s.Kind != "sip", URL: public(s.URL), Mark: optionalTime(s.Mark.Time()), Next: optionalTime(s.Next.Time),
		Pending: int64(s.Pending), Held: int64(s.Held), Quarantined: int64(s.Quarantined),
	}
	v.Link = v.URL == s.URL && isWeb(s.URL)
	if r := s.Last; r != nil {
		v.Last = &lastView{Ended: r.Ended, Documents: r.Documents, Entries: r.Entries, Events: r.Events(), Problems: r.Problems, Fetched: r.Fetched, Skipped: r.Skipped, NotModified: r.NotModified}
		v.Timeless = v.Mark == nil && r.Error == "" && s.Gap == "" && (r.NotModified || r.Documents > 0)
		for _, d := range r.Dialects {
			v.Forms = append(v.Forms, dialectName(d))
		}
		if r.Moved != "" {
			v.Attention = append(v.Attention, "Moved permanently to "+public(r.Moved)+": change url in the configuration.")
		}
		if r.Error != "" {
			v.Attention = append(v.Attention, "The last harvest failed: "+public(r.Error))
		}
		for _, w := range r.Warnings {
			v.Attention = append(v.Attention, public(w))
		}
		for _, x := range r.Examples {
			v.Attention = append(v.Attention, "Rule "+x.Rule+" was broken "+times(x.Count)+", first: "+public(x.First))
		}
	}
	if s.Gap != "" {
		v.Attention = append(v.Attention, "A document is missing, changes may be lost: "+public(s.Gap)+
			". If it will not come back, use bridge source accept-gap.")
	}
	if s.Held > 0 {
		v.Attention = append(v.Attention, "Held deletions: "+Number(int64(s.Held))+". Look at the Source, then apply them with bridge source release.")
	}
	if s.Quarantined > 0 {
		v.Attention = append(v.Attention, "Bad input in quarantine: "+Number(int64(s.Quarantined))+". See it with bridge quarantine ls.")
	}
	return v
}

// publicSourceView is a Source as public pages show it: its host, if that is not in a
// private network, how far it has been harvested, and when that last succeeded.
func publicSourceView(s *status.Source) sourceView {
	v := sourceView{Kind: s.Kind, Harvested: s.Kind != "sip", Mark: optionalTime(s.Mark.Time())}
	if publicName(s.URL) {
		v.URL = public(s.URL)
		v.URL = v.Host()
	}
	if !s.LastSuccess.IsZero() {
		v.Last = &lastView{Ended: s.LastSuccess.Time}
		v.Timeless = v.Mark == nil && s.Gap == ""
	}
	return v
}

// dialectName returns the name of a dialect of ResourceSync.
func dialectName(dialect string) string {
	if dialect == "sitemap" {
		return "plain sitemap"
	}
	return "ResourceSync " + dialect
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return Number(n) + " times"
}

// Host returns the host of the Source, or its whole URL if it has none.
func (v sourceView) Host() string {
	_, rest, ok := strings.Cut(v.URL, "://")
	if !ok {
		return v.URL
	}
	host, _, _ := strings.Cut(rest, "/")
	return host
}

// The parts of a URL that Redact and public remove. A user, a password and a path may have an
// apostrophe in them; paths and queries have other quotes and brackets too, as they are typed, and
// go on until a space.
var (
	userPart  = pattern.Of(`(?i)\b(https?://)[^/?#\s"<>]*@`)
	queryPart = pattern.Of(`(?i)\b(https?://[^?#\s]*)\?(?:[^#\s]*(?:[&=]|[^#\s"'<>.,:;)]))?`)
	// passwordPart is the password in the URL of a PostgreSQL server, passwordSetting one among
	// its settings; the user and the other settings say which database it is.
	passwordPart    = pattern.Of(`(?i)(postgres(?:ql)?://[^/?#\s"<>:]*:)[^/?#\s"<>]*@`)
	passwordSetting = pattern.Of(`(?i)([?&](?:ssl)?password=)(?:[^&#\s"<>]*[^&#\s"'<>.,:;)])?`)
	// tokenPart is what follows the path of a SIP service.
	tokenPart = pattern.Of(`(?i)(/sip/[^/?#\s"'<>]*/)[^?#\s"'<>]*[^?#\s"'<>.,:;)]`)
	// callbackPart is what follows the path of a WebSub callback, also in a query.
	callbackPart = pattern.Of(`((?:/|%2[Ff])websub(?:/|%2[Ff]))[A-Z2-7]{8,}`)
	// tagPart is the token in a mailbox; shorter tags are what people choose.
	tagPart    = pattern.Of(`\+[A-Za-z0-9_-]{16,}@`)
	folderPart = pattern.Of(`(?i)\bfile:[^\s"'<>]*/`)
	// mailbox is all of a mail address or a user part but its domain.
	mailbox = pattern.Of(`[^\s"'<>()\[\],;/@]+@`)
)

// Redact returns a text without the secrets of the URLs in it: it removes user and password,
// and replaces the whole query, and the tokens of a SIP service, of a WebSub callback and of a
// mailbox, by ***; of a PostgreSQL server the passwords alone. Scheme, host and path stay, so
// that the URL can be recognized. It applies to everything that people read: pages, logs,
// errors, and the output of commands. Redact(Redact(text)) is Redact(text).
func Redact(text string) string {
	// A status has tens of thousands of texts, and most of them nothing of this.
	if strings.Contains(text, "@") {
		text = userPart().ReplaceAllString(text, "$1")
		text = passwordPart().ReplaceAllString(text, "${1}***@")
	}
	if strings.Contains(text, "?") {
		text = queryPart().ReplaceAllString(text, "$1?***")
	}
	if strings.ContainsAny(text, "?&") {
		text = passwordSetting().ReplaceAllString(text, "${1}***")
	}
	if strings.Contains(strings.ToLower(text), "/sip/") {
		text = tokenPart().ReplaceAllString(text, "${1}***")
	}
	if strings.Contains(text, "websub") {
		text = callbackPart().ReplaceAllString(text, "${1}***")
	}
	if strings.Contains(text, "@") {
		text = tagPart().ReplaceAllString(text, "+***@")
	}
	return text
}

// public is Redact for public pages: it hides local folders too.
func public(text string) string {
	return folderPart().ReplaceAllString(Redact(text), "file:.../")
}
