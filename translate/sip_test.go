package translate

import (
	"crypto/sha256"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

const sipFeed = "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1"

// What is absent, what is empty and what stands elsewhere are different records.
func TestAssignedIdentifierTellsSourcesApart(t *testing.T) {
	sources := map[string]*sip.Source{
		"an identifier":            {Identifier: new("145")},
		"another identifier":       {Identifier: new("1450")},
		"a sequence instead":       {Sequence: new("145")},
		"both":                     {Sequence: new("145"), Identifier: new("145")},
		"an empty sequence":        {Sequence: new(""), Identifier: new("145")},
		"a submitter":              {Submitter: &sip.Submitter{Name: "a", EmailAddress: "b"}, Identifier: new("145")},
		"an empty submitter":       {Submitter: &sip.Submitter{}, Identifier: new("145")},
		"the border moved":         {Submitter: &sip.Submitter{Name: "ab"}, Identifier: new("145")},
		"the other border moved":   {Submitter: &sip.Submitter{EmailAddress: "ab"}, Identifier: new("145")},
		"an identifier of nothing": {Identifier: new("")},
		"a border in a sequence":   {Sequence: new("1"), Identifier: new("45145")},
	}
	seen := map[string]string{}
	for name, s := range sources {
		id := AssignedIdentifier(sipFeed, s)
		if other := seen[id]; other != "" {
			t.Errorf("%s and %s get the same identifier %s", name, other, id)
		}
		seen[id] = name
		if again := AssignedIdentifier(sipFeed, s); again != id {
			t.Errorf("%s: %s, then %s", name, id, again)
		}
		if AssignedIdentifier("urn:uuid:0b8b5f0c-9d3e-4f46-8a57-3c1e6a0d9b22", s) == id {
			t.Errorf("%s: another set assigns the same identifier", name)
		}
		if len(id) != len("urn:uuid:00000000-0000-0000-0000-000000000000") || id[9+14] != '8' || !strings.ContainsRune("89ab", rune(id[9+19])) {
			t.Errorf("%s: %s is no UUID of version 8", name, id)
		}
	}
	// Stored identifiers depend on it, so it stays what it is.
	if got, want := AssignedIdentifier(sipFeed, &sip.Source{Identifier: new("145")}), "urn:uuid:6318bb7c-00da-82b3-997c-4e6ebbe0d960"; got != want {
		t.Errorf("the identifier of 145 was %s, now %s", want, got)
	}
}

func TestFromRecord(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	stamp, _ := event.StampOf(now)
	record := &sip.Record{XML: []byte(`<r xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title> A <i>map</i>
	of it</dc:title><dc:title>another</dc:title></r>`)}
	want := event.Observation{
		Record: "urn:x:1", SourceIdentifier: "145", Order: stamp, Modified: stamp, Title: "A map of it", Fetched: true,
		Representations: []event.Representation{{Href: "urn:x:1", Type: "application/xml", Length: int64(len(record.XML)), Hash: event.HashOf(sha256.Sum256(record.XML))}},
	}
	if got := FromRecord("urn:x:1", &sip.Source{Identifier: new("145")}, record, now); !reflect.DeepEqual(got, want) {
		t.Errorf("from a record:\n got %+v\nwant %+v", got, want)
	}
	sub := &Submitted{Assigned: "urn:x:1", SourceIdentifier: "145", Title: "A map of it", Length: want.Representations[0].Length, Content: sha256.Sum256(record.XML)}
	if got := FromSubmitted(sub, now); !reflect.DeepEqual(got, want) {
		t.Errorf("from a submission:\n got %+v\nwant %+v", got, want)
	}
	want.Record, want.SourceIdentifier = "145", ""
	want.Representations[0].Href = "urn:x-bridge:sip:145"
	if got := FromRecord("145", &sip.Source{Identifier: new("145")}, record, now); !reflect.DeepEqual(got, want) {
		t.Errorf("an identifier that is the source's own:\n got %+v\nwant %+v", got, want)
	}
	if got := FromRecord("145", nil, record, now); got.SourceIdentifier != "" {
		t.Errorf("without a source, the identifier there is %q", got.SourceIdentifier)
	}
}

func TestIdentifierIRI(t *testing.T) {
	for id, want := range map[string]string{
		"urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1": "",
		"https://library.example/records/1?x=ü#y":       "",
		"info:lccn/1":          "",
		"145":                  "urn:x-bridge:sip:145",
		"":                     "urn:x-bridge:sip:",
		"a/b c":                "urn:x-bridge:sip:a%2Fb%20c",
		"ü":                    "urn:x-bridge:sip:%C3%BC",
		"file:///etc/passwd":   "urn:x-bridge:sip:file%3A%2F%2F%2Fetc%2Fpasswd",
		"FILE:x":               "urn:x-bridge:sip:FILE%3Ax",
		"1:2":                  "urn:x-bridge:sip:1%3A2",
		"http://[::1":          "urn:x-bridge:sip:http%3A%2F%2F%5B%3A%3A1",
		"urn:with space":       "urn:x-bridge:sip:urn%3Awith%20space",
		"urn:x\u0085":          "urn:x-bridge:sip:urn%3Ax%C2%85",
		`urn:"quoted"`:         "urn:x-bridge:sip:urn%3A%22quoted%22",
		`C:\records\1`:         "urn:x-bridge:sip:C%3A%5Crecords%5C1",
		"urn:":                 "urn:x-bridge:sip:urn%3A",
		"http://x.example/%zz": "urn:x-bridge:sip:http%3A%2F%2Fx.example%2F%25zz",
	} {
		if want == "" {
			want = id
		}
		if got := identifierIRI(id); got != want {
			t.Errorf("%q: %s, want %s", id, got, want)
		}
	}
}

func TestFillRecordURL(t *testing.T) {
	const in = "https://library.example/records/{assigned-identifier}"
	for _, c := range []struct{ template, assigned, want string }{
		{in, "145", "https://library.example/records/145"},
		{in, "urn:x:a/b?c#d&e=%2e~_-.", "https://library.example/records/urn%3Ax%3Aa%2Fb%3Fc%23d%26e%3D%252e~_-."},
		{in, "Zürich", "https://library.example/records/Z%C3%BCrich"},
		{in, "...", "https://library.example/records/..."},
		{in, "a..b", "https://library.example/records/a..b"},
		{in + ".xml", "..", "https://library.example/records/...xml"},
		{in + "/oai?x=1", "1", "https://library.example/records/1/oai?x=1"},
		{"http://l.example:8080/get?id={assigned-identifier}&as=xml", "a&b=../c", "http://l.example:8080/get?id=a%26b%3D..%2Fc&as=xml"},
		{in, "@evil.example/", "https://library.example/records/%40evil.example%2F"},
		{in, "\r\nHost: evil.example", "https://library.example/records/%0D%0AHost%3A%20evil.example"},
	} {
		if got, err := FillRecordURL(c.template, c.assigned); err != nil || got != c.want {
			t.Errorf("%q in %s: %s, %v, want %s", c.assigned, c.template, got, err, c.want)
		}
	}
	for _, c := range []struct{ template, assigned, want string }{
		{in, ".", "lead out"}, {in, "..", "lead out"}, {in, "", "lead out"},
		{in, "../admin", "lead out"}, {in, "a/../../admin", "lead out"}, {in, `a\..\b`, "lead out"}, {in, "a/.", "lead out"},
		{in + "/oai", "..", "lead out"},
		{in, strings.Repeat("ü", 4096), "a URL of 24608 bytes; want at most 8192"},
		{"https://library.example/records/", "1", "has no place"},
		{"https://{assigned-identifier}/", "evil.example", "elsewhere"},
		{"https://library.example{assigned-identifier}/", ".evil.example", "elsewhere"},
	} {
		if got, err := FillRecordURL(c.template, c.assigned); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q in %s: %s, %v, want an error with %q", c.assigned, c.template, got, err, c.want)
		}
	}
}

