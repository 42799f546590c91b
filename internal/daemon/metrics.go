package daemon

import (
	"net/http"
	"os"
	"path/filepath"

	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/metrics"
)

// newMetrics returns the metrics for Prometheus.
func (b *Bridge) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{Version: b.opt.Version, Status: b.Status, Sizes: b.fileSizes, Now: b.now})
}

// Metrics returns the handler of requests from Prometheus.
func (b *Bridge) Metrics() http.Handler { return b.metrics.Handler() }

// fileSizes returns the bytes of the databases and their write-ahead logs.
func (b *Bridge) fileSizes() map[string]int64 {
	out := map[string]int64{}
	for _, name := range []string{eventlog.FileName, "content.db"} {
		for _, file := range []string{name, name + "-wal"} {
			if st, err := os.Stat(filepath.Join(b.Config().Data, file)); err == nil {
				out[file] = st.Size()
			}
		}
	}
	return out
}

// countHarvest counts a harvest that has ended.
func (b *Bridge) countHarvest(src *Source, r *harvest.Report) {
	b.metrics.Harvested(src.Set, metrics.Label(src.Name, Redact(src.URL)), r)
}
