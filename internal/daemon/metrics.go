package daemon

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/metrics"
)

// newMetrics returns the metrics for Prometheus.
func (b *Bridge) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{Version: b.opt.Version, Status: b.Status, Sizes: b.fileSizes, Now: b.now})
}

// Metrics returns the handler of requests from Prometheus.
func (b *Bridge) Metrics() http.Handler { return b.metrics.Handler() }

// sizeTime bounds how long a server with the log is asked for its size. Prometheus gives up
// after ten seconds, and would then miss what can be known without the server.
const sizeTime = 2 * time.Second

// fileSizes returns the bytes of the databases and their write-ahead logs. The error is that
// of a server with the log, which does not answer. Contents may be on it too.
func (b *Bridge) fileSizes() (map[string]int64, error) {
	out := map[string]int64{}
	names := []string{eventlog.FileName, content.FileName}
	onServer := eventlog.OnServer(b.Config().Data)
	if onServer {
		names = names[1:]
	}
	for _, name := range names {
		for _, file := range []string{name, name + "-wal"} {
			if st, err := os.Stat(filepath.Join(b.Config().Data, file)); err == nil {
				out[file] = st.Size()
			}
		}
	}
	if !onServer {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sizeTime)
	defer cancel()
	n, err := b.Log.Size(ctx)
	if err == nil {
		out["log"] = n
	}
	if b.Contents != nil && b.Contents.OnServer() {
		n, err2 := b.Contents.Size(ctx)
		if err = errors.Join(err, err2); err2 == nil {
			out["contents"] = n
		}
	}
	return out, err
}

// label is the name of a Source in metrics.
func (s *Source) label() string { return metrics.Label(s.Name, Redact(s.URL)) }
