package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/pmh-bridge/bridge/sip"
)

// storingServer is an ingest server and notification recipient that takes everything.
type storingServer struct {
	folder string // where it keeps each record in a file, "" nowhere
	taken  atomic.Int64
}

func (s *storingServer) Admit(context.Context, sip.Caller) error { return nil }

func (s *storingServer) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return &sip.Properties{Style: sip.Synchronous, Formats: []string{"https://bench.example/map.xsd"}}, nil
}

func (s *storingServer) Ingest(_ context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	if err := s.keep(r.Record.XML); err != nil {
		return nil, err
	}
	return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "B-" + *r.Source.Identifier}, nil
}

func (s *storingServer) Notify(_ context.Context, _ sip.Caller, d *sip.Disposition) error {
	return s.keep([]byte(d.AssignedIdentifier))
}

// keep writes a file of its own, in one of 256 folders, and has it on the disk
// when it returns nil; its folder's entry it does not wait for.
func (s *storingServer) keep(b []byte) error {
	n := s.taken.Add(1)
	if s.folder == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(s.folder, fmt.Sprintf("%02x", n%256), fmt.Sprint(n)))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}

// serveSink serves one that keeps nothing, or files below the job's folder.
func serveSink(_ context.Context, j job, ready func(result)) (result, error) {
	s := &storingServer{folder: j.Folder}
	for i := range 256 {
		if s.folder == "" {
			break
		}
		if err := os.MkdirAll(filepath.Join(s.folder, fmt.Sprintf("%02x", i)), 0o755); err != nil {
			return result{}, err
		}
	}
	handler := &sip.Handler{Backend: s, Offers: sip.Operations{Ingest: true, Notify: true}}
	mux := http.NewServeMux()
	mux.Handle(servicePath, handler)
	mux.HandleFunc(servicePath+"/", func(w http.ResponseWriter, r *http.Request) {
		handler.Serve(w, r, strings.TrimPrefix(r.URL.Path, servicePath+"/"))
	})
	mux.HandleFunc(requestsPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.taken.Load()) })
	err := serveUntil(mux, ready)
	return result{Count: s.taken.Load()}, err
}
