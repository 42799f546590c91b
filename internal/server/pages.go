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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// segmentsShown is how many Change Lists the page of a set names; the index has
// all of them.
const segmentsShown = 100

//go:embed pages.html style.css
var files embed.FS

// pages are what is needed to write pages for people.
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
		all:   template.Must(template.New("pages").Funcs(template.FuncMap{"number": number, "counted": counted, "when": when}).ParseFS(files, "pages.html")),
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
	Sets  []setView // of the first page: all; of a set's page: that one
	// Blind: how harvests and submissions go could not be found out.
	Blind bool
	// Operator: whoever reads it may know what fails, and where Sources are.
	Operator bool
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
	standing
}

// standing is how harvests and submissions of a set go.
type standing struct {
	Sources     []sourceView
	Submissions submissionsView
}

// Attention names the part of the set's page that has something an operator
// should see; "" is none.
func (v standing) Attention() string {
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

// home is the page of all sets.
func (s *Server) home(c echo.Context) error {
	ctx := c.Request().Context()
	sets, err := s.opt.Sets.Sets(ctx)
	if err != nil {
		return err
	}
	p := page{Title: "bridge", Operator: s.operator(c.Request())}
	status := s.status(ctx, &p)
	for _, set := range sets {
		recent := s.feedViews(&set)[0]
		recent.Title = titleOf(&set) + ": " + recent.Title
		p.Feeds = append(p.Feeds, recent)
		p.Sets = append(p.Sets, setView{Set: set, Mode: set.Content.String(), standing: status[set.Name]})
	}
	return s.write(c, "home", &p)
}

// setHome is the page of one set: its numbers, its documents, its Sources, its
// submissions.
func (s *Server) setHome(c echo.Context) error {
	ctx := c.Request().Context()
	set, err := s.opt.Sets.Set(ctx, c.Param("set"))
	if err != nil {
		return notFound(err)
	}
	segments, err := s.opt.Sets.Segments(ctx, set.Name)
	if err != nil {
		return err
	}
	p := page{Title: titleOf(&set), Operator: s.operator(c.Request()), Feeds: s.feedViews(&set)}
	v := setView{Set: set, Mode: set.Content.String(), standing: s.status(ctx, &p)[set.Name]}
	if s.deskOf(set.Name) != nil {
		v.Submissions.Service = s.base + "/sip/" + set.Name
	}
	v.Documents, v.Segments = documentViews(set, segments)
	if v.Older = len(v.Segments) - segmentsShown; v.Older > 0 {
		v.Segments = v.Segments[:segmentsShown]
	}
	for _, f := range recentForms() {
		v.Recent = append(v.Recent, documentView{Href: f.Name, Name: f.Title})
	}
	p.Sets = []setView{v}
	return s.write(c, "set", &p)
}

// slash leads to the set's page, whose links are relative to it.
func (s *Server) slash(c echo.Context) error {
	set, err := s.opt.Sets.Set(c.Request().Context(), c.Param("set"))
	if err != nil {
		return notFound(err)
	}
	http.Redirect(c.Response().Writer, c.Request(), s.mount+"/sets/"+set.Name+"/", http.StatusMovedPermanently)
	return nil
}

// feedViews are the feeds of a set, the one for people first.
func (s *Server) feedViews(set *event.Set) []feedView {
	var views []feedView
	for _, f := range recentForms() {
		views = append(views, feedView{s.setPage(set.Name) + f.Name, f.ContentType, f.Title})
	}
	return append(views, feedView{s.setPage(set.Name) + "feed.atom", "application/atom+xml", "All changes (Atom-PMH)"})
}

// documentViews lists the documents of a set. The Source Description of one set
// alone is linked from nowhere; the parts of a Resource List are linked from its
// index, archive documents from the feed.
func documentViews(set event.Set, segments []event.Segment) (documents, lists []documentView) {
	for _, it := range publish.PlanSet(set, segments, nil) {
		v := documentView{Href: strings.TrimPrefix(it.Path, "/sets/"+set.Name+"/"), From: it.From.Time(), Entries: int64(it.Entries)}
		switch it.Kind {
		case publish.CapabilityList:
			v.Name, v.About = "Capability List", "what there is of this set; start here"
		case publish.ResourceList:
			v.Name, v.About = "Resource List", "all records as they are now"
		case publish.ChangeListIndex:
			v.Name, v.About = "Change List Index", "names all Change Lists since the set was made"
		case publish.ChangeListWindow:
			v.Name, v.About = "Change List", "recent changes, for programs that read one list only"
		case publish.Subscription:
			v.Name, v.About = "Feed", "all changes since the set was made, in archive documents (Atom-PMH)"
		case publish.Complete:
			v.Name, v.About = "Complete feed", "all records as they are now (Atom-PMH)"
		case publish.ChangeList:
			v.Name = "Change List " + strconv.Itoa(it.N)
			if it.Closed {
				v.Until = known(it.Until.Time())
			}
			lists = append([]documentView{v}, lists...)
			continue
		default:
			continue
		}
		documents = append(documents, v)
	}
	return documents, lists
}

// status returns how harvests and submissions go, by set, as whoever reads the
// page may know it. A page without that is better than none.
func (s *Server) status(ctx context.Context, p *page) map[string]standing {
	if s.opt.Status == nil {
		return nil
	}
	sets, err := s.stood.get(ctx, s.opt.Now, s.opt.Limits.StatusAge, s.opt.Status)
	if err != nil {
		p.Blind = true
		if ctx.Err() == nil {
			s.log.Error("a page shows no Sources and no submissions: their status cannot be read", "error", err)
		}
		return nil
	}
	views := make(map[string]standing, len(sets))
	for _, set := range sets {
		var v standing
		if p.Operator {
			v.Submissions = viewSubmissions(&set.Submissions)
		}
		for i := range set.Sources {
			if p.Operator {
				v.Sources = append(v.Sources, viewSource(&set.Sources[i]))
			} else {
				v.Sources = append(v.Sources, strangersView(&set.Sources[i]))
			}
		}
		views[set.Set] = v
	}
	return views
}

// standings keeps the status of all sets for a while: to find it out costs more
// than all else on a page, and anybody may ask for pages.
type standings struct {
	mu   sync.Mutex // held while it is found out, so that all who wait get the same
	at   time.Time
	sets []SetStatus
}

func (k *standings) get(ctx context.Context, now func() time.Time, most time.Duration, read func(context.Context) ([]SetStatus, error)) ([]SetStatus, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if age := now().Sub(k.at); !k.at.IsZero() && age >= 0 && age < most {
		return k.sets, nil
	}
	sets, err := read(ctx)
	if err == nil {
		k.sets, k.at = sets, now()
	}
	return sets, err
}

func (s *Server) write(c echo.Context, name string, p *page) error {
	p.Style = s.pages.style
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
	_, _ = io.Copy(w, &b) // answer remembers the error
	return nil
}

// number writes 1234567 as 1,234,567.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counted is a number with what it counts.
func counted(n int64, one, many string) string {
	if n == 1 {
		many = one
	}
	return number(n) + " " + many
}

// when writes a time in UTC, to the second.
func when(t time.Time) template.HTML {
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339) + `">` + t.Format("2006-01-02 15:04:05") + ` UTC</time>`)
}
