package console

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
)

// page is the data for the frame of all pages.
type page struct {
	Title   string
	Section string // the entry of the navigation
	Bare    bool   // without navigation
	Body    any

	// write sets the following fields.
	Root        string // relative path to the overview: "../" repeated, or "./"
	Here        string // the address of the page, below Root
	Style       string // URLs
	Script      string
	Token       bool // signed in with a token, so the page has a sign-out button
	Version     string
	Quarantined int
	Reviews     int64
	Note        *note
	Time        time.Time
}

// templates parses the pages: each file of assets with the frame.
func (c *Console) templates() map[string]*template.Template {
	funcs := template.FuncMap{
		"number": number, "counted": counted, "when": c.when, "ago": c.ago, "due": c.due, "visible": visible, "clip": clip, "redact": daemon.Redact,
		"key": event.Key, "bars": bars, "spark": spark, "stamp": stamp, "bytes": byteCount, "join": strings.Join, "about": about,
	}
	all := map[string]*template.Template{}
	for _, name := range []string{"overview", "source", "held", "sets", "set", "events", "records", "record", "quarantine", "quarantined", "reviews", "review", "sign-in", "error"} {
		all[name] = template.Must(template.New(name).Funcs(funcs).ParseFS(assets, "assets/frame.html", "assets/"+name+".html"))
	}
	return all
}

