package resourcesync_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"mime"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// Read all that a Source has, and later only what has changed.
func ExampleWalk() {
	source := fixtures.Maps(nil)
	server := httptest.NewServer(source)
	defer server.Close()
	one := source.Live()[0] // a resource

	var state resourcesync.State // keep it between the walks: its MarshalText is for a file
	for range 2 {
		walk := resourcesync.Walk{URL: server.URL, State: state}
		changes := map[string]string{} // by loc; "" is there, as in a Resource List
		for list, err := range walk.Documents(context.Background()) {
			if err != nil {
				log.Fatal(err)
			}
			here := map[string]string{} // in one list the last entry counts
			for entry, bad := range list.Entries() {
				if bad != nil {
					log.Print(bad)
				} else if _, newer := changes[entry.Loc]; !newer {
					here[entry.Loc] = entry.Metadata.Change
				}
			}
			maps.Copy(changes, here)
		}
		r := walk.Result() // if it is complete, what has no entry is deleted too
		state = r.State
		fmt.Printf("lists: %d, resources: %d, complete: %v, missing: %v; one: %q\n", r.Documents, len(changes), r.Complete, r.Gap, changes[server.URL+one.Loc])
		source.Delete(source.Live()[0].Name)
	}

	// Output:
	// lists: 2, resources: 21, complete: true, missing: <nil>; one: "updated"
	// lists: 1, resources: 7, complete: false, missing: <nil>; one: "deleted"
}

var modified = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)

// folder is a folder of files; in a program it is os.DirFS("...").
var folder = fstest.MapFS{
	"a map.pdf":   {Data: []byte("%PDF"), ModTime: modified},
	"more/b.html": {Data: []byte("<p>b"), ModTime: modified},
}

// Write the Resource List of a folder.
func ExampleWriter() {
	w := resourcesync.NewWriter(os.Stdout, &resourcesync.Document{
		Capability: resourcesync.ResourceList,
		At:         resourcesync.Seconds(modified.Add(time.Hour)), // in a program time.Now()
		Links:      []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "https://example.org/capabilitylist.xml"}},
	})
	err := fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, infoErr := d.Info()
		content, err := fs.ReadFile(folder, name)
		if err = errors.Join(infoErr, err); err != nil {
			return err
		}
		loc := url.URL{Scheme: "https", Host: "example.org", Path: "/" + name}
		return w.Entry(&resourcesync.Entry{Loc: loc.String(), LastMod: resourcesync.Seconds(info.ModTime()), Metadata: resourcesync.Metadata{
			Hash:   fmt.Sprintf("sha-256:%x", sha256.Sum256(content)),
			Length: resourcesync.Bytes(int64(len(content))),
			Type:   mime.TypeByExtension(path.Ext(name)),
		}})
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		log.Fatal(err)
	}

	// Output:
	// <?xml version="1.0" encoding="UTF-8"?>
	// <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">
	//  <rs:ln rel="up" href="https://example.org/capabilitylist.xml"/>
	//  <rs:md capability="resourcelist" at="2026-01-02T01:00:00Z"/>
	//  <url>
	//   <loc>https://example.org/a%20map.pdf</loc>
	//   <lastmod>2026-01-02T00:00:00Z</lastmod>
	//   <rs:md hash="sha-256:315d429b7714cedb6ad04ac31240145257692630457f3c88253c5beceac76027" length="4" type="application/pdf"/>
	//  </url>
	//  <url>
	//   <loc>https://example.org/more/b.html</loc>
	//   <lastmod>2026-01-02T00:00:00Z</lastmod>
	//   <rs:md hash="sha-256:82b61510cbeec23ec276ba47bb2b656e9c52b0cb7a9359703a409d0ac8dc4746" length="4" type="text/html; charset=utf-8"/>
	//  </url>
	// </urlset>
}

