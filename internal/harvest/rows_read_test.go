package harvest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// readRows returns what a list says, a line each.
func readRows(kind, text string) (rows []string, whole bool, err error) {
	rd, err := newRowReader(strings.NewReader(text), kind)
	if err != nil {
		return nil, false, err
	}
	for {
		e, err := rd.row()
		var bad *rowFault
		switch {
		case errors.Is(err, io.EOF):
			return rows, rd.ended, nil
		case errors.As(err, &bad):
			rows = append(rows, fmt.Sprintf("%d: %s %q", rd.line, bad.rule, rd.raw))
		case err != nil:
			return nil, false, err
		default:
			md := &e.Metadata
			rows = append(rows, strings.TrimSpace(fmt.Sprintf("%d: %s %s %s %s %s %s", rd.line, e.Loc, e.LastMod, md.Type, md.Title, md.ID, md.Change)))
		}
	}
}

func TestRows(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxRow)
	for name, tt := range map[string]struct {
		kind, text string
		want       []string
		cut        bool // the list may have been cut off
	}{
		"the columns of the issue": {CSV, "url,modified,type\nhttp://h.example/a,2026-01-02,text/html\n", []string{"2: http://h.example/a 2026-01-02T00:00:00Z text/html"}, false},
		"others, in any order":     {CSV, "Size;Title;ID;Last-Modified;LOC\r\n5;A; urn:a ;2026-01-02 03:04:05;http://h.example/a\r\n", []string{"2: http://h.example/a 2026-01-02T03:04:05Z  A urn:a"}, false},
		"tabs, a mark, quotes":     {CSV, "\xEF\xBB\xBFtitle\turl\n\"A \"\"B\"\"\nC\"\thttp://h.example/a\nx\thttp://h.example/b\n", []string{"2: http://h.example/a   A \"B\"\nC", "4: http://h.example/b   x"}, false},
		"deleted":                  {CSV, "url,deleted\nhttp://h.example/a,true\nhttp://h.example/b,no\nhttp://h.example/c,perhaps\n", []string{"2: http://h.example/a     deleted", "3: http://h.example/b", `4: row "http://h.example/c,perhaps\n"`}, false},
		"blank lines":              {CSV, "url\n\n  \r\nhttp://h.example/a\n\n", []string{"4: http://h.example/a"}, false},
		"cut off":                  {CSV, "url\nhttp://h.example/a\nhttp://h.exam", []string{"2: http://h.example/a", "3: http://h.exam"}, true},
		"only a header":            {CSV, "url", nil, true},
		"too few fields":           {CSV, "title,url\nA\nB,http://h.example/b\n", []string{`2: row "A\n"`, "3: http://h.example/b   B"}, false},
		"too many fields":          {CSV, "url,title,type\nhttp://h.example/a,Smith, John,text/plain\nhttp://h.example/b,B,,,\n", []string{`2: row "http://h.example/a,Smith, John,text/plain\n"`, "3: http://h.example/b   B"}, false},
		"one column":               {CSV, "url\nhttp://h.example/a,b\n\"http://h.example/a,b\"\n", []string{`2: row "http://h.example/a,b\n"`, "3: http://h.example/a,b"}, false},
		"control characters":       {CSV, "url,id\nhttp://h.example/a,\"urn:a\nb\"\nhttp://h.example/b,urn:\x01\n", []string{`2: row "http://h.example/a,\"urn:a\nb\"\n"`, `4: row "http://h.example/b,urn:\x01\n"`}, false},
		"wrong URLs": {CSV, "url\n/a\nurn:a\nfile:///etc/passwd\nhttp://u:p@h.example/\nhttp:///a\n\"\"\nhttp://h.example/%zz\njavascript:a\nhttp://h.example/a#b\n", []string{
			`2: row-url "/a\n"`, `3: row-url "urn:a\n"`, `4: row-url "file:///etc/passwd\n"`, `5: row-url "http://u:p@h.example/\n"`, `6: row-url "http:///a\n"`, `7: row-url "\"\"\n"`, `8: row-url "http://h.example/%zz\n"`, `9: row-url "javascript:a\n"`, "10: http://h.example/a"}, false},
		"wrong times":             {CSV, "url,lastmod\nhttp://h.example/a,yesterday\nhttp://h.example/b,2026-13-01\nhttp://h.example/c,2026-01-02T03:04+01:00\n", []string{`2: row "http://h.example/a,yesterday\n"`, `3: row "http://h.example/b,2026-13-01\n"`, "4: http://h.example/c 2026-01-02T02:04:00Z"}, false},
		"Latin-1":                 {CSV, "url,title\nhttp://h.example/a,M\xfcller\n", []string{`2: row "http://h.example/a,M\xfcller\n"`}, false},
		"NUL":                     {CSV, "url\nhttp://h.example/\x00\n", []string{`2: row-url "http://h.example/\x00\n"`}, false},
		"a stray quote":           {CSV, "url,title\nhttp://h.example/a,a\"b\nhttp://h.example/b,c\"d\nhttp://h.example/c\n", []string{`2: row "http://h.example/a,a\"b\nhttp://h.example/b,c\"d\n"`, "4: http://h.example/c"}, false},
		"a quote that never ends": {CSV, "url,title\nhttp://h.example/a,\"x\nhttp://h.example/b,y\n", []string{`2: row "http://h.example/a,\"x\nhttp://h.example/b,y\n"`}, false},
		"a row without end":       {CSV, "url\nhttp://h.example/" + long + "\nhttp://h.example/b\n", []string{fmt.Sprintf("2: size %q", "http://h.example/"+long[:rowBytes-17]), "3: http://h.example/b"}, false},
		"plain text":              {Sitemap, "\xEF\xBB\xBFhttp://h.example/a\r\n http://h.example/b,c \n\nhttp://h.example/\"\n", []string{"1: http://h.example/a", "2: http://h.example/b,c", "4: http://h.example/%22"}, false},
		"plain text, cut off":     {Sitemap, "http://h.example/a\nhttp://h", []string{"1: http://h.example/a", "2: http://h"}, true},
		"nothing":                 {Sitemap, "", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, whole, err := readRows(tt.kind, tt.text)
			if err != nil || strings.Join(got, "|") != strings.Join(tt.want, "|") || whole == tt.cut {
				t.Errorf("got  %q, whole %v, %v\nwant %q", got, whole, err, tt.want)
			}
		})
	}
	for text, want := range map[string]string{
		"name,address\nA,http://h.example/\n": "one of them url",
		"":                                    "one of them url",
		"<urlset/>":                           `write kind "resourcesync"`,
		"\xFF\xFEu\x00":                       "UTF-16",
		"\x1F\x8B\x08":                        "compressed",
		"url,title\rhttp://h.example/,A\r":    "end in CR alone",
		"url\rhttp://h.example/\r\n":          "end in CR alone",
		long + long:                           "more than 65536 bytes",
	} {
		if _, _, err := readRows(CSV, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v, want %q", text, err, want)
		}
	}
}

// Nothing in a list makes the reader panic, loop or take back what it has read.
func FuzzRows(f *testing.F) {
	f.Add("url,modified\nhttp://h.example/a,2026-01-01\n\"", true)
	f.Add("http://h.example/a\n\n\x00\"\n", false)
	f.Fuzz(func(t *testing.T, text string, table bool) {
		kind := Sitemap
		if table {
			kind = CSV
		}
		rows, _, err := readRows(kind, text)
		if n := strings.Count(text, "\n") + 1; err == nil && len(rows) > n {
			t.Errorf("%d rows in %d lines", len(rows), n)
		}
	})
}
