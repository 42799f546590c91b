"""Calls a service through its WSDL, strictly, and prints a line of JSON per call.

Usage: zeep_client.py WSDL-URL [USER PASSWORD]
"""

import json
import sys

import requests
import zeep
from lxml import etree
from zeep.helpers import serialize_object

session = requests.Session()
session.trust_env = False
if len(sys.argv) > 2:
    session.auth = (sys.argv[2], sys.argv[3])
transport = zeep.Transport(cache=None, session=session, timeout=30, operation_timeout=30)


def tell(step, **what):
    print(json.dumps({"step": step, **what}, sort_keys=True), flush=True)


def call(step, operation, *args, **named):
    """Calls an operation, if the service has it, and tells what zeep made of the answer."""
    if operation not in client.service._operations:
        return
    try:
        answer = client.service[operation](*args, **named)
    except zeep.exceptions.Fault as fault:
        problem = fault.detail.find("*") if fault.detail is not None else None
        tell(step, fault=fault.code.partition(":")[2], text=fault.message,
             path="" if problem is None else problem.get("path"))
    except zeep.exceptions.TransportError as error:
        tell(step, status=error.status_code)
    else:
        tell(step, answer=serialize_object(answer, dict))


def record(text):
    return {"_value_1": etree.fromstring(text)}


try:
    client = zeep.Client(sys.argv[1], transport=transport, settings=zeep.Settings(strict=True))
except requests.HTTPError as error:
    tell("wsdl", status=error.response.status_code)
    sys.exit()

tell("operations", answer=sorted(client.service._operations))
call("properties", "get-properties")

source = {
    "submitter": {"name": "Müller & Söhne", "email-address": "a@example.org"},
    "sequence": "Campus <Buildings>",
    "source-identifier": " 145 ",
}
entry = """<g:entry xmlns:g="urn:gazetteer" xmlns="urn:other" xmlns:xlink="http://www.w3.org/1999/xlink"
  kind='x'><name>Z\u00fcrich</name><g:at xlink:href="#a"/><!-- c --></g:entry>"""
call("whole", "ingest", **{"source": source, "notification-recipient": "http://example.org/n?a=1&b=2", "record": record(entry)})
call("bare", "ingest", record=record("<plain/>"))
call("some source", "ingest", source={"source-identifier": "7"}, record=record("<plain/>"))
call("rejected", "ingest", source=source, record=record("<refused/>"))
call("provisional", "ingest", source=source, record=record("<later/>"))
call("notify accepted", "notify", source=source, accepted={"assigned-identifier": "lib/7"})
call("notify rejected", "notify", source={"source-identifier": "7"}, rejected={"reason": "out of < range"})
call("notify without source", "notify", rejected={"reason": "no"})

call("fault of the caller", "ingest", record=record("<badrecipient/>"))
call("fault of the server", "ingest", record=record("<disk/>"))
header = etree.fromstring(
    '<t:token xmlns:t="urn:t" xmlns:S="http://schemas.xmlsoap.org/soap/envelope/" S:mustUnderstand="1"/>')
call("header", "ingest", record=record("<plain/>"), _soapheaders=[header])
call("denied", "ingest", record=record("<denied/>"))
