package translate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestTitles(t *testing.T) {
	const ns = ` xmlns:d="http://purl.org/dc/terms/"`
	for _, c := range []struct{ xml, core, any string }{
		{dcOf + "<dc:title> A\n <b>b</b>c </dc:title><dc:title>2</dc:title></oai_dc:dc>", "A bc", "A bc"},
		{dcOf + "<dc:title/><dc:title>2</dc:title></oai_dc:dc>", "2", "2"},
		{"<r" + ns + "><title>first</title><d:title>core</d:title></r>", "core", "core"},
		{"<r" + ns + "><title>first</title></r>", "", "first"},
		{`<mods xmlns="http://www.loc.gov/mods/v3"><titleInfo><title/><title>A map</title><title>x</title></titleInfo></mods>`, "", "A map"},
		{"<r><name>title</name></r>", "", ""},
		{"<r" + ns + "><!-- <d:title>no</d:title> --><![CDATA[<d:title>no</d:title>]]><?p <d:title>no</d:title>?><d:title>yes</d:title></r>", "yes", "yes"},
		{"<r" + ns + ` a="<d:title>" b='>"'><d:title c=">">yes</d:title></r>`, "yes", "yes"},
		{"<r" + ns + `><e xmlns:d="urn:x" xmlns="http://purl.org/dc/terms/"><e xmlns:d="urn:y" xmlns=""/><d:title/><e><title>core</title></e></e></r>`, "core", "core"},
		{"<r" + ns + `><e xmlns:d="urn:x"><d:title>other</d:title><e xmlns:d = 'http://purl.org/dc/terms/'/></e><d:title>core</d:title></r>`, "core", "core"},
		{`<title xmlns="http://purl.org/dc/elements/1.1/">itself</title>`, "itself", "itself"},
		{"<d:title\n" + ns + "\t>&lt;i> &#38; <![CDATA[<b>]]></d:title>", "<i> & <b>", "<i> & <b>"},
		{"<r" + ns + "><d:title>cut", "", ""},
		{"<r" + ns + "><d:title", "", ""},
		{"<r" + ns + "><d:title>" + strings.Repeat("ä", 600) + "</d:title></r>", strings.Repeat("ä", 500), strings.Repeat("ä", 500)},
		{"<r" + ns + "><d:title><e><d:title/> <title/></e></d:title><e><e><d:title>yes</d:title></e></e></r>", "yes", "yes"},
		{"", "", ""},
	} {
		if got := RecordTitle([]byte(c.xml)); got != c.core {
			t.Errorf("%s: title %q, want %q", c.xml, got, c.core)
		}
		if got := firstTitle([]byte(c.xml), true); got != c.any {
			t.Errorf("%s: title of any namespace %q, want %q", c.xml, got, c.any)
		}
	}
}

// Whatever is in a record, its title takes time in proportion to its length.
func TestTitleCost(t *testing.T) {
	const deep, ns = 200, ` xmlns:d="http://purl.org/dc/terms/"`
	nested := func(name, content string) []byte {
		return []byte("<r" + ns + ">" + strings.Repeat("<"+name+">", deep) + content + strings.Repeat("</"+name+">", deep) + "</r>")
	}
	empty := strings.Repeat("<a/>", 64<<10)
	docs := map[string][]byte{
		"titles in each other, without text":                 nested("d:title", empty),
		"titles of any namespace in each other":              nested("title", empty),
		"titles in one that has text":                        []byte("<r" + ns + "><title>x" + string(nested("d:title", empty)) + "</title></r>"),
		"titles beside each other, without text, in another": nested("d:title", strings.Repeat("<d:title/>", 32<<10)),
	}
	docs["titles whose prefix was declared before many others"] = []byte(strings.NewReplacer("<p:e/>", "<p:title/>", `"urn:p"`, `"http://purl.org/dc/x"`).Replace(testenv.ManyPrefixes(200, 2<<20)))
	for name, element := range testenv.Hostile(256 << 10) {
		docs["in a title: "+name] = []byte("<r" + ns + "><d:title>" + element + "</d:title></r>")
	}
	testenv.AffordableAll(t, docs, 1, func(record []byte) {
		_, _ = RecordTitle(record), firstTitle(record, true)
	})
}

// A title is what a decoder of XML reads as one.
func TestTitlesAgreeWithADecoder(t *testing.T) {
	pieces := rapid.SliceOf(rapid.SampledFrom([]string{"<title>", "</title>", "<d:title>", "</d:title>", "<e>", "</e>", "<e/>", `<e a="/>">`, `<e xmlns="http://purl.org/dc/terms/">`,
		`<e xmlns:d="urn:x" b='"'>`, `<d:title xmlns:d="http://purl.org/dc/elements/1.1/"/>`, "a", " ", "<!--<title>b</title>-->", "<![CDATA[<title>]]>", "&amp;", "<?p <title>c</title>?>", "/>", "<titles>", "</titles>"}))
	rapid.Check(t, func(t *rapid.T) {
		record := []byte(`<r xmlns:d="http://purl.org/dc/terms/">` + strings.Join(pieces.Draw(t, "pieces"), "") + "</r>")
		any := rapid.Bool().Draw(t, "any")
		want, err := decodedTitle(record, any)
		got := firstTitle(record, any)
		if err == nil && got != want {
			t.Fatalf("%s: title %q, want %q", record, got, want)
		}
	})
}

// decodedTitle is firstTitle by way of the decoder; an error is one of the record.
func decodedTitle(record []byte, any bool) (title string, err error) {
	first := ""
	for d := xml.NewDecoder(bytes.NewReader(record)); ; {
		at := d.InputOffset()
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", err
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "title" {
			continue
		}
		text := elementText(record[at:])
		switch core := strings.HasPrefix(start.Name.Space, "http://purl.org/dc/"); {
		case text == "":
		case core && title == "":
			title = text
		case first == "":
			first = text
		}
	}
	if title == "" && any {
		title = first
	}
	return title, nil
}

// The text of an element is the same whether it needs the decoder or not.
func TestElementText(t *testing.T) {
	for xml, want := range map[string]string{
		"<t>plain</t><t>other</t>":                  "plain",
		"<t a='/>' b=\">\">in\r\n\ttwo  words </t>": "in two words",
		"<t>Fish &amp; chips</t>":                   "Fish & chips",
		"<t>a <e>b</e> c</t>":                       "a b c",
		"<t>a<!-- b --><![CDATA[ & ]]>c</t>":        "a & c",
		"<t></t>x</r>":                              "",
		"<t/>x</r>":                                 "",
		"<t a='b'/>x</r>":                           "",
		"<t>cut off":                                "",
	} {
		if got := elementText([]byte(xml)); got != want {
			t.Errorf("%s: %q, want %q", xml, got, want)
		}
	}
}
