#!/usr/bin/env python3
"""An independent ResourceSync reader, for comparison with what bridge publishes.

Standard library only. It follows the words of ANSI/NISO Z39.99-2017 and shares
nothing with the Go code. From a Source Description or a Capability List it walks
every document that is linked and checks what a Destination relies on.

    independent_reader.py [--content] [--window] URL

One JSON object a line goes to standard output:

    {"document": URL, "root": "urlset", "md": {...}, "links": [...], "entries": N, "bytes": N}
    {"entry": LOC, "document": URL, "n": N, "lastmod": ..., "md": {...}, "links": [...]}

Violations go to standard error, one a line: "URL: [entry N:] what is wrong".
Exit status: 0 none, 1 violations, 2 wrong usage.

--content  GET every loc of the Resource List and compare length and hashes
--window   read changelist.xml beside the Capability List too, though no document
           links it (on by default when it answers 200)
"""

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from datetime import datetime, timezone

SM = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
RS = "{http://www.openarchives.org/rs/terms/}"
MAX_ENTRIES = 50_000
MAX_BYTES = 50 * 1024 * 1024
CHANGES = ("created", "updated", "deleted")
W3C = re.compile(
    r"^(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(Z|[+-]\d\d:\d\d))?$")


class BadTime(ValueError):
    pass


def parse_time(text):
    """W3C Datetime to (seconds since 1970, nanoseconds), which compares exactly."""
    m = W3C.match(text or "")
    if not m:
        raise BadTime(f"{text!r} is no W3C Datetime")
    year, month, day = (int(m.group(i)) for i in (1, 2, 3))
    hour, minute, second = (int(m.group(i) or 0) for i in (4, 5, 6))
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError as e:
        raise BadTime(f"{text!r}: {e}") from e
    seconds = int(at.timestamp())
    zone = m.group(8) or "Z"
    if zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds += -offset if zone[0] == "+" else offset
    return seconds, int(((m.group(7) or "") + "0" * 9)[:9])


class Document:
    """One fetched document, parsed, with its entries as plain values."""

    def __init__(self, url, body):
        self.url = url
        self.size = len(body)
        root = ET.fromstring(body)
        if not root.tag.startswith(SM):
            raise ValueError(f"root element {root.tag} is not of the sitemap namespace")
        self.root = root.tag[len(SM):]
        if self.root not in ("urlset", "sitemapindex"):
            raise ValueError(f"root element {self.root}")
        self.md = attributes(root.find(RS + "md"))
        self.links = [attributes(ln) for ln in root.findall(RS + "ln")]
        tag = SM + ("url" if self.root == "urlset" else "sitemap")
        self.entries = [entry(e) for e in root.findall(tag)]
        other = [c.tag for c in root if c.tag not in (tag, RS + "md", RS + "ln")]
        if other:
            raise ValueError(f"unexpected child elements {sorted(set(other))}")

    @property
    def capability(self):
        return self.md.get("capability", "")

    def links_of(self, rel):
        return [ln.get("href", "") for ln in self.links if ln.get("rel") == rel]


def attributes(element):
    return {} if element is None else dict(element.attrib)


def entry(element):
    loc = element.find(SM + "loc")
    lastmod = element.find(SM + "lastmod")
    return {
        "loc": "" if loc is None else (loc.text or ""),
        "lastmod": None if lastmod is None else (lastmod.text or ""),
        "md": attributes(element.find(RS + "md")),
        "links": [attributes(ln) for ln in element.findall(RS + "ln")],
    }


