package resourcesync

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

const dumpURL = "http://a.example/dump.zip"

func sha256Of(s string) string { return fmt.Sprintf("sha-256:%x", sha256.Sum256([]byte(s))) }

// manifestEntry is an entry of a manifest. A length below zero is not stated.
func manifestEntry(loc, path, hash string, length int) string {
	md := ""
	if path != "" {
		md += ` path="` + path + `"`
	}
	if hash != "" {
		md += ` hash="` + hash + `"`
	}
	if length >= 0 {
		md += fmt.Sprintf(` length="%d"`, length)
	}
	return "<url><loc>http://a.example/" + loc + "</loc><rs:md" + md + "/></url>"
}

func manifestOf(entries ...string) string {
	return urlset(attrs("capability", "resourcedump-manifest", "at", 5), append([]string{ln("up", "http://a.example/cap")}, entries...)...)
}

// goodFiles is a package with two resources.
func goodFiles() []testenv.ZipFile {
	return []testenv.ZipFile{
		{Name: "manifest.xml", Data: manifestOf(manifestEntry("1", "/resources/1", sha256Of("one"), 3), manifestEntry("2", "/resources/2", sha256Of("two"), 3)), Deflated: true},
		{Name: "resources/1", Data: "one"},
		{Name: "resources/2", Data: "two", Deflated: true},
	}
}

