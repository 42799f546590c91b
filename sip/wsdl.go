package sip

import (
	_ "embed" // the schema

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Operations are the operations that a service offers.
type Operations struct {
	Ingest bool // get-properties and ingest: an ingest server
	Notify bool // a notification recipient
}

// operation of a description. Notify is one-way: it has no output.
type operation struct {
	name, input, output string
}

func (o Operations) list() []operation {
	var list []operation
	if o.Ingest {
		list = append(list,
			operation{"get-properties", KindGetProperties.String(), KindProperties.String()},
			operation{"ingest", KindRequest.String(), KindDisposition.String()})
	}
	if o.Notify {
		list = append(list, operation{"notify", KindDisposition.String(), ""})
	}
	return list
}

//go:embed sip.xsd
var schema string

// Schema returns the XML Schema of the documents.
func Schema() []byte { return []byte(schema) }

// WSDL returns the description of a service (WSDL 1.1, SOAP 1.1 over HTTP,
// document/literal). location is the service's URL; the schema is imported from
// there, with ?xsd behind it.
func WSDL(o Operations, location string) []byte {
	w := wsdl{}
	w.add(`<?xml version="1.0" encoding="UTF-8"?>
<wsdl:definitions name="SimpleIngest" targetNamespace="urn:x-bridge:sip:1" xmlns:tns="urn:x-bridge:sip:1"
    xmlns:sip="`, Namespace, `" xmlns:xs="http://www.w3.org/2001/XMLSchema"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/">
  <wsdl:types>
    <xs:schema>
      <xs:import namespace="`, Namespace, `" schemaLocation="`)
	w.escaped(location + "?xsd")
	w.add("\"/>\n    </xs:schema>\n  </wsdl:types>\n")
	list := o.list()
	for _, op := range list {
		w.messages(op)
	}
	w.add(`  <wsdl:portType name="SimpleIngest">`, "\n")
	for _, op := range list {
		w.operation(op, "", ` message="tns:`+op.name+`-input"/>`, ` message="tns:`+op.name+`-output"/>`)
	}
	w.add("  </wsdl:portType>\n", `  <wsdl:binding name="SimpleIngest" type="tns:SimpleIngest">
    <soap:binding style="document" transport="http://schemas.xmlsoap.org/soap/http"/>
`)
	for _, op := range list {
		w.operation(op, `      <soap:operation soapAction="`+Namespace+"/"+op.name+`"/>`+"\n",
			`><soap:body use="literal"/></wsdl:input>`, `><soap:body use="literal"/></wsdl:output>`)
	}
	w.add(`  </wsdl:binding>
  <wsdl:service name="SimpleIngest">
    <wsdl:port name="SimpleIngest" binding="tns:SimpleIngest"><soap:address location="`)
	w.escaped(location)
	w.add(`"/></wsdl:port>
  </wsdl:service>
</wsdl:definitions>
`)
	return w.b
}

type wsdl struct{ b []byte }

func (w *wsdl) add(parts ...string) {
	for _, p := range parts {
		w.b = append(w.b, p...)
	}
}

func (w *wsdl) escaped(s string) { w.b = strictxml.AppendEscaped(w.b, s) }

func (w *wsdl) messages(op operation) {
	message := func(name, element string) {
		w.add(`  <wsdl:message name="`, name, `"><wsdl:part name="document" element="sip:`, element, `"/></wsdl:message>`, "\n")
	}
	message(op.name+"-input", op.input)
	if op.output != "" {
		message(op.name+"-output", op.output)
	}
}

// operation adds one to the port type or to the binding: what comes first in it,
// and how its input and output go on.
func (w *wsdl) operation(op operation, first, input, output string) {
	w.add(`    <wsdl:operation name="`, op.name, `">`, "\n", first, "      <wsdl:input", input, "\n")
	if op.output != "" {
		w.add("      <wsdl:output", output, "\n")
	}
	w.add("    </wsdl:operation>\n")
}
