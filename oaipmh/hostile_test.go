package oaipmh

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// hostileAnswers are answers of about n bytes that ask much of their reader.
func hostileAnswers(n int) map[string][]byte {
	fill := func(each string) string { return strings.Repeat(each, max(1, n/len(each))) }
	in := func(metadata string) []byte {
		return []byte(list(`<record><header><identifier>oai:x:1</identifier><datestamp>2025-01-01</datestamp></header><metadata>`+metadata+`</metadata></record>`, ""))
	}
	var declared strings.Builder
	for i := range 250 {
		fmt.Fprintf(&declared, ` xmlns:p%d="urn:%s"`, i, strings.Repeat("n", n/1000))
	}
	many := func(answer string) []byte {
		return []byte(strings.Replace(answer, "<OAI-PMH", "<OAI-PMH"+numbered(3000, ` xmlns:p%d="u"`), 1))
	}
	docs := map[string][]byte{
		"bad records":                          []byte(list(fill("<record/>"), "")),
		"bad records under long declarations":  []byte(strings.Replace(list(fill("<record/>"), ""), "<ListRecords", "<ListRecords"+declared.String(), 1)),
		"records that are not well-formed":     []byte(list(fill("<record><a></record>"), "")),
		"a record without an end":              []byte(list("<record><a>"+fill("</b>"), "")),
		"many setSpecs":                        []byte(list("<record><header>"+fill("<setSpec>a</setSpec>")+"</header></record>", "")),
		"setSpecs that are all different":      []byte(list("<record><header>"+numbered(n, "<setSpec>a%d</setSpec>")+"</header></record>", "")),
		"many identifiers":                     []byte(list("<record><header>"+fill("<identifier>a:b</identifier>")+"</header></record>", "")),
		"a long identifier":                    []byte(list("<record><header><identifier>"+fill("x")+"</identifier></header></record>", "")),
		"a long token":                         []byte(list(record(1), "<resumptionToken>"+fill("x")+"</resumptionToken>")),
		"many tokens":                          []byte(list(record(1), fill("<resumptionToken/>"))),
		"many abouts":                          []byte(list("<record>"+fill("<about><a/></about>")+"</record>", "")),
		"origins of origins":                   []byte(list("<record><about><provenance xmlns='"+ProvenanceNamespace+"'>"+strings.Repeat("<originDescription>", 200)+fill("<baseURL>x</baseURL>"), "")),
		"datestamps that are none":             []byte(list(fill("<record><header><identifier>a:b</identifier><datestamp>2020-01-01T00:00:00.0000000000000000000</datestamp></header></record>"), "")),
		"a long datestamp":                     []byte(list("<record><header><datestamp>"+fill("2020-01-01 ")+"</datestamp></header></record>", "")),
		"many errors":                          []byte(answerTo(fill(`<error code="badArgument">x</error>`))),
		"many sets":                            []byte(answerTo("<ListSets>" + fill("<set><setSpec>a</setSpec></set>") + "</ListSets>")),
		"descriptions":                         []byte(answerTo("<ListSets>" + fill("<set><setSpec>a</setSpec><setDescription><a/></setDescription></set>") + "</ListSets>")),
		"a set of descriptions":                []byte(answerTo("<ListSets><set>" + fill("<setDescription><a/></setDescription>") + "</set></ListSets>")),
		"formats":                              []byte(answerTo("<ListMetadataFormats>" + fill("<metadataFormat/>") + "</ListMetadataFormats>")),
		"addresses in Identify":                []byte(answerTo("<Identify>" + fill("<adminEmail>a@b.c</adminEmail>") + "</Identify>")),
		"garbage behind the root":              []byte(answerTo("") + fill("<x>")),
		"characters that are none, everywhere": in(fill("<a>\x01</a>")),
		"one text of them":                     in("<a>" + fill("\x01") + "</a>"),
		"references to them":                   in("<a>" + fill("&#1;") + "</a>"),
		"ampersands":                           in("<a>" + fill("&") + "</a>"),
		"entities":                             in("<a>" + fill("&CounterClockwiseContourIntegral;") + "</a>"),
		"bytes that are not UTF-8":             in("<a>" + fill("\xff") + "</a>"),
		"metadata under many namespaces":       many(list(fill(`<record><header/><metadata><a/></metadata></record>`), "")),
		"abouts under many namespaces":         many(list(fill("<record>"+strings.Repeat("<about><a/></about>", 99)+"</record>"), "")),
		"a DOCTYPE":                            []byte("<!DOCTYPE a " + fill("<>") + ">" + answerTo("")),
		"entities of a DOCTYPE":                []byte(`<!DOCTYPE a [<!ENTITY a "` + fill("x") + `">]>` + answerTo("&a;")),
	}
	for name, element := range testenv.Hostile(n) {
		docs["in metadata: "+name] = in(element)
		docs["in about: "+name] = []byte(list("<record><about>"+element+"</about></record>", ""))
		docs["in a header: "+name] = []byte(list("<record><header>"+element+"</header></record>", ""))
		docs["in a description: "+name] = []byte(answerTo("<Identify><description>" + element + "</description></Identify>"))
	}
	return docs
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// read reads an answer as a harvest does, which keeps what is bad.
func read(doc []byte) {
	_, _, _, _ = readWhole(bytes.NewReader(doc), ReadOptions{URL: "http://h.example/oai", Lenient: true, Report: func(Problem) {}})
}

// Whatever is in an answer, reading it costs time and memory in proportion to its length.
func TestCost(t *testing.T) { testenv.AffordableAll(t, hostileAnswers(512<<10), 1, read) }

// FuzzCost: the same of any answer.
func FuzzCost(f *testing.F) { testenv.FuzzAffordable(f, hostileAnswers(16<<10), 1, read) }

// What is too much is refused, with the name of the limit.
func TestLimits(t *testing.T) {
	metadata := func(s string) string {
		return list("<record><header><identifier>a:b</identifier></header><metadata>"+s+"</metadata></record>", "")
	}
	for name, tt := range map[string]struct{ doc, cap string }{
		"document":                  {list(strings.Repeat(record(1), 100_000), ""), "document"},
		"text":                      {metadata("<a>" + strings.Repeat("x", 1<<20) + "</a>"), "text"},
		"a value":                   {metadata("<a b='" + strings.Repeat("x", 1<<20) + "'/>"), "text"},
		"a comment":                 {metadata("<a/><!--" + strings.Repeat("x", 1<<20) + "-->"), "text"},
		"an identifier":             {list("<record><header><identifier>"+strings.Repeat("x", 1<<20)+"</identifier></header></record>", ""), "text"},
		"a text beside the records": {list(record(1)+"<x>"+strings.Repeat("x", 1<<20)+"</x>", ""), "text"},
		"a text without an end":     {list("<record>"+strings.Repeat("x", 1<<20), ""), "text"},
		"a text longer than may be": {metadata("<a>" + strings.Repeat("x", 3<<20) + "</a>"), "text"},
		"depth":                     {metadata(strings.Repeat("<a>", 300)), "depth"},
		"attributes":                {metadata("<a" + numbered(10_000, " a%d=''") + "/>"), "attributes"},
	} {
		_, _, bad, err := readWhole(strings.NewReader(tt.doc), ReadOptions{Limits: Limits{Document: 2 << 20, Text: 1 << 19}, Lenient: true})
		var fault *DocumentError
		switch {
		case name != "document" && !strings.HasPrefix(name, "a text"): // a matter of the record
			if err != io.EOF || len(bad) != 1 || !strings.Contains(bad[0].Reason, "it exceeds a limit: ") || !strings.Contains(bad[0].Reason, tt.cap) {
				t.Errorf("%s: %v, %v", name, err, bad)
			}
		case !errors.As(err, &fault) || fault.Cap != tt.cap:
			t.Errorf("%s: %v", name, err)
		}
	}
}

// endless is an answer of records that come one after the other.
type endless struct {
	head  string
	each  func(n int) string
	n     int
	left  []byte
	total int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == nil {
		e.left = []byte(e.head)
	}
	for len(e.left) == 0 {
		e.left = append(e.left[:0], e.each(e.n)...)
		if e.n++; len(e.left) == 0 {
			return 0, io.EOF
		}
	}
	n := copy(p, e.left)
	e.left = e.left[n:]
	e.total += int64(n)
	return n, nil
}

// A document of ten million tiny records, in a soak, is read in memory that does not grow.
func TestFlat(t *testing.T) {
	records := testenv.Rounds(t, 100_000, 10_000_000)
	head, tail, _ := strings.Cut(list("|", "<resumptionToken>x</resumptionToken>"), "|")
	in := &endless{head: head, each: func(n int) string {
		switch {
		case n < records:
			return fmt.Sprintf("<record><header><identifier>oai:x:%d</identifier><datestamp>2025-01-01</datestamp></header><metadata><a/></metadata></record>", n)
		case n == records:
			return tail
		}
		return ""
	}}
	r := NewReader(in, ReadOptions{Lenient: true, Limits: Limits{Document: 1 << 40}})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var first uint64
	for n := 0; ; n++ {
		_, err := r.Next()
		if err == io.EOF && n == records {
			break
		}
		if err != nil {
			t.Fatal(n, err)
		}
		if n == records/10 {
			first = heap()
		}
	}
	if last := heap(); last > first+1<<20 {
		t.Errorf("%d bytes after a tenth, %d at the end", first, last)
	}
	if r.Answer().Token.Value != "x" {
		t.Error("no token")
	}
}

// What stands where nothing belongs is not kept, however much of it there is.
func TestHeldIsBounded(t *testing.T) {
	testenv.Heavy(t)
	for name, answers := range map[Verb]string{
		ListRecords: answerTo(strings.Repeat("<x/>", 100_000) + "<ListRecords>" + record(1) + "</ListRecords>"),
		Identify:    answerTo("<Identify>" + numbered(4<<20, "<x%d/>") + "</Identify>"),
	} {
		t.Run(string(name), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch Verb(r.FormValue("verb")) {
				case name:
					_, _ = io.WriteString(w, answers)
				case Identify:
					fmt.Fprint(w, identifyAnswer("http://"+r.Host+r.URL.Path))
				default:
					fmt.Fprint(w, list(record(1), ""))
				}
			}))
			defer server.Close()
			heap := func() uint64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			before, most := heap(), uint64(0)
			w := Walk{Client: server.Client(), URL: server.URL, Report: func(p Problem) {
				// The first one that was held, and the first one at the end of Identify.
				if most == 0 && (name == Identify && p.Rule == ruleIdentify || name == ListRecords && strings.HasPrefix(p.Found, "<x> in")) {
					most = heap()
				}
			}}
			if _, err := walkAll(&w); err != nil {
				t.Fatal(err)
			}
			if most == 0 || most > before+4<<20 {
				t.Errorf("%d bytes before, %d at most", before, most)
			}
		})
	}
}

