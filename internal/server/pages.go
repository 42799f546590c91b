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
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/publish"
)

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
		all:   template.Must(template.New("pages").Funcs(template.FuncMap{"number": number, "when": when}).ParseFS(files, "pages.html")),
		style: template.CSS(style),
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}
}

// page is what a template gets.
type page struct {
	Style template.CSS
	Title string
	// Lists are the URLs of the Capability Lists that the page leads to
	// (ResourceSync 6.3.2).
	Lists []string
	Feeds []feedView
	Sets  []setView // of the first page: all; of a set's page: that one
	// Blind: how harvests and submissions go could not be found out.
	Blind bool
}

// feedView is a feed that a page leads feed readers to.
type feedView struct{ Href, Type, Title string }

// setView is a set as a page shows it.
type setView struct {
	event.Set
	Mode      string
	Documents []documentView
	Segments  []documentView // newest first
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
	p := page{Title: "bridge"}
	status := s.status(ctx, &p)
	for _, set := range sets {
		p.Lists = append(p.Lists, s.capabilityList(set.Name))
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
	p := page{Title: titleOf(&set), Lists: []string{s.capabilityList(set.Name)}, Feeds: s.feedViews(&set)}
	v := setView{Set: set, Mode: set.Content.String(), standing: s.status(ctx, &p)[set.Name]}
	if s.deskOf(set.Name) != nil {
		v.Submissions.Service = s.base + "/sip/" + set.Name
	}
	v.Documents, v.Segments = documentViews(set, segments)
	for _, f := range recentForms() {
		v.Recent = append(v.Recent, documentView{Href: f.Name, Name: f.Title})
	}
	p.Sets = []setView{v}
	return s.write(c, "set", &p)
}

func (s *Server) capabilityList(set string) string { return s.setPage(set) + "capabilitylist.xml" }

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

// status reads how harvests and submissions go, by set. A page without that is
// better than none.
func (s *Server) status(ctx context.Context, p *page) map[string]standing {
	if s.opt.Status == nil {
		return nil
	}
	sets, err := s.opt.Status(ctx)
	if err != nil {
		p.Blind = true
		if ctx.Err() == nil {
			s.log.Error("a page shows no Sources and no submissions: their status cannot be read", "error", err)
		}
		return nil
	}
	views := make(map[string]standing, len(sets))
	for _, set := range sets {
		v := standing{Submissions: viewSubmissions(&set.Submissions)}
		for i := range set.Sources {
			v.Sources = append(v.Sources, viewSource(&set.Sources[i]))
		}
		views[set.Set] = v
	}
	return views
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

// when writes a time in UTC, to the second.
func when(t time.Time) template.HTML {
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339) + `">` + t.Format("2006-01-02 15:04:05") + ` UTC</time>`)
}