func (c *Console) write(w http.ResponseWriter, r *http.Request, code int, name string, p *page) {
	path := strings.TrimPrefix(r.URL.Path, Path)
	p.Root, p.Here = "./", strings.TrimPrefix(path, "/")
	if up := strings.Count(path, "/") - 1; up > 0 {
		p.Root = strings.Repeat("../", up)
	}
	if q := r.URL.Query(); len(q) > 0 {
		q.Del("note")
		if len(q) > 0 {
			p.Here += "?" + q.Encode()
		}
	}
	p.Style, p.Script = p.Root+"style.css?v="+c.files["style.css"].version, p.Root+"console.js?v="+c.files["console.js"].version
	p.Token, p.Version, p.Time = c.opt.Token != "" && !p.Bare, c.opt.Version, c.opt.Now()
	if !p.Bare {
		p.Note = c.notes.get(r.URL.Query().Get("note"), c.opt.Now())
		if s, err := c.status(r.Context()); err == nil {
			p.Quarantined, p.Reviews = s.Summary.Quarantined, s.Summary.Reviews
		}
	}
	var b bytes.Buffer
	if err := c.pages[name].ExecuteTemplate(&b, "frame", p); err != nil {
		c.log.Error("a page of the console failed", "path", r.URL.Path, "error", err)
		http.Error(w, "This page has failed; the server's log says why.", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // the client may have disconnected
}

// query returns the query of a request with some arguments changed, for a link; "" as
// a value removes one.
func query(r *http.Request, changes ...string) string {
	q := r.URL.Query()
	q.Del("note")
	for i := 0; i+1 < len(changes); i += 2 {
		if changes[i+1] == "" {
			q.Del(changes[i])
		} else {
			q.Set(changes[i], changes[i+1])
		}
	}
	return "?" + q.Encode()
}

// rowsShown is how many Sources or sets one page has: a browser takes seconds for the charts of
// thousands, and the overview is read anew every ten seconds.
const rowsShown = 200

// rowsPart says which rows of a table a page has.
type rowsPart struct {
	First, Last, All int
	// Before and After are links to the pages before and after it, "" for none.
	Before, After string
}

// part returns the rows of a page, which begin behind those that the argument from counts.
func part[T any](r *http.Request, all []T) ([]T, rowsPart) {
	rows, begin, before, after := server.Part(all, r.URL.Query().Get("from"), rowsShown)
	p := rowsPart{First: begin + 1, Last: begin + len(rows), All: len(all)}
	if before >= 0 {
		p.Before = query(r, "from", strconv.Itoa(before))
	}
	if after >= 0 {
		p.After = query(r, "from", strconv.Itoa(after))
	}
	return rows, p
}

// argument returns an argument of a query, cut to the longest allowed length.
func argument(q url.Values, name string) string {
	text := strings.TrimSpace(q.Get(name))
	return text[:min(len(text), event.MaxIdentifier)]
}

// number writes 1234567 as 1,234,567.
func number(n any) string { return server.Number(whole(n)) }

// whole returns a number of any type that pages show.
func whole(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case event.Seq:
		return int64(n)
	case int64:
		return n
	}
	panic(fmt.Sprintf("a page shows a %T as a number", n))
}

// counted returns a number with its unit.
func counted(n any, one, many string) string { return server.Counted(whole(n), one, many) }

// byteCount writes a number of bytes.
func byteCount(n int64) string {
	const unit = 1024
	switch {
	case n < 0:
		return ""
	case n < unit:
		return counted(n, "byte", "bytes")
	case n < unit*unit:
		return fmt.Sprintf("%.1f KiB", float64(n)/unit)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/unit/unit)
}

// stamp writes a moment in UTC, to the second.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// moment returns the time in v, which is in one of the types that pages use.
func moment(v any) time.Time {
	switch v := v.(type) {
	case time.Time:
		return v
	case *time.Time:
		if v != nil {
			return *v
		}
	case status.Time:
		return v.Time
	case event.Micros:
		if v != 0 {
			return v.Time()
		}
	case event.Stamp:
		return v.Time()
	}
	return time.Time{}
}

func timeElement(t time.Time, text string) template.HTML {
	return template.HTML(`<time datetime="` + t.UTC().Format(time.RFC3339) + `" title="` + stamp(t) + ` UTC">` + template.HTMLEscapeString(text) + `</time>`)
}

// when writes a moment in UTC, and how long ago it is; "" for none.
func (c *Console) when(v any) template.HTML {
	t := moment(v)
	if t.IsZero() {
		return ""
	}
	return timeElement(t, stamp(t)+" UTC") + template.HTML(` <span class="ago">(`+c.distance(t)+`)</span>`)
}

// ago writes how long ago a moment is; "" for none.
func (c *Console) ago(v any) template.HTML {
	t := moment(v)
	if t.IsZero() {
		return ""
	}
	return timeElement(t, c.distance(t))
}

// due writes the time left until a moment; "" for none.
func (c *Console) due(v any) template.HTML {
	t := moment(v)
	switch {
	case t.IsZero():
		return ""
	case !t.After(c.opt.Now()):
		return timeElement(t, "now")
	}
	return timeElement(t, c.distance(t))
}

func (c *Console) distance(t time.Time) string {
	d := c.opt.Now().Sub(t)
	switch {
	case d < 0:
		return "in " + about(-d)
	case d < time.Second:
		return "now"
	}
	return about(d) + " ago"
}

// about writes a duration in its largest unit, or the two largest where the first is small.
func about(d time.Duration) string {
	day, hour := 24*time.Hour, time.Hour
	switch {
	case d < time.Minute:
		return strconv.Itoa(max(1, int(d/time.Second))) + " s"
	case d < hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 10*hour && d%hour >= time.Minute:
		return fmt.Sprintf("%d h %d min", d/hour, d%hour/time.Minute)
	case d < 2*day:
		return strconv.Itoa(int(d/hour)) + " h"
	}
	return strconv.Itoa(int(d/day)) + " days"
}

// visible replaces characters of a text that are invisible, move others, or are invalid, by
// their code points; line ends and tabs stay.
func visible(text string) string {
	hidden := func(r rune) bool {
		return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
	}
	if utf8.ValidString(text) && !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for i, n := 0, 0; i < len(text); i += n {
		var r rune
		r, n = utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "‹%02X›", text[i])
		case r == '\r' && i+1 < len(text) && text[i+1] == '\n':
		case hidden(r):
			fmt.Fprintf(&b, "‹U+%04X›", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// clip returns a text in one line of at most n characters, all of them visible.
func clip(n int, text string) string {
	text = visible(strings.Join(strings.Fields(text[:min(len(text), 16*n)]), " "))
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n]) + "…"
}