class Reader:
    def __init__(self, out, err, content, window):
        self.out, self.err = out, err
        self.content, self.want_window = content, window
        self.violations = 0
        self.documents = {}
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def wrong(self, url, text):
        self.violations += 1
        print(f"{url}: {text}", file=self.err)

    def fetch(self, url):
        with self.opener.open(url, timeout=60) as answer:
            return answer.read()

    def get(self, url, capability, root=None):
        """Fetches, prints and checks what holds for every document; None when it
        cannot be read."""
        if url in self.documents:
            return self.documents[url]
        self.documents[url] = None
        if not url.isascii() or re.search(r"\s", url):
            self.wrong(url, "the URL has characters that no URL has")
            return None
        try:
            doc = Document(url, self.fetch(url))
        except (OSError, ET.ParseError, ValueError) as e:
            self.wrong(url, f"cannot be read: {e}")
            return None
        self.documents[url] = doc
        self.show(doc)
        if doc.capability != capability:
            self.wrong(url, f"capability {doc.capability!r}, expected {capability!r}")
        if root and doc.root != root:
            self.wrong(url, f"root element {doc.root}, expected {root}")
        if doc.size > MAX_BYTES:
            self.wrong(url, f"{doc.size} bytes, more than {MAX_BYTES}")
        if len(doc.entries) > MAX_ENTRIES:
            self.wrong(url, f"{len(doc.entries)} entries, more than {MAX_ENTRIES}")
        for name in ("at", "completed", "from", "until"):
            if name in doc.md:
                self.time(doc, None, name, doc.md[name])
        for n, e in enumerate(doc.entries, 1):
            self.check_entry(doc, n, e)
        return doc

    def show(self, doc):
        line = {"document": doc.url, "root": doc.root, "md": doc.md, "links": doc.links,
                "entries": len(doc.entries), "bytes": doc.size}
        print(json.dumps(line, sort_keys=True, ensure_ascii=False), file=self.out)
        for n, e in enumerate(doc.entries, 1):
            line = {"entry": e["loc"], "document": doc.url, "n": n, "lastmod": e["lastmod"],
                    "md": e["md"], "links": e["links"]}
            print(json.dumps(line, sort_keys=True, ensure_ascii=False), file=self.out)

    def check_entry(self, doc, n, e):
        if not e["loc"]:
            self.wrong(doc.url, f"entry {n}: no loc")
        elif e["loc"] != e["loc"].strip() or not urllib.parse.urlsplit(e["loc"]).scheme:
            self.wrong(doc.url, f"entry {n}: loc {e['loc']!r} is no absolute URI")
        if e["lastmod"] is not None:
            self.time(doc, n, "lastmod", e["lastmod"])
        for name in ("datetime", "at", "completed", "from", "until"):
            if name in e["md"]:
                self.time(doc, n, name, e["md"][name])
        for ln in e["links"]:
            if not ln.get("rel") or not ln.get("href"):
                self.wrong(doc.url, f"entry {n}: a link without rel or href: {ln}")
            if "modified" in ln:
                self.time(doc, n, "modified of a link", ln["modified"])
        if not re.fullmatch(r"\d+", e["md"].get("length", "0")):
            self.wrong(doc.url, f"entry {n}: length {e['md']['length']!r}")

    def time(self, doc, n, name, text):
        """Parses a time; a bad one is a violation and gives None."""
        try:
            return parse_time(text)
        except BadTime as e:
            where = "" if n is None else f"entry {n}: "
            self.wrong(doc.url, f"{where}{name}: {e}")
            return None

    def attribute(self, doc, name):
        return self.time(doc, None, name, doc.md[name]) if name in doc.md else None

    def expect_link(self, doc, rel, target):
        found = doc.links_of(rel)
        if found != [target]:
            self.wrong(doc.url, f"links rel={rel!r} are {found}, expected exactly {target}")

    # -- the walk ---------------------------------------------------------

    def start(self, url):
        try:
            body = self.fetch(url)
            capability = Document(url, body).capability
        except (OSError, ET.ParseError, ValueError) as e:
            self.wrong(url, f"cannot be read: {e}")
            return
        if capability == "description":
            self.description(url)
        elif capability == "capabilitylist":
            self.capability_list(url, None)
        else:
            self.wrong(url, f"capability {capability!r}: start at a Source Description or a Capability List")

    def description(self, url):
        doc = self.get(url, "description")
        if doc is None:
            return
        if doc.links_of("up"):
            self.wrong(url, "a Source Description links up to nothing")
        self.unique(doc)
        for e in doc.entries:
            if e["md"].get("capability") != "capabilitylist":
                self.wrong(url, f"{e['loc']}: capability {e['md'].get('capability')!r}")
            self.capability_list(e["loc"], url)

    def capability_list(self, url, up):
        doc = self.get(url, "capabilitylist", "urlset")
        if doc is None:
            return
        if up is not None:
            # A description of one set alone lists the same Capability List, whose
            # up is the description of all.
            ups = doc.links_of("up")
            if len(ups) != 1 or not ups[0].endswith("/.well-known/resourcesync"):
                self.wrong(url, f"links rel='up' are {ups}, expected one Source Description")
        seen = set()
        for e in doc.entries:
            capability = e["md"].get("capability", "")
            if capability in seen:
                self.wrong(url, f"two entries with capability {capability!r}")
            seen.add(capability)
            if capability == "resourcelist":
                self.resource_list(e["loc"], url)
            elif capability == "changelist":
                self.change_list(e["loc"], url)
            elif not capability:
                self.wrong(url, f"{e['loc']}: no capability")
        if not seen:
            self.wrong(url, "offers nothing")
        self.window(url)

    def unique(self, doc, seen=None):
        seen = {} if seen is None else seen
        for n, e in enumerate(doc.entries, 1):
            if e["loc"] in seen:
                self.wrong(doc.url, f"entry {n}: loc {e['loc']} stands in {seen[e['loc']]} already")
            seen.setdefault(e["loc"], f"{doc.url} entry {n}")

    def resource_list(self, url, up):
        doc = self.get(url, "resourcelist")
        if doc is None:
            return
        self.expect_link(doc, "up", up)
        at = self.attribute(doc, "at")
        if "at" not in doc.md:
            self.wrong(url, "a Resource List without at")
        parts = [doc]
        if doc.root == "sitemapindex":
            self.unique(doc)
            parts = []
            for e in doc.entries:
                part = self.get(e["loc"], "resourcelist", "urlset")
                if part is None:
                    continue
                parts.append(part)
                self.expect_link(part, "up", up)
                self.expect_link(part, "index", url)
                if part.md.get("at") != doc.md.get("at"):
                    self.wrong(part.url, f"at {part.md.get('at')}, its index has {doc.md.get('at')}")
        seen = {}
        for part in parts:
            self.unique(part, seen)
            for n, e in enumerate(part.entries, 1):
                for name in ("change", "datetime"):
                    if name in e["md"]:
                        self.wrong(part.url, f"entry {n}: {name} does not belong into a Resource List")
                lastmod = e["lastmod"] and self.time(part, n, "lastmod", e["lastmod"])
                if lastmod and at and lastmod > at:
                    self.wrong(part.url, f"entry {n}: lastmod {e['lastmod']} is later than at {part.md.get('at')}")
                if self.content:
                    self.compare_content(part, n, e)

    def compare_content(self, doc, n, e):
        try:
            body = self.fetch(e["loc"])
        except OSError as err:
            self.wrong(doc.url, f"entry {n}: GET {e['loc']}: {err}")
            return
        if "length" not in e["md"] or "hash" not in e["md"]:
            self.wrong(doc.url, f"entry {n}: no length or no hash to compare with")
        if "length" in e["md"] and int(e["md"]["length"]) != len(body):
            self.wrong(doc.url, f"entry {n}: {e['loc']} has {len(body)} bytes, listed are {e['md']['length']}")
        for item in e["md"].get("hash", "").split():
            name, _, digest = item.partition(":")
            algorithm = {"md5": "md5", "sha-1": "sha1", "sha-256": "sha256"}.get(name.lower())
            if algorithm is None:
                self.wrong(doc.url, f"entry {n}: unknown hash {item}")
            elif hashlib.new(algorithm, body).hexdigest() != digest.lower():
                self.wrong(doc.url, f"entry {n}: {e['loc']} does not have the hash {item}")

    def change_list(self, url, up):
        doc = self.get(url, "changelist")
        if doc is None:
            return
        self.expect_link(doc, "up", up)
        if doc.root == "urlset":
            self.changes(doc)
            return
        self.unique(doc)
        index_from, index_until = self.attribute(doc, "from"), self.attribute(doc, "until")
        if "from" not in doc.md:
            self.wrong(url, "a Change List Index without from")
        before = None
        for n, e in enumerate(doc.entries, 1):
            part = self.get(e["loc"], "changelist", "urlset")
            if part is None:
                continue
            self.expect_link(part, "up", up)
            self.expect_link(part, "index", url)
            for name in ("from", "until"):
                # The open list may have closed between the two requests.
                if e["md"].get(name) != part.md.get(name) and not (name == "until" and name not in e["md"]):
                    self.wrong(url, f"entry {n}: {name} {e['md'].get(name)}, the list has {part.md.get(name)}")
            start, end = self.changes(part)
            if n == 1 and start and index_from and start != index_from:
                self.wrong(url, f"starts at {doc.md.get('from')}, its first list at {part.md.get('from')}")
            if before is not None and start and before != start:
                self.wrong(part.url, f"from {part.md.get('from')} is not until of the list before: a gap or an overlap")
            if end is None and n < len(doc.entries):
                self.wrong(part.url, "has no until, but is not the last one")
            if end and index_until and end > index_until:
                self.wrong(url, f"entry {n}: until is later than that of the index")
            before = end

    def changes(self, doc):
        """Checks one Change List; returns its from and until."""
        start, end = self.attribute(doc, "from"), self.attribute(doc, "until")
        if "from" not in doc.md:
            self.wrong(doc.url, "a Change List without from")
        if start and end and end < start:
            self.wrong(doc.url, f"until {doc.md['until']} is earlier than from {doc.md['from']}")
        last = None
        for n, e in enumerate(doc.entries, 1):
            change, text = e["md"].get("change"), e["md"].get("datetime")
            if change not in CHANGES:
                self.wrong(doc.url, f"entry {n}: change {change!r}")
            if change == "deleted" and ("hash" in e["md"] or "length" in e["md"]):
                self.wrong(doc.url, f"entry {n}: a deletion has neither hash nor length")
            if text is None:
                self.wrong(doc.url, f"entry {n}: no datetime")
                continue
            at = self.time(doc, n, "datetime", text)
            if at is None:
                continue
            if last and at < last:
                self.wrong(doc.url, f"entry {n}: datetime {text} is earlier than that of the entry before")
            if start and at <= start:
                self.wrong(doc.url, f"entry {n}: datetime {text} is not later than from {doc.md['from']}")
            if end and at > end:
                self.wrong(doc.url, f"entry {n}: datetime {text} is later than until {doc.md['until']}")
            lastmod = e["lastmod"] and self.time(doc, n, "lastmod", e["lastmod"])
            if lastmod and lastmod > at:
                self.wrong(doc.url, f"entry {n}: lastmod {e['lastmod']} is later than datetime {text}")
            last = at
        return start, end

    def window(self, capability_list):
        """changelist.xml beside the Capability List, for clients that know only it."""
        url = urllib.parse.urljoin(capability_list, "changelist.xml")
        if url in self.documents:
            return
        try:
            self.fetch(url)
        except urllib.error.HTTPError as e:
            if self.want_window or e.code != 404:
                self.wrong(url, f"the window does not answer: {e}")
            return
        except OSError as e:
            self.wrong(url, f"the window does not answer: {e}")
            return
        doc = self.get(url, "changelist", "urlset")
        if doc is None:
            return
        self.expect_link(doc, "up", capability_list)
        if "until" in doc.md:
            self.wrong(url, "a window is open: it has no until")
        if doc.links_of("index"):
            self.wrong(url, "a window is in no index")
        self.changes(doc)


def main():
    parser = argparse.ArgumentParser(description="An independent ResourceSync reader.")
    parser.add_argument("url")
    parser.add_argument("--content", action="store_true", help="GET every loc of the Resource List")
    parser.add_argument("--window", action="store_true", help="changelist.xml must be there")
    args = parser.parse_args()
    host = urllib.parse.urlsplit(args.url).hostname
    if host not in ("127.0.0.1", "::1", "localhost"):
        parser.error(f"{args.url}: tests read from loopback only")
    reader = Reader(sys.stdout, sys.stderr, args.content, args.window)
    reader.start(args.url)
    return 1 if reader.violations else 0


if __name__ == "__main__":
    sys.exit(main())
