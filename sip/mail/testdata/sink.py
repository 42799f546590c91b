"""Takes mail on loopback with aiosmtpd and tells of each, as a line of JSON.

The first line is the port. With two arguments, a certificate and its key, it
offers STARTTLS. It ends when its standard input does.
"""
import asyncio
import base64
import json
import ssl
import sys
from email import policy
from email.parser import BytesParser

from aiosmtpd.smtp import SMTP


def tell(value):
    print(json.dumps(value), flush=True)


class Sink:
    async def handle_DATA(self, server, session, envelope):
        mail = BytesParser(policy=policy.SMTP).parsebytes(envelope.content)
        tell({
            "hello": session.host_name,
            "encrypted": session.ssl is not None,
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "options": envelope.mail_options,
            "header": [[name, str(value)] for name, value in mail.items()],
            "defects": [repr(d) for d in mail.defects],
            "longest": max(len(line) for line in envelope.content.split(b"\r\n")),
            "ascii": envelope.content.isascii(),
            "type": mail.get_content_type(),
            "charset": mail.get_content_charset(),
            "content": base64.b64encode(mail.get_payload(decode=True)).decode(),
        })
        return "250 2.0.0 taken"


async def main():
    context = None
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(Sink(), hostname="mx.example", enable_SMTPUTF8=True, tls_context=context),
        "127.0.0.1", 0)
    tell(server.sockets[0].getsockname()[1])
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


asyncio.run(main())
