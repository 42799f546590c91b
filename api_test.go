package bridge_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// public are the packages that other modules import.
var public = []string{"atompmh", "event", "resourcesync", "sip", "sip/mail", "translate"}

// No exported API mentions an internal package: go doc would show a name that its
// reader can neither look up nor use.
func TestExportedAPI(t *testing.T) {
	load := compiled(t)
	for _, name := range public {
		dir := filepath.FromSlash(name)
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		sources := map[string][]byte{}
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
				continue
			}
			if sources[f.Name()], err = os.ReadFile(filepath.Join(dir, f.Name())); err != nil {
				t.Fatal(err)
			}
		}
		mentions, err := internalMentions(load, module+"/"+name, sources)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mentions {
			t.Errorf("%s: %s", name, m)
		}
	}
}

// The check itself finds each way to mention an internal type.
func TestExportedAPICheck(t *testing.T) {
	load := compiled(t)
	for _, c := range []struct{ declaration, name string }{
		{"type Limits = strictxml.Limits", "Limits"},
		{"type limits = strictxml.Limits; type Limits = limits", "Limits"},
		{"type Limits strictxml.Limits", "Limits"},
		{"type Options struct{ Limits strictxml.Limits }", "Options.Limits"},
		{"type Options struct{ strictxml.Limits }", "Options.Limits"},
		{"type inner struct{ Limits strictxml.Limits }; type Options struct{ inner }", "Options.inner.Limits"},
		{"func Read(strictxml.Limits) {}", "Read"},
		{"func Read() func(map[string][]*strictxml.Limits) { return nil }", "Read"},
		{"func Read[L interface{ strictxml.Limits }](L) {}", "Read"},
		{"type Reader int; func (*Reader) Read(chan strictxml.Limits) {}", "Reader.Read"},
		{"type Reader interface{ Read() strictxml.Limits }", "Reader.Read"},
		{"var Default strictxml.Limits", "Default"},
		{"var Default = int64(strictxml.PieceSize)", "Default"},
		{"const Cap = strictxml.MaxReference", "Cap"},
		{"type reader struct{ Limits strictxml.Limits }; func Open() *reader { return nil }", "Open.Limits"},

		{"type Options struct{ limits strictxml.Limits }", ""},
		{"type reader struct{ Limits strictxml.Limits }", ""},
		{"func read(strictxml.Limits) {}", ""},
		{"func Read() { _ = strictxml.Limits{} }", ""},
		{"const Cap = 1 + room; const room = strictxml.MaxReference", ""},
	} {
		source := "package p; import \"" + module + "/internal/strictxml\"; var _ strictxml.Limits; " + c.declaration
		got, err := internalMentions(load, module+"/p", map[string][]byte{"p.go": []byte(source)})
		if err != nil {
			t.Fatal(err)
		}
		if c.name == "" && len(got) > 0 || c.name != "" && (len(got) == 0 || !strings.HasPrefix(got[0], c.name+" ")) {
			t.Errorf("%s: %q, want %q", c.declaration, got, c.name)
		}
	}
}

// compiled returns an importer of the public packages and of all that they import,
// from what the go command has compiled.
func compiled(t *testing.T) types.Importer {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export")
	for _, name := range append(public, "internal/strictxml") {
		cmd.Args = append(cmd.Args, module+"/"+name)
	}
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -export: %v\n%s", err, stderr.String())
	}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		file, ok := exports[path]
		if !ok {
			return nil, fmt.Errorf("go list names no package %s", path)
		}
		return os.Open(file)
	})
}

// internalMentions returns where the exported API of a package mentions what an
// internal package of this module declares. Each begins with the exported name.
func internalMentions(load types.Importer, path string, sources map[string][]byte) ([]string, error) {
	set := token.NewFileSet()
	var files []*ast.File
	for name, source := range sources {
		f, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	p, err := (&types.Config{Importer: load}).Check(path, set, files, &info)
	if err != nil {
		return nil, err
	}
	a := api{of: p}
	for _, name := range p.Scope().Names() {
		if ast.IsExported(name) {
			o := p.Scope().Lookup(name)
			a.name = name
			a.seen = map[types.Type]bool{}
			a.mentioned(o.Type())
		}
	}
	// A type cannot tell what the value of a constant or variable mentions, nor by
	// what other type it was defined.
	for _, f := range files {
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				for _, s := range g.Specs {
					a.source(s, &info)
				}
			}
		}
	}
	slices.Sort(a.found)
	return slices.Compact(a.found), nil
}

// api walks what go doc shows of a package.
type api struct {
	of    *types.Package
	name  string // of what is being looked at
	seen  map[types.Type]bool
	found []string
}

// object notes an object that is internal, and reports whether it belongs to the
// package that is looked at.
func (a *api) object(o types.Object) (own bool) {
	if o.Pkg() == nil {
		return false
	}
	if strings.HasPrefix(o.Pkg().Path(), module+"/internal/") {
		a.found = append(a.found, fmt.Sprintf("%s mentions %s.%s", a.name, local(o.Pkg().Path()), o.Name()))
	}
	return o.Pkg() == a.of
}

// mentioned walks a type: its parts, and of a type that the package declares what
// its user can reach.
func (a *api) mentioned(t types.Type) {
	if t == nil || a.seen[t] {
		return
	}
	a.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		a.object(t.Obj())
		a.mentioned(t.Rhs())
	case *types.Named:
		for arg := range t.TypeArgs().Types() {
			a.mentioned(arg)
		}
		if !a.object(t.Obj()) {
			return
		}
		a.mentioned(t.Underlying())
		for m := range t.Methods() {
			a.member(m)
		}
	case *types.Struct:
		for f := range t.Fields() {
			a.member(f)
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			a.member(m)
		}
		for e := range t.EmbeddedTypes() {
			a.mentioned(e)
		}
	case *types.Signature:
		for p := range t.TypeParams().TypeParams() {
			a.mentioned(p.Constraint())
		}
		a.mentioned(t.Params())
		a.mentioned(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			a.mentioned(v.Type())
		}
	case *types.Union:
		for term := range t.Terms() {
			a.mentioned(term.Type())
		}
	case *types.Map:
		a.mentioned(t.Key())
		a.mentioned(t.Elem())
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		a.mentioned(t.Elem())
	}
}

// member walks a field or method that is exported, or whose own fields and methods
// are those of the struct that embeds it.
func (a *api) member(o types.Object) {
	v, field := o.(*types.Var)
	if !o.Exported() && (!field || !v.Embedded()) {
		return
	}
	outer := a.name
	a.name += "." + o.Name()
	a.mentioned(o.Type())
	a.name = outer
}

// source notes what the values of exported constants and variables mention, and a
// type that an exported one is defined by.
func (a *api) source(s ast.Spec, info *types.Info) {
	var in []ast.Expr
	switch s := s.(type) {
	case *ast.ValueSpec:
		if i := slices.IndexFunc(s.Names, (*ast.Ident).IsExported); i >= 0 {
			a.name, in = s.Names[i].Name, s.Values
		}
	case *ast.TypeSpec:
		if by, ok := s.Type.(*ast.SelectorExpr); ok && s.Name.IsExported() {
			a.name, in = s.Name.Name, []ast.Expr{by}
		}
	}
	for _, e := range in {
		ast.Inspect(e, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && info.Uses[id] != nil {
				a.object(info.Uses[id])
			}
			return true
		})
	}
}
