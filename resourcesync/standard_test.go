package resourcesync

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// The examples as they stand in the texts of the standard and of D-Lib Magazine,
// where these lie beside the repository: read, written, read again. The texts went
// through character recognition, so what that did to the markup is undone first.
func TestStandard(t *testing.T) {
	for _, text := range []struct {
		file     string
		examples int // documents of the framework that the text shows whole
	}{
		{"specs/resourcesync.txt", 26},
		{"specs/dlib-2013-resource-synchronization.txt", 5},
	} {
		t.Run(text.file, func(t *testing.T) {
			raw, err := os.ReadFile(testenv.Shared(t, text.file))
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			joined := regexp.MustCompile("```\\s*```").ReplaceAllString(string(raw), "") // where a page ends
			for _, block := range regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(joined, -1) {
				doc := recognised(block[1])
				if !strings.HasPrefix(doc, "<?xml") || strings.Contains(doc, "<feed") || strings.Contains(doc, "<resync") {
					continue
				}
				n++
				got := readAll(t, []byte(doc))
				if len(got.bad) > 0 || len(got.doc.Entries) != strings.Count(doc, "<loc>") || !got.doc.Capability.known() {
					t.Errorf("%s: %v, %d entries\n%s", got.doc.Capability, got.bad, len(got.doc.Entries), doc)
				}
				again := rewrite(t, got.doc)
				if ours, theirs := meaning(t, again), meaning(t, []byte(doc)); ours != theirs {
					t.Errorf("written again:\n%s\noriginal:\n%s", ours, theirs)
				}
				if once := readAll(t, again).doc; !reflect.DeepEqual(placeless(once), placeless(got.doc)) {
					t.Errorf("read again:\n%+v\nbefore:\n%+v", once, got.doc)
				}
			}
			if n != text.examples {
				t.Errorf("%d examples, want %d", n, text.examples)
			}
		})
	}
}

// recognised undoes what character recognition did to markup.
func recognised(doc string) string {
	doc = strings.NewReplacer("</pre>", "", "</url>d", "</url>", "lengt.h=", "length=", "sha-\n256:", "sha-256:", `\verb|`, "", `"|`, `"`).Replace(doc)
	doc = regexp.MustCompile(`<(/?)1+(r?)(7?)1>|<(/?)1+rl>`).ReplaceAllString(doc, "<$1${4}url>")
	doc = regexp.MustCompile(`</url>\s*</url>`).ReplaceAllString(doc, "</url>")
	doc = regexp.MustCompile(`/>(\s*)href=`).ReplaceAllString(doc, `/><rs:ln rel="up"${1}href=`)
	// Start tags that were lost: a loc follows the end of what came before.
	lost := regexp.MustCompile(`(</url>|</sitemap>|/>)(\s*)<loc>`)
	tag := "<url>"
	if strings.Contains(doc, "<sitemapindex") {
		tag = "<sitemap>"
	}
	return strings.TrimSpace(lost.ReplaceAllString(doc, "$1"+tag+"$2<loc>"))
}
