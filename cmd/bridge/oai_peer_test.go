package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// perlRepository is testdata/oai_repository.pl: an OAI-PMH repository out of the classes
// of HTTP::OAI.
type perlRepository struct {
	t       *testing.T
	file    string            // that it reads
	url     string            // base URL
	Page    int               `json:"page"`
	Deleted string            `json:"deleted"`
	Sets    map[string]string `json:"sets"`
	Records []*perlRecord     `json:"records"`
}

type perlRecord struct {
	Identifier string              `json:"identifier"`
	Datestamp  string              `json:"datestamp"`
	Sets       []string            `json:"sets,omitempty"`
	Deleted    int                 `json:"deleted"`
	DC         map[string][]string `json:"dc,omitempty"`
	XML        map[string]string   `json:"xml,omitempty"`
}

// startPerl starts the repository, without records.
func startPerl(t *testing.T) *perlRepository {
	t.Helper()
	perl := testenv.Need(t, "perl", "perl")
	if exec.Command(perl, "-MHTTP::OAI", "-e", "1").Run() != nil {
		testenv.Missing(t, "the Perl module HTTP::OAI", "libhttp-oai-perl")
	}
	p := &perlRepository{t: t, file: filepath.Join(t.TempDir(), "records.json"), Page: 7, Deleted: "persistent", Sets: map[string]string{"letters": "Letters", "letters:1910": "Letters of 1910", "maps": "Maps"}}
	p.save()
	in, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(perl, filepath.Join(testenv.Root(t), "testdata", "oai_repository.pl"), p.file)
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = in, &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = keep.Close() // its input ends, and so does it
		if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
			t.Errorf("the repository: %v\n%s", err, stderr.String())
		}
		_ = in.Close()
	})
	if _, err := fmt.Fscanln(out, &p.url); err != nil {
		t.Fatal(err)
	}
	return p
}

