package ingest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

const mapSchema = `<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:maps" elementFormDefault="qualified">
<xs:element name="map"><xs:complexType><xs:sequence><xs:element name="scale" type="xs:int" maxOccurs="unbounded"/>
<xs:any minOccurs="0" namespace="##other" processContents="lax"/></xs:sequence></xs:complexType></xs:element></xs:schema>`

func inFolder(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestXMLLint(t *testing.T) {
	program := testenv.Need(t, "xmllint", "libxml2-utils")
	schema := inFolder(t, "map.xsd", mapSchema)
	validate := NewXMLLint(program, map[string]string{mapFormat: schema})
	for name, c := range map[string]struct {
		record string
		want   []string // of the reason; none is valid
	}{
		"valid":            {`<map xmlns="urn:maps"><scale>25000</scale></map>`, nil},
		"not a number":     {"<map xmlns='urn:maps'>\n<scale>large</scale></map>", []string{"line 2: ", "'large' is not a valid value"}},
		"another root":     {`<book/>`, []string{"line 1: ", "No matching global declaration"}},
		"many complaints":  {"<map xmlns='urn:maps'>" + strings.Repeat("<scale>x</scale>", 1000) + "</map>", []string{"line 1: ", "; line 1: "}},
		"a long complaint": {"<map xmlns='urn:maps'><scale>" + strings.Repeat("ü", 100_000) + "</scale></map>", []string{"line 1: "}},
		"cut":              {"<map xmlns='urn:maps'><scale>", []string{"parser error"}},
	} {
		reason, err := validate(t.Context(), mapFormat, []byte(c.record))
		if err != nil || (reason == "") != (c.want == nil) {
			t.Errorf("%s: %q, %v", name, reason, err)
		}
		for _, part := range c.want {
			if !strings.Contains(reason, part) {
				t.Errorf("%s: %q has no %q", name, reason, part)
			}
		}
		if len(reason) > 1500 || strings.Contains(reason, filepath.Dir(schema)) || strings.Contains(reason, "\n") {
			t.Errorf("%s: %q", name, reason)
		}
	}
	if reason, err := validate(t.Context(), "https://schemas.example/other.xsd", []byte("<other/>")); reason != "" || err != nil {
		t.Errorf("a format without a local schema: %q, %v", reason, err)
	}
}

// A record cannot make xmllint read a file: a pipe would keep it for ever.
func TestXMLLintReadsNoOtherFile(t *testing.T) {
	program := testenv.Need(t, "xmllint", "libxml2-utils")
	schema := inFolder(t, "map.xsd", mapSchema)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	reason, err := NewXMLLint(program, map[string]string{mapFormat: schema})(ctx, mapFormat,
		[]byte(`<map xmlns="urn:maps" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="urn:b `+pipe+` urn:maps `+pipe+
			`"><scale>1</scale><b xmlns="urn:b" xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="`+pipe+`"/></b></map>`))
	if reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// What does not say "valid" or "invalid" of the record is an error.
func TestXMLLintThatFails(t *testing.T) {
	testenv.Heavy(t)
	schema := inFolder(t, "map.xsd", mapSchema)
	script := func(body string) string { return inFolder(t, "xmllint", "#!/bin/sh\n"+body+"\n") }
	for name, c := range map[string]struct{ program, schema, want string }{
		"killed":                     {script("kill -9 $$"), schema, "signal: killed"},
		"segmentation":               {script("kill -SEGV $$"), schema, "signal"},
		"out of memory":              {script("echo 'out of memory' >&2; exit 9"), schema, "out of memory"},
		"invalid, unsaid":            {script("exit 3"), schema, "exit status 3"},
		"usage":                      {script("echo 'Unknown option --nonet'; exit 1"), schema, "Unknown option"},
		"no program":                 {filepath.Join(t.TempDir(), "none"), schema, "no such file"},
		"endless output":             {script("yes | head -c 10000000; exit 2"), schema, "exit status 2"},
		"about the schema":           {script("echo '" + schema + ":1: parser error : no' >&2; exit 5"), schema, "exit status 5"},
		"a missing schema":           {"xmllint", filepath.Join(t.TempDir(), "none.xsd"), "exit status 5"},
		"a broken schema":            {"xmllint", inFolder(t, "bad.xsd", "<xs:schema"), "exit status 5"},
		"a schema that is no schema": {"xmllint", inFolder(t, "bad.xsd", "<html/>"), "exit status 5"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.program == "xmllint" {
				c.program = testenv.Need(t, "xmllint", "libxml2-utils")
			}
			reason, err := NewXMLLint(c.program, map[string]string{mapFormat: c.schema})(t.Context(), mapFormat, []byte(`<map xmlns="urn:maps"><scale>1</scale></map>`))
			if reason != "" || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, %v, want an error with %q", reason, err, c.want)
			}
		})
	}
}

// No more run at once than there are processors, and who waits may go.
func TestXMLLintRunsFewAtOnce(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	program := inFolder(t, "xmllint", "#!/bin/sh\necho x >> "+folder+"/count\nread line < "+pipe+"\n")
	validate := NewXMLLint(program, map[string]string{mapFormat: "map.xsd"})
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	results := make(chan error, 20)
	for range 20 {
		wait.Go(func() {
			_, err := validate(ctx, mapFormat, []byte("<map/>"))
			results <- err
		})
	}
	// Opening the pipe for writing succeeds when the first has it open.
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	wait.Wait()
	w.Close()
	for range 20 {
		if err := <-results; err != context.Canceled {
			t.Errorf("an abandoned validation: %v", err)
		}
	}
	count, err := os.ReadFile(folder + "/count")
	if started := strings.Count(string(count), "x"); err != nil || started == 0 || started > runtime.GOMAXPROCS(0) {
		t.Errorf("%d were started, %v, want at most %d", started, err, runtime.GOMAXPROCS(0))
	}
}
