package console_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// patience is how long a test waits for what must come soon.
const patience = time.Minute

// chromium is one process of Debian's Chromium, driven over pipes by the Chrome DevTools
// Protocol.
type chromium struct {
	t   testing.TB
	out io.Writer

	mu      sync.Mutex
	last    int
	waiting map[int]chan reply
	tabs    map[string]*tab
}

// reply is an answer, or an event of a tab.
type reply struct {
	ID      int
	Session string `json:"sessionId"`
	Method  string
	Params  json.RawMessage
	Result  json.RawMessage
	Error   *struct{ Message string }
}

// newChromium starts a browser that reaches this machine alone.
func newChromium(t testing.TB) *chromium {
	t.Helper()
	path := testenv.Need(t, "chromium", "chromium")
	toUs, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	commands, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-extensions", "--no-zygote", "--disable-site-isolation-trials", "--disable-features=BackForwardCache,SpareRendererForSitePerProcess,Translate,PaintHolding", "--js-flags=--single-threaded", "--disable-dev-shm-usage", "--mute-audio", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{commands, theirs}
	var errors bytes.Buffer
	cmd.Stderr = &errors
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = commands.Close(), theirs.Close()
	c := &chromium{t: t, out: ours, waiting: map[int]chan reply{}, tabs: map[string]*tab{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.read(toUs)
	}()
	t.Cleanup(func() {
		_ = ours.Close() // which ends it
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patience):
			cancel()
			<-ended
		}
		cancel()
		_ = toUs.Close()
		<-read
		if t.Failed() {
			t.Logf("the browser said:\n%s", errors.Bytes()[:min(errors.Len(), 4<<10)])
		}
	})
	return c
}

// read hands on what the browser says until it ends.
func (c *chromium) read(from io.Reader) {
	in := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := in.ReadBytes(0)
		if err != nil {
			break
		}
		var r reply
		if json.Unmarshal(line[:len(line)-1], &r) != nil {
			continue
		}
		c.mu.Lock()
		to, of := c.waiting[r.ID], c.tabs[r.Session]
		delete(c.waiting, r.ID)
		c.mu.Unlock()
		switch {
		case r.ID != 0 && to != nil:
			to <- r
		case r.ID == 0 && of != nil:
			of.event(&r)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, to := range c.waiting {
		delete(c.waiting, id)
		to <- reply{Error: &struct{ Message string }{"the browser has ended"}}
	}
}

// call calls a method and returns its result.
func (c *chromium) call(session, method string, params any) (json.RawMessage, error) {
	to := make(chan reply, 1)
	c.mu.Lock()
	c.last++
	message := map[string]any{"id": c.last, "method": method, "params": params}
	if session != "" {
		message["sessionId"] = session
	}
	c.waiting[c.last] = to
	text, err := json.Marshal(message)
	if err == nil {
		_, err = c.out.Write(append(text, 0))
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case r := <-to:
		if r.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, r.Error.Message)
		}
		return r.Result, nil
	case <-time.After(patience):
		return nil, fmt.Errorf("%s: no answer", method)
	}
}

// tab is a page of the browser.
type tab struct {
	c       *chromium
	session string
	loaded  chan struct{}

	mu       sync.Mutex
	problems []string // what the browser complains of
}

func (c *chromium) newTab() *tab {
	c.t.Helper()
	var target struct{ TargetID, SessionID string }
	result, err := c.call("", "Target.createTarget", map[string]any{"url": "about:blank"})
	if err == nil {
		err = json.Unmarshal(result, &target)
	}
	if err == nil {
		result, err = c.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})
	}
	if err == nil {
		err = json.Unmarshal(result, &target)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	tb := &tab{c: c, session: target.SessionID, loaded: make(chan struct{}, 100)}
	c.mu.Lock()
	c.tabs[tb.session] = tb
	c.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		tb.do(domain+".enable", nil)
	}
	return tb
}

