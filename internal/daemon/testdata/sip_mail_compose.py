"""Writes mails with Python's own email package, one for each transfer encoding.

Standard input is JSON: {"folder": ..., "mails": [{"how", "to", "xml"}, ...]}. The
n-th mail is written to folder/n, with lines that end in CR LF.
"""
import json
import os
import sys
from email import policy
from email.message import EmailMessage, MIMEPart
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart

NOTE = "Dear colleague,\n\nyour record was considered. Viele Gr\u00fc\u00dfe <accepted/>\n"


def xml_part(part, xml, encoding, kind="text", **more):
    content = xml.encode("ascii", "xmlcharrefreplace") if encoding == "7bit" else xml.encode("utf-8")
    part.set_content(content, kind, "xml", cte=encoding, **more)
    part.set_param("charset", "utf-8")
    return part


def entity(how, xml):
    mail = EmailMessage(policy=policy.SMTP)
    if how in ("7bit", "8bit", "binary", "quoted-printable", "base64"):
        return xml_part(mail, xml, how)
    if how == "mixed":
        mail.set_content(NOTE)
        mail.make_mixed()
        mail.attach(xml_part(MIMEPart(policy=policy.SMTP), xml, "base64", "application", disposition="attachment", filename="disposition.xml"))
        return mail
    if how == "alternative":
        mail.set_content(NOTE)
        mail.make_alternative()
        mail.attach(xml_part(MIMEPart(policy=policy.SMTP), xml, "quoted-printable"))
        return mail
    if how == "nested":
        mail.set_content(NOTE)
        mail.add_alternative("<p>considered</p>", subtype="html")
        mail.make_mixed()
        inner = MIMEMultipart("related")
        inner.attach(xml_part(MIMEPart(policy=policy.SMTP), xml, "8bit"))
        outer = MIMEMultipart("mixed")
        outer.attach(inner)
        mail.attach(outer)
        mail.add_attachment(b"\x89PNG\r\n", "image", "png", filename="seal.png")
        return mail
    if how == "signed":
        mail = MIMEMultipart("signed", protocol="application/pkcs7-signature", micalg="sha-256", policy=policy.SMTP)
        mail.attach(xml_part(MIMEPart(policy=policy.SMTP), xml, "quoted-printable"))
        mail.attach(MIMEApplication(b"0\x82\x01", "pkcs7-signature"))
        return mail
    sys.exit("nobody knows how: " + how)


request = json.load(sys.stdin)
for n, m in enumerate(request["mails"]):
    mail = entity(m["how"], m["xml"])
    mail["From"] = "ingest@library.example"
    mail["To"] = m["to"]
    mail["Subject"] = "Disposition, \u201efinal\u201c"
    mail["Message-ID"] = "<%d@library.example>" % n
    with open(os.path.join(request["folder"], str(n)), "wb") as f:
        f.write(mail.as_bytes(policy=policy.SMTP))
