package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

const (
	// servicePath is the path of the service of the set main.
	servicePath = "/sip/main"
	// format is the root element and the schema of all records of these cases.
	format = `{ "{urn:example:bench}map" = "https://bench.example/map.xsd" }`
	// recordSize is the approximate length of a record in bytes.
	recordSize = 2048
	// unusedServer is the ingest server of a target that has nothing to send.
	unusedServer = "http://127.0.0.1:9/sip"
)

// filling returns the text that makes a record recordSize bytes long.
func filling() string {
	line := "<name>Sheet of the survey, printed in two colours</name>"
	return strings.Repeat(line, (recordSize-90)/len(line))
}

// appendRecord appends record n as a document of its own. Another version has other bytes.
func appendRecord(to []byte, n, version int, filling string) []byte {
	return fmt.Appendf(to, `<map xmlns="urn:example:bench"><number>%08d</number><version>%d</version>%s</map>`, n, version, filling)
}

// identifier returns the identifier of a record, in its source element or in a log.
func identifier(n int) string { return fmt.Sprintf("urn:example:map:%08d", n) }

// openSIP opens a data folder whose set main takes part in the protocol. lines are its
// configuration.
func openSIP(ctx context.Context, folder, lines string) (*daemon.Bridge, error) {
	file := filepath.Join(folder, "bridge.toml")
	text := fmt.Sprintf("data = %q\nlisten = \"127.0.0.1:0\"\n[[set]]\nname = \"main\"\n%s", folder, lines)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	c, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// libraryLines configure it as an ingest server with restricted access, so that there is no
// quota; targetLines configure it as a submitter to a URL, which is notified of the outcome
// of its submissions.
func libraryLines() string {
	return "[[set.source]]\nkind = \"sip\"\nmode = \"library\"\nformats = " + format + "\naccess = \"addresses\"\naccess_addresses = [\"127.0.0.1\"]\n"
}

func targetLines(url string) string {
	return fmt.Sprintf("[[set.submit]]\nurl = %q\nformats = %s\n", url, format)
}

// serveLibrary runs bridge serve as an ingest server. Count is the number of records at the
// end.
func serveLibrary(ctx context.Context, j job, ready func(result)) (result, error) {
	return serveSIP(ctx, j, libraryLines(), ready, func(ctx context.Context, h *daemon.Bridge) (int64, error) {
		s, err := h.Log.Set(ctx, "main")
		return s.Live, err
	})
}

// serveTarget runs bridge serve as a submitter that waits for dispositions. Count is the
// number of accepted submissions at the end.
func serveTarget(ctx context.Context, j job, ready func(result)) (result, error) {
	return serveSIP(ctx, j, targetLines(unusedServer), ready, func(ctx context.Context, h *daemon.Bridge) (int64, error) {
		return acceptedBy(ctx, h.SIP)
	})
}

// serveSIP serves until the parent ends its input, then counts.
func serveSIP(ctx context.Context, j job, lines string, ready func(result), count func(context.Context, *daemon.Bridge) (int64, error)) (r result, err error) {
	h, err := openSIP(ctx, j.Folder, lines)
	if err != nil {
		return r, err
	}
	err = serveDaemon(ctx, ready, func(ctx context.Context, l net.Listener) error { return h.Serve(ctx, l, nil) })
	if err == nil {
		if r.Count, err = count(context.WithoutCancel(ctx), h); err == nil {
			err = j.counted(r.Count)
		}
	}
	return r, errors.Join(err, h.Close())
}

// counted fails if a server that is to get Number messages has got another number.
func (j *job) counted(n int64) error {
	if j.Number > 0 && n != int64(j.Number) {
		return fmt.Errorf("%s has counted %d of %d", j.Name, n, j.Number)
	}
	return nil
}

// acceptedBy returns how many submissions the targets of the set main have
// accepted.
func acceptedBy(ctx context.Context, l *store.Store) (n int64, err error) {
	targets, err := l.Targets(ctx, "main")
	if err != nil {
		return 0, err
	}
	for _, t := range targets {
		c, err := l.Counts(ctx, t.ID)
		if err != nil {
			return 0, err
		}
		n += c.Submissions[submission.StateAccepted]
	}
	return n, nil
}

// buildSubmissions makes a provisionally accepted submission of each of the first
// Number records of the set main.
func buildSubmissions(ctx context.Context, j job, _ func(result)) (r result, err error) {
	log, err := eventlog.Open(ctx, j.Folder, eventlog.Options{Holder: "bench"})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	target, err := log.EnsureSource(ctx, "main", eventlog.Target, unusedServer, 1<<20)
	if err != nil {
		return r, err
	}
	deadline := event.MicrosOf(time.Now().Add(24 * time.Hour))
	for from := 0; from < j.Number; from += batchSize {
		steps := make([]submission.Update, min(batchSize, j.Number-from))
		for i := range steps {
			o := observation(from + i)
			s := &steps[i].Submission
			*s = submission.Submission{Source: target, State: submission.StateProvisional, Token: token(from + i), Seq: event.Seq(from + i + 1),
				SourceXML: sip.AppendSource(nil, sourceOfRecord(from+i)), SourceIdentifier: identifier(from + i), Record: o.Record, Title: o.Title,
				Length: recordSize, Type: "application/xml", Due: deadline, Deadline: deadline, Tries: 1}
		}
		if _, err := store.New(log).Write(ctx, &submission.Batch{Source: target, URL: unusedServer, Updates: steps}); err != nil {
			return r, err
		}
	}
	return r, nil
}

// storingServer is an ingest server and notification recipient that accepts everything.
type storingServer struct {
	folder string // each record is stored there in a file, "" stores none
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

// keep writes a file of its own, in one of 256 folders. The file is durable when keep
// returns nil; the entry in its folder may not be.
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

// serveSink serves a storingServer that stores nothing, or files below the job's folder.
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
	return result{Count: s.taken.Load()}, errors.Join(err, j.counted(s.taken.Load()))
}