// Whatever an identifier is, the URL has the place of the template, and one that
// reads it finds the identifier there.
func TestFillRecordURLStaysInPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.String(), rapid.StringMatching(`[./\\%?#@:a]{0,8}`)).Draw(t, "identifier")
		got, err := FillRecordURL("https://library.example/a/b/{assigned-identifier}/c", id)
		if err != nil {
			return
		}
		u, err := url.Parse(got)
		if err != nil || u.Scheme != "https" || u.Host != "library.example" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			t.Fatalf("%q makes %s (%v)", id, got, err)
		}
		parts := strings.Split(u.EscapedPath(), "/")
		if len(parts) != 5 || parts[1] != "a" || parts[2] != "b" || parts[4] != "c" {
			t.Fatalf("%q makes %s", id, got)
		}
		if back, err := url.PathUnescape(parts[3]); err != nil || back != id {
			t.Fatalf("%q comes back as %q (%v)", id, back, err)
		}
	})
}

func TestFromDisposition(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	stamp, _ := event.StampOf(now)
	want := event.Observation{
		Record: "a/1", SourceIdentifier: "145", Order: stamp,
		Representations: []event.Representation{{Href: "https://library.example/a%2F1", Length: event.NoLength}},
	}
	got, err := FromDisposition("a/1", "https://library.example/{assigned-identifier}", &sip.Source{Identifier: new("145")}, now)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if _, err := FromDisposition("..", "https://library.example/{assigned-identifier}", nil, now); err == nil {
		t.Error("an identifier that leads out makes a record")
	}
}

