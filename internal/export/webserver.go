package export

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/pattern"
)

// maxMapped is how many records of a set are in a map of nginx: those with an unusual
// media type, those that were deleted last, and redirects. nginx holds its maps in
// memory. Caddy searches its maps from their beginning, so they have fewer.
const maxMapped, maxMappedCaddy = 100_000, 5_000

// mapDigits is how many digits at the end of a key stand for it in maps: 100 bits of a
// hash. A bucket of nginx's maps has 64 bytes unless it is configured, and holds no key
// of more than 46.
const mapDigits = 20

//go:embed *.tmpl
var templates embed.FS

// site is the data of the templates of configurations.
type site struct {
	Base, Origin string // Origin is the scheme and the host of Base
	Path         string // of Base, "" when there is none
	PathPattern  string // Path as a regular expression
	Folder, Own  string
	Sets         []setSite
}

// setSite is a set whose records web servers answer.
type setSite struct {
	Name     string
	Variable string // Name as a part of a variable's name
	Link     string // of the Capability List
	Mirror   bool   // else redirects
	Default  string // type of the records' own URLs
	// Extensions are the types of the further URLs, and Exceptions those of records that
	// have another one.
	Extensions []extensionType
	Exceptions []exception
}

type extensionType struct{ Name, Type string }

type exception struct {
	N    string // not empty, and not 0
	Type string
}

// mapFiles are the records of a set that a web server needs to have listed, by server.
type mapFiles struct {
	nginxGone, nginxTypes, nginxTargets bytes.Buffer
	caddyGone, caddyTypes, caddyTargets bytes.Buffer
	s3Types                             bytes.Buffer
	gone                                []string // digits of deleted records, the last ones at least
	types, targets                      int
}

