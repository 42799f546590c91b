package server

import "strings"

// Way is a way to follow a set, as its page shows it.
type Way struct {
	Name  string
	About string
	// Script is what is copied: commands for a shell, a program, or a URL.
	Script string
	// Running: it needs a server, and no files will do. Feeds: it needs the set's feeds for
	// people; Repository: its OAI-PMH repository.
	Running, Feeds, Repository bool
}

// ways are the templates of Ways. BASE is the URL of the set, without a slash at its end, and
// SET its name.
var ways = []Way{
	{Name: "With curl and jq", About: "Prints the changes since the last time; the first time all that there ever were. Run it as often as you like:", Running: true, Script: `[ -s SET.next ] || echo "BASE/changes.json?after=0" > SET.next
while curl -sSfL -o SET.json "$(cat SET.next)" &&
      jq -r '.changes[] | [.kind, .identifier, .representations[0].url] | @tsv' SET.json &&
      jq -r .next SET.json > SET.next &&
      ! jq -e .complete SET.json > SET.done; do :; done
`},
	{Name: "As they happen", About: "The same as server-sent events, without an end. A client that comes back sends the id of the last event in Last-Event-ID:", Running: true, Script: `curl -sSNL BASE/changes/stream |
jq -rR --unbuffered 'select(startswith("data: "))[6:] | fromjson | [.kind, .identifier, .title] | @tsv'
`},
	{Name: "With Python", About: "The standard library is enough. Keep place for the next time:", Running: true, Script: `import json, urllib.request

place = "BASE/changes.json?after=0"
while True:
    with urllib.request.urlopen(place) as answer:
        page = json.load(answer)
    for change in page["changes"]:
        print(change["kind"], change["identifier"], *[r["url"] for r in change["representations"][:1]])
    place = page["next"]
    if page["complete"]:
        break
`},
	{Name: "A copy of all files", About: "The reference client of ResourceSync copies the records into a folder, and then what has changed:", Script: `resync --baseline --delete BASE SET
resync --incremental BASE SET
`},
	{Name: "With OAI-PMH", About: "The base URL for any harvester; all records in Dublin Core:", Running: true, Repository: true, Script: `curl -sSL "BASE/oai?verb=ListRecords&metadataPrefix=oai_dc"
`},
	{Name: "In a feed reader", About: "Subscribe to the records that changed last:", Feeds: true, Script: `BASE/recent.atom
`},
}

// Ways returns the ways to follow a set whose documents stand below base.
func Ways(base, set string) []Way {
	all := make([]Way, len(ways))
	fill := strings.NewReplacer("BASE", base+"/sets/"+set, "SET", set)
	for i, w := range ways {
		w.Script = fill.Replace(w.Script)
		all[i] = w
	}
	return all
}