// readDump reads all of a package, and returns what is there by loc, what was wrong with
// single files, and why the package was refused.
func readDump(b []byte, o DumpOptions) (got map[string]string, bad []error, err error) {
	d, err := NewDumpReader(bytes.NewReader(b), int64(len(b)), o)
	if err != nil {
		return nil, nil, err
	}
	got = map[string]string{}
	for e, err := range d.Entries() {
		var entry *EntryError
		switch {
		case errors.As(err, &entry):
			bad = append(bad, err)
			continue
		case err != nil:
			return got, bad, err
		}
		var content []byte
		in, err := d.Open(&e.Metadata)
		if err == nil {
			content, err = io.ReadAll(in)
			err = errors.Join(err, in.Close())
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		got[strings.TrimPrefix(e.Loc, "http://a.example/")] = string(content)
	}
	return got, bad, nil
}

func TestDumpReader(t *testing.T) {
	testenv.Heavy(t)
	with := func(more ...testenv.ZipFile) []testenv.ZipFile { return append(goodFiles(), more...) }
	change := func(f func([]testenv.ZipFile)) []testenv.ZipFile {
		files := goodFiles()
		f(files)
		return files
	}
	manifest := func(doc string) []testenv.ZipFile {
		return change(func(f []testenv.ZipFile) { f[0].Data = doc })
	}
	const both = "1=one 2=two"
	zeros := strings.Repeat("\x00", 2<<20)
	for _, tt := range []struct {
		name    string
		files   []testenv.ZipFile
		end     testenv.ZipEnd
		refused string // part of why the whole package is refused
		want    string // what was read
		bad     string // part of what is wrong with one file
	}{
		{name: "a good one", files: goodFiles(), want: both},
		{name: "with folders and a file that nothing names", files: with(testenv.ZipFile{Name: "resources/", Mode: 0o040755}, testenv.ZipFile{Name: "README"}), want: both},
		{name: "a comment", files: goodFiles(), end: testenv.ZipEnd{Comment: "PK\x05\x06 and more than that, in which an end record seems to begin"}, want: both},
		{name: "ZIP64 for nothing", files: goodFiles(), end: testenv.ZipEnd{Zip64: true}, want: both},
		{name: "ZIP64 lengths", files: change(func(f []testenv.ZipFile) { f[1].Zip64, f[2].Zip64 = true, true }), want: both},
		{name: "paths without a leading slash", files: manifest(manifestOf(manifestEntry("1", "resources/1", "", -1), manifestEntry("2", "resources/2", "", 3))), want: both},
		{name: "a file for two resources", files: manifest(manifestOf(manifestEntry("1", "/resources/1", "", -1), manifestEntry("2", "/resources/1", "", -1))), want: "1=one 2=one"},
		{name: "an empty file", files: append(manifest(manifestOf(manifestEntry("1", "/e", sha256Of(""), 0))), testenv.ZipFile{Name: "e"}, testenv.ZipFile{Name: "f", Deflated: true}), want: "1="},
		{name: "a bad entry of the manifest", files: manifest(manifestOf("<url/>", manifestEntry("1", "/resources/1", "", -1))), want: "1=one", bad: "no loc"},
		{name: "no resources", files: manifest(manifestOf())},

		{name: "a part of several", end: testenv.ZipEnd{Disk: 1}, refused: "one part of a ZIP file in several"},
		{name: "no manifest", files: goodFiles()[1:], refused: "no manifest.xml"},
		{name: "a manifest elsewhere", files: change(func(f []testenv.ZipFile) { f[0].Name = "x/manifest.xml" }), refused: "no manifest.xml"},
		{name: "a manifest in other case", files: change(func(f []testenv.ZipFile) { f[0].Name = "Manifest.xml" }), refused: "no manifest.xml"},
		{name: "a manifest of another capability", files: manifest(resources(5)), refused: `capability "resourcelist"`},
		{name: "a manifest that is none", files: manifest("<html/>"), refused: "want a ResourceSync document"},
		{name: "a manifest cut off", files: manifest("<urlset"), refused: ""},
		{name: "bytes before the first file", files: goodFiles(), end: testenv.ZipEnd{Front: "#!/bin/sh\n"}, want: both},
		{name: "out of the package", files: with(testenv.ZipFile{Name: "../../etc/passwd"}), refused: "leads out of the package"},
		{name: "out of the package, later", files: with(testenv.ZipFile{Name: "a/../../b"}), refused: "leads out of the package"},
		{name: "an absolute path", files: with(testenv.ZipFile{Name: "/etc/passwd"}), refused: "absolute path"},
		{name: "an absolute path of Windows", files: with(testenv.ZipFile{Name: "C:/x"}), refused: "absolute path"},
		{name: "a back slash", files: with(testenv.ZipFile{Name: `..\x`}), refused: "back slash"},
		{name: "a dot", files: with(testenv.ZipFile{Name: "./x"}), refused: "empty segment"},
		{name: "two slashes", files: with(testenv.ZipFile{Name: "a//x"}), refused: "empty segment"},
		{name: "a zero byte", files: with(testenv.ZipFile{Name: "a\x00.xml"}), refused: "control character"},
		{name: "no name", files: with(testenv.ZipFile{Name: "", Local: "x"}), refused: "no name"},
		{name: "a symbolic link", files: with(testenv.ZipFile{Name: "l", Data: "/etc/passwd", Mode: 0o120777}), refused: "link or another special file"},
		{name: "a device", files: with(testenv.ZipFile{Name: "l", Mode: 0o060777}), refused: "link or another special file"},
		{name: "a folder without a slash", files: with(testenv.ZipFile{Name: "l", Mode: 0o040777}), refused: "link or another special file"},
		{name: "a folder with bytes", files: with(testenv.ZipFile{Name: "l/", Data: "x"}), refused: "folder with bytes"},
		{name: "encrypted", files: change(func(f []testenv.ZipFile) { f[1].Flags = 1 }), refused: "encrypted"},
		{name: "twice the same name", files: with(testenv.ZipFile{Name: "resources/1", Data: "xxx"}), refused: "also that of the file"},
		{name: "names that differ in case", files: with(testenv.ZipFile{Name: "Resources/1", Data: "xxx"}), refused: "also that of the file"},
		{name: "with and without a slash", files: with(testenv.ZipFile{Name: "/resources/1", Data: "xxx"}), refused: "absolute path"},
		{name: "files that share bytes", files: with(testenv.ZipFile{Name: "3", Data: "two", Deflated: true, Shared: true}), refused: "shares bytes"},
		{name: "stored with another length", files: change(func(f []testenv.ZipFile) { f[1].Length = 2 }), refused: "its header states 2"},
		{name: "more files than there are", files: goodFiles(), end: testenv.ZipEnd{Files: 1}, refused: "ends within a file"},
		{name: "fewer files than there are", files: goodFiles(), end: testenv.ZipEnd{Files: -1}, refused: "more than its 2 files need"},
		{name: "a directory elsewhere", files: goodFiles(), end: testenv.ZipEnd{Offset: 1}, refused: "does not end where the end record begins"},
		{name: "a longer directory", files: goodFiles(), end: testenv.ZipEnd{Size: 1}, refused: "does not end where the end record begins"},
		{name: "another number in ZIP64", files: goodFiles(), end: testenv.ZipEnd{Zip64: true, Zip64Files: 1}, refused: "contradict each other"},

		{name: "more bytes than stated", files: change(func(f []testenv.ZipFile) { f[2].Length = 2 }), want: "1=one", bad: "it has 2 bytes, the manifest says 3"},
		{name: "more bytes than stated by the package alone", files: append(manifest(manifestOf(manifestEntry("1", "/x", "", -1))), testenv.ZipFile{Name: "x", Data: zeros[:9000], Deflated: true, Length: 8999}), bad: "more bytes than the 8999"},
		{name: "fewer bytes than stated", files: append(manifest(manifestOf(manifestEntry("1", "/x", "", -1))), testenv.ZipFile{Name: "x", Data: "abc", Deflated: true, Length: 4}), bad: "it has 3 bytes, the package says 4"},
		{name: "bytes behind the end", files: append(manifest(manifestOf(manifestEntry("1", "/x", "", -1))), testenv.ZipFile{Name: "x", Data: "abc", Deflated: true, Tail: "zz"}), bad: "bytes that do not belong to it"},
		{name: "a bomb", files: append(manifest(manifestOf(manifestEntry("1", "/x", "", -1))), testenv.ZipFile{Name: "x", Data: zeros, Deflated: true}), bad: "more than 100 times"},
		{name: "another checksum", files: change(func(f []testenv.ZipFile) { f[2].CRC = 1 }), want: "1=one", bad: "the package says 00000001"},
		{name: "not what its compression says", files: append(manifest(manifestOf(manifestEntry("1", "/x", "", -1))), testenv.ZipFile{Name: "x", Data: "\xff\xff", Method: 8}), bad: "cannot be unpacked"},
		{name: "an unknown compression", files: append(manifest(manifestOf(manifestEntry("1", "/x", "", -1))), testenv.ZipFile{Name: "x", Data: "abc", Method: 14}), bad: "compression method 14"},
		{name: "another local name", files: change(func(f []testenv.ZipFile) { f[2].Local = "resources/3" }), want: "1=one", bad: "contradict each other"},
		{name: "another hash", files: manifest(manifestOf(manifestEntry("1", "/resources/1", sha256Of("two"), 3), manifestEntry("2", "/resources/2", sha256Of("two"), 3))), want: "2=two", bad: "its SHA-256 is"},
		{name: "another length", files: manifest(manifestOf(manifestEntry("1", "/resources/1", "", 4), manifestEntry("2", "/resources/2", "", 3))), want: "2=two", bad: "it has 3 bytes, the manifest says 4"},
		{name: "a file that is not there", files: manifest(manifestOf(manifestEntry("1", "/resources/x", "", -1), manifestEntry("2", "/resources/2", "", -1))), want: "2=two", bad: "the package does not have it"},
		{name: "a path in other case", files: manifest(manifestOf(manifestEntry("1", "/Resources/1", "", -1))), bad: "the package does not have it"},
		{name: "a path out of the package", files: manifest(manifestOf(manifestEntry("1", "/../x", "", -1))), bad: "leads out of the package"},
		{name: "the path of a folder", files: append(manifest(manifestOf(manifestEntry("1", "/d/", "", -1))), testenv.ZipFile{Name: "d/"}), bad: "none of a file"},
		{name: "no path", files: manifest(manifestOf(manifestEntry("1", "", "", -1))), bad: "no path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, bad, err := readDump(testenv.Zip(tt.end, tt.files...), DumpOptions{URL: dumpURL})
			var words []string
			for _, loc := range []string{"1", "2"} {
				if content, ok := got[loc]; ok {
					words = append(words, loc+"="+content)
				}
			}
			wrong := tt.refused != "" || tt.name == "a manifest cut off"
			if read := strings.Join(words, " "); wrong != (err != nil) || read != tt.want || len(got) != len(words) || (tt.bad != "") != (len(bad) > 0) {
				t.Fatalf("read %q, want %q; bad %v; refused %v", read, tt.want, bad, err)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.refused) || !strings.Contains(err.Error(), dumpURL)) {
				t.Errorf("refused because %v; want %q and the package's URL", err, tt.refused)
			}
			for _, e := range bad {
				if !strings.Contains(e.Error(), tt.bad) {
					t.Errorf("bad: %v, want %q", e, tt.bad)
				}
			}
		})
	}
}

