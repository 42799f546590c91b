"""A submitter and an ingest server's notifier that know nothing but a WSDL.

Reads a JSON object: wsdl, user, password, calls; each call has an operation and
its parameters, a record as XML. Writes a JSON list: of each call its answer, or
the fault. Before them stand the operations that the WSDL has.
"""
import json
import sys

import requests
from lxml import etree
from requests.auth import HTTPBasicAuth
from zeep import Client, Settings
from zeep.exceptions import Fault
from zeep.helpers import serialize_object
from zeep.transports import Transport

asked = json.load(sys.stdin)
session = requests.Session()
session.trust_env = False
if asked.get("user"):
    session.auth = HTTPBasicAuth(asked["user"], asked["password"])
client = Client(asked["wsdl"], transport=Transport(session=session), settings=Settings(strict=True))

answers = [sorted(client.service._operations)]
for call in asked["calls"]:
    parameters = call.get("parameters", {})
    if "record" in parameters:
        parameters["record"] = {"_value_1": etree.fromstring(parameters["record"])}
    try:
        answer = client.service[call["operation"]](**parameters)
        answers.append({"answer": serialize_object(answer, dict)})
    except Fault as fault:
        problem = fault.detail.find(".//{*}problem") if fault.detail is not None else None
        answers.append({"fault": fault.code, "text": fault.message, "path": None if problem is None else problem.get("path")})
json.dump(answers, sys.stdout, default=str)