func TestRecordTitle(t *testing.T) {
	const dc, terms = `xmlns:dc="http://purl.org/dc/elements/1.1/"`, `xmlns="http://purl.org/dc/terms/"`
	for record, want := range map[string]string{
		`<r ` + dc + `><dc:title>One &amp; two</dc:title></r>`:                           "One & two",
		`<title ` + terms + `><![CDATA[<Title>]]></title>`:                               "<Title>",
		`<r ` + dc + `><title>no</title><dc:title/><dc:title>yes</dc:title></r>`:         "yes",
		`<r xmlns:dc="urn:other" ` + terms + `><dc:title>no</dc:title></r>`:              "",
		`<r ` + dc + `><dc:creator>title</dc:creator></r>`:                               "",
		`<r><title>no</title></r>`:                                                       "",
		`<r ` + dc + `><dc:title>cut`:                                                    "",
		`<r ` + dc + `><dc:title>a<!-- b --><x>` + "\n\t c</x></dc:title></r>":           "a c",
		strings.Repeat("<a>", 1000) + `<title ` + terms + `>deep`:                        "",
		`<r ` + dc + `>` + strings.Repeat("<dc:title> </dc:title>", 10_000) + `</r>`:     "",
		fmt.Sprintf(`<r %s><dc:title>%s</dc:title></r>`, dc, strings.Repeat("x", 70)):    strings.Repeat("x", 70),
		`<r ` + dc + `><dc:title>` + strings.Repeat("x", 1000) + `</dc:title></r>`:       strings.Repeat("x", 1000),
		`<r ` + dc + `><dc:title>` + strings.Repeat("x", 3<<20) + `</dc:title></r>`:      strings.Repeat("x", 1000),
		`<r ` + dc + `><dc:title>` + strings.Repeat("x\u00fc", 1000) + `</dc:title></r>`: strings.Repeat("x\u00fc", 333) + "x",
		`<r ` + dc + `><dc:title>` + strings.Repeat("x ", 1000) + `</dc:title></r>`:      strings.TrimSpace(strings.Repeat("x ", 500)),
	} {
		if got := RecordTitle([]byte(record)); got != want {
			t.Errorf("%.80s: title %q, want %q", record, got, want)
		}
	}
}

// D23: what was deposited is nowhere else, so that no via leads to its own identifier.
func TestNoViaOfADeposit(t *testing.T) {
	deposit := FromSubmitted(&Submitted{Assigned: "urn:uuid:13fd9167-365b-81ff-8e16-95648d91d3c7"}, time.Unix(0, 0))
	for _, c := range []struct {
		protocol, href string
		want           bool
	}{
		{"sip", deposit.Representations[0].Href, false},
		{"sip", "urn:x-bridge:sip:7", false},
		{"sip", "https://library.example/records/7", true},
		{"atom-pmh", "urn:uuid:13fd9167-365b-81ff-8e16-95648d91d3c7", true},
	} {
		if _, ok := original(&event.Event{Via: event.Link{Href: c.href}, Origin: event.Origin{Protocol: c.protocol}}); ok != c.want {
			t.Errorf("via %s of a record by %s: %v", c.href, c.protocol, ok)
		}
	}
}
