package fetch

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// folder makes root/feed.atom, root/sub/a b.xml, and outside of root secret.txt.
func folder(t *testing.T) (root string) {
	t.Helper()
	top := t.TempDir()
	root = filepath.Join(top, "root")
	for name, content := range map[string]string{"root/feed.atom": "<feed/>", "root/sub/a b.xml": "<a/>", "secret.txt": "secret", "root-2/x": "secret"} {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFileAnswers(t *testing.T) {
	root := folder(t)
	stamp := time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)
	if err := os.Chtimes(filepath.Join(root, "feed.atom"), stamp, stamp); err != nil {
		t.Fatal(err)
	}
	c := newGuard(t, Options{}).Client(root)
	u := (&url.URL{Scheme: "file", Path: filepath.Join(root, "feed.atom")}).String()
	resp, err := c.Get(u)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	h := resp.Header
	if err != nil || string(b) != "<feed/>" || resp.StatusCode != 200 || resp.ContentLength != 7 || h.Get("Content-Length") != "7" ||
		h.Get("Content-Type") != "application/atom+xml" || h.Get("Last-Modified") != "Fri, 02 Jan 2026 03:04:05 GMT" || h.Get("Date") == "" {
		t.Errorf("%s %q %v %v", resp.Status, b, err, h)
	}

	tag := h.Get("Etag")
	for match, want := range map[string]int{tag: 304, "W/" + tag: 304, `"x", ` + tag: 304, "*": 304, `"x"`: 200, "": 200} {
		req, _ := http.NewRequest("GET", u, nil)
		req.Header.Set("If-None-Match", match)
		resp, err := c.Do(req)
		if err != nil || resp.StatusCode != want || resp.Header.Get("Etag") != tag {
			t.Errorf("If-None-Match %s: %v, %v", match, resp, err)
		}
		resp.Body.Close()
	}
	// Another change within the same second, of the same length.
	if err := os.Chtimes(filepath.Join(root, "feed.atom"), stamp, stamp.Add(time.Microsecond)); err != nil {
		t.Fatal(err)
	}
	if resp, err = c.Head(u); err != nil || resp.Header.Get("Etag") == tag || resp.ContentLength != 7 {
		t.Errorf("HEAD: %v, %v", resp, err)
	}
	resp.Body.Close()

	for name, want := range map[string]int{"missing.xml": 404, "sub/none/x": 404, "feed.atom?page=2": 404, "sub/a%20b.xml": 200, "sub/../feed.atom": 200, "sub/%2e%2e/feed.atom": 200} {
		if status, _, err := get(c, "file://"+root+"/"+name); err != nil || status != want {
			t.Errorf("%s: status %d, %v, want %d", name, status, err, want)
		}
	}
	if status, _, err := get(c, "file://localhost"+root+"/feed.atom"); err != nil || status != 200 {
		t.Errorf("localhost: status %d, %v", status, err)
	}
	if resp, err = c.Post(u, "text/plain", strings.NewReader("x")); err != nil || resp.StatusCode != 405 {
		t.Errorf("POST: %v, %v", resp, err)
	}
}

// A file that was written again is read again, also when it has the size and the time of
// modification that it had.
func TestFileWithItsFormerTime(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only there the time of the change is known")
	}
	root := folder(t)
	name := filepath.Join(root, "feed.atom")
	u := (&url.URL{Scheme: "file", Path: name}).String()
	c := newGuard(t, Options{}).Client(root)
	first, err := c.Get(u)
	if err != nil {
		t.Fatal(err)
	}
	first.Body.Close()
	before, err := os.Stat(name)
	for info := before; err == nil && ChangedAt(info) == ChangedAt(before); { // until the clock of the file system has gone on
		err = errors.Join(os.WriteFile(name, []byte("<FEED/>"), 0o644), os.Chtimes(name, before.ModTime(), before.ModTime()))
		if err == nil {
			info, err = os.Stat(name)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequest(http.MethodGet, u, nil)
	req.Header.Set("If-None-Match", first.Header.Get("Etag"))
	again, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	if b, err := io.ReadAll(again.Body); err != nil || string(b) != "<FEED/>" {
		t.Errorf("%s %q, %v", again.Status, b, err)
	}
}

func TestFileStaysInItsFolder(t *testing.T) {
	root := folder(t)
	links := map[string]string{
		"out": "../secret.txt", "abs": filepath.Join(root, "../secret.txt"), "dir": "..", "chain": "out",
		"sub/up": "../../secret.txt", "inside": "sub/a b.xml", "sub/inside": "../feed.atom",
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	c := newGuard(t, Options{}).Client(root)
	for _, name := range []string{
		"/../secret.txt", "/%2e%2e/secret.txt", "/%2E./secret.txt", "/..%2fsecret.txt", "/sub/../../secret.txt", "/sub/%2e%2e/%2e%2e/secret.txt", "-2/x",
		"/out", "/abs", "/dir/secret.txt", "/chain", "/sub/up", "/..", "", "/", "/sub", "/../../../../../../etc/passwd",
	} {
		status, body, err := get(c, "file://"+root+name)
		if !errors.Is(err, errFile) || Transient(err) || strings.Contains(body, "secret") {
			t.Errorf("%s: status %d, body %q, %v, want errFile", name, status, body, err)
		}
	}
	for _, bad := range []string{"file:///etc/passwd", "file://server.example" + root + "/feed.atom", "file:feed.atom", "file:", "file://" + root + "/feed.atom%00"} {
		if status, _, err := get(c, bad); err == nil {
			t.Errorf("%s: status %d", bad, status)
		}
	}
	for _, name := range []string{"inside", "sub/inside"} {
		if status, _, err := get(c, "file://"+root+"/"+name); err != nil || status != 200 {
			t.Errorf("link inside the folder, %s: status %d, %v", name, status, err)
		}
	}
	if _, _, err := get(newGuard(t, Options{}).Client(""), "file://"+root+"/feed.atom"); !errors.Is(err, errScheme) {
		t.Errorf("a client without a folder: %v, want errScheme", err)
	}
}

// A pipe in the folder would be waited for, and a device read for ever.
func TestOnlyRegularFiles(t *testing.T) {
	root := folder(t)
	if err := syscall.Mkfifo(filepath.Join(root, "pipe.xml"), 0o644); err != nil {
		t.Skip("this system has no named pipes:", err)
	}
	if _, _, err := get(newGuard(t, Options{}).Client(root), "file://"+root+"/pipe.xml"); !errors.Is(err, errFile) {
		t.Errorf("a named pipe: %v, want errFile", err)
	}
}

func TestUnreadableFileIsNotGone(t *testing.T) {
	if os.Geteuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("this user may read everything")
	}
	root := folder(t)
	if err := os.Chmod(filepath.Join(root, "feed.atom"), 0); err != nil {
		t.Fatal(err)
	}
	if status, _, err := get(newGuard(t, Options{}).Client(root), "file://"+root+"/feed.atom"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("status %d, %v, want a permission error", status, err)
	}
}

func TestMissingFolder(t *testing.T) {
	root := filepath.Join(t.TempDir(), "none")
	if status, _, err := get(newGuard(t, Options{}).Client(root), "file://"+root+"/feed.atom"); err != nil || status != 404 {
		t.Errorf("status %d, %v", status, err)
	}
}

// A file that is changed while it is read is neither the old one nor the new.
func TestFileChangedWhileRead(t *testing.T) {
	for what, change := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 2000) },
		"grown":   func(path string) error { return os.Truncate(path, 9000) },
		"touched": func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) },
	} {
		root := folder(t)
		path := filepath.Join(root, "big.xml")
		if err := os.WriteFile(path, make([]byte, 5000), 0o644); err != nil {
			t.Fatal(err)
		}
		resp, err := newGuard(t, Options{}).Client(root).Get("file://" + path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if !errors.Is(err, errBroken) || !Transient(err) || !strings.Contains(err.Error(), "big.xml") {
			t.Errorf("%s: %v, want errBroken", what, err)
		}
	}
}

func TestMediaTypes(t *testing.T) {
	for name, want := range map[string]string{
		"a.atom": "application/atom+xml", "a.XML": "application/xml", "a.json": "application/json", "a.rdf": "application/rdf+xml",
		"a.html": "text/html", "a.tar.gz": "application/gzip", "a": "application/octet-stream", "a.": "application/octet-stream", "a.exe": "application/octet-stream",
	} {
		if got := MediaType(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
