"""Takes mail on loopback with aiosmtpd, reads the disposition in each with
Python's own email and XML packages, and tells of it, as a line of JSON.

The first line is the port. Each line of standard input is the reply to the mails
that follow, and is repeated when it holds. It ends when its standard input does.
"""
import asyncio
import json
import sys
import xml.etree.ElementTree as ET
from email import policy
from email.parser import BytesParser

from aiosmtpd.smtp import SMTP

SOAP = "{http://schemas.xmlsoap.org/soap/envelope/}"
SIP = "{http://www.alexandria.ucsb.edu}"


def tell(value):
    print(json.dumps(value), flush=True)


def tree(element):
    """Text, or [name, what is inside] for each child in order."""
    if len(element) == 0:
        return element.text or ""
    return [[child.tag.removeprefix(SIP), tree(child)] for child in element]


class Sink:
    reply = "250 2.0.0 taken"

    async def handle_DATA(self, server, session, envelope):
        mail = BytesParser(policy=policy.SMTP).parsebytes(envelope.content)
        body = ET.fromstring(mail.get_payload(decode=True)).find(SOAP + "Body")
        tell({
            "id": mail["Message-ID"],
            "sender": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "header": [mail["From"], mail["To"]],
            "subject": mail["Subject"],
            "type": mail.get_content_type() + " " + mail.get_content_charset(),
            "defects": [repr(d) for d in mail.defects],
            "documents": tree(body),
            "reply": self.reply,
        })
        return self.reply


async def main():
    loop = asyncio.get_running_loop()
    sink = Sink()
    server = await loop.create_server(lambda: SMTP(sink, hostname="mx.library.example"), "127.0.0.1", 0)
    tell(server.sockets[0].getsockname()[1])
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        sink.reply = line.strip()
        tell(sink.reply)
    server.close()


asyncio.run(main())
