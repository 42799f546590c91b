package fetch

import (
	"io"
	"net/http"
	"runtime"
	"testing"
	"time"
)

// BenchmarkGet compares GETs of a small document over 32 connections with a
// plain http.Client that is tuned and reads its bodies to the end.
func BenchmarkGet(b *testing.B) {
	doc := noise(2000)
	zipped := gz(doc)
	s, _ := serve(b, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gzip" && r.Header.Get("Accept-Encoding") != "" {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(zipped)
			return
		}
		w.Write(doc)
	})
	tuned := &http.Transport{MaxIdleConnsPerHost: 32, DisableCompression: true}
	defer tuned.CloseIdleConnections()
	plainGzip := &http.Transport{MaxIdleConnsPerHost: 32}
	defer plainGzip.CloseIdleConnections()
	g := newGuard(b, Options{Reach: Reach{Origin: s.URL}, PerHost: 32, IdleTimeout: time.Minute})
	for _, c := range []struct {
		name   string
		client *http.Client
		path   string
	}{
		{"plain", &http.Client{Transport: tuned}, "/"},
		{"guarded", g.Client(""), "/"},
		{"plain-gzip", &http.Client{Transport: plainGzip}, "/gzip"},
		{"guarded-gzip", g.Client(""), "/gzip"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetParallelism(max(1, 32/runtime.GOMAXPROCS(0)))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := c.client.Get(s.URL + c.path)
					if err != nil {
						b.Error(err)
						return
					}
					if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(doc)) {
						b.Errorf("%d bytes, %v", n, err)
						return
					}
					resp.Body.Close()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "gets/s")
		})
	}
}
