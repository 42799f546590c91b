#!/usr/bin/env python3
"""Keeps a folder equal to a set of a bridge, with the standard library alone.

    python3 follow.py http://bridge.example.org/sets/maps/capabilitylist.xml /srv/maps

The first run copies the Resource List. Each further run applies what the Change Lists have had since, in their order, and writes how far it has come only when all of it
is done: a run that was interrupted is repeated. Where the Change Lists do not reach back so far any more, it copies the Resource List again, and removes all else. Each file is compared with its SHA-256 before it replaces the one before.
"""

import hashlib
import os
import sys
import urllib.error
import urllib.request
from xml.etree import ElementTree

SITEMAP, RS = "{http://www.sitemaps.org/schemas/sitemap/0.9}", "{http://www.openarchives.org/rs/terms/}"


def document(url):
    """Returns the rs:md of a document, and its entries: loc, rs:md, links by relation."""
    with urllib.request.urlopen(url) as answer:
        root = ElementTree.parse(answer).getroot()
    entries = [(e.findtext(SITEMAP + "loc").strip(), e.find(RS + "md").attrib if e.find(RS + "md") is not None else {},
                {l.get("rel"): l.get("href") for l in e.findall(RS + "ln")}) for e in root if e.tag in (SITEMAP + "url", SITEMAP + "sitemap")]
    return root.find(RS + "md").attrib, entries, root.tag == SITEMAP + "sitemapindex"


def named(capabilities, capability):
    return next(loc for loc, md, _ in document(capabilities)[1] if md.get("capability") == capability)


def lists(url):
    """Yields the lists of a capability: the one, or those that the index names, oldest first."""
    md, entries, is_index = document(url)
    if not is_index:
        yield url, md
        return
    for loc, md, _ in entries:
        yield loc, md


def file_of(loc):
    return loc.rsplit("/", 1)[1]


def changed(changelists, since, changes):
    """Adds the last change of each resource since then, and returns up to when the lists have them."""
    mark = since
    for url, interval in lists(changelists):
        if interval.get("until", "9") <= since:
            continue
        for loc, md, links in document(url)[1]:
            if md["datetime"] > since:
                changes.pop(loc, None)
                changes[loc], mark = (md, links), md["datetime"]
    return mark


def apply(folder, loc, md, links):
    """Applies a change. It is not done if the resource has changed again since, and the Source does not keep the version."""
    path = os.path.join(folder, file_of(loc))
    if md.get("change") == "deleted":
        if os.path.exists(path):
            os.remove(path)
        return True
    wanted = dict(h.split(":", 1) for h in md.get("hash", "").split()).get("sha-256")
    for url in filter(None, (loc, links.get("memento"))):
        try:
            with urllib.request.urlopen(url) as answer:
                body = answer.read()
        except urllib.error.HTTPError as err:
            if err.code not in (404, 410):
                raise
            continue
        if wanted in (None, hashlib.sha256(body).hexdigest()):
            with open(path + ".new", "wb") as file:
                file.write(body)
            os.replace(path + ".new", path)
            return True
    return False


def main(capabilities, folder):
    os.makedirs(folder, exist_ok=True)
    mark_file = os.path.join(folder, ".mark")
    since = open(mark_file).read() if os.path.exists(mark_file) else ""
    changelists, changes, left = named(capabilities, "changelist"), {}, set()
    if since < document(changelists)[0]["from"]:  # the first run, or a set whose lists begin later, as after a restore
        whole = named(capabilities, "resourcelist")
        mark = document(whole)[0]["at"]
        for url, _ in lists(whole):
            changes.update({loc: (md, links) for loc, md, links in document(url)[1]})
        if since:
            left = set(os.listdir(folder)) - {".mark"} - {file_of(loc) for loc in changes}
    else:
        mark = changed(changelists, since, changes)
    count = 0
    while missed := [loc for loc, change in changes.items() if not apply(folder, loc, *change)]:
        count += len(changes) - len(missed)
        changes = {}  # what was missed has changed again meanwhile
        mark = changed(changelists, mark, changes)
        left -= {file_of(loc) for loc in changes}
        if late := set(missed) - set(changes):
            sys.exit(f"{late.pop()} is not what its list says, and no list has a newer change; run this again")
    for name in left:  # in no list any more
        os.remove(os.path.join(folder, name))
    with open(mark_file + ".new", "w") as file:
        file.write(mark)
    os.replace(mark_file + ".new", mark_file)
    print(count + len(changes), "changes, up to", mark)


if len(sys.argv) != 3:
    sys.exit(__doc__)
try:
    main(*sys.argv[1:])
except urllib.error.HTTPError as err:
    sys.exit(f"{err.url} answers {err.code}; nothing is lost: run this again" + (", as a set is not complete until its Sources were read once" if err.code == 503 else ""))
except (OSError, ElementTree.ParseError) as err:
    sys.exit(f"{err}; nothing is lost: run this again")
