#!/usr/bin/env python3
"""A test Destination that works as the most used client does.

Standard library only, written for bridge's tests from a description of that
client's algorithm: it knows one base URL, keeps a stamp of its own in whole
seconds, reads nothing but resourcelist.xml and changelist.xml below the base, and
applies, in the order of the document, every change that is not older than its
stamp.

    resync_client.py --state FILE --dir DIR baseline    BASE
    resync_client.py --state FILE --dir DIR incremental BASE
    resync_client.py --state FILE --dir DIR audit       BASE

BASE is http://host:port/sets/NAME without a trailing slash. The state is a JSON
file: {"base": ..., "stamp": seconds, "files": {loc: {"path", "length", "sha256",
"md5"}}}. A summary goes to standard output as one JSON object.
Exit status: 0 done (audit: no difference), 1 failed (audit: differences, one a
line on standard error), 2 wrong usage.
"""

import argparse
import calendar
import hashlib
import json
import os
import re
import sys
import time
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET

SM = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
RS = "{http://www.openarchives.org/rs/terms/}"


class Failed(Exception):
    pass


def whole_seconds(text):
    """A UTC time as whole seconds; a fraction is cut off, an offset is not known."""
    m = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", text or "")
    if not m:
        raise Failed(f"time {text!r}: this client knows YYYY-MM-DDThh:mm:ss[.f]Z only")
    return calendar.timegm(time.strptime(m.group(1), "%Y-%m-%dT%H:%M:%S"))


