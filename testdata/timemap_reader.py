"""Reads all versions of a resource by Memento (RFC 7089), with the standard library alone.

From the resource's own Link header to its TimeMap, along further TimeMaps, and to its TimeGate. What it finds is
written as JSON. It is written after the RFCs (7089, and 6690 and 8288 for the form of links), not after bridge.
"""

import datetime
import email.utils
import json
import sys
import urllib.error
import urllib.request


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args, **kwargs):
        return None


def ask(url, **header):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects)
    try:
        return opener.open(urllib.request.Request(url, headers=header))
    except urllib.error.HTTPError as answer:
        return answer


def links(text):
    """Parses link-values into (target, {parameter: value}), character by character: dates hold commas."""
    i, out = 0, []
    while True:
        while i < len(text) and text[i] in " \t\r\n,":
            i += 1
        if i == len(text):
            return out
        assert text[i] == "<", text[i:i + 40]
        end = text.index(">", i)
        target, params, i = text[i + 1:end], {}, end + 1
        while i < len(text) and text[i] in " \t\r\n":
            i += 1
        while i < len(text) and text[i] == ";":
            equals = text.index("=", i)
            name = text[i + 1:equals].strip().lower()
            assert text[equals + 1] == '"', text[i:i + 40]
            end = text.index('"', equals + 2)
            assert name not in params, name
            params[name], i = text[equals + 2:end], end + 1
            while i < len(text) and text[i] in " \t\r\n":
                i += 1
        assert i == len(text) or text[i] == ",", text[i:i + 40]
        out.append((target, params))


def of(found, rel):
    return [(target, params) for target, params in found if rel in params["rel"].split()]


def when(text):
    at = email.utils.parsedate_to_datetime(text)
    assert at.tzinfo == datetime.timezone.utc or at.utcoffset() == datetime.timedelta(0), text
    assert email.utils.format_datetime(at, usegmt=True) == text, text
    return at


def main(resource):
    head = links(", ".join(ask(resource).headers.get_all("Link")))
    (gate, _), = of(head, "timegate")
    (start, kind), = of(head, "timemap")
    assert kind["type"] == "application/link-format"
    todo, seen, mementos, first, last = [start], set(), {}, None, None
    while todo:
        url = todo.pop()
        if url in seen:
            continue
        answer = ask(url)
        assert answer.headers["Content-Type"] == "application/link-format"
        found = links(answer.read().decode())
        (original, _), = of(found, "original")
        assert original == resource, original
        (itself, interval), = of(found, "self")
        assert itself == url, (itself, url)
        own = of(found, "memento")
        seen.add(url)
        for target, params in own:
            at = when(params["datetime"])
            mementos[target] = at
            if "first" in params["rel"].split():
                first = target
            else:
                assert when(interval["from"]) <= at <= when(interval["until"])
            if "last" in params["rel"].split():
                last = target
        todo += [target for target, _ in of(found, "timemap") if target not in seen]
    at = mementos[last]
    negotiated = ask(gate, **{"Accept-Datetime": email.utils.format_datetime(at, usegmt=True)})
    assert negotiated.status == 302 and "accept-datetime" in negotiated.headers["Vary"].lower()
    found = links(", ".join(negotiated.headers.get_all("Link")))
    assert of(found, "original")[0][0] == resource
    in_order = sorted(mementos, key=lambda target: (mementos[target], int(target.rsplit("/", 1)[1])))
    json.dump({"timemaps": len(seen), "mementos": in_order, "first": first, "last": last, "gate": negotiated.headers["Location"]}, sys.stdout)


main(sys.argv[1])
