"""Checks a package of a ResourceSync dump against its manifest (Z39.99 11.2, 13.2).

python3 check_dump.py FOLDER|ZIP [MANIFEST]

FOLDER is an unpacked package, ZIP one that is read where it is; MANIFEST is the copy
of its manifest, which must be the same. Every path of the manifest must be there with
its length and its SHA-256, and nothing else. Prints a line with counts; exits 1 on
the first difference.
"""

import hashlib
import os
import sys
import xml.etree.ElementTree as tree
import zipfile

SITEMAP = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
RS = "{http://www.openarchives.org/rs/terms/}"


class Folder:
    def __init__(self, root):
        self.root = root

    def names(self):
        for folder, _, files in os.walk(self.root):
            for name in files:
                yield os.path.relpath(os.path.join(folder, name), self.root)

    def open(self, name):
        return open(os.path.join(self.root, name), "rb")


class Package:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path)

    def names(self):
        return self.zip.namelist()

    def open(self, name):
        return self.zip.open(name)


def fail(message):
    sys.exit("FAIL: " + message)


def check(stated, place, path):
    if not path.startswith("/") or ".." in path.split("/"):
        fail(path + ": not a path with a leading slash")
    length, digest = 0, hashlib.sha256()
    with place.open(path[1:]) as f:
        while block := f.read(1 << 20):
            length += len(block)
            digest.update(block)
    if stated.get("length") != str(length):
        fail(f"{path}: {length} bytes, the manifest says {stated.get('length')}")
    if "sha-256:" + digest.hexdigest() not in (stated.get("hash") or "").split():
        fail(f"{path}: sha-256:{digest.hexdigest()}, the manifest says {stated.get('hash')}")
    return length


def main(path, copy=None):
    place = Folder(path) if os.path.isdir(path) else Package(path)
    if copy:
        with place.open("manifest.xml") as inside, open(copy, "rb") as outside:
            if inside.read() != outside.read():
                fail("manifest.xml: not the same as " + copy)
    entries, deleted, total, seen = 0, 0, 0, {"manifest.xml"}
    kind, depth = None, 0
    with place.open("manifest.xml") as f:
        for event, element in tree.iterparse(f, ("start", "end")):
            if event == "start":
                depth += 1
                root = element if depth == 1 else root
                continue
            depth -= 1
            if depth == 1 and element.tag == RS + "md":
                kind = element.get("capability")
            if depth != 1 or element.tag != SITEMAP + "url":
                continue
            md = element.find(RS + "md")
            entries += 1
            if md.get("change") == "deleted":
                deleted += 1
                if md.get("path"):
                    fail(md.get("path") + ": of a deletion")
            elif not md.get("path") or not md.get("type"):
                fail(element.find(SITEMAP + "loc").text + ": without path or type")
            for stated in [md] + element.findall(RS + "ln"):
                name = stated.get("path")
                if name:
                    if name[1:] in seen:
                        fail(name + ": twice")
                    seen.add(name[1:])
                    total += check(stated, place, name)
            root.remove(element)
    extra = set(place.names()) - seen
    if extra:
        fail("not in the manifest: " + min(extra))
    if kind not in ("resourcedump-manifest", "changedump-manifest"):
        fail(f"capability {kind}")
    print(f"{kind} entries={entries} deleted={deleted} files={len(seen) - 1} bytes={total}")


main(*sys.argv[1:])