class Client:
    def __init__(self, base, state_file, folder):
        self.base, self.state_file, self.folder = base, state_file, folder
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.host = urllib.parse.urlsplit(base).netloc
        self.state = {"base": base, "stamp": 0, "files": {}}

    # -- state ------------------------------------------------------------

    def load(self):
        try:
            with open(self.state_file, encoding="utf-8") as f:
                self.state = json.load(f)
        except FileNotFoundError as e:
            raise Failed(f"{self.state_file}: no state; run baseline first") from e
        if self.state["base"] != self.base:
            raise Failed(f"the state is of {self.state['base']}, not of {self.base}")

    def save(self):
        with open(self.state_file + ".new", "w", encoding="utf-8") as f:
            json.dump(self.state, f, sort_keys=True, indent=1)
        os.replace(self.state_file + ".new", self.state_file)

    # -- the Source -------------------------------------------------------

    def get(self, url):
        try:
            with self.opener.open(url, timeout=60) as answer:
                return answer.read()
        except OSError as e:
            raise Failed(f"GET {url}: {e}") from e

    def document(self, name, capability):
        """A list below the base; no index is followed."""
        url = f"{self.base}/{name}"
        try:
            root = ET.fromstring(self.get(url))
        except ET.ParseError as e:
            raise Failed(f"{url}: {e}") from e
        md = root.find(RS + "md")
        found = None if md is None else md.get("capability")
        if root.tag != SM + "urlset" or found != capability:
            raise Failed(f"{url}: {root.tag} with capability {found!r}, expected a urlset with {capability!r}")
        return md, [self.entry(url, e) for e in root.findall(SM + "url")]

    def entry(self, url, element):
        loc = element.findtext(SM + "loc")
        md = element.find(RS + "md")
        md = {} if md is None else dict(md.attrib)
        if not loc or loc != loc.strip():
            raise Failed(f"{url}: loc {loc!r}")
        self.path(loc)
        lastmod = element.findtext(SM + "lastmod")
        return {
            "loc": loc,
            "lastmod": None if lastmod is None else whole_seconds(lastmod),
            "change": md.get("change"),
            "datetime": whole_seconds(md["datetime"]) if "datetime" in md else None,
            "length": int(md["length"]) if "length" in md else None,
            "hashes": dict(h.split(":", 1) for h in md.get("hash", "").split()),
        }

    def path(self, loc):
        """The file of a loc: its path below the base. One host:port, no query, no
        trailing slash, nothing outside the folder."""
        parts = urllib.parse.urlsplit(loc)
        if parts.netloc != self.host or not loc.startswith(self.base + "/"):
            raise Failed(f"loc {loc} is not below {self.base}")
        relative = loc[len(self.base) + 1:]
        if parts.query or relative.endswith("/") or ".." in relative.split("/"):
            raise Failed(f"loc {loc} does not name a file")
        return relative

    def store(self, e):
        body = self.get(e["loc"])
        relative = self.path(e["loc"])
        target = os.path.join(self.folder, relative)
        if os.path.isdir(target):
            raise Failed(f"{relative} is a folder and a file")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as f:
            f.write(body)
        self.state["files"][e["loc"]] = {
            "path": relative,
            "length": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "md5": hashlib.md5(body).hexdigest(),
        }

    def drop(self, loc):
        known = self.state["files"].pop(loc, None)
        if known:
            target = os.path.join(self.folder, known["path"])
            if os.path.exists(target):
                os.remove(target)
        return known is not None

    # -- commands ---------------------------------------------------------

    def baseline(self):
        _, entries = self.document("resourcelist.xml", "resourcelist")
        if not entries:
            raise Failed("the Resource List is empty: this client takes that for a failure")
        self.state = {"base": self.base, "stamp": 0, "files": {}}
        for e in entries:
            if e["loc"] in self.state["files"]:
                raise Failed(f"loc {e['loc']} stands twice in the Resource List")
            if e["lastmod"] is None:
                raise Failed(f"loc {e['loc']} has no lastmod")
            self.store(e)
            self.state["stamp"] = max(self.state["stamp"], e["lastmod"])
        self.save()
        return {"created": len(entries)}

    def incremental(self):
        self.load()
        md, entries = self.document("changelist.xml", "changelist")
        if "from" in md.attrib and whole_seconds(md.get("from")) > self.state["stamp"]:
            # It does not notice by itself; a test must.
            print(f"note: the window starts at {md.get('from')}, later than the stamp "
                  f"{self.state['stamp']}: changes may be missed", file=sys.stderr)
        stamp = self.state["stamp"]
        counts = {"created": 0, "updated": 0, "deleted": 0, "older": 0, "gone": 0}
        latest = self.last_of_each(entries, stamp)
        for n, e in enumerate(entries):
            if e["datetime"] is None or e["lastmod"] is None:
                raise Failed(f"change {n + 1} has no datetime or no lastmod: this client needs both")
            if e["change"] not in ("created", "updated", "deleted"):
                raise Failed(f"change {n + 1}: {e['change']!r}")
            if e["datetime"] < stamp:
                counts["older"] += 1
                continue
            self.apply(n, e, latest, counts)
            self.state["stamp"] = max(self.state["stamp"], e["datetime"])
        self.save()
        return counts

    @staticmethod
    def last_of_each(entries, stamp):
        """The position of the last change of each loc that is applied."""
        return {e["loc"]: n for n, e in enumerate(entries)
                if e["datetime"] is not None and e["datetime"] >= stamp}

    def apply(self, n, e, latest, counts):
        if e["change"] == "deleted":
            counts["deleted"] += self.drop(e["loc"])
        elif latest[e["loc"]] != n:
            # A later change of the document overtakes this one; its bytes may
            # be gone already.
            counts["gone"] += 1
        else:
            self.store(e)
            counts[e["change"]] += 1

    def audit(self):
        self.load()
        _, entries = self.document("resourcelist.xml", "resourcelist")
        listed = {e["loc"]: e for e in entries}
        problems = []
        for loc in sorted(self.state["files"].keys() - listed.keys()):
            problems.append(f"{loc}: extra: not in the Resource List")
        for loc in sorted(listed):
            problems += self.compare(loc, listed[loc])
        known = {f["path"] for f in self.state["files"].values()}
        for where, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.relpath(os.path.join(where, name), self.folder)
                if path not in known:
                    problems.append(f"{path}: a file that is not in the state")
        for p in problems:
            print(p, file=sys.stderr)
        return {"listed": len(listed), "held": len(self.state["files"]), "differences": len(problems)}

    def compare(self, loc, e):
        known = self.state["files"].get(loc)
        if known is None:
            return [f"{loc}: missing"]
        try:
            with open(os.path.join(self.folder, known["path"]), "rb") as f:
                body = f.read()
        except OSError as err:
            return [f"{loc}: {err}"]
        problems = []
        if e["length"] is None and not e["hashes"]:
            problems.append(f"{loc}: neither length nor hash is listed")
        if e["length"] is not None and e["length"] != len(body):
            problems.append(f"{loc}: {len(body)} bytes on disk, {e['length']} listed")
        for name, digest in e["hashes"].items():
            algorithm = {"md5": "md5", "sha-256": "sha256"}.get(name)
            if algorithm is None:
                continue
            if hashlib.new(algorithm, body).hexdigest() != digest:
                problems.append(f"{loc}: {name} differs")
        return problems


def main():
    parser = argparse.ArgumentParser(description="A test Destination.")
    parser.add_argument("--state", required=True, metavar="FILE")
    parser.add_argument("--dir", required=True, metavar="DIR")
    parser.add_argument("command", choices=("baseline", "incremental", "audit"))
    parser.add_argument("base")
    args = parser.parse_args()
    if urllib.parse.urlsplit(args.base).hostname not in ("127.0.0.1", "::1", "localhost"):
        parser.error(f"{args.base}: tests read from loopback only")
    client = Client(args.base.rstrip("/"), args.state, args.dir)
    try:
        summary = getattr(client, args.command)()
    except Failed as e:
        print(f"failed: {e}", file=sys.stderr)
        return 1
    print(json.dumps(summary, sort_keys=True))
    return 1 if summary.get("differences") else 0


if __name__ == "__main__":
    sys.exit(main())