// save gives the repository its records.
func (p *perlRepository) save() {
	p.t.Helper()
	text, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(p.file+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(p.file+".new", p.file)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// change creates, changes and deletes records, and brings some back.
func (p *perlRepository) change(r *rand.Rand, round int) {
	now := time.Now().UTC().Format("2006-01-02T15:04:05Z")
	write := func(rec *perlRecord) {
		title := fmt.Sprintf("Round %d: %d <& \"Müller's\" \u2013 \U0001F5FA", round, r.IntN(1000))
		rec.Datestamp, rec.Deleted = now, 0
		rec.Sets = [][]string{nil, {"letters:1910"}, {"letters", "maps"}}[r.IntN(3)]
		rec.DC = map[string][]string{"title": {title, "another title"}, "identifier": {rec.Identifier}}
		rec.XML = nil
		if r.IntN(2) == 0 {
			rec.XML = map[string]string{"mods": fmt.Sprintf(`<mods xmlns="http://www.loc.gov/mods/v3" xmlns:xlink="http://www.w3.org/1999/xlink"><titleInfo xlink:href="#%d"><title>round &amp; round</title></titleInfo></mods>`, r.IntN(1000))}
		}
	}
	for _, rec := range p.Records {
		switch n := r.IntN(20); {
		case n == 0:
			rec.Datestamp, rec.Deleted = now, 1
		case n < 4:
			write(rec)
		}
	}
	for range r.IntN(12) + 2 {
		rec := &perlRecord{Identifier: fmt.Sprintf("oai:perl.example:%d/%x+é", len(p.Records), r.IntN(1<<16))}
		write(rec)
		p.Records = append(p.Records, rec)
	}
	p.save()
}

var insideMetadata = regexp.MustCompile(`(?s)<metadata>(.*)</metadata>`)

// hashes returns the SHA-256 of what the repository has of each record, by identifier and
// prefix; "" in all for what is deleted.
func (p *perlRepository) hashes(prefixes ...string) map[string]map[string]string {
	p.t.Helper()
	all := map[string]map[string]string{}
	for _, rec := range p.Records {
		all[rec.Identifier] = map[string]string{}
		for _, prefix := range prefixes {
			if rec.Deleted == 1 || prefix == "mods" && rec.XML == nil {
				continue
			}
			_, answer, _ := answerOf(p.t, p.url+"?"+url.Values{"verb": {"GetRecord"}, "metadataPrefix": {prefix}, "identifier": {rec.Identifier}}.Encode())
			inside := insideMetadata.FindStringSubmatch(answer)
			if inside == nil {
				p.t.Fatalf("%s:\n%s", rec.Identifier, answer)
			}
			sum := sha256.Sum256([]byte(inside[1]))
			all[rec.Identifier][prefix] = hex.EncodeToString(sum[:])
		}
	}
	return all
}

// latest returns the last event of each record in a data folder.
func latest(t *testing.T, file string) map[string]*event.Event {
	t.Helper()
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := daemon.Open(t.Context(), c, daemon.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*event.Event{}
	for ev, err := range b.Log.Events(t.Context(), "", event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			t.Fatal(err)
		}
		last := *ev // whose memory is the iterator's
		last.Representations = slices.Clone(ev.Representations)
		all[ev.Record] = &last
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return all
}

// A repository that somebody else's classes make is mirrored in rounds of change, with
// identifiers, bytes, sets and deletions, in two formats.
func TestHTTPOAIRepositoryIsHarvested(t *testing.T) {
	testenv.Heavy(t)
	p := startPerl(t)
	r := rand.New(rand.NewPCG(1, 2))
	f := newFolder(t, fmt.Sprintf("[[set]]\nname = \"perl\"\ncontent = \"mirror\"\n[[set.source]]\nurl = %q\nformat = \"oai_dc\"\nalso = [\"mods\"]\noverlap = \"0s\"\n", p.url))
	deletions, mods := 0, 0
	for round := range testenv.Rounds(t, 4, 60) {
		p.change(r, round)
		harvest := f.run(exitDone, "harvest").stdout
		if round == 0 && !strings.Contains(harvest, "(oaipmh)") {
			t.Errorf("found out: %s", harvest)
		}
		got, want := latest(t, filepath.Join(f.path, "bridge.toml")), p.hashes("oai_dc", "mods")
		for _, rec := range p.Records {
			ev := got[rec.Identifier]
			switch {
			case ev == nil && rec.Deleted == 1: // was never seen alive
			case ev == nil || (ev.Kind == event.Deleted) != (rec.Deleted == 1):
				t.Errorf("round %d: %s: deleted %d at the repository, event %+v", round, rec.Identifier, rec.Deleted, ev)
			case rec.Deleted == 1:
				deletions++
			default:
				have := map[string]string{}
				for _, rep := range ev.Representations {
					u, err := url.Parse(rep.Href)
					if err != nil {
						t.Fatal(err)
					}
					have[u.Query().Get("metadataPrefix")] = rep.SHA256()
				}
				if fmt.Sprint(have) != fmt.Sprint(want[rec.Identifier]) {
					t.Errorf("round %d: %s: %v, want %v", round, rec.Identifier, have, want[rec.Identifier])
				}
				mods += len(have) - 1
				var sets []string
				for _, c := range ev.Categories {
					sets = append(sets, c.Term)
				}
				slices.Sort(sets)
				if !slices.Equal(sets, rec.Sets) {
					t.Errorf("round %d: %s: sets %q, want %q", round, rec.Identifier, sets, rec.Sets)
				}
			}
		}
		if len(got) > len(p.Records) {
			t.Errorf("round %d: %d records, %d at the repository", round, len(got), len(p.Records))
		}
	}
	if deletions == 0 || mods == 0 {
		t.Errorf("%d deletions, %d records in mods: the rounds have shown too little", deletions, mods)
	}
	// Nothing has changed: nothing is logged.
	if out := f.run(exitDone, "harvest").stdout; !regexp.MustCompile(`0 created, 0 updated, 0 deleted|not modified`).MatchString(out) {
		t.Errorf("harvested again: %s", out)
	}
}
