package validate

import (
	"archive/zip"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/sip"
)

// The corpus has a file for each rule, with documents that keep it and documents that
// break it: pass.* and fail.*, or, where it takes several, the folders pass and fail,
// of which start is checked with Follow. In a document {host} is where it is served, {self}
// its own URL, a .zip file is made of its parts, and a line that begins with {repeat N} stands N times.

// elsewhere are the rules that no single run can see broken, and the tests that do.
func elsewhere() map[string]string {
	return map[string]string{"rs-closed": "TestClosedListGrows", "oai-from": "oaipmh.TestClockGoesBack"}
}

// rules returns the ids of all rules, and whether several documents show it.
func allRules() map[string]bool {
	all := map[string]bool{}
	for _, r := range atompmh.Rules() {
		if !r.Reader {
			all[r.ID] = r.Several
		}
	}
	for _, r := range resourcesync.Rules() {
		all[r.ID] = r.Several
	}
	for _, r := range oaipmh.Rules() {
		all[r.ID] = r.Several
	}
	for _, r := range sip.Rules() {
		all[r.ID] = false
	}
	return all
}

// Every rule has a document that keeps it and one that breaks it, and only rules have.
func TestCorpus(t *testing.T) {
	testenv.Heavy(t)
	files, err := filepath.Glob("testdata/corpus/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	rules, met := allRules(), map[string]bool{}
	for _, file := range files {
		id := strings.TrimSuffix(filepath.Base(file), ".txtar")
		several, ok := rules[id]
		if !ok {
			t.Errorf("%s is of no rule", file)
			continue
		}
		met[id] = true
		t.Run(id, func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			site := serveCorpus(t, archive)
			o := Options{Follow: several, Contents: ofContents(id)}
			for _, kind := range []string{"pass", "fail"} {
				target := kind + "/" + strings.TrimSpace(strings.TrimPrefix(string(archive.Comment), "start:"))
				if string(archive.Comment) == "" {
					i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return strings.HasPrefix(f.Name, kind+".") })
					if i < 0 {
						t.Fatalf("no document %s.*", kind)
					}
					target = archive.Files[i].Name
				}
				url := site[kind] + "/" + strings.TrimPrefix(target, kind+"/")
				findings, sum := check(t, o, url)
				broken := slices.ContainsFunc(findings, func(f Finding) bool { return f.Rule == id })
				switch {
				case kind == "pass" && (broken || sum.Musts > 0 || sum.Unread > 0):
					t.Errorf("the document that keeps the rule: %v", findings)
				case kind == "fail" && (!broken || sum.Unread > 0):
					t.Errorf("the document that breaks the rule: %v", findings)
				case sum.Documents == 0:
					t.Errorf("%s: no document was checked", kind)
				}
			}
		})
	}
	for _, r := range oaipmh.Rules() {
		met[r.ID] = met[r.ID] || r.Several // TestRepositoryRules
	}
	for id := range rules {
		if _, known := elsewhere()[id]; !met[id] && !known {
			t.Errorf("rule %s has no file in testdata/corpus", id)
		}
	}
}

// ofContents reports whether a rule shows only in resources and packages.
func ofContents(id string) bool {
	for _, r := range resourcesync.Rules() {
		if r.ID == id {
			return r.Contents
		}
	}
	return id == ruleResolves
}

// zipOf makes a package of a text in which a line "### NAME" begins each file.
func zipOf(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, file := range strings.Split(text, "### ")[1:] {
		name, body, _ := strings.Cut(file, "\n")
		f, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(f, body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var repeated = regexp.MustCompile(`(?m)^\{repeat (\d+)\}(.*\n)`)

// serveCorpus serves the documents of a rule, those that pass and those that fail each
// from a host of their own.
func serveCorpus(t *testing.T, archive *txtar.Archive) map[string]string {
	t.Helper()
	sites := map[string]string{}
	for _, kind := range []string{"pass", "fail"} {
		var host string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, f := range archive.Files {
				name := strings.TrimPrefix(f.Name, kind+"/")
				if "/"+name != r.URL.Path || !strings.HasPrefix(f.Name, kind) {
					continue
				}
				if path.Ext(name) == ".xml" {
					w.Header().Set("Content-Type", "text/xml; charset=utf-8")
				}
				text := strings.NewReplacer("{host}", host, "{self}", host+r.URL.Path).Replace(string(f.Data))
				text = repeated.ReplaceAllStringFunc(text, func(line string) string {
					m := repeated.FindStringSubmatch(line)
					n, _ := strconv.Atoi(m[1])
					return strings.Repeat(m[2], n)
				})
				if path.Ext(name) == ".zip" {
					text = string(zipOf(t, text))
				}
				_, _ = w.Write([]byte(text)) // who asked may have gone
				return
			}
			http.NotFound(w, r)
		}))
		t.Cleanup(server.Close)
		host, sites[kind] = server.URL, server.URL
	}
	return sites
}

// check runs the validator and returns all that it reports.
func check(t *testing.T, o Options, targets ...string) ([]Finding, Summary) {
	t.Helper()
	var findings []Finding
	o.Report = func(f Finding) { findings = append(findings, f) }
	sum, err := Run(context.Background(), o, targets)
	if err != nil {
		t.Fatal(err)
	}
	return findings, sum
}

// A Change List with until that grows shows in two walks only. Validate makes one, so
// the rule is reported to harvests.
func TestClosedListGrows(t *testing.T) {
	if _, err := os.Stat("testdata/corpus/rs-closed.txtar"); err == nil {
		t.Fatal("rs-closed has a file now: take it out of elsewhere")
	}
	const head = `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">` +
		`<rs:ln rel="up" href="http://example.org/c"/><rs:md capability="changelist" from="2026-01-01T00:00:00Z" until="2026-01-09T00:00:00Z"/>`
	change := func(day string) string {
		return `<url><loc>http://example.org/1</loc><rs:md change="updated" datetime="2026-01-0` + day + `T00:00:00Z"/></url>`
	}
	body := head + change("1") + "</urlset>"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(body)) // who asked may have gone
	}))
	defer server.Close()
	var rules []string
	var state resourcesync.State
	for range 2 {
		w := resourcesync.Walk{Client: server.Client(), URL: server.URL + "/list.xml", State: state, Report: func(p resourcesync.Problem) { rules = append(rules, p.Rule) }}
		for list, err := range w.Documents(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			for _, bad := range list.Entries() {
				if bad != nil {
					t.Error(bad)
				}
			}
		}
		state = w.Result().State
		if slices.Contains(rules, "rs-closed") != strings.Contains(body, "-02T") {
			t.Fatal(rules)
		}
		body = head + change("1") + change("2") + "</urlset>"
	}
}
