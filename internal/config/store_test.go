package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The log is in the data folder, or at the URL of a database on a PostgreSQL server, which
// is kept as it was typed. What else is written there is refused, with its line, and never
// repeated: it may have a password anywhere.
func TestStoreLog(t *testing.T) {
	for _, log := range []string{
		"", "postgres://bridge@db.example.org/bridge", "postgresql://db.example.org:5433/bridge?sslmode=verify-full&sslrootcert=/etc/ssl/db.pem",
		"postgres://bridge:rose%2Fbud@db.example.org/bridge", "postgres:///bridge?host=/run/postgresql", "postgres://bridge@/bridge?host=/run/postgresql&port=5433",
		"postgres://bridge@db.example.org/?dbname=bridge", "postgres://[2001:db8::1]:5432/bridge", "postgres://one.example,two.example/bridge?target_session_attrs=read-write",
		"postgres://db.example.org/bridge?search_path=library",
	} {
		c, err := load(t, "[store]\nlog = \""+log+"\"\n")
		if err != nil || c.Store.Log != log {
			t.Errorf("%s: %q, %v", log, c.Store.Log, err)
		}
	}
	const noURL = `is not the URL of a PostgreSQL server; write it like "postgres://bridge@db.example.org/bridge", or leave it out to keep the log in the data folder`
	const unreadable = "cannot be read as a URL; a user or password with : / ? # @ or % in it is written with %3A %2F %3F %23 %40 or %25"
	for log, want := range map[string]string{
		"log.db": noURL, "/var/lib/bridge/log.db": noURL, "mysql://bridge:rosebud@db.example.org/bridge": noURL, "POSTGRES://db.example.org/bridge": noURL,
		"host=db.example.org user=bridge password=rosebud": noURL, "bridge:rosebud@db.example.org": noURL, "postgres:bridge": noURL, " postgres://db.example.org/bridge": noURL, " ": noURL,
		"postgres://db.example.org/bridge ":               "has a space or a line break, which no URL has; leave it out, or write %20 for a space",
		"postgres://bridge:rose bud@db.example.org/b":     "has a space",
		`postgres://db.example.org/bridge\n`:              "has a space or a line break",
		"postgres://db.example.org":                       `names no database; write it like "postgres://`,
		"postgres://db.example.org/":                      "names no database",
		"postgres://bridge:rosebud@db.example.org/?x=y":   "names no database",
		"postgres:///bridge":                              `names no host; write it like "postgres://bridge@db.example.org/bridge", or for a server on this machine "postgres:///bridge?host=/run/postgresql"`,
		"postgres://bridge:rosebud@/bridge":               "names no host",
		"postgres://bridge:rose/bud@db.example.org/b":     unreadable,
		"postgres://bridge:rose#bud@db.example.org/b":     unreadable,
		"postgres://bridge:rosebud@db.example.org/b#x":    unreadable,
		"postgres://bridge:rosebud@db.example.org/b#":     unreadable,
		"postgres://bridge:rosebud%@db.example.org/b":     unreadable,
		"postgres://db.example.org:port/b":                unreadable,
		"postgres://%2Frun%2Fpostgresql/b":                `and a folder of sockets like "postgres:///bridge?host=/run/postgresql"`,
		"postgres://db.example.org/b?password=rosebud%zz": "has a part behind the ? that cannot be read; write name=value",
	} {
		_, err := load(t, "# ours\n[store]\nlog = \""+log+"\"\n")
		if err == nil || !strings.Contains(err.Error(), "bridge.toml:3: store: log: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "rose") {
			t.Errorf("%s: %v\nwant %s", log, err, want)
		}
	}
	for text, want := range map[string]string{
		"[store]\nlog = 5\n":           `:2: store: log: is a number; write a string: log = "..."`,
		"[store]\nlogs = \"x\"\n":      `:2: store: logs: there is no such key; the nearest is "log"`,
		"store = \"postgres://h/d\"\n": ":1: store: is a string; write a table: [store]",
		"log = \"postgres://h/d\"\n":   ":1: log: does not belong here; write it under [store]",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
}

// The contents are in the data folder, or in a bucket on an S3 server, whose address is kept
// in its one form. What else is written there is refused, with its line, and never repeated.
func TestStoreContents(t *testing.T) {
	for typed, want := range map[string]string{
		"": "", "s3://library": "s3://library", "s3://library/contents/?endpoint=HTTPS://s3.example.org/": "s3://library/contents?endpoint=https://s3.example.org",
		"s3://library/p?region=garage&endpoint=http://127.0.0.1:3900": "s3://library/p?endpoint=http://127.0.0.1:3900&region=garage",
	} {
		c, err := load(t, "[store]\ncontents = \""+typed+"\"\n")
		if err != nil || c.Store.Contents != want {
			t.Errorf("%s: %q, %v", typed, c.Store.Contents, err)
		}
		if err == nil && len(c.Warnings()) > 0 {
			t.Errorf("%s: %q", typed, c.Warnings())
		}
	}
	const elsewhere = `is not the address of a bucket; write it like "s3://bucket/prefix", or for a server other than AWS like "s3://bucket/prefix?endpoint=https://s3.example.org", or leave it out to keep the contents in the data folder`
	for contents, want := range map[string]string{
		"content.db": elsewhere, "/var/lib/bridge": elsewhere, "https://s3.example.org/library": elsewhere, " s3://library": elsewhere, " ": elsewhere,
		"s3://": "names no bucket", "s3://library/a//b": "has a prefix that cannot be used", "s3://library?endpoint=s3.example.org": "has an endpoint that is no server",
		"s3://AKIA:rosebud@library/p":  "has a user or password; leave it out: credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
		"s3://library?secret=rosebud":  "has a parameter besides endpoint and region; leave it out: credentials come from",
		"s3://library/rose bud":        "has a space or a line break",
		"s3://AKIA:rose/bud@library/p": "cannot be read as a URL",
	} {
		_, err := load(t, "# ours\n[store]\ncontents = \""+contents+"\"\n")
		if err == nil || !strings.Contains(err.Error(), "bridge.toml:3: store: contents: "+want) || strings.Contains(err.Error(), "rose") {
			t.Errorf("%s: %v\nwant %s", contents, err, want)
		}
	}
	for text, want := range map[string]string{
		"[store]\ncontents = true\n":         `:2: store: contents: is true or false; write a string: contents = "..."`,
		"[store]\ncontentz = \"s3://b/p\"\n": `:2: store: contentz: there is no such key; the nearest is "contents"`,
		"[store]\ncontents = [\"s3://b\"]\n": `:2: store: contents: is a list`,
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
}

// Snapshots and dumps may be in a bucket too, in a place of their own.
func TestStoreFiles(t *testing.T) {
	const contents = "contents = \"s3://library/contents?endpoint=https://s3.example.org\"\n"
	for files, want := range map[string]string{
		"":                    "",
		"s3://library/files/": "s3://library/files",
		"s3://library/files?endpoint=https://s3.example.org":      "s3://library/files?endpoint=https://s3.example.org",
		"s3://library/contents-2?endpoint=https://s3.example.org": "s3://library/contents-2?endpoint=https://s3.example.org",
		"s3://library/contents":                                   "s3://library/contents",
		"s3://other/contents?endpoint=https://s3.example.org":     "s3://other/contents?endpoint=https://s3.example.org",
	} {
		if c, err := load(t, "[store]\n"+contents+"files = \""+files+"\"\n"); err != nil || c.Store.Files != want {
			t.Errorf("%s: %q, %v", files, c.Store.Files, err)
		}
	}
	const same = "is in the place of contents, or the other way round; write another prefix for each"
	for files, want := range map[string]string{
		"snapshots": "is not the address of a bucket; ", "s3://AKIA:rosebud@library/p": "has a user or password",
		"s3://library/contents?endpoint=https://s3.example.org":                  same,
		"s3://library/contents/files?endpoint=https://s3.example.org":            same,
		"s3://library?endpoint=https://s3.example.org":                           same,
		"s3://library/contents/?endpoint=https://S3.example.org&region=anywhere": same,
	} {
		if _, err := load(t, "[store]\n"+contents+"files = \""+files+"\"\n"); err == nil || !strings.Contains(err.Error(), "bridge.toml:3: store: files: "+want) || strings.Contains(err.Error(), "rose") {
			t.Errorf("%s: %v\nwant %s", files, err, want)
		}
	}
}

// A password in the URL makes the configuration a file with a secret: others that may read
// it are warned of. Without one it holds none.
func TestStoreLogSecret(t *testing.T) {
	for log, secret := range map[string]bool{
		"": false, "postgres://bridge@db.example.org/bridge": false, "postgres://bridge:@db.example.org/bridge": false, "postgres:///bridge?host=/run/postgresql&sslmode=disable": false,
		"postgres://bridge:rosebud@db.example.org/bridge": true, "postgres://db.example.org/bridge?user=bridge&password=rosebud": true, "postgres://db.example.org/bridge?sslkey=k&sslpassword=rosebud": true,
	} {
		for mode, open := range map[os.FileMode]bool{0o600: false, 0o640: true, 0o604: true} {
			folder := t.TempDir()
			file := write(t, folder, "bridge.toml", "[store]\nlog = \""+log+"\"\n")
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
			t.Chdir(folder)
			c, err := Load("bridge.toml")
			if err != nil {
				t.Fatal(err)
			}
			all, want := c.Warnings(), filepath.Join(folder, "bridge.toml")+" holds a secret and others may read it: chmod 600 "
			if secret && open != (len(all) == 1 && strings.HasPrefix(all[0], want)) || (!secret || !open) && len(all) > 0 {
				t.Errorf("%s, mode %v: %q", log, mode, all)
			}
		}
	}
}
