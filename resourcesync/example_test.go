package resourcesync_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
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

	var state resourcesync.State // keep it between the walks, for example in a file
	for range 2 {
		walk := resourcesync.Walk{URL: server.URL, State: state}
		for list, err := range walk.Documents(context.Background()) {
			if err != nil {
				log.Fatal(err)
			}
			present, deleted := 0, 0
			for entry, bad := range list.Entries() {
				switch {
				case bad != nil:
					log.Print(bad)
				case entry.Metadata.Change == resourcesync.Deleted:
					deleted++
				default:
					present++ // there is a resource at entry.Loc
				}
			}
			fmt.Println(list.Head().Capability, present, deleted)
		}
		state = walk.Result().State
		fixtures.EvolveMaps(source, 1)
	}

	// Output:
	// changelist 6 1
	// resourcelist 20 0
	// changelist 7 1
}

var modified = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)

// folder is a folder of files; in a program it is os.DirFS("...").
var folder = fstest.MapFS{
	"a.xml":      {Data: []byte("<a/>"), ModTime: modified},
	"more/b.xml": {Data: []byte("<b/>"), ModTime: modified},
}

// Write the Resource List of a folder.
func ExampleWriter() {
	w := resourcesync.NewWriter(os.Stdout, &resourcesync.Document{
		Capability: resourcesync.ResourceList,
		At:         resourcesync.Seconds(modified.Add(time.Hour)), // in a program time.Now()
		Links:      []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "https://example.org/capabilitylist.xml"}},
	})
	err := fs.WalkDir(folder, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, infoErr := d.Info()
		content, err := fs.ReadFile(folder, path)
		if err = errors.Join(infoErr, err); err != nil {
			return err
		}
		return w.Entry(&resourcesync.Entry{
			Loc: "https://example.org/" + path, LastMod: resourcesync.Seconds(info.ModTime()),
			Metadata: resourcesync.Metadata{Hash: fmt.Sprintf("sha-256:%x", sha256.Sum256(content)),
				Length: resourcesync.Bytes(info.Size()), Type: "application/xml"},
		})
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
	//   <loc>https://example.org/a.xml</loc>
	//   <lastmod>2026-01-02T00:00:00Z</lastmod>
	//   <rs:md hash="sha-256:29114363f749a0226b6988dda3ca2492a954117ab6b5f382706c20300dabc079" length="4" type="application/xml"/>
	//  </url>
	//  <url>
	//   <loc>https://example.org/more/b.xml</loc>
	//   <lastmod>2026-01-02T00:00:00Z</lastmod>
	//   <rs:md hash="sha-256:c5a1c182c87ac852d7d4621a27899d9d002b02dd501be9355d1fc4f58e9ccc7f" length="4" type="application/xml"/>
	//  </url>
	// </urlset>
}
