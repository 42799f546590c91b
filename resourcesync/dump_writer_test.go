package resourcesync

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// packed is a file to be put into a package.
type packed struct{ path, kind, data string }

func (p packed) entry() *Entry {
	return &Entry{Loc: "http://a.example" + p.path, Metadata: Metadata{Path: p.path, Type: p.kind, Hash: sha256Of(p.data), Length: Bytes(int64(len(p.data)))}}
}

func opened(files []packed) func(*Metadata) (io.ReadCloser, error) {
	return func(m *Metadata) (io.ReadCloser, error) {
		for _, f := range files {
			if f.path == m.Path {
				return io.NopCloser(strings.NewReader(f.data)), nil
			}
		}
		return nil, os.ErrNotExist
	}
}

func manifestHead() *Document {
	return &Document{Capability: ResourceDumpManifest, At: Seconds(moment.Add(5 * time.Hour)), Links: []Link{{Rel: RelUp, Href: "http://a.example/cap"}}}
}

// newDump begins a package whose manifest is in a file of the test.
func newDump(t testing.TB, w io.Writer) *DumpWriter {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "manifest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return NewDumpWriter(w, f, manifestHead())
}

func writeDump(t testing.TB, files ...packed) []byte {
	t.Helper()
	var b bytes.Buffer
	d := newDump(t, &b)
	for _, f := range files {
		if err := d.Entry(f.entry(), opened(files)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// noise are n bytes that cannot be compressed.
func noise(n int) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b)
	return string(b)
}

// text are n bytes that can.
func text(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of a text\n", i*7919)
	}
	return b.String()[:n]
}

func sizes() []packed {
	var files []packed
	for _, n := range []int{0, 1, 2000, packBlock - 1, packBlock, packBlock + 1, 3*packBlock + 5} {
		for kind, data := range map[string]string{"text": text(n), "noise": noise(n), "nought": strings.Repeat("0", n), "mixed": (text(packBlock) + noise(packBlock) + strings.Repeat("0", n))[:n]} {
			files = append(files, packed{fmt.Sprintf("/resources/%d/%s", n, kind), "text/plain", data})
		}
	}
	return files
}

