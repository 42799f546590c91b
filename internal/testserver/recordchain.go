package testserver

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// RecordChain serves the records of an OAI-PMH repository of any size in oai_dc, generated
// at each request and always the same. It costs much less than any reader. The datestamps
// have seconds and rise: a thousand records a second, from 2020-01-01 on.
//
// It handles Identify, ListRecords, ListIdentifiers and GetRecord; tokens are the number of
// a page. from and until select all records, or none if they exclude them all. Set the
// fields before the first request.
type RecordChain struct {
	// Pages is the number of pages of the list, at least 1.
	Pages int
	// Records is the number of records of each page; at most 100 million in all.
	Records int
	// Size is the length of each record in bytes, its header included; at least 700.
	Size int
}

const (
	recordsHead = xmlHead + `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/ http://www.openarchives.org/OAI/2.0/OAI-PMH.xsd">` + "\n<responseDate>"
	recordOpen  = `<metadata><oai_dc:dc xmlns:oai_dc="http://www.openarchives.org/OAI/2.0/oai_dc/" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/oai_dc/ http://www.openarchives.org/OAI/2.0/oai_dc.xsd">` + "\n<dc:title>Observation series "
	recordClose = "</dc:description>\n</oai_dc:dc></metadata></record>\n"
	recordsFoot = "</OAI-PMH>\n"
	// words, 64 of eight bytes each, fill descriptions: such a text compresses about as
	// well as those of real records.
	words = "reading station harbour monthly between weather against fathoms written surveys margins brought pencils letters samples numbers " +
		"twelfth measure columns another evening morning inverse several figures ledgers inkwell missing entries ordered private borough " +
		"current drawing printed village returns ancient keeping without towards ebbtide signals voyages captain cordage rainfed boatmen " +
		"glasses compass barrels gunwale ballast bearing capstan anchors orchard meadows pasture harvest granary threshe winnows gleaned "
)

// Total returns how many records there are.
func (c *RecordChain) Total() int { return c.Pages * c.Records }

// ServeHTTP answers GET.
func (c *RecordChain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.Pages < 1 || c.Total() > chainMax || c.Size < 700 {
		http.Error(w, fmt.Sprintf("testserver: a RecordChain of %d pages with %d records of %d bytes", c.Pages, c.Records, c.Size), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	args := r.URL.Query()
	b := make([]byte, 0, 64<<10)
	b = append(b, recordsHead...)
	b = time.Now().UTC().AppendFormat(b, seconds)
	b = fmt.Appendf(b, "</responseDate>\n<request>http://%s%s</request>\n", r.Host, r.URL.Path)
	switch verb := args.Get("verb"); verb {
	case "Identify":
		b = fmt.Appendf(b, "<Identify><repositoryName>Chain</repositoryName><baseURL>http://%s%s</baseURL><protocolVersion>2.0</protocolVersion><adminEmail>admin@eastmere.example</adminEmail>"+
			"<earliestDatestamp>%s</earliestDatestamp><deletedRecord>persistent</deletedRecord><granularity>YYYY-MM-DDThh:mm:ssZ</granularity></Identify>\n", r.Host, r.URL.Path, recordStamp(0).Format(seconds))
	case "GetRecord":
		n, ok := number(args.Get("identifier"), "oai:eastmere.example:", "")
		if !ok || n >= c.Total() {
			b = append(b, "<error code=\"idDoesNotExist\">not here</error>\n"...)
			break
		}
		b = append(c.appendRecord(append(b, "<GetRecord>"...), n, true), "</GetRecord>\n"...)
	case "ListRecords", "ListIdentifiers":
		c.writePage(w, b, verb, args)
		return
	default:
		b = append(b, "<error code=\"badVerb\">not here</error>\n"...)
	}
	_, _ = w.Write(append(b, recordsFoot...))
}

// writePage appends the page that args request to b, and writes it.
func (c *RecordChain) writePage(w http.ResponseWriter, b []byte, verb string, args url.Values) {
	page := 0
	if token := args.Get("resumptionToken"); token != "" {
		n, ok := number(token, "page-", "")
		if !ok || n < 1 || n >= c.Pages {
			_, _ = w.Write(append(b, "<error code=\"badResumptionToken\">not here</error>\n"+recordsFoot...))
			return
		}
		page = n
	} else if from, until := args.Get("from"), args.Get("until"); from > recordStamp(c.Total()).Format(seconds) || until != "" && until < recordStamp(0).Format(seconds) {
		_, _ = w.Write(append(b, "<error code=\"noRecordsMatch\">not here</error>\n"+recordsFoot...))
		return
	}
	b = append(append(append(b, '<'), verb...), ">\n"...)
	for i := page * c.Records; i < (page+1)*c.Records; i++ {
		if len(b)+c.Size > cap(b) {
			if _, err := w.Write(b); err != nil {
				return // the client has disconnected
			}
			b = b[:0]
		}
		b = c.appendRecord(b, i, verb == "ListRecords")
	}
	token := ""
	if page+1 < c.Pages {
		token = "page-" + strconv.Itoa(page+1)
	}
	b = fmt.Appendf(b, "<resumptionToken completeListSize=\"%d\" cursor=\"%d\">%s</resumptionToken>\n</%s>\n", c.Total(), page*c.Records, token, verb)
	_, _ = w.Write(append(b, recordsFoot...))
}

// appendRecord writes a record of exactly Size bytes, or its header.
func (c *RecordChain) appendRecord(b []byte, i int, whole bool) []byte {
	start := len(b)
	if whole {
		b = append(b, "<record>"...)
	}
	b = append(b, "<header><identifier>oai:eastmere.example:"...)
	b = appendNumber(b, i)
	b = append(b, "</identifier><datestamp>"...)
	b = recordStamp(i).AppendFormat(b, seconds)
	b = append(b, "</datestamp><setSpec>series</setSpec></header>"...)
	if !whole {
		return append(b, '\n')
	}
	b = append(b, recordOpen...)
	b = appendNumber(b, i)
	b = append(b, "</dc:title>\n<dc:identifier>"...)
	b = appendID(b, i)
	b = append(b, "</dc:identifier>\n<dc:description>"...)
	end := start + c.Size - len(recordClose)
	for x := mix(uint64(i)); ; x = mix(x) {
		for bits := x; bits > 15; bits >>= 6 {
			left := end - len(b)
			if left <= 0 {
				return append(b, recordClose...)
			}
			word := int(bits%64) * 8
			b = append(b, words[word:word+min(8, left)]...)
		}
	}
}

// recordStamp returns the datestamp of a record.
func recordStamp(i int) time.Time {
	return time.Date(2020, 1, 1, 0, 0, i/1000, 0, time.UTC)
}