// event notes that a page was loaded, and what the browser says against it.
func (p *tab) event(r *reply) {
	var e struct {
		Type             string
		Args             []struct{ Value, Description any }
		ExceptionDetails any
		Entry            struct{ Source, Level, Text, URL string }
	}
	_ = json.Unmarshal(r.Params, &e) // what it has not is zero
	problem := ""
	switch r.Method {
	case "Page.loadEventFired":
		p.loaded <- struct{}{}
	case "Runtime.exceptionThrown":
		problem = fmt.Sprint("exception: ", e.ExceptionDetails)
	case "Runtime.consoleAPICalled":
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			problem = fmt.Sprint("console: ", e.Args)
		}
	case "Log.entryAdded":
		if e.Entry.Level != "verbose" && e.Entry.Level != "info" {
			problem = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	}
	if problem != "" {
		p.mu.Lock()
		p.problems = append(p.problems, problem)
		p.mu.Unlock()
	}
}

// complaints returns what the browser has complained of since it was asked last.
func (p *tab) complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.problems
	p.problems = nil
	return found
}

func (p *tab) do(method string, params any) json.RawMessage {
	p.c.t.Helper()
	if params == nil {
		params = struct{}{}
	}
	result, err := p.c.call(p.session, method, params)
	if err != nil {
		p.c.t.Fatal(err)
	}
	return result
}

// await waits until a page is loaded.
func (p *tab) await() {
	p.c.t.Helper()
	select {
	case <-p.loaded:
	case <-time.After(patience):
		p.c.t.Fatal("a page is not loaded")
	}
}

func (p *tab) open(url string) {
	p.c.t.Helper()
	p.do("Page.navigate", map[string]any{"url": url})
	p.await()
}

// look is how a page is looked at: width in pixels, and light or dark. Nothing moves from
// one to the other.
func (p *tab) look(width, height int, scheme string) {
	p.c.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []any{
		map[string]string{"name": "prefers-color-scheme", "value": scheme}, map[string]string{"name": "prefers-reduced-motion", "value": "reduce"}}})
}

// scripts has pages run theirs, or not.
func (p *tab) scripts(run bool) {
	p.c.t.Helper()
	p.do("Emulation.setScriptExecutionDisabled", map[string]any{"value": !run})
}

// eval evaluates an expression of JavaScript, whatever the page may run.
func (p *tab) eval(expression string, into any) {
	p.c.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	err := json.Unmarshal(p.do("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}), &got)
	if err == nil && got.ExceptionDetails != nil {
		err = errors.New(string(got.ExceptionDetails))
	}
	if err == nil && into != nil {
		err = json.Unmarshal(got.Result.Value, into)
	}
	if err != nil {
		p.c.t.Fatalf("%.100s: %v", expression, err)
	}
}

// click clicks at an element as a mouse does. With leads it waits for the page that this
// leads to.
func (p *tab) click(selector string, leads bool) {
	p.c.t.Helper()
	var at struct{ X, Y float64 }
	p.eval(fmt.Sprintf(`(() => { const e = document.querySelector(%q); if (!e) throw new Error("no " + %[1]q); e.scrollIntoView({ block: "center" });
const r = e.getBoundingClientRect(); return { x: r.x + r.width / 2, y: r.y + r.height / 2 } })()`, selector), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		p.do("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1})
	}
	if leads {
		p.await()
	}
}

// enter types a text where the focus is.
func (p *tab) enter(text string) {
	p.c.t.Helper()
	p.do("Input.insertText", map[string]any{"text": text})
}

// screenshot writes a picture of the whole page into a folder.
func (p *tab) screenshot(folder, name string) {
	p.c.t.Helper()
	var got struct{ Data string }
	if err := json.Unmarshal(p.do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}), &got); err != nil {
		p.c.t.Fatal(err)
	}
	picture, err := base64.StdEncoding.DecodeString(got.Data)
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o644)
	}
	if err != nil {
		p.c.t.Fatal(err)
	}
}