// writeConfigurations writes the configurations of web servers.
func (x *exporter) writeConfigurations(ctx context.Context) error {
	u, err := url.Parse(x.base)
	if err != nil {
		return err
	}
	s := site{Base: x.base, Origin: u.Scheme + "://" + u.Host, Path: u.Path, PathPattern: regexp.QuoteMeta(u.Path), Folder: x.path, Own: x.path + "/" + own}
	for _, name := range slices.Sorted(maps.Keys(x.new.Sets)) {
		set := x.new.Sets[name]
		if err := ctx.Err(); err != nil {
			return err
		}
		if set.Content == event.Reference.String() {
			continue
		}
		v, err := x.writeMaps(name, set)
		if err != nil {
			return err
		}
		s.Sets = append(s.Sets, *v)
	}
	for name, file := range map[string]string{"nginx-maps.tmpl": "/nginx/maps.conf", "nginx-locations.tmpl": "/nginx/locations.conf", "Caddyfile.tmpl": "/Caddyfile", "s3.tmpl": "/s3.sh"} {
		t, err := template.ParseFS(templates, name)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, s); err != nil {
			return err
		}
		if err := x.keep(own+file, b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// writeMaps writes the maps of single records of a set that web servers need.
func (x *exporter) writeMaps(name string, set *setState) (*setSite, error) {
	v := &setSite{Name: name, Variable: strings.ReplaceAll(name, "-", "_"), Link: x.base + "/sets/" + name + "/capabilitylist.xml", Mirror: set.Content == event.Mirror.String()}
	v.chooseTypes(set)
	if !x.renewed[name] && x.size(own+"/nginx/"+name+".gone") >= 0 {
		return v, nil
	}
	usual := map[string]string{"": v.Default}
	for _, e := range v.Extensions {
		usual[e.Name] = e.Type
	}
	numbers := map[string]string{}
	for _, e := range v.Exceptions {
		numbers[e.Type] = e.N
	}
	var m mapFiles
	for _, b := range []*bytes.Buffer{&m.caddyGone, &m.caddyTypes, &m.caddyTargets} {
		b.WriteString("none none\n") // Caddy reads no empty file
	}
	_, err := x.readRecords(name, func(r *record) error {
		if len(r.key) < mapDigits {
			return errList
		}
		digits := r.key[len(r.key)-mapDigits:]
		if r.gone {
			m.addGone(digits)
			return nil
		}
		for i := range r.files {
			f := &r.files[i]
			switch id := digits + strings.TrimPrefix(f.path(r.key), r.key); {
			case !v.Mirror:
				m.addTarget(id, f.value)
			case plainType(f.value) != usual[f.extension()]:
				m.addType(id, f.path(r.key), plainType(f.value), numbers)
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) { // a set that was never exported with records
		err = nil
	}
	if err != nil {
		return nil, err
	}
	m.writeGone()
	m.report(func(format string, args ...any) { x.problem("set "+name+": "+format, args...) })
	for file, b := range map[string]*bytes.Buffer{
		"/nginx/" + name + ".gone": &m.nginxGone, "/nginx/" + name + ".types": &m.nginxTypes, "/nginx/" + name + ".redirects": &m.nginxTargets,
		"/caddy/" + name + ".gone": &m.caddyGone, "/caddy/" + name + ".types": &m.caddyTypes, "/caddy/" + name + ".redirects": &m.caddyTargets,
		"/s3/" + name + ".types": &m.s3Types,
	} {
		if err := x.keep(own+file, b.Bytes()); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// chooseTypes finds the usual type of each extension: what most files have.
func (v *setSite) chooseTypes(set *setState) {
	rare := map[string]bool{}
	for _, ext := range slices.Sorted(maps.Keys(set.Types)) {
		counts := map[string]int64{}
		for t, n := range set.Types[ext] {
			counts[plainType(t)] += n
		}
		types := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
			return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
		})
		if ext == "" {
			v.Default = types[0]
		} else {
			v.Extensions = append(v.Extensions, extensionType{ext, types[0]})
		}
		for _, t := range types[1:] {
			rare[t] = true
		}
	}
	v.Default = cmp.Or(v.Default, unknownType)
	for i, t := range slices.Sorted(maps.Keys(rare)) {
		v.Exceptions = append(v.Exceptions, exception{fmt.Sprintf("t%d", i+1), t})
	}
}

// unknownType is the media type of bytes of which nothing is known.
const unknownType = "application/octet-stream"

// plainForm matches media types that may stand in a configuration.
var plainForm = pattern.Of(`^[A-Za-z0-9][A-Za-z0-9!#&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#&^_.+-]*( *; *[A-Za-z0-9_-]+=[A-Za-z0-9_:/.+-]+)*$`)

// plainType returns a media type that may stand in a configuration: Sources choose them.
func plainType(t string) string {
	if !plainForm().MatchString(t) || len(t) > event.MaxType {
		return unknownType
	}
	return t
}

// report reports what web servers lack because their maps would be too large. It does not
// report deleted records: for those they answer 404 instead of 410.
func (m *mapFiles) report(problem func(format string, args ...any)) {
	for _, of := range []struct {
		server string
		most   int
	}{{"nginx", maxMapped}, {"Caddy", maxMappedCaddy}} {
		if m.targets > of.most {
			problem("the configuration of %s redirects %d URLs of %d: use content = \"reference\" or bridge serve for a set of so many records", of.server, of.most, m.targets)
		}
		if m.types > of.most {
			problem("the configuration of %s has the types of %d files of %d with an unusual one: it serves the others with the usual type of their extension", of.server, of.most, m.types)
		}
	}
}

func (m *mapFiles) addGone(digits string) {
	if len(m.gone) == 2*maxMapped {
		m.gone = append(m.gone[:0], m.gone[maxMapped:]...)
	}
	m.gone = append(m.gone, digits)
}

// writeGone writes the records that were deleted last.
func (m *mapFiles) writeGone() {
	for _, digits := range m.gone[max(len(m.gone)-maxMapped, 0):] {
		fmt.Fprintf(&m.nginxGone, "%s yes;\n", digits)
	}
	for _, digits := range m.gone[max(len(m.gone)-maxMappedCaddy, 0):] {
		fmt.Fprintf(&m.caddyGone, "%s yes\n", digits)
	}
}

func (m *mapFiles) addType(id, name, mediaType string, numbers map[string]string) {
	if m.types++; m.types <= maxMapped {
		fmt.Fprintf(&m.nginxTypes, "%s %s;\n", id, numbers[mediaType])
	}
	if m.types <= maxMappedCaddy {
		fmt.Fprintf(&m.caddyTypes, "%s \"%s\"\n", id, mediaType)
	}
	fmt.Fprintf(&m.s3Types, "%s\t%s\n", name, mediaType)
}

func (m *mapFiles) addTarget(id, href string) {
	href = plainURL(href)
	if m.targets++; m.targets <= maxMapped {
		fmt.Fprintf(&m.nginxTargets, "%s \"%s\";\n", id, href)
	}
	if m.targets <= maxMappedCaddy {
		fmt.Fprintf(&m.caddyTargets, "%s \"%s\"\n", id, href)
	}
}

// plainURL escapes characters that have a meaning in a configuration: Sources choose URLs.
func plainURL(href string) string {
	var b strings.Builder
	for _, c := range []byte(href) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"\\$`{}<>^|", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
