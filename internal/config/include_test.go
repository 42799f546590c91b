package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Sets may stand in files that the main one includes, in the order of their names; paths in
// them are relative to them, and [defaults] counts for their Sources too.
func TestInclude(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "conf.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "conf.d/feed.atom", "")
	write(t, folder, "conf.d/b.toml", "[[set]]\nname = \"b\"\n[[set.source]]\nurl = \"feed.atom\"\nevery = \"2h\"\n")
	write(t, folder, "conf.d/a.toml", "[[set]]\nname = \"a\"\n[[set.source]]\nurl = \"http://h.example/\"\n")
	main := "include = [\"conf.d/*.toml\", \"conf.d/a.toml\", \"" + filepath.Join(folder, "conf.d/b.toml") + "\"]\n[defaults]\nevery = \"6h\"\nmax_documents = 7\ncontent_hosts = \"same\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \"http://h.example/\"\ncontent_hosts = \"public\"\n"
	c, err := Load(write(t, folder, "bridge.toml", main))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Sets) != 3 || c.Sets[0].Name != "main" || c.Sets[1].Name != "a" || c.Sets[2].Name != "b" {
		t.Fatalf("%+v", c.Sets)
	}
	first, a, b := c.Sets[0].Sources[0], c.Sets[1].Sources[0], c.Sets[2].Sources[0]
	if first.Every != 6*time.Hour || first.MaxDocuments != 7 || first.OwnContents || !a.OwnContents || a.Every != 6*time.Hour || b.Every != 2*time.Hour || b.MaxDocuments != 7 {
		t.Errorf("%+v\n%+v\n%+v", first, a, b)
	}
	if want := "file://" + filepath.ToSlash(filepath.Join(folder, "conf.d", "feed.atom")); b.URL != want {
		t.Errorf("%s, want %s", b.URL, want)
	}

	// A pattern may find the main file too.
	flat := t.TempDir()
	write(t, flat, "a.toml", "[[set]]\nname = \"a\"\n")
	if c, err := Load(write(t, flat, "bridge.toml", "listen = \"127.0.0.1:0\"\ninclude = [\"*.toml\"]\n[[set]]\nname = \"main\"\n")); err != nil || len(c.Sets) != 2 {
		t.Errorf("%+v, %v", c, err)
	}

	// All problems of all files are reported, each with its file and line.
	write(t, folder, "conf.d/a.toml", "listen = \"127.0.0.1:1\"\nevry = 1\n[[set]]\nname = \"main\"\n")
	write(t, folder, "conf.d/b.toml", "[[set]\n")
	if err := os.Mkdir(filepath.Join(folder, "conf.d", "c.toml"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = Load(write(t, folder, "bridge.toml", "colour = 1\ninclude = [\"conf.d/*.toml\", \"gone.toml\"]\n[defaults]\nevery = \"soon\"\nurl = \"x\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \"http://h.example/\"\n"))
	if err == nil {
		t.Fatal("it is accepted")
	}
	for _, want := range []string{"bridge.toml:1: colour: there is no such key", "bridge.toml:2: include: \"gone.toml\": there is no such file", "bridge.toml:2: include: read " + filepath.Join(folder, "conf.d", "c.toml") + ": is a directory", "bridge.toml:4: defaults: every: \"soon\" is not a duration",
		"bridge.toml:5: defaults: url: does not belong here", "a.toml:1: listen: does not belong here; an included file has [[set]]s and nothing else, so write it into " + filepath.Join(folder, "bridge.toml"), "a.toml:2: evry: there is no such key", "a.toml:4: set 1: name: there is another set \"main\"", "b.toml:1: "} {
		if strings.Count(err.Error(), want) != 1 {
			t.Errorf("%q is not said once in\n%v", want, err)
		}
	}
}

// The name of the folder is no pattern.
func TestIncludeInFolder(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), `maps [old] 1*?\`)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "a.conf", "[[set]]\nname = \"a\"\n")
	write(t, folder, "b.conf", "[[set]]\nname = \"b\"\n")
	c, err := Load(write(t, folder, "bridge.toml", "include = [\"a.conf\", \"*.conf\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Sets) != 2 || c.Sets[0].Name != "a" || c.Sets[1].Name != "b" {
		t.Errorf("%+v", c.Sets)
	}
}

// A pattern may find nothing. A folder that cannot be read is an error: its sets would not be
// published any more.
func TestIncludeUnreadable(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	conf := filepath.Join(folder, "conf.d")
	main := write(t, folder, "bridge.toml", "include = [\"conf.d/*.toml\"]\n")
	if _, err := Load(main); err != nil {
		t.Errorf("without the folder: %v", err)
	}
	if err := os.Symlink("conf.d", conf); err != nil { // as unreadable as a folder of another user, for root too
		t.Fatal(err)
	}
	if _, err := Load(main); err == nil || !strings.Contains(err.Error(), `bridge.toml:1: include: "conf.d/*.toml": open `+conf+": ") {
		t.Errorf("it says %v", err)
	}
}

// What needs no secret loads a file whose secrets it cannot read, and changes it; all else does not.
func TestWithoutSecrets(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "conf.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "conf.d/a.toml", set("a", harvests("http://h.example/"), "headers = { \"X-Key\" = \"${BRIDGE_TEST_UNSET}\", \"X-Other\" = \"credential:key\", \"X-Plain\" = \"plain\" }\n"))
	file := write(t, folder, "bridge.toml", `base_url = "http://bridge.example.org"
include = ["conf.d/*.toml"]
console_listen = "0.0.0.0:8081"
console_token_file = "credential:console"
[[alert]]
on = ["held"]
webhook = "${BRIDGE_TEST_UNSET}"
[[set]]
name = "deposits"
[[set.source]]
kind = "sip"
access = "token"
access_token_file = "missing"
[[set]]
name = "main"
[[set.source]]
url = "http://h.example/"
user = "u"
password_file = "missing"
[[set.source]]
url = "http://other.example/"
token = "${BRIDGE_TEST_UNSET}"
`)
	if _, err := Load(file); err == nil {
		t.Error("it is loaded without the secrets")
	}
	flags := Flags{WithoutSecrets: true}
	c, err := LoadWith(file, flags)
	if err != nil {
		t.Fatal(err)
	}
	own := c.Sets[2].Sources[0].Headers
	if c.Sets[1].Sources[0].Password.IsRead() || own["X-Key"].IsRead() || own["X-Other"].IsRead() || own["X-Plain"].Reveal() != "plain" {
		t.Errorf("%+v", c.Sets)
	}
	e, err := c.Edit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.RenameSet("main", "other"); err != nil {
		t.Fatal(err)
	}
	if c, err = e.Save(); err != nil || c.Sets[1].Name != "other" {
		t.Errorf("%v", err)
	}
}

// A secret may be a credential of systemd.
func TestCredential(t *testing.T) {
	folder, credentials := t.TempDir(), t.TempDir()
	write(t, credentials, "harvester", "open-sesame\n")
	text := func(file string) string {
		return write(t, folder, "bridge.toml", "[[set]]\nname = \"s\"\n[[set.source]]\nurl = \"http://h.example/\"\nuser = \"u\"\npassword_file = \""+file+"\"\n")
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if _, err := Load(text("credential:harvester")); err == nil || !strings.Contains(err.Error(), "write LoadCredential=harvester:/path into the unit") {
		t.Errorf("without systemd: %v", err)
	}
	c, err := LoadWith(text("credential:harvester"), Flags{WithoutCredentials: true})
	if err != nil || c.Sets[0].Sources[0].Password.IsRead() || len(c.Notes()) != 1 {
		t.Errorf("where only the service has it: %v", err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", credentials)
	c, err = Load(text("credential:harvester"))
	if err != nil || c.Sets[0].Sources[0].Password.Reveal() != "open-sesame" {
		t.Errorf("%v, %v", c, err)
	}
	for file, want := range map[string]string{"credential:": "is no credential", "credential:../x": "is no credential", "credential:gone": "no such file"} {
		if _, err := Load(text(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

// The value of a variable may end with a line end, as that of a file may.
func TestVariableWithLineEnd(t *testing.T) {
	t.Setenv("BRIDGE_TEST_TOKEN", "0123456789abcdef\r\n")
	c, err := load(t, "console_token = \"${BRIDGE_TEST_TOKEN}\"\n"+set("a", harvests("http://h.example/"), "headers = { \"X-Key\" = \"${BRIDGE_TEST_TOKEN}\" }\n"))
	if err != nil || c.ConsoleToken.Reveal() != "0123456789abcdef" || c.Sets[0].Sources[0].Headers["X-Key"].Reveal() != "0123456789abcdef" {
		t.Errorf("%+v, %v", c, err)
	}
}