// Limits hold whatever the package says of itself.
func TestDumpLimits(t *testing.T) {
	whole := testenv.Zip(testenv.ZipEnd{}, goodFiles()...)
	for _, tt := range []struct {
		limit string
		o     DumpLimits
	}{
		{"files", DumpLimits{Files: 2}}, {"directory", DumpLimits{Directory: 100}}, {"file", DumpLimits{File: 2}},
	} {
		_, bad, err := readDump(whole, DumpOptions{Limits: tt.o})
		var e *DumpError
		if errors.As(errors.Join(append(bad, err)...), &e); e == nil || e.Cap != tt.limit {
			t.Errorf("%s: bad %v, error %v", tt.limit, bad, err)
		}
	}
	var fault *DocumentError
	if _, _, err := readDump(whole, DumpOptions{Limits: DumpLimits{Manifest: Limits{Document: 200}}}); !errors.As(err, &fault) || fault.Cap != "document" {
		t.Errorf("a long manifest: %v", err)
	}
	for n := range whole { // wherever it is cut off
		if _, _, err := readDump(whole[:n], DumpOptions{}); err == nil {
			t.Fatalf("cut off after %d of %d bytes: no error", n, len(whole))
		}
	}
}

// A package whose records contradict themselves or each other is refused, or the one file is
// that they are about (APPNOTE 4.3, 4.5.3).
func TestDumpDamaged(t *testing.T) {
	const (
		local, directory, end64, locator = "PK\x03\x04", "PK\x01\x02", "PK\x06\x06", "PK\x06\x07"
		lacks, elsewhere                 = "its ZIP64 field lacks a length or the place", "leads to"
	)
	// The last file has a ZIP64 field behind its name: the kind, the length, and the lengths of the file.
	const field = 46 + len("resources/2")
	for _, tt := range []struct {
		name      string
		signature string // of the record that is changed; of several the last
		at        int    // where in it
		with      string // what is written there
		want      string
	}{
		{"no file", directory, 0, "XX", "something else where a file should begin"},
		{"a name longer than the directory", directory, 28, "\xff\xff", "ends within a file"},
		{"a file in another part", directory, 34, "\x01", "begins in another part"},
		{"a file behind the directory", directory, 42, "\xfe\xff\xff\x7f", "its bytes reach into the central directory"},
		{"a ZIP64 field of another kind", directory, field, "\x02", lacks},
		{"a ZIP64 field that is cut off", directory, field + 2, "\xff", lacks},
		{"a ZIP64 field that is too short", directory, field + 2, "\x08", lacks},
		{"a length that cannot be", directory, field + 4 + 7, "\x80", "cannot be true"},
		{"a locator of another part", locator, 4, "\x01", elsewhere},
		{"a locator of several parts", locator, 16, "\x02", elsewhere},
		{"a locator that leads behind itself", locator, 12, "\x01", elsewhere},
		{"a locator that leads elsewhere", locator, 8, "\x00\x00", "does not stand where its locator leads"},
		{"an end record of another length", end64, 4, "\x00", "does not stand where its locator leads"},
		{"an end record of another part", end64, 16, "\x01", "does not stand where its locator leads"},
		{"another number of files in this part", end64, 24, "\x01", "does not stand where its locator leads"},
		{"a local header with a longer field", local, 28, "\xff\xff", "shares bytes with another file"},
	} {
		files := goodFiles()
		files[2].Zip64 = true
		b := testenv.Zip(testenv.ZipEnd{Zip64: true}, files...)
		if _, bad, err := readDump(b, DumpOptions{URL: dumpURL}); err != nil || len(bad) > 0 {
			t.Fatal(bad, err)
		}
		copy(b[bytes.LastIndex(b, []byte(tt.signature))+tt.at:], tt.with)
		_, bad, err := readDump(b, DumpOptions{URL: dumpURL})
		var refused *DumpError
		if all := errors.Join(append(bad, err)...); !errors.As(all, &refused) || !strings.Contains(all.Error(), tt.want) || !strings.Contains(all.Error(), dumpURL) {
			t.Errorf("%s: bad %v, error %v; want %s", tt.name, bad, err, tt.want)
		}
	}
}

