package sip

import (
	"bytes"
	"strconv"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// AppendMessage appends a SOAP 1.1 message in UTF-8 with its XML declaration. The
// same document gives the same bytes. What XML cannot hold (control characters,
// bytes that are not UTF-8) is written as U+FFFD. Nothing is checked: what is
// mandatory in the document has to be there. A record is written as it is: it has to
// be one that ReadRecord or ReadMessage has returned.
func AppendMessage(to []byte, m *Message) []byte {
	soap := "soap"
	if m.Kind == KindRequest {
		soap = freePrefix(soap, m.Request.Record.XML)
	}
	to = append(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<"+soap+":Envelope xmlns:"+soap+`="`+soapNamespace+`"><`+soap+":Body>"...)
	to = AppendDocument(to, m)
	return append(to, "</"+soap+":Body></"+soap+":Envelope>\n"...)
}

// AppendDocument appends the document alone, without envelope and XML
// declaration; the rest is as in AppendMessage.
func AppendDocument(to []byte, m *Message) []byte {
	w := writer{b: to, prefix: "sip"}
	switch m.Kind {
	case KindGetProperties:
		w.open(m.Kind.String())
		w.close(m.Kind.String())
	case KindProperties:
		w.properties(m.Properties)
	case KindRequest:
		w.prefix = freePrefix("sip", m.Request.Record.XML)
		w.request(m.Request)
	case KindDisposition:
		w.disposition(m.Disposition)
	case KindFault:
		w.fault(m.Fault)
	}
	return w.b
}

// AppendSource appends a source as a document of its own, to be kept and compared byte for
// byte: equal sources give equal bytes, and different ones different bytes. What XML cannot
// hold is replaced as in AppendMessage.
func AppendSource(to []byte, s *Source) []byte {
	w := writer{b: to, prefix: "sip"}
	w.source(s)
	return w.b
}

// writer appends the elements of one document, whose namespace is declared on the
// first.
type writer struct {
	b        []byte
	prefix   string
	declared bool
}

func (w *writer) open(name string) {
	w.b = append(w.b, "<"+w.prefix+":"+name...)
	if !w.declared {
		w.b = append(w.b, " xmlns:"+w.prefix+`="`+Namespace+`"`...)
		w.declared = true
	}
	w.b = append(w.b, '>')
}

func (w *writer) close(name string) {
	w.b = append(w.b, "</"+w.prefix+":"+name+">"...)
}

func (w *writer) text(name, text string) {
	w.open(name)
	w.b = strictxml.AppendEscaped(w.b, text)
	w.close(name)
}

func (w *writer) properties(p *Properties) {
	w.open("ingest-properties")
	w.text("notification-style", string(p.Style))
	w.open("formats")
	for _, format := range p.Formats {
		w.text("format", format)
	}
	w.close("formats")
	w.close("ingest-properties")
}

func (w *writer) source(s *Source) {
	w.open("source")
	if s.Submitter != nil {
		w.open("submitter")
		w.text("name", s.Submitter.Name)
		w.text("email-address", s.Submitter.EmailAddress)
		w.close("submitter")
	}
	if s.Sequence != nil {
		w.text("sequence", *s.Sequence)
	}
	if s.Identifier != nil {
		w.text("source-identifier", *s.Identifier)
	}
	w.close("source")
}

func (w *writer) request(q *Request) {
	w.open("ingest-request")
	if q.Source != nil {
		w.source(q.Source)
	}
	if q.Recipient != "" {
		w.text("notification-recipient", q.Recipient)
	}
	w.open("record")
	w.b = append(w.b, q.Record.XML...)
	w.close("record")
	w.close("ingest-request")
}

func (w *writer) disposition(d *Disposition) {
	w.open("ingest-disposition")
	if d.Source != nil {
		w.source(d.Source)
	}
	w.open(d.Outcome.String())
	switch {
	case d.Outcome == Accepted:
		w.text("assigned-identifier", d.AssignedIdentifier)
	case d.Outcome == Rejected && d.Reason != "":
		w.text("reason", d.Reason)
	}
	w.close(d.Outcome.String())
	w.close("ingest-disposition")
}

// aboutBody reports whether a fault has a detail. One that is about the Body must
// have it, and one that is about a header, or the envelope, must not (SOAP 1.1, 4.4).
func (f *Fault) aboutBody() bool { return f.Code != MustUnderstand && f.Code != VersionMismatch }

// fault writes a Fault, whose children have no namespace (SOAP 1.1, 4.4).
func (w *writer) fault(f *Fault) {
	code := f.Code
	if code == "" {
		code = Server
	}
	w.b = append(w.b, `<soap:Fault xmlns:soap="`+soapNamespace+`"><faultcode>soap:`...)
	w.b = strictxml.AppendEscaped(w.b, string(code))
	w.b = append(w.b, "</faultcode><faultstring>"...)
	w.b = strictxml.AppendEscaped(w.b, f.Text)
	w.b = append(w.b, "</faultstring>"...)
	if f.aboutBody() {
		w.b = append(w.b, `<detail><bridge:problem xmlns:bridge="`+detailNamespace+`"`...)
		if f.Path != "" {
			w.b = strictxml.AppendAttr(w.b, ` path="`, f.Path)
		}
		w.number("line", f.Line)
		w.number("column", f.Column)
		w.b = append(w.b, "/></detail>"...)
	}
	w.b = append(w.b, "</soap:Fault>"...)
}

func (w *writer) number(attr string, n int) {
	if n > 0 {
		w.b = append(strconv.AppendInt(append(w.b, " "+attr+`="`...), int64(n), 10), '"')
	}
}

// freePrefix returns a prefix that the record does not use: a reader might declare
// that one on it.
func freePrefix(prefix string, record []byte) string {
	mentioned := map[string]bool{}
	strictxml.Prefixes(record, func(p []byte) {
		if bytes.HasPrefix(p, []byte(prefix)) {
			mentioned[string(p)] = true
		}
	})
	free := prefix
	for n := 1; mentioned[free]; n++ {
		free = prefix + strconv.Itoa(n)
	}
	return free
}
