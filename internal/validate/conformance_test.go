package validate

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/sip"
)

// docs/conformance.md is made of the tables of rules and of the requirements. make golden
// writes it anew.
func TestConformance(t *testing.T) {
	testenv.Golden(t, *update, "../../docs/conformance.md", []byte(conformance()))
}

// Every requirement names rules and code that exist, or says why there is neither, and
// every rule that is not a note is one of a specification.
func TestRequirements(t *testing.T) {
	rules, named := allRules(), map[string]bool{}
	for _, r := range atompmh.Rules() {
		rules[r.ID] = true
	}
	known := map[string]map[string]bool{}
	for _, spec := range specifications() {
		for _, q := range spec.requirements {
			if q.rules+q.code+q.why == "" || q.clause == "" || q.what == "" || q.level != Must && q.level != Should {
				t.Errorf("%s %s: neither rule, nor code, nor reason", spec.title, q.clause)
			}
			for id := range strings.FieldsSeq(q.rules) {
				if _, ok := rules[id]; !ok {
					t.Errorf("%s %s: there is no rule %s", spec.title, q.clause, id)
				}
				named[id] = true
			}
			for name := range strings.FieldsSeq(q.code) {
				dir, identifier, _ := strings.Cut(name, ".")
				if known[dir] == nil {
					known[dir] = identifiers(t, filepath.Join("../..", filepath.FromSlash(dir)))
				}
				if !known[dir][identifier] {
					t.Errorf("%s %s: package %s has no %s", spec.title, q.clause, dir, identifier)
				}
			}
		}
	}
	for id := range allRules() {
		if r := ruleTable()[id]; !named[id] && r.severity != Note && !strings.HasPrefix(r.clause, "RFC") {
			t.Errorf("rule %s is of no requirement", id)
		}
	}
}

// identifiers returns what a package declares, tests included: F, Type, Type.Method and
// Type.Field.
func identifiers(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s holds no Go files: %v", dir, err)
	}
	all := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				all[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					declare(all, s)
				}
			}
		}
	}
	return all
}

// receiver returns "Type." for a method, "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if name, ok := typ.(*ast.Ident); ok {
		return name.Name + "."
	}
	return ""
}

func declare(all map[string]bool, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			all[n.Name] = true
		}
	case *ast.TypeSpec:
		all[s.Name.Name] = true
		if st, ok := s.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, n := range f.Names {
					all[s.Name.Name+"."+n.Name] = true
				}
			}
		}
	}
}

func conformance() string {
	var b strings.Builder
	b.WriteString(`# Conformance

This file is made from the code: ` + "`make golden`" + ` writes it anew, and a test fails when it is stale.

The first part lists the rules that ` + "`bridge validate`" + ` checks, with the clause that each is from; each has a document that keeps it and one that breaks it in
internal/validate/testdata/corpus. The second part lists what the specifications require, clause by clause: the rules that find what breaks it, the code (a
package and what is declared in it) or the test that fulfils it in a bridge, or why there is neither.
`)
	b.WriteString("\n## Rules\n")
	table := func(title string, rows [][4]string) {
		fmt.Fprintf(&b, "\n### %s\n\n| rule | severity | what it says | clause |\n|---|---|---|---|\n", title)
		for _, r := range rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r[0], r[1], cell(r[2]), cell(r[3]))
		}
	}
	var rows [][4]string
	for _, r := range resourcesync.Rules() {
		rows = append(rows, [4]string{r.ID, r.Severity + several(r.Several, r.Contents), r.Title, r.Clause})
	}
	table("ResourceSync", rows)
	rows = nil
	for _, r := range atompmh.Rules() {
		severity := r.Severity + several(r.Several, r.Contents)
		if r.Reader {
			severity = "(for consumers)"
		}
		rows = append(rows, [4]string{r.ID, severity, r.Title, r.Clause})
	}
	table("Atom-PMH", rows)
	rows = nil
	for _, r := range oaipmh.Rules() {
		rows = append(rows, [4]string{r.ID, r.Severity + several(r.Several, false), r.Title, oaiClause(r)})
	}
	table("OAI-PMH", rows)
	rows = nil
	for _, r := range sip.Rules() {
		rows = append(rows, [4]string{r.ID, r.Severity, r.Title, r.Clause})
	}
	table("SIP", rows)
	b.WriteString("\n† shows only in several documents: with --follow. ‡ shows only in resources and packages: with --contents, or when a package itself is checked.\n\n## Requirements\n")
	for _, spec := range specifications() {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| no. | clause | | what is required | rules | in a bridge |\n|---|---|---|---|---|---|\n", spec.title, spec.text)
		for i, q := range spec.requirements {
			done := ""
			if q.code != "" {
				done = "`" + strings.Join(strings.Fields(q.code), "`, `") + "`"
			}
			if q.why != "" {
				done = strings.TrimPrefix(done+". "+q.why, ". ")
			}
			fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s |\n", i+1, q.clause, q.level, cell(q.what), strings.Join(strings.Fields(q.rules), ", "), cell(done))
		}
	}
	return b.String()
}

func several(several, contents bool) string {
	switch {
	case several:
		return " †"
	case contents:
		return " ‡"
	}
	return ""
}

// cell escapes what would end a cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