// Read the package of a dump.
func ExampleDumpReader() {
	var file bytes.Buffer // in a program an *os.File
	z := zip.NewWriter(&file)
	for name, content := range map[string]string{
		"resources/a.txt": "the bytes of a\n",
		"manifest.xml": `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">
			<rs:ln rel="up" href="https://example.org/capabilitylist.xml"/>
			<rs:md capability="resourcedump-manifest" at="2026-01-02T00:00:00Z"/>
			<url><loc>https://example.org/a.txt</loc><rs:md path="/resources/a.txt" length="15"/></url></urlset>`,
	} {
		if w, err := z.Create(name); err != nil {
			log.Fatal(err)
		} else if _, err := w.Write([]byte(content)); err != nil {
			log.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		log.Fatal(err)
	}

	dump, err := resourcesync.NewDumpReader(bytes.NewReader(file.Bytes()), int64(file.Len()), resourcesync.DumpOptions{URL: "https://example.org/dump.zip"})
	if err != nil {
		log.Fatal(err) // nothing of this package can be trusted
	}
	for entry, err := range dump.Entries() {
		if err != nil {
			log.Fatal(err)
		}
		in, err := dump.Open(&entry.Metadata)
		if err != nil {
			log.Fatal(err)
		}
		content, err := io.ReadAll(in) // fails where the bytes are not the stated ones
		if err = errors.Join(err, in.Close()); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s", entry.Loc, content)
	}

	// Output:
	// https://example.org/a.txt: the bytes of a
}

// Write the package of a Resource Dump of a folder, and the Resource Dump that names it.
func ExampleDumpWriter() {
	dir, err := os.MkdirTemp("", "dump")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			log.Fatal(err)
		}
		return f
	}
	pack, manifest := create("1.zip"), create("1.xml")
	defer pack.Close()
	defer manifest.Close()
	at, up := resourcesync.Seconds(modified.Add(time.Hour)), []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "https://example.org/capabilitylist.xml"}}
	sum := sha256.New()
	w := resourcesync.NewDumpWriter(io.MultiWriter(pack, sum), manifest, &resourcesync.Document{Capability: resourcesync.ResourceDumpManifest, At: at, Links: up})
	open := func(m *resourcesync.Metadata) (io.ReadCloser, error) {
		return folder.Open(strings.TrimPrefix(m.Path, "/resources/"))
	}
	for _, name := range slices.Sorted(maps.Keys(folder)) {
		loc := url.URL{Scheme: "https", Host: "example.org", Path: "/" + name}
		if err := w.Entry(&resourcesync.Entry{Loc: loc.String(), Metadata: resourcesync.Metadata{
			Path: "/resources/" + name,
			Hash: fmt.Sprintf("sha-256:%x", sha256.Sum256(folder[name].Data)),
			Type: mime.TypeByExtension(path.Ext(name)),
		}}, open); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	length, err := pack.Seek(0, io.SeekEnd)
	if err != nil {
		log.Fatal(err)
	}
	dump := resourcesync.Document{Capability: resourcesync.ResourceDump, At: at, Links: up, Entries: []resourcesync.Entry{{
		Loc:      "https://example.org/dump/1.zip",
		Metadata: resourcesync.Metadata{Type: "application/zip", Length: resourcesync.Bytes(length), Hash: fmt.Sprintf("sha-256:%x", sum.Sum(nil))},
		Links:    []resourcesync.Link{{Rel: resourcesync.RelContents, Href: "https://example.org/dump/1.xml", Type: "application/xml"}},
	}}}
	if _, err := dump.WriteTo(io.Discard); err != nil { // in a program to resourcedump.xml
		log.Fatal(err)
	}

	r, err := resourcesync.NewDumpReader(pack, length, resourcesync.DumpOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for entry, err := range r.Entries() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(entry.Loc, entry.Metadata.Path)
	}

	// Output:
	// https://example.org/a%20map.pdf /resources/a map.pdf
	// https://example.org/more/b.html /resources/more/b.html
}

// Write the Capability List that names a Resource List.
func ExampleDocument_WriteTo() {
	capabilities := resourcesync.Document{
		Capability: resourcesync.CapabilityList,
		Links:      []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "https://example.org/.well-known/resourcesync"}},
		Entries: []resourcesync.Entry{{
			Loc:      "https://example.org/resourcelist.xml",
			Metadata: resourcesync.Metadata{Capability: resourcesync.ResourceList},
		}},
	}
	if _, err := capabilities.WriteTo(os.Stdout); err != nil {
		log.Fatal(err)
	}

	// Output:
	// <?xml version="1.0" encoding="UTF-8"?>
	// <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">
	//  <rs:ln rel="up" href="https://example.org/.well-known/resourcesync"/>
	//  <rs:md capability="capabilitylist"/>
	//  <url>
	//   <loc>https://example.org/resourcelist.xml</loc>
	//   <rs:md capability="resourcelist"/>
	//  </url>
	// </urlset>
}