// A repository that invents records for ever is ended by MaxDocuments, and one that sends
// without end by the limit of a document.
func TestEndless(t *testing.T) {
	n := 0
	server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
		n++
		fmt.Fprint(w, list(record(n), fmt.Sprintf("<resumptionToken>%d</resumptionToken>", n)))
	})
	w := Walk{Client: server.Client(), URL: server.URL, MaxDocuments: 300}
	ids, err := walkAll(&w)
	var many *TooManyError
	if !errors.As(err, &many) || many.Read != 300 || len(ids) != 300 || n != 300 || w.Result().Whole {
		t.Errorf("%d records, %d requests, %v", len(ids), n, err)
	}
	// With a higher cap it goes on where it was.
	// A document without an end costs the limit, each time that it is asked for.
	sent := 0
	server = serveList(t, func(w http.ResponseWriter, r *http.Request) {
		sent++
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat(" ", 1<<16)); err != nil {
				return
			}
		}
	})
	w = Walk{Client: server.Client(), URL: server.URL, Limits: Limits{Document: 1 << 20}}
	var fault *DocumentError
	if _, err := walkAll(&w); !errors.As(err, &fault) || fault.Cap != "document" || sent != 1 {
		t.Errorf("%v after %d requests", err, sent)
	}
}

// A small answer that is a large document is ended by the same limit, and 300 MB are not
// held.
func TestGzipBomb(t *testing.T) {
	testenv.Heavy(t)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = io.WriteString(z, strings.TrimSuffix(list(record(1), ""), "</ListRecords></OAI-PMH>"))
	for range 300 {
		_, _ = z.Write(bytes.Repeat([]byte("<record/>"), 1<<20/9))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb.Bytes())
	})
	w := Walk{Client: server.Client(), URL: server.URL, Until: time.Now(), From: time.Now(), Limits: Limits{Document: 1 << 20}}
	for doc, err := range w.Documents(t.Context()) {
		if err != nil {
			if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "longer than 1048576 bytes") {
				t.Error(err)
			}
			break
		}
		taken := 0
		for _, bad := range doc.Entries() {
			if bad == nil {
				taken++
			}
		}
		if doc.Whole() || taken != 1 {
			t.Errorf("%d records, whole: %t", taken, doc.Whole())
		}
	}
}