// A loop over the manifest may end anywhere, and the next one begins anew. What the manifest
// says of itself, and about how much memory the reader takes, is there without any.
func TestDumpEntries(t *testing.T) {
	files := goodFiles()
	files[0].Data = manifestOf(manifestEntry("1", "/resources/1", "", -1), "<url/>", manifestEntry("2", "/resources/2", "", -1))
	b := testenv.Zip(testenv.ZipEnd{}, files...)
	d, err := NewDumpReader(bytes.NewReader(b), int64(len(b)), DumpOptions{URL: dumpURL})
	if err != nil {
		t.Fatal(err)
	}
	for stop, want := range []string{"1", "1 bad", "1 bad 2"} {
		var got []string
		for e, err := range d.Entries() {
			if err != nil {
				got = append(got, "bad")
			} else {
				got = append(got, strings.TrimPrefix(e.Loc, "http://a.example/"))
			}
			if len(got) > stop {
				break
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("up to %d: %q, want %s", stop, got, want)
		}
	}
	if m := d.Manifest(); m.Capability != ResourceDumpManifest || m.At.IsZero() || len(m.Entries) > 0 {
		t.Errorf("the manifest's head is %+v", m)
	}
	more := testenv.Zip(testenv.ZipEnd{}, append(files, testenv.ZipFile{Name: "resources/" + strings.Repeat("x", 1000)})...)
	larger, err := NewDumpReader(bytes.NewReader(more), int64(len(more)), DumpOptions{})
	if err != nil || d.Memory() <= 0 || larger.Memory() < d.Memory()+1000 {
		t.Errorf("%d bytes of memory, and %d with a name of 1,010 bytes more, %v", d.Memory(), larger.Memory(), err)
	}
}

// What Go's own package writes can be read, with the data descriptors that it uses.
func TestDumpOfArchiveZip(t *testing.T) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range goodFiles() {
		w, err := z.Create(f.Name)
		if err == nil {
			_, err = io.WriteString(w, f.Data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if got, bad, err := readDump(b.Bytes(), DumpOptions{}); len(got) != 2 || len(bad) > 0 || err != nil {
		t.Errorf("%v, %v, %v", got, bad, err)
	}
}

// A broken disk is no fault of the package.
func TestDumpBelow(t *testing.T) {
	var refused *DumpError
	broken := errors.New("disk")
	if _, err := NewDumpReader(brokenAt{broken}, 100, DumpOptions{}); !errors.Is(err, broken) || errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}

type brokenAt struct{ error }

func (b brokenAt) ReadAt([]byte, int64) (int, error) { return 0, b.error }

// FuzzDumpReader: whatever is in a package, reading it does not panic, costs time and
// memory in proportion to its length, and what is read is what the package says.
func FuzzDumpReader(f *testing.F) {
	f.Add(testenv.Zip(testenv.ZipEnd{}, goodFiles()...))
	f.Add(testenv.Zip(testenv.ZipEnd{Zip64: true, Comment: "c"}, append(goodFiles(), testenv.ZipFile{Name: "l/"}, testenv.ZipFile{Name: "z", Zip64: true})...))
	f.Add(testenv.Zip(testenv.ZipEnd{Front: "x"}, append(goodFiles(), testenv.ZipFile{Name: "b", Data: strings.Repeat("\x00", 20_000), Deflated: true})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		testenv.Affordable(t, maxRatio*len(b), func() {
			got, _, err := readDump(b, DumpOptions{URL: dumpURL})
			again, _, errAgain := readDump(b, DumpOptions{URL: dumpURL})
			if len(got) != len(again) || (err == nil) != (errAgain == nil) {
				t.Errorf("%v and %v; %v and %v", got, again, err, errAgain)
			}
		})
	})
}
