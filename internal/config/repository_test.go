package config

import (
	"strings"
	"testing"
	"time"
)

// The keys of an OAI-PMH repository belong to its kind, which they tell too.
func TestRepositoryKeys(t *testing.T) {
	const set = "[[set]]\nname = \"a\"\n[[set.source]]\n"
	for name, tt := range map[string]struct{ source, want string }{
		"all keys":         {"url = \"http://h.example/oai\"\nformat = \"mods\"\nalso = [\"oai_dc\"]\noai_set = \"a:b\"\nwindow = \"30d\"", ""},
		"a request":        {"url = \"http://h.example/oai?verb=ListRecords&metadataPrefix=mods&set=x\"\nformat = \"mods\"", ""},
		"another kind":     {"kind = \"feed\"\nurl = \"http://h.example/oai\"\nformat = \"mods\"", `set "a": source 1: format: is only for a Source of kind "oaipmh"`},
		"two formats":      {"url = \"http://h.example/oai?metadataPrefix=mods\"\nformat = \"marc\"", `the url says metadataPrefix=mods`},
		"two sets":         {"url = \"http://h.example/oai?set=x\"\noai_set = \"y\"", `the url says set=x`},
		"a format twice":   {"url = \"http://h.example/oai\"\nalso = [\"oai_dc\"]", "harvested anyway"},
		"no prefix":        {"url = \"http://h.example/oai\"\nformat = \"oai dc\"", "is not a metadataPrefix"},
		"no setSpec":       {"url = \"http://h.example/oai\"\noai_set = \"a b\"", "is not a setSpec"},
		"an hour's window": {"url = \"http://h.example/oai\"\nwindow = \"1h\"", "shorter than a day"},
		"a file":           {"kind = \"oaipmh\"\nurl = \"FILE\"", "a local file"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			file := write(t, folder, "oai.xml", "<x/>")
			c, err := Load(write(t, folder, "bridge.toml", set+strings.Replace(tt.source, "FILE", file, 1)))
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("%v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s := c.Sets[0].Sources[0]
			if s.Kind != OAIPMH || s.Format != "mods" || s.FullEvery != 7*24*time.Hour {
				t.Errorf("%+v", s)
			}
			if name == "all keys" && (len(s.Also) != 1 || s.OAISet != "a:b" || s.Window != 30*24*time.Hour) {
				t.Errorf("%+v", s)
			}
		})
	}
	name, s, err := ParseSource("x=oaipmh:http://h.example/oai?verb=Identify")
	if err != nil || name != "x" || s.Kind != OAIPMH || s.URL != "http://h.example/oai?verb=Identify" {
		t.Errorf("%s %+v %v", name, s, err)
	}
}