// What is written is read, by this package's reader and by another; and what was read can
// be written again.
func TestDumpWriter(t *testing.T) {
	testenv.Heavy(t)
	files := append(sizes(), packed{"/resources/a.png", "image/png", text(5000)}, packed{"/resources/b.mp4", "video/mp4", text(packBlock * 2)}, packed{"/übung/ä.txt", "text/plain", "x"})
	b := writeDump(t, files...)
	got, bad, err := readDump(b, DumpOptions{})
	if err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	for _, f := range files {
		if got[f.path[1:]] != f.data {
			t.Errorf("%s: has %d bytes, want %d", f.path, len(got[f.path[1:]]), len(f.data))
		}
	}
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if len(z.File) != len(files)+1 || z.File[len(files)].Name != ManifestName {
		t.Fatalf("the package has %d files, and the last is %s", len(z.File), z.File[len(z.File)-1].Name)
	}
	for i, f := range z.File {
		if i < len(files) && f.Name != files[i].path[1:] {
			t.Errorf("file %d is %s, want %s", i, f.Name, files[i].path)
		}
		if f.Flags&8 != 0 && f.Method != zip.Deflate {
			t.Errorf("%s: who reads a stream does not find its end", f.Name)
		}
		if f.Modified.Year() != 1980 || f.CompressedSize64*50 < f.UncompressedSize64-min(f.UncompressedSize64, packBlock) || f.CompressedSize64 > f.UncompressedSize64+100 {
			t.Errorf("%s: of %v, %d bytes in %d", f.Name, f.Modified, f.UncompressedSize64, f.CompressedSize64)
		}
	}
	for name, want := range map[string]uint16{"resources/a.png": zip.Store, "resources/b.mp4": zip.Deflate, "resources/2000/text": zip.Deflate, "resources/2000/noise": zip.Store} {
		for _, f := range z.File {
			if f.Name == name && f.Method != want {
				t.Errorf("%s: method %d, want %d", name, f.Method, want)
			}
		}
	}

	r, err := NewDumpReader(bytes.NewReader(b), int64(len(b)), DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	w := newDump(t, &again)
	for e, err := range r.Entries() {
		if err == nil {
			// However a reader returns the bytes, the package is the same.
			err = w.Entry(e, func(m *Metadata) (io.ReadCloser, error) {
				in, err := r.Open(m)
				return slowly{in}, err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil || !bytes.Equal(again.Bytes(), b) {
		t.Errorf("the copy of the package differs: %v", err)
	}
}

// slowly returns 1,000 bytes at most.
type slowly struct{ io.ReadCloser }

func (s slowly) Read(p []byte) (int, error) { return s.ReadCloser.Read(p[:min(len(p), 1000)]) }

// Files are compressed again unless their media type says that they are.
func TestCompressed(t *testing.T) {
	for types, want := range map[string]bool{
		"video/mp4 image/jpeg image/png audio/mpeg font/woff2 application/zip application/epub+zip application/x+gzip application/pdf": true,
		"application/vnd.openxmlformats-officedocument.wordprocessingml.document application/vnd.oasis.opendocument.text IMAGE/PNG":    true,
		"text/html application/xml image/svg+xml image/bmp image/tiff image/x-portable-pixmap audio/wav audio/x-aiff font/ttf":         false,
		"application/octet-stream model/gltf+json zip": false,
	} {
		for kind := range strings.FieldsSeq(types) {
			if compressed(kind) != want || compressed(kind+"; a=b") != want {
				t.Errorf("%s: compressed already %t", kind, !want)
			}
		}
	}
	if compressed("") {
		t.Error("an unknown type is compressed already")
	}
}

// Alternates have their bytes in the package too, and deletions have none.
func TestDumpWriterLinks(t *testing.T) {
	files := []packed{{"/resources/a", "text/plain", "one"}, {"/resources/a.pdf", "application/pdf", "two"}}
	var b bytes.Buffer
	d := newDump(t, &b)
	d.head.Capability, d.head.At, d.head.From = ChangeDumpManifest, Datetime{}, Seconds(moment.Add(1*time.Hour))
	d.manifest = NewWriter(d.copy, d.head)
	e := files[0].entry()
	e.Metadata.Change = Updated
	e.Links = []Link{
		{Rel: RelAlternate, Href: "http://a.example/a.pdf", Path: files[1].path, Hash: sha256Of("two"), Length: Bytes(3)},
		{Rel: RelVia, Href: "http://b.example/a"},
	}
	gone := &Entry{Loc: "http://a.example/gone", Metadata: Metadata{Change: Deleted}}
	if err := errors.Join(d.Entry(e, opened(files)), d.Entry(gone, opened(files)), d.Close()); err != nil {
		t.Fatal(err)
	}
	r, err := NewDumpReader(bytes.NewReader(b.Bytes()), int64(b.Len()), DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range r.Entries() {
		if err != nil {
			t.Fatal(err)
		}
		for m := range e.bitstreams() {
			in, err := r.Open(&m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(in); err != nil {
				t.Error(err)
			}
			n++
		}
	}
	if n != 2 || d.Entries() != 2 {
		t.Errorf("%d bitstreams of %d entries, want 2 of 2", n, d.Entries())
	}
}

// What is wrong ends the package, and says which file and why.
func TestDumpWriterRefuses(t *testing.T) {
	one := packed{"/resources/1", "text/plain", "one"}
	with := func(change func(e *Entry)) *Entry {
		e := one.entry()
		change(e)
		return e
	}
	for want, e := range map[string]*Entry{
		"it has 3 bytes, its entry says 4": with(func(e *Entry) { e.Metadata.Length = Bytes(4) }),
		"its SHA-256 is":                   with(func(e *Entry) { e.Metadata.Hash = sha256Of("two") }),
		"no leading slash":                 with(func(e *Entry) { e.Metadata.Path = "resources/1" }),
		"leads out of the package":         with(func(e *Entry) { e.Metadata.Path = "/../1" }),
		"that of a folder":                 with(func(e *Entry) { e.Metadata.Path = "/resources/" }),
		"a file of that name already":      with(func(e *Entry) { e.Metadata.Path = "/Manifest.xml" }),
		"not UTF-8":                        with(func(e *Entry) { e.Metadata.Path = "/\xff" }),
		"rs-path":                          with(func(e *Entry) { e.Metadata.Path = "" }),
		"file does not exist":              with(func(e *Entry) { e.Metadata.Path = "/resources/2" }),
		"already":                          with(func(e *Entry) { e.Links = []Link{{Rel: RelAlternate, Href: "http://a.example/", Path: "/resources/1"}} }),
	} {
		d := newDump(t, io.Discard)
		err := d.Entry(e, opened([]packed{one}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if again := errors.Join(d.Entry(one.entry(), opened([]packed{one})), d.Close()); again == nil {
			t.Errorf("%s: the package goes on", want)
		}
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := NewDumpWriter(io.Discard, f, &Document{Capability: ResourceList, At: Seconds(moment.Add(5 * time.Hour)), Links: manifestHead().Links})
	var rule *RuleError
	if err := d.Close(); !errors.As(err, &rule) || rule.Rule != ruleCapability {
		t.Errorf("the manifest is a Resource List: %v", err)
	}
}

// The limits end a package before the entry that would lift it above them.
func TestDumpWriterLimits(t *testing.T) {
	files := []packed{{"/1", "text/plain", "one"}, {"/2", "text/plain", "two"}, {"/3", "text/plain", "six"}}
	for name, limit := range map[string]func(d *DumpWriter){
		"entries":  func(d *DumpWriter) { d.MaxEntries = 2 },
		"bytes":    func(d *DumpWriter) { d.MaxBytes = 8 },
		"manifest": func(d *DumpWriter) { d.MaxManifest = 700 },
	} {
		var b bytes.Buffer
		d := newDump(t, &b)
		limit(d)
		if err := errors.Join(d.Entry(files[0].entry(), opened(files)), d.Entry(files[1].entry(), opened(files))); err != nil {
			t.Fatal(name, err)
		}
		if err := d.Entry(files[2].entry(), opened(files)); !errors.Is(err, ErrFull) {
			t.Errorf("%s: %v, want ErrFull", name, err)
		}
		if err := d.Close(); err != nil {
			t.Error(name, err)
		}
		if got, bad, err := readDump(b.Bytes(), DumpOptions{}); err != nil || bad != nil || len(got) != 2 {
			t.Errorf("%s: %v %v %v", name, got, bad, err)
		}
	}
}

// Every failed write of the package or its manifest is an error.
func TestDumpWriterFaults(t *testing.T) {
	files := sizes()[:8]
	whole := len(writeDump(t, files...))
	for room := range whole / 300 {
		d := newDump(t, &shortOf{left: room * 300})
		var err error
		for _, f := range files {
			err = errors.Join(err, d.Entry(f.entry(), opened(files)))
		}
		if err = errors.Join(err, d.Close()); !errors.Is(err, errNoRoom) {
			t.Fatalf("room for %d bytes of %d: %v", room*300, whole, err)
		}
	}
}

var errNoRoom = errors.New("no room")

// shortOf is a disk with room for so many bytes.
type shortOf struct{ left int }

func (s *shortOf) Write(p []byte) (int, error) {
	if s.left -= len(p); s.left < 0 {
		return 0, errNoRoom
	}
	return len(p), nil
}

// unpackAndCheck unpacks a package with Info-ZIP and has the result compared with its
// manifest by a program that knows nothing of this one.
func unpackAndCheck(t *testing.T, path string) string {
	t.Helper()
	unzip, python := testenv.Need(t, "unzip", "unzip"), testenv.Need(t, "python3", "python3")
	dir := t.TempDir()
	if out, err := exec.Command(unzip, "-q", path, "-d", dir).CombinedOutput(); err != nil {
		t.Fatalf("unzip: %v\n%s", err, out)
	}
	out, err := exec.Command(python, filepath.Join(testenv.Root(t), "testdata", "check_dump.py"), dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestDumpWriterUnzip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "1.zip")
	if err := os.WriteFile(path, writeDump(t, sizes()...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := unpackAndCheck(t, path), "resourcedump-manifest entries=28 deleted=0 files=28"; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

// endless yields bytes that depend on their place only: text, then noise, by turns.
type endless struct {
	left    int64
	pattern []byte
	at      int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), e.left)], e.pattern[e.at:])
	e.at = (e.at + n) % len(e.pattern)
	e.left -= int64(n)
	return n, nil
}

func (e *endless) Close() error { return nil }

// A package with a file over 4 GiB and one that begins after 4 GiB needs ZIP64; with more
// than 65,535 files it needs it as well. Memory does not grow with either.
func TestDumpWriterLarge(t *testing.T) {
	testenv.Soak(t)
	const large = 4<<30 + 12345
	pattern := []byte(text(packBlock) + noise(3*packBlock))
	content := func(n int64) *endless { return &endless{left: n, pattern: pattern} }
	sumOf := func(n int64) string {
		h := sha256.New()
		_, _ = io.Copy(struct{ hash.Hash }{h}, content(n))
		return fmt.Sprintf("sha-256:%x", h.Sum(nil))
	}
	dir, err := os.MkdirTemp("", "dump") // TMPDIR may be in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "1.zip")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := newDump(t, f)
	var peak uint64
	entry := func(name string, n int64, sum string) {
		e := &Entry{Loc: "http://a.example/" + name, Metadata: Metadata{Path: "/resources/" + name, Type: "text/plain", Hash: sum, Length: Bytes(n)}}
		if err := d.Entry(e, func(*Metadata) (io.ReadCloser, error) { return content(n), nil }); err != nil {
			t.Fatal(err)
		}
	}
	small := sumOf(100)
	for _, name := range []string{"a", "b"} {
		entry(name, large, sumOf(large))
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.Sys)
	}
	for i := range 70_000 {
		entry(fmt.Sprint(i), 100, small)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes; %d MiB of memory after two files of 4 GiB, %d MiB after 70,000 more", st.Size(), peak>>20, m.Sys>>20)
	if peak > 64<<20 || m.Sys > 192<<20 {
		t.Error("memory grows with the package")
	}
	r, err := NewDumpReader(f, st.Size(), DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range r.Entries() {
		if err != nil {
			t.Fatal(err)
		}
		in, err := r.Open(&e.Metadata)
		if err == nil {
			_, err = io.Copy(io.Discard, in)
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 70_002 {
		t.Errorf("%d entries, want 70,002", n)
	}
	unzip, python := testenv.Need(t, "unzip", "unzip"), testenv.Need(t, "python3", "python3")
	for _, cmd := range []*exec.Cmd{
		exec.Command(python, filepath.Join(testenv.Root(t), "testdata", "check_dump.py"), path),
		exec.Command(unzip, "-tqq", path),
	} {
		out, err := cmd.CombinedOutput()
		t.Logf("%s: %s", filepath.Base(cmd.Path), out)
		if err != nil {
			t.Error(err)
		}
	}
}