// A list that breaks off at each document ends too, soon enough.
func TestBrokenAlways(t *testing.T) {
	for name, answer := range map[string]func(n int) string{
		"cut":                     func(int) string { return list(record(1), "")[:200] },
		"a token that is refused": func(n int) string { return list(record(n), "<resumptionToken>x</resumptionToken>") },
		"errors in the list": func(n int) string {
			return answerTo("<ListRecords>" + record(n) + `</ListRecords><error code="badArgument"/>`)
		},
		"another verb": func(int) string { return answerTo("<Identify/>") },
	} {
		n := 0
		server := serveList(t, func(w http.ResponseWriter, r *http.Request) {
			if n++; r.FormValue("resumptionToken") != "" {
				fmt.Fprint(w, refusal(BadResumptionToken, ""))
				return
			}
			fmt.Fprint(w, answer(n))
		})
		w := Walk{Client: server.Client(), URL: server.URL}
		if _, err := walkAll(&w); err == nil || n > 700 {
			t.Errorf("%s: %d requests, %v", name, n, err)
		}
	}
}

// The timeout of the Client ends a walk that waits.
func TestTimeout(t *testing.T) {
	h := newHarvester(t, 25)
	stopped := make(chan struct{})
	h.repo.OnPage = func(verb string, page int) {
		if page == 2 {
			<-stopped
		}
	}
	defer close(stopped)
	h.walk.Client.Timeout = 50 * time.Millisecond
	if _, err := h.run(); err == nil || len(h.has) != 10 {
		t.Errorf("%d records, %v", len(h.has), err)
	}
}
