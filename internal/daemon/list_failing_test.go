package daemon_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// TestList_ChangeListFailsForLong: a Change List of an index that goes on failing does not keep
// back what the others and the Resource List have.
func TestList_ChangeListFailsForLong(t *testing.T) {
	for name, o := range map[string]harvest.Options{"again": {}, "in full": {Full: true}} {
		t.Run(name, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{}, content(config.Reference))
			b.create("a", "b", "c", "d")
			b.harvest()
			for _, n := range []string{"a", "b", "c"} {
				b.apart()
				b.origin.CloseChangeList()
				b.update(n)
			}
			b.origin.SetHook(fixtures.ChangeListPart(3), answer(http.StatusInternalServerError))
			before := b.last()
			b.wantError("HTTP status 500")
			b.want("it fails once", b.eventsAfter(before), "updated c 2")
			r := b.expectOf("it fails again", o, "updated a 2", "updated b 2")
			if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], fixtures.ChangeListPart(3)+" is missing") {
				t.Errorf("%s", said(r))
			}
			b.apart()
			b.remove("d")
			b.update("c")
			b.expect("it goes on failing", "deleted d", "updated c 3")
			b.origin.ClearHook(fixtures.ChangeListPart(3))
			b.quiet("it answers", b.expect("it answers"))
			b.wantSame("in the end")
		})
	}
}

// TestList_ChangeWaitsBesideAnOlderList: a Resource List that does not say when it was made, and
// is older, takes nothing from a change whose content waits.
func TestList_ChangeWaitsBesideAnOlderList(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{})
	b.origin.Misbehave(fixtures.MissingAt)
	b.create("a", "b")
	var list []byte
	b.origin.SetHook(fixtures.ResourceList, fixtures.Hook{Body: func(body []byte) []byte {
		if list == nil {
			list = body
		}
		return list
	}})
	b.harvest()
	b.apart()
	b.update("a")
	b.origin.SetHook("/res/a", answer(http.StatusInternalServerError))
	b.expect("its content cannot be had")
	b.wantPending(1)
	b.apart()
	b.origin.CloseChangeList()
	b.update("b")
	b.expect("another change", "updated b 2")
	b.apart()
	b.origin.CloseChangeList()
	b.update("b")
	b.expect("and one more", "updated b 3")
	b.expectFull("in full")
	b.wantPending(1)
	b.origin.ClearHook("/res/a")
	if r, err := b.try(harvest.Options{AllPending: true}); err != nil || r.Updated != 1 {
		t.Errorf("%v, %s", err, said(r))
	}
	b.wantPending(0)
	b.wantSame("in the end")
}

// TestList_PageInPlaceOfContent: where a list states a media type alone, an HTML page, as for a
// login, is not taken for something else. A server that only calls it so is believed.
func TestList_PageInPlaceOfContent(t *testing.T) {
	const page = "\n<!DOCTYPE html><title>Please log in</title>"
	html := http.Header{"Content-Type": {"text/html; charset=utf-8"}}
	for name, tt := range map[string]struct {
		md, body string
		header   http.Header
		taken    bool
	}{
		"a page":                          {`type="application/pdf"`, page, html, false},
		"a page in place of XML":          {`type="application/xml"`, page, html, false},
		"XML that is called a page":       {`type="application/xml"`, "<record/>", html, true},
		"XHTML that is meant as XML":      {`type="application/xml"`, `<html xmlns="http://www.w3.org/1999/xhtml"/>`, html, true},
		"a page that is called XML":       {`type="application/xml"`, page, http.Header{"Content-Type": {"application/xml"}}, true},
		"a page as the list says":         {`type="text/html"`, page, html, true},
		"a page of any type":              {`type="application/octet-stream"`, page, html, true},
		"a page of which nothing is said": {``, page, html, true},
		"a page of that length":           {fmt.Sprintf(`type="application/xml" length="%d"`, len(page)), page, html, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{})
			b.create("a")
			b.origin.SetHook(fixtures.ResourceList, fixtures.Hook{Body: func(body []byte) []byte {
				return regexp.MustCompile(`(<loc>[^<]*</loc>(?s:.*?))<rs:md [^>]*>`).ReplaceAll(body, []byte("$1<rs:md "+tt.md+"/>"))
			}})
			b.origin.SetHook(fixtures.ChangeListIndex, answer(http.StatusNotFound))
			b.origin.SetHook("/res/a", fixtures.Hook{Header: tt.header, Body: func([]byte) []byte { return []byte(tt.body) }})
			r := b.harvest()
			if taken := r.Created == 1 && r.Pending == 0; taken != tt.taken || r.Created+r.Pending != 1 {
				t.Errorf("%d created, %s", r.Created, said(r))
			}
		})
	}
}

// TestList_PageInPlaceOfAlternate: a login page in the place of one representation does not keep
// back the others.
func TestList_PageInPlaceOfAlternate(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{Hashes: []string{}})
	b.origin.Create(fixtures.Resource{Name: "a", Alternates: []fixtures.Format{{Ext: "pdf", Type: "application/pdf"}}})
	for _, path := range []string{fixtures.ResourceList, fixtures.ChangeListPart(1)} {
		b.origin.SetHook(path, fixtures.Hook{Body: func(body []byte) []byte {
			return regexp.MustCompile(` length="[0-9]*"`).ReplaceAll(body, nil)
		}})
	}
	b.origin.SetHook("/res/a.pdf", fixtures.Hook{Header: http.Header{"Content-Type": {"text/html"}}, Body: func([]byte) []byte { return []byte("<html>Please log in") }})
	r := b.harvest()
	for ev := range b.liveEvents() {
		if len(ev.Representations) != 1 || ev.Representations[0].Type != "application/xml" {
			t.Errorf("%v", ev.Representations)
		}
	}
	if r.Created != 1 || r.Pending != 1 {
		t.Errorf("%d created, %s", r.Created, said(r))
	}
	b.origin.ClearHook("/res/a.pdf")
	if r, err := b.try(harvest.Options{AllPending: true}); err != nil || r.Updated != 1 {
		t.Errorf("%v, %s", err, said(r))
	}
	b.wantPending(0)
	b.wantSame("in the end")
}
